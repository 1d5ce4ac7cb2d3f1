//! The command line of `adit kv bench`.

use std::time::Duration;

use adit_kvstore::{Durability, PolicyKind};
use clap::Args;

use super::dual_blade::TensorArgs;
use super::workload::Workload;
use crate::failure::{Failure, Result};
use crate::store_arg::{StoreArgs, StoreTarget};
use crate::units;

const EXAMPLES: &str = "\
Examples:
  Fill a file, then read it:
    adit kv bench --store uring:kv.img --size 4g --workload fill --object-bytes 128k
    adit kv bench --store uring:kv.img --workload get --iodepth 32 --runtime 10 --json
  The same as one of the clients of 'adit kv serve':
    adit kv bench --store serve:kv.sock --workload get --runtime 10
  YCSB A on the software controller, filled first:
    adit kv bench --store soft:mem=2G --workload ycsb-a --object-bytes 4k --objects 100000
  Tensors of an inference run with half of the memory they need, by each path:
    adit kv bench --workload dual-blade --model opt-6.7b --scale 0.25 --memory-limit 50% --config all
  A trace in Mooncake's format through an LRU of 5000 KV blocks:
    adit kv bench --store soft:mem=2G --workload trace:trace.jsonl --object-bytes 4k --capacity-blocks 5000 --policy lru

fill, layers and trace start with an empty store: they format the target, which destroys its data. Without --force \
they refuse a store with objects that no earlier run put. A served store is not formatted: what does not fit evicts. get, mixed and the workloads of YCSB use the objects of an \
earlier fill; on a target whose memory is created for the run they first fill it, which is not measured.";

/// Maximum items in flight.
const DEPTH_MAX: u64 = 4096;
/// Time limit of workloads without an end of their own.
const RUNTIME: Duration = Duration::from_secs(10);

/// Measures a store with a workload
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KvBenchArgs {
    /// A device of the store; repeat it for several, in the order in which they were formatted; or serve:SOCKET. For KV
    /// tensors, which need none, the device of direct layers
    #[arg(long, value_name = "TARGET")]
    store: Vec<StoreTarget>,

    /// fill, get, mixed, ycsb-a to ycsb-f, layers or trace:FILE; of KV tensors, dual-blade or a task (em-fodors-zagats,
    /// em-walmart-amazon, di-buy, ed-hospital)
    #[arg(long, value_name = "NAME")]
    pub(super) workload: Workload,

    /// Bytes of an object or, in a trace, of a KV block
    #[arg(long, value_name = "SIZE", default_value = "128k", value_parser = units::block_bytes)]
    pub(super) object_bytes: u64,

    /// Objects to put or to choose from; by default, nine tenths of the capacity, or the existing objects
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(super) objects: Option<u64>,

    /// Objects in flight
    #[arg(long, value_name = "N", default_value = "32", value_parser = depth)]
    pub(super) iodepth: u64,

    /// Time limit; workloads without an end of their own run for 10 s by default
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    runtime: Option<Duration>,

    /// What an acknowledgement guarantees: volatile, restart (default) or durable
    #[arg(long, value_name = "KIND")]
    durability: Option<Durability>,

    /// Which objects are evicted first, and with auto (default) also which are not stored: auto, lru or s3fifo
    #[arg(long, value_name = "NAME")]
    policy: Option<PolicyKind>,

    /// Memory in which the store keeps hot objects, as in 1G; less if the machine or a control group has too
    /// little when the run begins; none by default
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    pub(super) tier: Option<u64>,

    /// Maximum number of objects in the store
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(super) capacity_blocks: Option<u64>,

    /// Gets of a mixed workload, in percent
    #[arg(long, value_name = "PERCENT", default_value = "70", value_parser = percent)]
    pub(super) get_percent: u64,

    /// Shards of the store that is formatted; 1 by default
    #[arg(long, value_name = "N")]
    pub(super) shards: Option<u16>,

    /// Creates or extends files to this size
    #[arg(long, value_name = "SIZE", value_parser = units::block_bytes)]
    pub(super) size: Option<u64>,

    /// The model: of layers, llama-3-8b (default) and others; of KV tensors, opt-6.7b (default) and others. A wrong name
    /// lists them
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,

    /// Seed of the workload's order
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::count)]
    pub(super) seed: u64,

    /// Compares every byte that is read with what was put; by default only the first bytes of each 4 KiB,
    /// beside the store's own checksums, which are always verified
    #[arg(long)]
    pub(super) verify: bool,

    /// Formats devices that hold another store with objects, or other data; of a served store, evicts others' objects
    #[arg(long)]
    pub(super) force: bool,

    /// Prints JSON
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) tensors: TensorArgs,
}

