//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::engine::Kind;
use crate::size::Size;

/// Compares the store with foyer, RocksDB's BlobDB and plain files on one file system.
#[derive(Parser)]
#[command(
    name = "adit-compare",
    after_help = "Example:\n  adit-compare --dir /var/tmp/compare --data 2G --memory 512M --rounds 3\n\n\
                  Give a folder on the disk that is meant, and leave the machine alone meanwhile."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// One engine in one round; started for each.
    #[command(hide = true)]
    Child(Child),
}

/// The load, the same for every engine.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// Bytes of all objects together
    #[arg(long, default_value = "2G", value_name = "SIZE")]
    pub(crate) data: Size,

    /// Memory that an engine may use, page cache included where that can be limited
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    pub(crate) memory: Size,

    /// Memory in which foyer, the store and the page cache of plain files keep objects, the same for each [default: half
    /// of the memory for foyer, none for the store, all of it for plain files]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<Size>,

    /// Bytes of an object: a multiple of 4 KiB
    #[arg(long, default_value = "128k", value_name = "SIZE", value_parser = object_bytes)]
    pub(crate) object_bytes: Size,

    /// Seconds of each phase except the fill, which ends when all is stored
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,

    /// Requests in flight: tasks, or threads where an engine's calls block
    #[arg(long, alias = "threads", default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) depth: u32,

    /// Phases after the fill
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "uniform,zipf,mixed",
        value_name = "NAME,..."
    )]
    pub(crate) phases: Vec<Phase>,
}

/// A phase.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// Puts every object once, then waits until all are on the device
    #[value(skip)]
    Fill,
    /// Gets objects uniformly at random
    Uniform,
    /// Gets objects by Zipf with theta 0.99
    Zipf,
    /// 90 of 100 are gets at random, the others replace objects
    Mixed,
}

impl Phase {
    /// Returns the title used in tables.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Phase::Fill => "fill",
            Phase::Uniform => "get, uniform",
            Phase::Zipf => "get, Zipf 0.99",
            Phase::Mixed => "90 % get, 10 % put, uniform",
        }
    }
}

impl Load {
    pub(crate) fn objects(&self) -> u64 {
        self.data.0 / self.object_bytes.0
    }

    /// Returns the same load as arguments for a child.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let phases = self.phases.iter().filter_map(ValueEnum::to_possible_value);
        let phases: Vec<String> = phases.map(|phase| phase.get_name().to_owned()).collect();
        let pairs = [
            ("--data", self.data.0.to_string()),
            ("--memory", self.memory.0.to_string()),
            ("--object-bytes", self.object_bytes.0.to_string()),
            ("--seconds", self.seconds.to_string()),
            ("--depth", self.depth.to_string()),
            ("--phases", phases.join(",")),
        ];
        let cache = self.cache.map(|cache| ("--cache", cache.0.to_string()));
        let pairs = pairs.into_iter().chain(cache);
        pairs.flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// Returns the bytes that an engine's memory group allows it: all of the memory, or for plain files, whose cache is
    /// the kernel's, the cache and what the process needs.
    pub(crate) fn group_bytes(&self, engine: Kind) -> u64 {
        match (engine, self.cache) {
            (Kind::Files, Some(cache)) => cache.0 + FILES_PROCESS_BYTES,
            _ => self.memory.0,
        }
    }
}

/// Memory of the process that uses plain files, beside the page cache: threads, each with an object and figures.
const FILES_PROCESS_BYTES: u64 = 32 << 20;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Folder on the file system to test; everything created there is removed at the end
    #[arg(long, default_value = "/var/tmp/compare", value_name = "FOLDER")]
    pub(crate) dir: PathBuf,

    #[command(flatten)]
    pub(crate) load: Load,

    /// Rounds; each runs every engine once, one after another
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Engines, in the order in which each round runs them
    #[arg(long, value_delimiter = ',', default_value = DEFAULT_ENGINES, value_name = "NAME,...")]
    pub(crate) engines: Vec<Kind>,

    /// Prints the figures of every round as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(feature = "rocksdb")]
const DEFAULT_ENGINES: &str = "raw,adit,foyer,rocksdb,files,files-direct";
#[cfg(not(feature = "rocksdb"))]
const DEFAULT_ENGINES: &str = "raw,adit,foyer,files,files-direct";

/// The arguments of a child.
#[derive(Args, Debug)]
pub(crate) struct Child {
    #[arg(long)]
    pub(crate) engine: Kind,
    /// Its own empty folder.
    #[arg(long)]
    pub(crate) folder: PathBuf,
    /// The file through which a process joins its memory group, if there is one.
    #[arg(long)]
    pub(crate) group: Option<PathBuf>,
    /// Different in each round, so that each chooses other objects.
    #[arg(long)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) load: Load,
}

fn object_bytes(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    if !size.0.is_multiple_of(4096) || size.0 > 64 << 20 {
        return Err(format!(
            "{size} is no multiple of 4 KiB up to 64 MiB; 128k is what the goals are about"
        ));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_child_is_told_the_load_as_it_was_asked_for() {
        let cli =
            Cli::parse_from(["adit-compare", "--data", "64M", "--depth", "7", "--phases", "mixed"]);
        let load = cli.options.load;
        let mut arguments: Vec<String> =
            ["adit-compare", "child", "--engine", "files", "--folder", "x", "--seed", "3"]
                .map(String::from)
                .to_vec();
        arguments.extend(load.arguments());
        let Some(Command::Child(child)) = Cli::parse_from(arguments).command else {
            panic!("a child was asked for")
        };
        assert_eq!(child.load.arguments(), load.arguments());
        assert_eq!((child.load.objects(), child.load.phases), (512, vec![Phase::Mixed]));
    }

    #[test]
    fn plain_files_have_as_much_cache_as_the_others_and_their_process_beside_it() {
        let load = |more: &[&str]| {
            let arguments = ["adit-compare", "--memory", "512M"].iter().chain(more);
            Cli::parse_from(arguments).options.load
        };
        let (without, with) = (load(&[]), load(&["--cache", "200M"]));
        for engine in [Kind::Files, Kind::FilesDirect, Kind::Foyer, Kind::Adit] {
            assert_eq!(without.group_bytes(engine), 512 << 20);
        }
        assert_eq!(with.group_bytes(Kind::Files), 232 << 20);
        assert_eq!(with.group_bytes(Kind::Adit), 512 << 20);
        assert!(with.arguments().windows(2).any(|pair| pair == ["--cache", "209715200"]));
        assert!(!without.arguments().contains(&"--cache".to_owned()));
    }

    #[test]
    fn an_unknown_engine_is_refused_with_the_known_ones() {
        let refused = Cli::try_parse_from(["adit-compare", "--engines", "adit,leveldb"]);
        let why = refused.err().expect("no such engine").to_string();
        assert!(why.contains("leveldb") && why.contains("foyer"), "{why}");
    }
}
