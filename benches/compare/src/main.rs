//! Compares the store with foyer, RocksDB's BlobDB and plain files on one file system.
//!
//! | file | holds |
//! |---|---|
//! | `options`, `size` | the command line |
//! | `parent` | rounds of children, one for each engine in turn |
//! | `place`, `memory_limit` | the working folder, and the memory limit of a child |
//! | `child` | one engine: fill, gets, gets with favourites, gets and puts |
//! | `load`, `chooser`, `contents` | the operations, the choice of objects, and their contents |
//! | `usage`, `measured`, `message` | the cost of a phase, its results, and the child's reports |
//! | `engine/` | one file per engine: its setup and its guarantees |
//! | `report` | medians, ratios, the tables |
//!
//! The README beside the manifest explains the figures.

mod child;
mod chooser;
mod contents;
mod engine;
mod load;
mod measured;
mod memory_limit;
mod message;
mod options;
mod parent;
mod place;
mod report;
mod size;
mod usage;

use std::process::ExitCode;

use clap::Parser;

use options::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Some(Command::Child(child)) => child::run(&child),
        None => parent::run(&cli.options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("adit-compare: {why:#}");
            ExitCode::from(if why.is::<parent::Interrupted>() { 130 } else { 1 })
        }
    }
}
