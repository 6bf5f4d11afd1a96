//! The same seed gives the same run, to the last byte of the transcript.

use ebb_sim::cluster;
use ebb_testing::search::{Case, run, with_transcript};

#[test]
fn two_runs_of_a_seed_have_the_same_transcript_and_its_writing_changes_nothing() {
    for seed in 1..=6 {
        let play = || with_transcript(&Case::whole(seed), usize::MAX, cluster(&|_| {}));
        let (first, second) = (play(), play());
        assert!(first.0.len() > 500, "seed {seed} does almost nothing");
        assert!(first.0 == second.0, "seed {seed} has two transcripts");
        let quiet = run(seed, cluster(&|_| {})).expect("a good seed");
        assert_eq!(
            first.1.expect("a good seed"),
            quiet,
            "the transcript of seed {seed} changes what happens"
        );
    }
}
