//! Options for the tests of a bench.

use clap::Parser;

use super::args::BenchArgs;

#[derive(Parser)]
struct BenchLine {
    #[command(flatten)]
    args: BenchArgs,
}

pub(super) fn args(line: &str) -> BenchArgs {
    let words = ["bench"].into_iter().chain(line.split_whitespace());
    BenchLine::try_parse_from(words).expect("options that can be").args
}
