//! The same seed gives the same run, to the last byte of the transcript.

use ebb_sim::{run, run_with_transcript};

#[test]
fn two_runs_of_a_seed_have_the_same_transcript() {
    for seed in 1..=10 {
        let (first, second) = (run_with_transcript(seed, usize::MAX), run_with_transcript(seed, usize::MAX));
        assert!(first.0.len() > 500, "seed {seed} does almost nothing");
        assert!(first.0 == second.0, "seed {seed} has two transcripts");
    }
}

#[test]
fn a_transcript_does_not_change_what_happens() {
    for seed in 1..=10 {
        let quiet = run(seed, &|_| {}).expect("a good seed");
        let again = run(seed, &|_| {}).expect("a good seed");
        assert_eq!(quiet, again);
    }
}
