//! The store beside foyer, RocksDB's BlobDB and plain files, on one file system.
//!
//! | file | noun |
//! |---|---|
//! | `options`, `size` | the command line |
//! | `parent` | rounds of children, one for each engine in turn |
//! | `place`, `memory_limit` | the folder that everything is in, and how much memory a child may have |
//! | `child` | one engine: fill, gets, gets with favourites, gets and puts |
//! | `load`, `chooser`, `contents` | what is done to which object, and what an object's bytes are |
//! | `usage`, `measured`, `message` | what a phase cost, what came of it, how the child tells |
//! | `engine/` | one file each: how it is set up, and what it promises |
//! | `report` | medians, ratios, the tables |
//!
//! The README beside the manifest says how to read the figures.

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
