//! `cargo xtask compare`: the store beside foyer, RocksDB, plain files and the raw disk (`benches/compare`), which is a
//! workspace of its own and not part of the tests.

use crate::deps;
use crate::failure::Result;
use crate::process;
use crate::workspace;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

const EXAMPLES: &str = "\
Examples:
  cargo xtask compare --quick                             all engines, two minutes: shows that it works
  cargo xtask compare --dir /mnt/nvme/compare             the comparison in a folder of that disk, 11 minutes
  cargo xtask compare -- --data 8G --memory 2G            with options of adit-compare
  cargo xtask compare -- --help                           what these are

The first run builds for two to four minutes. Leave the machine alone meanwhile; as root, memory is limited, too.";

/// `cargo xtask compare`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompareArgs {
    /// Little data, short phases and one round
    #[arg(long)]
    quick: bool,

    /// Print the figures of every round as JSON instead of tables
    #[arg(long)]
    json: bool,

    /// Folder on the disk to measure; everything created there is removed [default: /var/tmp/compare]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,

    /// Leave out RocksDB, which takes librocksdb-dev
    #[arg(long)]
    without_rocksdb: bool,

    /// Options of adit-compare
    #[arg(last = true, value_name = "OPTION")]
    more: Vec<OsString>,
}

impl CompareArgs {
    fn arguments(&self) -> Vec<OsString> {
        let flags = [(self.quick, "--quick"), (self.json, "--json")];
        let flags = flags.into_iter().filter(|(is_given, _)| *is_given);
        let dir = self.dir.iter().flat_map(|dir| [OsString::from("--dir"), dir.into()]);
        flags.map(|(_, flag)| flag.into()).chain(dir).chain(self.more.iter().cloned()).collect()
    }
}

/// Installs what is missing, builds the comparison, runs it and returns its exit code.
pub(crate) fn run(arguments: &CompareArgs) -> Result<u8> {
    deps::ensure(&deps::TO_LINK)?;
    if !arguments.without_rocksdb {
        deps::ensure([&deps::ROCKSDB])?;
    }
    let compare = workspace::build_compare(!arguments.without_rocksdb)?;
    process::exit_code(Command::new(compare).args(arguments.arguments()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        compare: CompareArgs,
    }

    #[test]
    fn its_own_options_and_those_after_the_dashes_are_passed_on() {
        let words = ["x", "--json", "--dir", "/a b", "--quick", "--", "--data", "8G"];
        let arguments = Cli::parse_from(words).compare.arguments();
        assert_eq!(arguments, ["--quick", "--json", "--dir", "/a b", "--data", "8G"]);
    }
}
