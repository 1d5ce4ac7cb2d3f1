//! Configuration of a software controller: the tail of a `soft:` target.
//!
//! `mem=1G`, `file=disk.img,size=4G` or `null`, then settings separated by commas. Sizes take `k`, `M`, `G` and `T`
//! (powers of 1024). A path must not contain a comma.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::faults::FaultPlan;
use super::timing::TimingModel;
use super::words::{Parsed, duration, number, size, switch, unknown};
use crate::error::{Error, Result};

/// Where the namespaces' data lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Memory of this process; unwritten pages cost nothing.
    Memory {
        /// Capacity in bytes.
        bytes: u64,
    },
    /// A sparse file, created if missing.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Capacity in bytes; `None` takes the file's present length.
        bytes: Option<u64>,
    },
    /// Nowhere: writes are dropped, and reads leave the host's buffer unchanged.
    Null {
        /// Capacity in bytes that the namespaces report.
        bytes: u64,
    },
}

impl fmt::Display for Storage {
    /// Formats the start of a target's tail.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Storage::Memory { bytes } if bytes.is_multiple_of(1 << 20) => {
                write!(f, "mem={}M", bytes >> 20)
            }
            Storage::Memory { bytes } => write!(f, "mem={bytes}"),
            Storage::File { path, .. } => write!(f, "file={}", path.display()),
            Storage::Null { .. } => f.write_str("null"),
        }
    }
}

/// Reported SGL support (Identify Controller, SGLS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SglSupport {
    /// PRPs only.
    Off,
    /// Any alignment and length.
    #[default]
    Byte,
    /// Addresses and lengths must be multiples of four.
    Dword,
}

/// Reported limits of commands that cover LBAs without a transfer (CNS 06h); 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandLimits {
    /// Verify: up to 2^vsl pages of 4 KiB.
    pub vsl: u8,
    /// Write Zeroes: up to 2^wzsl pages of 4 KiB.
    pub wzsl: u8,
    /// Ranges in one Dataset Management.
    pub dmrl: u8,
    /// LBAs in one range.
    pub dmrsl_lbas: u32,
    /// LBAs in all ranges.
    pub dmsl_lbas: u64,
}

/// Configuration of a software controller. Start from [`Options::memory`] or `str::parse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where data lives.
    pub storage: Storage,
    /// LBA size of each namespace in bytes, 512 or 4096; a single entry applies to all.
    pub lba_bytes: Vec<u32>,
    /// Protection information of the initial namespaces: type 1, 2 or 3 in 8 bytes of metadata per LBA, which the
    /// controller generates and drops; 0 is none. It takes its space from the storage.
    pub protection: u8,
    /// Initial namespaces, with equal shares of the storage.
    pub namespace_count: u32,
    /// Identify Controller MDTS: transfers of up to 2^mdts pages of 4 KiB; 0 is no limit.
    pub mdts: u8,
    /// Limits of Verify, Write Zeroes and Dataset Management.
    pub limits: CommandLimits,
    /// SGL support.
    pub sgl: SglSupport,
    /// Size of the controller memory buffer in bytes; 0 is none.
    pub cmb_bytes: u64,
    /// Whether Doorbell Buffer Config is supported.
    pub dbbuf: bool,
    /// Number of I/O queue pairs.
    pub io_queue_count: u16,
    /// Reclaim unit handles of each namespace, for Flexible Data Placement; 0 is none.
    pub placement_handles: u16,
    /// Maximum entries of a queue (CAP.MQES, one-based).
    pub queue_entries_max: u32,
    /// Namespace optimal I/O boundary in LBAs; 0 is none.
    pub noiob_lbas: u16,
    /// Serial number, at most 20 printable ASCII characters.
    pub serial: String,
    /// CAP.DSTRD: doorbells are 4 << dstrd bytes apart.
    pub dstrd: u8,
    /// Size of the volatile write cache in bytes; 0 is none, which makes each write durable when it completes.
    pub vwc_bytes: u64,
    /// The fault plan.
    pub faults: FaultPlan,
    /// Seed of all randomness: which faults occur, what a power cut takes.
    pub seed: u64,
    /// The drive whose timing it follows; `None` is as fast as possible.
    pub model: Option<TimingModel>,
    /// Whether a subsystem reset is supported (CAP.NSSRS).
    pub nssr: bool,
    /// Command Retry Delay Times 1 to 3 in units of 100 ms; 0 is none.
    pub crdt_100ms: [u16; 3],
    /// Whether memory media populate all their memory at start, in huge pages if available. Start takes up to seconds
    /// per GiB; later accesses cause no page fault.
    pub prefault: bool,
}

