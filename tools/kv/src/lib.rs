//! `adit kv`: operates a store of objects from the command line.
//!
//! | module | noun |
//! |---|---|
//! | `store` | a store's devices |
//! | `store_arg` | the store argument, and the one place that opens it |
//! | `any_store` | a store, opened by the command or served by another process |
//! | `each` | the report of a call for each of several objects |
//! | `key` | keys on the command line |
//! | `format`, `put`, `get`, `ls`, `rm`, `touch`, `tenant`, `info`, `stat`, `top`, `check`, `scrub`, `change` | the commands |
//! | `moving` | `export` and `import`: objects as a stream |
//! | `serve` | the store, for other processes |
//! | `metrics` | a server's metrics, parsed |
//! | `survey` | the media's contents, read without opening the store |
//! | `bench` | the store under load |
//! | `passing` | progress |
//!
//! `put`, `get`, `ls`, `rm` and `touch` work on any [`KvStore`](adit_kvstore::KvStore): on a store that they open, or on
//! one that a server has. Other commands access an existing store through a
//! [`Session`](adit_tools_common::session::Session), or read its media through `survey`.
//! A command that opens a store uses it exclusively: it is refused while another process has the store open. `info` and
//! `stat` only read, as do `check` and `ls` with `--read-only`; their reports show the store at one moment.

mod any_store;
mod bench;
mod change;
mod check;
mod each;
mod format;
mod get;
mod info;
mod key;
mod ls;
mod metrics;
mod moving;
mod passing;
mod put;
mod rm;
mod scrub;
mod serve;
mod stat;
mod store;
mod store_arg;
mod survey;
mod tenant;
mod top;
mod touch;

use clap::{Args, Subcommand};

use adit_tools_common::{failure, human, interrupt, output, units, whole_file};
use failure::Result;

const EXAMPLES: &str = "\
Targets:
  uring:kv.img                  a file through io_uring; also a block device
  vfio:0000:01:00.0             a controller bound to vfio-pci
  soft:file=kv.img,size=4G      the software controller on a file
  serve:kv.sock                 a store that 'adit kv serve' has: for put, get, ls, rm, touch, info, stat and top

Examples:
  adit kv format uring:kv.img --size 4G
  adit kv put uring:kv.img greeting hello.txt
  adit kv get uring:kv.img greeting
  adit kv ls uring:kv.img
  adit kv export uring:kv.img backup.kvx
  adit kv bench --store uring:bench.img --size 4G --workload fill
  adit kv serve --store uring:kv.img --socket /run/adit/kv.sock";

/// `adit kv`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub struct KvCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Format(format::FormatArgs),
    AddDevice(change::AddArgs),
    RemoveDevice(change::RemoveArgs),
    Grow(change::GrowArgs),
    Put(put::PutArgs),
    Get(get::GetArgs),
    Ls(ls::LsArgs),
    Rm(rm::RmArgs),
    Touch(touch::TouchArgs),
    Tenant(tenant::TenantArgs),
    Info(info::InfoArgs),
    Stat(stat::StatArgs),
    Top(top::TopArgs),
    Check(check::CheckArgs),
    Scrub(scrub::ScrubArgs),
    Export(moving::ExportArgs),
    Import(moving::ImportArgs),
    Serve(serve::ServeArgs),
    Bench(Box<bench::KvBenchArgs>),
}

/// Runs the command.
///
/// # Errors
/// An error of the store, the devices or the command line.
pub fn run(command: &KvCommand) -> Result<()> {
    match &command.command {
        Command::Format(args) => format::run(args),
        Command::AddDevice(args) => change::add(args),
        Command::RemoveDevice(args) => change::remove(args),
        Command::Grow(args) => change::grow(args),
        Command::Put(args) => put::run(args),
        Command::Get(args) => get::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Touch(args) => touch::run(args),
        Command::Tenant(args) => tenant::run(args),
        Command::Info(args) => info::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Top(args) => top::run(args),
        Command::Check(args) => check::run(args),
        Command::Scrub(args) => scrub::run(args),
        Command::Export(args) => moving::export(args),
        Command::Import(args) => moving::import(args),
        Command::Serve(args) => serve::run(args),
        Command::Bench(args) => bench::run(args),
    }
}
