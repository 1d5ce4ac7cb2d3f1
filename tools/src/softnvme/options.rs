//! The options of `adit softnvme`, and their conversion to `soft:` settings.

use std::path::PathBuf;
use std::time::Duration;

use adit_driver::serve::DoorbellAccess;
use adit_driver::soft::{self, Storage};
use adit_kvstore::memory::{Memory, Probe, budget};
use clap::{Args, ValueEnum};

use crate::failure::Result;
use adit_tools_common::units;

const EXAMPLES: &str = "\
Examples:
  A drive in memory, and what it reports:
    adit softnvme --socket /tmp/drive --media mem=1G &
    adit identify vfio-user:/tmp/drive/cntrl
  A drive whose data stays, of 4 KiB LBAs, with two namespaces:
    adit softnvme --socket /tmp/drive --media file=disk.img --size 4G --lba 4096 --namespaces 2
  One that keeps nothing, on a core of its own, to measure the path to it:
    adit softnvme --socket /tmp/drive --media null --core 1
    adit bench --filename=vfio-user:/tmp/drive/cntrl --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5
  SPDK's tools:
    spdk_nvme_identify -r 'trtype:VFIOUSER traddr:/tmp/drive'

Ctrl-C or SIGTERM ends it: the client is left, file media is flushed, the socket removed.";

/// Serves a software NVMe controller to other programs, over vfio-user
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SoftnvmeArgs {
    /// The folder for the socket 'cntrl', created if necessary
    #[arg(long, value_name = "DIR")]
    pub(crate) socket: PathBuf,

    /// Where data lives: mem=SIZE, file=PATH or null; more settings may follow by comma
    #[arg(long)]
    media: String,

    /// Capacity of file or null media, as in 4G; a file is created or extended
    #[arg(long)]
    size: Option<String>,

    /// LBA size in bytes, 512 or 4096; 512+4096 makes two namespaces
    #[arg(long, value_name = "BYTES")]
    lba: Option<String>,

    /// Namespaces, with equal shares of the media
    #[arg(long, value_name = "N")]
    namespaces: Option<String>,

    /// Longest transfer: 2^N pages of 4 KiB; 0 is no limit
    #[arg(long, value_name = "N")]
    mdts: Option<String>,

    /// SGL support: on, off or dword
    #[arg(long, value_name = "KIND")]
    sgl: Option<String>,

    /// Controller memory buffer, as in 1M
    #[arg(long, value_name = "SIZE")]
    cmb: Option<String>,

    /// I/O queue pairs
    #[arg(long, value_name = "N")]
    ioqueues: Option<String>,

    /// Serial number
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,

    /// Volatile write cache: off, on (16 MiB) or its size
    #[arg(long, value_name = "on|off|SIZE")]
    vwc: Option<String>,

    /// Timing of a drive: pm9d3a, 990pro or d7-ps1010
    #[arg(long, value_name = "DRIVE")]
    model: Option<String>,

    /// Faults to inject, as in 'delay(5ms)@read:p=0.01'; docs/use/faults.md has the syntax
    #[arg(long, value_name = "PLAN")]
    faults: Option<String>,

    /// Seed of faults and losses
    #[arg(long, value_name = "N")]
    seed: Option<String>,

    /// Any other setting of a soft: target; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,

    /// How clients ring doorbells: a page they map, or messages (most are unnecessary with shadow doorbells)
    #[arg(long, value_enum, value_name = "WAY", default_value_t = Doorbells::Mapped)]
    doorbells: Doorbells,

    /// Refuses client memory whose file can shrink (is not sealed); by default such a client is dropped when it
    /// shrinks the file
    #[arg(long)]
    sealed_memory_only: bool,

    /// The most memory that a client may hand over, as in 16G: pages of it that are not there, as in a virtual machine's,
    /// count towards this server's control group once it touches them. By default what the group leaves at the start,
    /// less the size of media in memory
    #[arg(long, value_name = "SIZE", value_parser = units::block_bytes)]
    memory: Option<u64>,

    /// Pins the server's thread to this core
    #[arg(long, value_name = "N")]
    pub(crate) core: Option<usize>,

    /// Longest sleep between polls of the doorbells after a while without commands, in microseconds
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(1..=100_000), default_value_t = 1000)]
    sleep_us: u64,

    /// Measures how long the device waits for each client between two commands, and prints it when the client is gone
    #[arg(long)]
    idle_gaps: bool,

    /// Prints JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Doorbells {
    Mapped,
    Messages,
}

impl SoftnvmeArgs {
    /// Returns the controller's options, using the syntax of `soft:` targets.
    ///
    /// # Errors
    /// As `soft::Options::from_str`.
    pub(crate) fn controller(&self) -> Result<soft::Options> {
        let named = [
            ("size", &self.size),
            ("lba", &self.lba),
            ("namespaces", &self.namespaces),
            ("mdts", &self.mdts),
            ("sgl", &self.sgl),
            ("cmb", &self.cmb),
            ("ioqueues", &self.ioqueues),
            ("serial", &self.serial),
            ("vwc", &self.vwc),
            ("model", &self.model),
            ("faults", &self.faults),
            ("seed", &self.seed),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let mut words = vec![self.media.clone()];
        words.extend(named.map(|(name, value)| format!("{name}={value}")));
        words.extend(self.settings.iter().cloned());
        let options = words.join(",").parse::<soft::Options>();
        Ok(options.map_err(adit_driver::Error::from)?)
    }

    /// Returns how a controller with this storage is served.
    pub(crate) fn serving(&self, storage: &Storage) -> adit_driver::serve::Options {
        let doorbells = match self.doorbells {
            Doorbells::Mapped => DoorbellAccess::Mapped,
            Doorbells::Messages => DoorbellAccess::Messages,
        };
        let sleep = Duration::from_micros(self.sleep_us);
        adit_driver::serve::Options {
            doorbells,
            sealed_memory_only: self.sealed_memory_only,
            client_bytes_max: self
                .memory
                .or_else(|| group_bytes().map(|left| beside(left, storage))),
            pace: adit_driver::serve::Pace { sleep, ..Default::default() },
            watches_gaps: self.idle_gaps,
        }
    }
}

/// Returns what the media leave clients of this memory: their pages come as they are written.
fn beside(left: u64, storage: &Storage) -> u64 {
    match storage {
        Storage::Memory { bytes } => left.saturating_sub(*bytes),
        Storage::File { .. } | Storage::Null { .. } => left,
    }
}

/// Returns how much memory the control groups of this process leave it, if they limit it.
fn group_bytes() -> Option<u64> {
    let memory = Probe::new().and_then(|probe| probe.memory()).ok()?;
    let is_limited = memory.groups.iter().any(|group| group.limit_bytes.is_some());
    is_limited.then(|| budget(&Memory { available_bytes: u64::MAX, ..memory }, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_in_memory_leave_clients_less() {
        let memory = Storage::Memory { bytes: 16 << 30 };
        assert_eq!(beside(20 << 30, &memory), 4 << 30);
        assert_eq!(beside(8 << 30, &memory), 0);
        assert_eq!(beside(8 << 30, &Storage::Null { bytes: 16 << 30 }), 8 << 30);
    }
}