const DEFAULT_NULL_BYTES: u64 = 1 << 40;
/// The first word of the target.
const STORAGES: [&str; 3] = ["mem", "file", "null"];
/// The settings behind it: name, and what sets it.
const SETTINGS: [(&str, Setter); 26] = [
    ("size", |options, value| options.set_size(size(value)?)),
    ("lba", |options, value| put(&mut options.lba_bytes, lba_list(value))),
    ("pi", |options, value| put(&mut options.protection, number(value))),
    ("namespaces", |options, value| put(&mut options.namespace_count, number(value))),
    ("mdts", |options, value| put(&mut options.mdts, number(value))),
    ("vsl", |options, value| put(&mut options.limits.vsl, number(value))),
    ("wzsl", |options, value| put(&mut options.limits.wzsl, number(value))),
    ("dmrl", |options, value| put(&mut options.limits.dmrl, number(value))),
    ("dmrsl", |options, value| put(&mut options.limits.dmrsl_lbas, number(value))),
    ("dmsl", |options, value| put(&mut options.limits.dmsl_lbas, number(value))),
    ("sgl", |options, value| put(&mut options.sgl, sgl(value))),
    ("cmb", |options, value| put(&mut options.cmb_bytes, size(value))),
    ("dbbuf", |options, value| put(&mut options.dbbuf, switch(value))),
    ("ioqueues", |options, value| put(&mut options.io_queue_count, number(value))),
    ("fdp", |options, value| put(&mut options.placement_handles, number(value))),
    ("mqes", |options, value| put(&mut options.queue_entries_max, number(value))),
    ("noiob", |options, value| put(&mut options.noiob_lbas, number(value))),
    ("serial", |options, value| put(&mut options.serial, Ok(value.to_owned()))),
    ("dstrd", |options, value| put(&mut options.dstrd, number(value))),
    ("vwc", |options, value| put(&mut options.vwc_bytes, write_cache(value))),
    ("faults", |options, value| put(&mut options.faults, parsed(value))),
    ("seed", |options, value| put(&mut options.seed, number(value))),
    ("model", |options, value| put(&mut options.model, parsed(value).map(Some))),
    ("nssr", |options, value| put(&mut options.nssr, switch(value))),
    ("crdt", |options, value| put(&mut options.crdt_100ms, retry_delays(value))),
    ("prefault", |options, value| put(&mut options.prefault, switch(value))),
];

/// Sets one option to a value.
type Setter = fn(&mut Options, &str) -> Parsed<()>;
/// Default, largest and smallest size of the write cache.
const VWC_BYTES: u64 = 16 << 20;
const VWC_BYTES_MAX: u64 = 1 << 30;
const VWC_BYTES_MIN: u64 = 16 << 10;
/// PCI vendor and subsystem vendor, for Identify and a served function's configuration space. The public list (pci.ids)
/// assigns it to no vendor, so that no quirks apply; 0 and FFFFh mean no device.
pub const PCI_VENDOR: u16 = 0xad17;
/// Maximum number of reclaim unit handles, so that their status fits a page.
const HANDLES_MAX: u16 = 127;
/// Maximum number of namespaces.
pub(super) const NAMESPACES_MAX: u32 = 256;

impl Options {
    /// Creates the default controller over `bytes` of memory.
    pub fn memory(bytes: u64) -> Options {
        Options::over(Storage::Memory { bytes })
    }

    /// Creates a controller that completes at once and moves no data.
    pub fn null() -> Options {
        Options::over(Storage::Null { bytes: DEFAULT_NULL_BYTES })
    }

    /// Creates the default controller over `storage`.
    pub fn over(storage: Storage) -> Options {
        Options {
            storage,
            lba_bytes: vec![512],
            protection: 0,
            namespace_count: 1,
            mdts: 7,
            limits: CommandLimits::default(),
            sgl: SglSupport::Byte,
            cmb_bytes: 0,
            dbbuf: true,
            io_queue_count: 64,
            placement_handles: 0,
            queue_entries_max: 4096,
            noiob_lbas: 0,
            serial: "ADIT0001".to_owned(),
            dstrd: 0,
            vwc_bytes: 0,
            faults: FaultPlan::default(),
            seed: 0,
            model: None,
            nssr: true,
            crdt_100ms: [0; 3],
            prefault: false,
        }
    }

