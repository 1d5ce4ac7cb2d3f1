//! `cargo xtask engines`: real inference engines on the store, which take long to build and are not part of the tests.

mod python;

use crate::deps::{self, Need};
use crate::failure::{Failure, Result};
use crate::process;
use crate::progress::Progress;
use crate::workspace;
use clap::Args;

/// `cargo xtask engines`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  cargo xtask engines --llama\n  cargo xtask engines --python --yes"
)]
pub(crate) struct EnginesArgs {
    /// llama.cpp: the example kvstore/examples/llama serves prompts of a tiny model, is killed and restarted, and restores
    /// them
    #[arg(long)]
    llama: bool,

    /// Dynamo's KV block manager: the example kvstore/examples/dynamo is its object client
    #[arg(long)]
    dynamo: bool,

    #[command(flatten)]
    python: python::PythonArgs,
}

/// An engine's example: a workspace of its own, whose tests show that it works.
struct Example {
    folder: &'static str,
    engine: &'static str,
    needs: &'static [Need],
}

const LLAMA: Example = Example {
    folder: "kvstore/examples/llama",
    engine: "llama.cpp",
    needs: &[deps::CPP_COMPILER, deps::C_LIBRARY, deps::CMAKE, deps::LIBCLANG],
};
const DYNAMO: Example = Example {
    folder: "kvstore/examples/dynamo",
    engine: "Dynamo's crates",
    needs: &[deps::C_COMPILER, deps::C_LIBRARY, deps::PROTOC],
};

/// Runs the chosen engines; returns the exit code of the first that fails.
pub(crate) fn run(arguments: &EnginesArgs) -> Result<u8> {
    let chosen = [(arguments.llama, LLAMA), (arguments.dynamo, DYNAMO)];
    let mut chosen = chosen.into_iter().filter(|(is_chosen, _)| *is_chosen).peekable();
    if chosen.peek().is_none() && !arguments.python.python {
        return Err(Failure::new("which engines? for example: cargo xtask engines --llama"));
    }
    for (_, example) in chosen {
        let code = example.test()?;
        if code != 0 {
            return Ok(code);
        }
    }
    if arguments.python.python { python::run(&arguments.python) } else { Ok(0) }
}

impl Example {
    /// Builds it and runs its tests, which print their times.
    fn test(&self) -> Result<u8> {
        deps::ensure(self.needs)?;
        let folder = workspace::root().join(self.folder);
        let target = workspace::target_directory()?.join("engines");
        let cargo = |words: &[&str]| {
            let mut command = workspace::cargo();
            command.current_dir(&folder).env("CARGO_TARGET_DIR", &target);
            command.args(["test", "--release", "--locked", "--quiet"]).args(words);
            command
        };
        {
            let _progress =
                Progress::start(format!("building {}, minutes the first time", self.engine));
            process::run_quietly(&mut cargo(&["--no-run"]))?;
        }
        // One after the other: engines take all cores, and tests measure.
        process::exit_code(&mut cargo(&["--", "--nocapture", "--test-threads", "1"]))
    }
}
