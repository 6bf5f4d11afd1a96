//! The project's own chores.

mod changed;
mod claims;
mod ranges;
mod source;
mod test;
mod tidy;

use std::path::Path;
use std::process::ExitCode;
use test::Tier;

const USAGE: &str = "\
usage: cargo xtask tidy           what the compiler does not check of the house, its pages and its papers
       cargo xtask papers         writes docs/papers.md from docs/claims
       cargo xtask papers --check whether the page is what docs/claims gives
       cargo xtask papers --ranges [--seeds A..B] [--only TEXT] [--ebb PATH]
                                  measures the figures over seeds (1..21: the end is not included), and
                                  writes docs/claims and the page
       cargo xtask test           every test, in its short form
       cargo xtask test --quick   what changed since the last commit (or with it), and what depends on it
       cargo xtask test --night   every test, also those that are ignored by day";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is in the checkout");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let well = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(root),
        ["papers"] => claims::write(root),
        ["papers", "--check"] => claims::check(root),
        ["papers", "--ranges", ref rest @ ..] => ranges::run(root, rest),
        ["test"] => test::run(root, Tier::Day),
        ["test", "--quick"] => test::run(root, Tier::Quick),
        ["test", "--night"] => test::run(root, Tier::Night),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