    /// Returns whether Identify reports a volatile write cache: its own, or the page cache over a file.
    pub(super) fn has_write_cache(&self) -> bool {
        self.vwc_bytes > 0 || matches!(self.storage, Storage::File { .. })
    }

    /// Returns the LBA size of the namespace at `index` (from zero) in bytes.
    pub(super) fn lba_bytes_of(&self, index: usize) -> u32 {
        match self.lba_bytes.get(index).or(self.lba_bytes.last()) {
            Some(bytes) => *bytes,
            None => 512,
        }
    }

    /// Checks the settings and their consistency.
    ///
    /// # Errors
    /// An error naming the setting and its limit.
    pub fn check(&self) -> Result<()> {
        let count = self.namespace_count;
        range("namespaces", u64::from(count), 1, u64::from(NAMESPACES_MAX))?;
        range("pi", u64::from(self.protection), 0, 3)?;
        range("mdts", u64::from(self.mdts), 0, 15)?;
        range("vsl", u64::from(self.limits.vsl), 0, 15)?;
        range("wzsl", u64::from(self.limits.wzsl), 0, 15)?;
        range("ioqueues", u64::from(self.io_queue_count), 1, 1024)?;
        range("fdp", self.placement_handles.into(), 0, HANDLES_MAX.into())?;
        range("mqes", u64::from(self.queue_entries_max), 2, 65536)?;
        range("dstrd", u64::from(self.dstrd), 0, 8)?;
        range("cmb", self.cmb_bytes, 0, 1 << 30)?;
        if !self.cmb_bytes.is_multiple_of(4096) {
            return Err(Error::invalid("cmb", "the size must be a multiple of 4096 bytes"));
        }
        if self.vwc_bytes > 0 {
            range("vwc", self.vwc_bytes, VWC_BYTES_MIN, VWC_BYTES_MAX)?;
            if matches!(self.storage, Storage::Null { .. }) {
                return Err(Error::invalid("vwc", "'null' keeps no data that a cache could lose"));
            }
        }
        if self.prefault && !matches!(self.storage, Storage::Memory { .. }) {
            return Err(Error::invalid("prefault", "only media in memory ('mem=SIZE') has pages"));
        }
        self.check_lbas()?;
        let serial = &self.serial;
        if serial.is_empty() || serial.len() > 20 || !serial.bytes().all(|c| c.is_ascii_graphic()) {
            return Err(Error::invalid("serial", "1 to 20 printable ASCII characters"));
        }
        Ok(())
    }

    fn check_lbas(&self) -> Result<()> {
        let given = self.lba_bytes.len();
        if given == 0 || (given > 1 && given != self.namespace_count as usize) {
            let why = format!("{given} LBA sizes for {} namespaces", self.namespace_count);
            return Err(Error::invalid("lba", why));
        }
        match self.lba_bytes.iter().find(|bytes| !matches!(**bytes, 512 | 4096)) {
            Some(bytes) => Err(Error::invalid("lba", format!("{bytes} is neither 512 nor 4096"))),
            None => Ok(()),
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Parsed<()> {
        match SETTINGS.iter().find(|(known, _)| *known == name) {
            Some((_, set)) => set(self, value),
            None if STORAGES.contains(&name) => Err("the storage must come first, once".to_owned()),
            None => Err(unknown("setting", name, &names())),
        }
    }

    fn set_size(&mut self, given: u64) -> Parsed<()> {
        match &mut self.storage {
            Storage::File { bytes, .. } => *bytes = Some(given),
            Storage::Null { bytes } => *bytes = given,
            Storage::Memory { .. } => return Err("'size' repeats what 'mem=SIZE' says".to_owned()),
        }
        Ok(())
    }
}

impl FromStr for Options {
    type Err = Error;

    fn from_str(tail: &str) -> Result<Options> {
        let bad = |reason: String| Error::target(format!("soft:{tail}"), reason);
        let mut words = tail.split(',');
        let storage = storage(words.next().unwrap_or_default()).map_err(bad)?;
        let mut options = Options::over(storage);
        for word in words {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| bad(format!("'{word}' has no value; write it as NAME=VALUE")))?;
            options.set(name, value).map_err(|why| bad(explain(name, value, why)))?;
        }
        // By default, as many namespaces as LBA sizes.
        if options.namespace_count == 1 && options.lba_bytes.len() > 1 {
            options.namespace_count = options.lba_bytes.len() as u32;
        }
        options.check().map_err(|error| bad(error.to_string()))?;
        Ok(options)
    }
}

/// Returns all names that a target may have.
fn names() -> Vec<&'static str> {
    STORAGES.into_iter().chain(SETTINGS.iter().map(|(name, _)| *name)).collect()
}

