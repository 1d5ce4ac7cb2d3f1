//! The demonstration as a program of its own, for `cargo xtask demo`; `adit demo` is the same.

use std::process::ExitCode;

use adit_tools_common::failure::{Failure, Result};
use adit_tools_common::output;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::remark(&format!("adit-demo: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => adit_demo::run(),
        // The second process.
        ["demo", "--put-into", target] => adit_demo::put_into(&target.parse()?),
        _ => Err(Failure::usage("it takes no arguments; 'adit --help' lists commands that do")),
    }
}
