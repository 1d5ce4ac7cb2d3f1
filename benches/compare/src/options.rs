//! The command line.

use std::path::PathBuf;

use clap::builder::ArgPredicate::IsPresent;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::engine::Kind;
use crate::size::Size;

const EXAMPLES: &str = "\
Examples:
  adit-compare --quick                                          all engines, two minutes: shows that it works
  adit-compare --dir /mnt/nvme/compare                          the comparison, 11 minutes
  adit-compare --data 8G --memory 2G --rounds 5                 a larger one
  adit-compare --engines raw,adit,foyer --phases uniform        gets alone, of three

Name a folder on the disk that is meant, and leave the machine alone meanwhile.";

/// Compares the store with foyer, RocksDB's BlobDB, plain files and the raw disk, on one file system.
#[derive(Parser)]
#[command(name = "adit-compare", after_help = EXAMPLES)]
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
    #[arg(
        long,
        default_value = "2G",
        default_value_if("quick", IsPresent, "512M"),
        value_name = "SIZE"
    )]
    pub(crate) data: Size,

    /// Memory that an engine may use, page cache included where that can be limited
    #[arg(
        long,
        default_value = "512M",
        default_value_if("quick", IsPresent, "256M"),
        value_name = "SIZE"
    )]
    pub(crate) memory: Size,

    /// Of this memory, what engines keep objects in whose name ends with -tier, and the page cache of plain files
    /// [default: a tenth of the data]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<Size>,

    /// Bytes of an object: a multiple of 4 KiB
    #[arg(long, default_value = "128k", value_name = "SIZE", value_parser = object_bytes)]
    pub(crate) object_bytes: Size,

    /// Seconds of each phase except the fill, which ends when all is stored
    #[arg(
        long,
        default_value = "8",
        default_value_if("quick", IsPresent, "3"),
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    pub(crate) seconds: u64,

    /// Requests in flight: tasks, or threads where an engine's calls block
    #[arg(
        long,
        alias = "threads",
        default_value_t = 32,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) depth: u32,

    /// Phases after the fill
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipf", value_name = "NAME,...")]
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

    /// Returns the memory in which an engine keeps objects, if it does: by default a tenth of the data in whole MiB,
    /// and at least one object's.
    pub(crate) fn cache_bytes(&self) -> u64 {
        let tenth = || (((self.data.0 / 10) >> 20) << 20).max(self.object_bytes.0);
        self.cache.map_or_else(tenth, |cache| cache.0)
    }

    /// Returns the same load as arguments for a child.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let phases = self.phases.iter().filter_map(ValueEnum::to_possible_value);
        let phases: Vec<String> = phases.map(|phase| phase.get_name().to_owned()).collect();
        let pairs = [
            ("--data", self.data.0.to_string()),
            ("--memory", self.memory.0.to_string()),
            ("--cache", self.cache_bytes().to_string()),
            ("--object-bytes", self.object_bytes.0.to_string()),
            ("--seconds", self.seconds.to_string()),
            ("--depth", self.depth.to_string()),
            ("--phases", phases.join(",")),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// Returns the bytes that an engine's memory group allows it: all of the memory, or for plain files, whose cache is
    /// the kernel's, the cache and what the process needs.
    pub(crate) fn group_bytes(&self, engine: Kind) -> u64 {
        match engine {
            Kind::Files => {
                let threads_bytes = u64::from(self.depth) * (self.object_bytes.0 + FIGURES_BYTES);
                self.cache_bytes() + PROCESS_BYTES + threads_bytes
            }
            _ => self.memory.0,
        }
    }
}

/// Memory of the process that uses plain files, beside the page cache and its threads.
const PROCESS_BYTES: u64 = 16 << 20;
/// Memory of a thread's latencies and its stack.
const FIGURES_BYTES: u64 = 384 << 10;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Folder on the file system to test; everything created there is removed at the end
    #[arg(long, default_value = "/var/tmp/compare", value_name = "FOLDER")]
    pub(crate) dir: PathBuf,

    #[command(flatten)]
    pub(crate) load: Load,

    /// Rounds; each runs every engine once, one after another
    #[arg(
        long,
        default_value = "3",
        default_value_if("quick", IsPresent, "1"),
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub(crate) rounds: u32,

    /// Engines, in the order in which each round runs them
    #[arg(long, value_delimiter = ',', default_value = DEFAULT_ENGINES, value_name = "NAME,...")]
    pub(crate) engines: Vec<Kind>,

    /// Prints the figures of every round as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Little data, short phases and one round, unless given: shows that everything works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
}

#[cfg(feature = "rocksdb")]
const DEFAULT_ENGINES: &str = "raw,raw-4k,adit,foyer,foyer-psync,rocksdb,files-direct,\
                               adit-tier,foyer-tier,foyer-psync-tier,rocksdb-tier,files";
#[cfg(not(feature = "rocksdb"))]
const DEFAULT_ENGINES: &str =
    "raw,raw-4k,adit,foyer,foyer-psync,files-direct,adit-tier,foyer-tier,foyer-psync-tier,files";

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
        for engine in [Kind::FilesDirect, Kind::Foyer, Kind::AditTier] {
            assert_eq!(with.group_bytes(engine), 512 << 20);
        }
        assert_eq!(with.group_bytes(Kind::Files), 232 << 20);
        assert_eq!(without.cache_bytes(), 204 << 20);
        assert!(with.arguments().windows(2).any(|pair| pair == ["--cache", "209715200"]));
    }

    #[test]
    fn a_quick_run_is_small_unless_it_is_asked_for_more() {
        let options =
            |more: &[&str]| Cli::parse_from(["adit-compare", "--quick"].iter().chain(more)).options;
        let (quick, larger) = (options(&[]), options(&["--data", "1G", "--rounds", "2"]));
        assert_eq!((quick.load.data, quick.load.seconds, quick.rounds), (Size(512 << 20), 3, 1));
        assert_eq!((larger.load.data, larger.load.seconds, larger.rounds), (Size(1 << 30), 3, 2));
    }

    #[test]
    fn engines_with_a_tier_are_those_that_say_so_and_the_page_cache() {
        for engine in Kind::value_variants() {
            let has_name = engine.name().ends_with("-tier") || *engine == Kind::Files;
            assert_eq!(engine.has_cache(), has_name, "{engine:?}");
        }
    }

    #[test]
    fn an_unknown_engine_is_refused_with_the_known_ones() {
        let refused = Cli::try_parse_from(["adit-compare", "--engines", "adit,leveldb"]);
        let why = refused.err().expect("no such engine").to_string();
        assert!(why.contains("leveldb") && why.contains("foyer"), "{why}");
    }
}