fn put<T>(slot: &mut T, value: Parsed<T>) -> Parsed<()> {
    *slot = value?;
    Ok(())
}

fn parsed<T: FromStr<Err = Error>>(value: &str) -> Parsed<T> {
    value.parse().map_err(|why: Error| why.to_string())
}

fn explain(name: &str, value: &str, why: String) -> String {
    if names().contains(&name) { format!("'{name}={value}': {why}") } else { why }
}

fn storage(word: &str) -> Parsed<Storage> {
    let (name, value) = word.split_once('=').map_or((word, None), |(n, v)| (n, Some(v)));
    match (name, value) {
        ("mem", Some(value)) => Ok(Storage::Memory { bytes: size(value)? }),
        ("file", Some(path)) if !path.is_empty() => {
            Ok(Storage::File { path: path.into(), bytes: None })
        }
        ("null", None) => Ok(Storage::Null { bytes: DEFAULT_NULL_BYTES }),
        ("mem", None) => Err("'mem' needs a size, as in 'mem=1G'".to_owned()),
        ("file", _) => Err("'file' needs a path, as in 'file=disk.img,size=4G'".to_owned()),
        ("null", Some(_)) => Err("'null' takes no value; its capacity is 'size=SIZE'".to_owned()),
        ("", _) => Err("it starts with 'mem=SIZE', 'file=PATH' or 'null'".to_owned()),
        (other, _) if names().contains(&other) => {
            Err(format!("'{other}' comes after the storage: 'mem=SIZE', 'file=PATH' or 'null'"))
        }
        (other, _) => Err(unknown("setting", other, &STORAGES)),
    }
}

fn lba_list(value: &str) -> Parsed<Vec<u32>> {
    value.split('+').map(number).collect()
}

fn sgl(value: &str) -> Parsed<SglSupport> {
    match value {
        "on" => Ok(SglSupport::Byte),
        "off" => Ok(SglSupport::Off),
        "dword" => Ok(SglSupport::Dword),
        _ => Err("it is 'on', 'off' or 'dword'".to_owned()),
    }
}

/// Parses `on`, `off` or a size.
fn write_cache(value: &str) -> Parsed<u64> {
    match value {
        "on" => Ok(VWC_BYTES),
        "off" => Ok(0),
        other => size(other)
            .map_err(|_| format!("'{other}' is neither 'on', 'off' nor a size such as 1M")),
    }
}

/// Parses one to three durations, as in `100ms+1s`.
fn retry_delays(value: &str) -> Parsed<[u16; 3]> {
    let mut delays = [0; 3];
    let words: Vec<&str> = value.split('+').collect();
    if words.len() > delays.len() {
        return Err("there are three at most, as in 'crdt=100ms+1s+10s'".to_owned());
    }
    for (delay, word) in delays.iter_mut().zip(words) {
        let ms = duration(word)?.as_millis();
        let whole = Some(ms / 100).filter(|_| ms.is_multiple_of(100));
        let fits = whole.and_then(|units| u16::try_from(units).ok());
        *delay =
            fits.ok_or_else(|| format!("'{word}' is not a multiple of 100ms up to 6553500ms"))?;
    }
    Ok(delays)
}