impl KvBenchArgs {
    /// Returns the time limit.
    pub(super) fn runtime(&self) -> Option<Duration> {
        self.runtime.or_else(|| self.workload.is_endless().then_some(RUNTIME))
    }

    /// Returns the store.
    pub(super) fn store(&self) -> StoreArgs {
        StoreArgs::of(&self.store)
    }

    /// Returns what an acknowledgement guarantees in a store that this opens.
    pub(super) fn durability(&self) -> Durability {
        self.durability.unwrap_or(Durability::Restart)
    }

    /// Returns the eviction policy of a store that this opens.
    pub(super) fn policy(&self) -> PolicyKind {
        self.policy.unwrap_or_default()
    }

    /// Returns the model of the workload layers.
    pub(super) fn layers_model(&self) -> &str {
        self.model.as_deref().unwrap_or("llama-3-8b")
    }

    /// Refuses contradictory options.
    ///
    /// # Errors
    /// A usage failure.
    pub(super) fn check(&self) -> Result<()> {
        if self.store.is_empty() {
            let why =
                format!("'{}' is measured on a store; give it with --store TARGET", self.workload);
            return Err(Failure::usage(why));
        }
        if self.shards == Some(0) {
            return Err(Failure::usage("--shards is 0; use at least 1"));
        }
        if self.size.is_some() && !self.workload.formats() {
            return Err(Failure::usage(format!(
                "--size is for workloads that format the target; '{}' uses an existing store",
                self.workload
            )));
        }
        Ok(())
    }

    /// Refuses what is decided where a served store is opened.
    ///
    /// # Errors
    /// A usage failure.
    pub(super) fn check_served(&self) -> Result<()> {
        let name = self.store().name();
        if self.workload == Workload::Layers {
            return Err(Failure::usage(format!(
                "{name}: 'layers' reads with the store's plans, which a client has not: end the server and name the \
                 store's devices"
            )));
        }
        let chosen = [
            ("--durability", self.durability.is_some()),
            ("--policy", self.policy.is_some()),
            ("--tier", self.tier.is_some()),
            ("--capacity-blocks", self.capacity_blocks.is_some()),
            ("--shards", self.shards.is_some()),
            ("--size", self.size.is_some()),
        ];
        match chosen.iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((option, _)) => Err(Failure::usage(format!(
                "{name}: {option} is chosen where the store is formatted or served: leave it out, or end the server \
                 and name the store's devices"
            ))),
        }
    }
}

fn at_least_one(text: &str) -> std::result::Result<u64, String> {
    within(text, 1, u64::MAX)
}

fn depth(text: &str) -> std::result::Result<u64, String> {
    within(text, 1, DEPTH_MAX)
}

fn percent(text: &str) -> std::result::Result<u64, String> {
    within(text, 0, 100)
}

fn within(text: &str, from: u64, to: u64) -> std::result::Result<u64, String> {
    let number = units::count(text).map_err(|why| why.to_string())?;
    match (from..=to).contains(&number) {
        true => Ok(number),
        false if to == u64::MAX => Err(format!("'{text}' is too small; use at least {from}")),
        false => Err(format!("'{text}' is not one of {from} to {to}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct BenchLine {
        #[command(flatten)]
        args: KvBenchArgs,
    }

    fn parse(line: &str) -> std::result::Result<KvBenchArgs, String> {
        let words = format!("bench --store null: --workload {line}");
        let line = BenchLine::try_parse_from(words.split_whitespace());
        line.map(|line| line.args).map_err(|why| why.to_string())
    }

    #[test]
    fn only_what_has_no_end_ends_by_itself() {
        let runtime = |line| parse(line).expect(line).runtime();
        assert_eq!(runtime("get"), Some(Duration::from_secs(10)));
        assert_eq!(runtime("fill"), None);
        assert_eq!(runtime("fill --runtime 2m"), Some(Duration::from_secs(120)));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in [
            "get --iodepth 0",
            "get --iodepth 4097",
            "get --objects 0",
            "mixed --get-percent 101",
            "fill --object-bytes 0",
            "fill --durability fast",
            "walk",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("get --size 1g").expect("parses").check().is_err());
        assert!(parse("fill --shards 0").expect("parses").check().is_err());
        assert!(parse("fill --size 1g").expect("parses").check().is_ok());
    }
}