fn range(name: &str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(name, format!("{value} is outside {min} to {max}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(tail: &str) -> String {
        tail.parse::<Options>().expect_err("must be refused").to_string()
    }

    #[test]
    fn each_storage_and_setting_parses() {
        let options: Options = "mem=1G,lba=512+4096,mdts=5,sgl=dword,cmb=1M,dbbuf=off,ioqueues=3,\
                                mqes=64,noiob=256,serial=X1,dstrd=2"
            .parse()
            .expect("valid");
        assert_eq!(options.storage, Storage::Memory { bytes: 1 << 30 });
        assert_eq!(options.protection, 0);
        assert_eq!("mem=1M,pi=3".parse::<Options>().expect("valid").protection, 3);
        assert_eq!((options.namespace_count, options.lba_bytes_of(1)), (2, 4096));
        assert_eq!((options.mdts, options.sgl, options.dbbuf), (5, SglSupport::Dword, false));
        assert_eq!((options.io_queue_count, options.queue_entries_max), (3, 64));
        assert!("mem=1M,prefault=on".parse::<Options>().expect("valid").prefault);
        assert!(refusal("null,prefault=on").contains("only media in memory"));
        let limits = "mem=1M,vsl=1,wzsl=2,dmrl=3,dmrsl=4,dmsl=5".parse::<Options>().expect("valid");
        let expected = CommandLimits { vsl: 1, wzsl: 2, dmrl: 3, dmrsl_lbas: 4, dmsl_lbas: 5 };
        assert_eq!(limits.limits, expected);
        assert!(refusal("mem=1M,wzsl=16").contains("outside 0 to 15"));
        let file: Options = "file=disk.img,size=4G".parse().expect("valid");
        assert_eq!(file.storage, Storage::File { path: "disk.img".into(), bytes: Some(4 << 30) });
        assert_eq!("null".parse::<Options>().expect("valid"), Options::null());
    }

    #[test]
    fn what_goes_wrong_parses_with_the_rest() {
        let options: Options =
            "mem=1G,seed=7,vwc=64k,nssr=off,model=990pro,crdt=100ms+2s,faults=lose@p=0.001+status(2:81)@read:n=100"
                .parse()
                .expect("valid");
        assert_eq!((options.seed, options.vwc_bytes, options.nssr), (7, 64 << 10, false));
        assert_eq!(options.model, Some(TimingModel::Samsung990Pro));
        assert_eq!((options.crdt_100ms, options.faults.rules.len()), ([1, 20, 0], 2));
        assert!(options.has_write_cache() && !Options::memory(1 << 20).has_write_cache());
        assert_eq!("mem=1M,vwc=on".parse::<Options>().expect("valid").vwc_bytes, VWC_BYTES);
        assert!(refusal("mem=1M,vwc=1k").contains("outside 16384"));
        assert!(refusal("null,vwc=on").contains("keeps no data"));
        assert!(refusal("mem=1M,vwc=maybe").contains("'on', 'off' nor a size"));
        assert!(refusal("mem=1M,crdt=50ms").contains("multiple of 100ms"));
        assert!(refusal("mem=1M,crdt=1s+1s+1s+1s").contains("three at most"));
        assert!(refusal("mem=1M,model=pm9").contains("there are pm9d3a"));
        assert!(refusal("mem=1M,faults=loose").contains("did you mean 'lose'?"));
    }

    #[test]
    fn a_typo_gets_the_nearest_name() {
        assert!(refusal("mem=1G,mtds=5").contains("did you mean 'mdts'?"));
        assert!(refusal("memm=1G").contains("did you mean 'mem'?"));
        assert!(refusal("nul").contains("did you mean 'null'?"));
    }

    #[test]
    fn each_bad_value_is_one_sentence() {
        assert!(refusal("").contains("starts with"));
        assert!(refusal("mem").contains("needs a size"));
        assert!(refusal("mem=lots").contains("not a size"));
        assert!(refusal("mem=1G,sgl=maybe").contains("'on', 'off' or 'dword'"));
        assert!(refusal("mem=1G,lba=520").contains("neither 512 nor 4096"));
        assert!(refusal("mem=1G,mdts=99").contains("outside 0 to 15"));
        assert!(refusal("mem=1G,pi=4").contains("outside 0 to 3"));
        assert!(refusal("mem=1G,mdts").contains("NAME=VALUE"));
        assert!(refusal("mem=1G,namespaces=3,lba=512+512").contains("2 LBA sizes for 3"));
        assert!(refusal("mdts=5").contains("comes after the storage"));
        assert!(refusal("mem=99999999999999999999T").contains("not a size"));
    }
}
