//! The driver, and a store on it, with a controller that lies in Identify and in CAP: any value of any field gives an
//! error that names what the device said, or a store that keeps its objects; never a panic or wrong data.
//!
//! The seed of the random lies is printed; `ADIT_FUZZ_SEED=N` repeats it, `ADIT_FUZZ_RUNS=N` makes so many.
//! docs/design/nvme-coverage.md says what an odd value of each field does.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use adit_driver::bus::Bus;
use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::{Controller, ControllerOptions, Device, Target};
use adit_kvstore::store::{FormatStore, OpenOptions};
use adit_kvstore::{Key, Store};

/// Pseudo-CNS of the capabilities register, whose fields are bits and not bytes.
const CAP: u16 = 0x100;

/// A field of a structure.
#[derive(Clone, Copy)]
struct Field {
    name: &'static str,
    /// The structure: a CNS, or [`CAP`].
    cns: u16,
    /// Its first byte and its bytes, of CAP its lowest bit and its bits.
    at: usize,
    width: usize,
    /// Words one of which a refusal has; without any, every value works.
    told: &'static [&'static str],
}

const fn field(
    name: &'static str,
    cns: u16,
    at: usize,
    width: usize,
    told: &'static [&'static str],
) -> Field {
    Field { name, cns, at, width, told }
}

/// What the driver reads.
const READ: [Field; 35] = [
    field("CMIC", 1, 76, 1, &[]),
    field("MDTS", 1, 77, 1, &["Invalid Field"]),
    field("RTD3E", 1, 88, 4, &[]),
    field("OAES", 1, 92, 4, &[]),
    field("CTRATT", 1, 96, 4, &[]),
    field("CRDT", 1, 128, 6, &[]),
    field("OACS", 1, 256, 2, &[]),
    field("ACL", 1, 258, 1, &[]),
    field("AERL", 1, 259, 1, &[]),
    field("MTFA", 1, 270, 2, &[]),
    field("SQES", 1, 512, 1, &["SQES"]),
    field("CQES", 1, 513, 1, &["CQES"]),
    field("ONCS", 1, 520, 2, &[]),
    field("VWC", 1, 525, 1, &[]),
    field("SGLS", 1, 536, 4, &[]),
    field("NSZE", 0, 0, 8, &["LBA", "bytes"]),
    field("NLBAF", 0, 25, 1, &["LBA format"]),
    field("FLBAS", 0, 26, 1, &["LBA", "SGL Length"]),
    field("DPS", 0, 29, 1, &["protection information"]),
    field("NOIOB", 0, 46, 2, &[]),
    field("LBAF0.MS", 0, 128, 2, &["metadata"]),
    field("LBAF0.LBADS", 0, 130, 1, &["LBA", "bytes"]),
    field("list of namespaces", 2, 0, 8, &["namespace"]),
    field("VSL", 6, 0, 1, &[]),
    field("WZSL", 6, 1, 1, &[]),
    field("DMRL", 6, 3, 1, &[]),
    field("DMRSL", 6, 4, 4, &[]),
    field("DMSL", 6, 8, 8, &[]),
    field("CAP.MQES", CAP, 0, 16, &["MQES"]),
    field("CAP.TO", CAP, 24, 8, &[]),
    field("CAP.DSTRD", CAP, 32, 4, &["doorbell", "out of service"]),
    field("CAP.CSS", CAP, 37, 8, &["CAP.CSS", "CSTS.CFS"]),
    field("CAP.MPSMIN", CAP, 48, 4, &["CAP.MPSMIN"]),
    field("CAP.CRMS", CAP, 59, 2, &[]),
    field("ELBAF", 5, 12, 64, &["protection information", "storage tag"]),
];

/// What it does not read, or only shows.
const IGNORED: [Field; 51] = [
    field("VID", 1, 0, 2, &[]),
    field("SSVID", 1, 2, 2, &[]),
    field("SN", 1, 4, 20, &[]),
    field("MN", 1, 24, 40, &[]),
    field("FR", 1, 64, 8, &[]),
    field("CNTLID", 1, 78, 2, &[]),
    field("VER", 1, 80, 4, &[]),
    field("RTD3R", 1, 84, 4, &[]),
    field("CNTRLTYPE", 1, 111, 1, &[]),
    field("FRMW", 1, 260, 1, &[]),
    field("LPA", 1, 261, 1, &[]),
    field("ELPE", 1, 262, 1, &[]),
    field("NPSS", 1, 263, 1, &[]),
    field("WCTEMP", 1, 266, 2, &[]),
    field("CCTEMP", 1, 268, 2, &[]),
    field("HMPRE", 1, 272, 4, &[]),
    field("HMMIN", 1, 276, 4, &[]),
    field("TNVMCAP", 1, 280, 16, &[]),
    field("UNVMCAP", 1, 296, 16, &[]),
    field("KAS", 1, 320, 2, &[]),
    field("MAXCMD", 1, 514, 2, &[]),
    field("NN", 1, 516, 4, &[]),
    field("FUSES", 1, 522, 2, &[]),
    field("FNA", 1, 524, 1, &[]),
    field("AWUN", 1, 526, 2, &[]),
    field("AWUPF", 1, 528, 2, &[]),
    field("NWPC", 1, 531, 1, &[]),
    field("ACWU", 1, 532, 2, &[]),
    field("OCFS", 1, 534, 2, &[]),
    field("MNAN", 1, 540, 4, &[]),
    field("SUBNQN", 1, 768, 256, &[]),
    field("PSD", 1, 2048, 32, &[]),
    field("NCAP", 0, 8, 8, &[]),
    field("NUSE", 0, 16, 8, &[]),
    field("NSFEAT", 0, 24, 1, &[]),
    field("NMIC", 0, 30, 1, &[]),
    field("RESCAP", 0, 31, 1, &[]),
    field("DLFEAT", 0, 33, 1, &[]),
    field("NAWUN", 0, 34, 2, &[]),
    field("NABSN", 0, 40, 2, &[]),
    field("NVMCAP", 0, 48, 16, &[]),
    field("NPWG", 0, 64, 2, &[]),
    field("NPWA", 0, 66, 2, &[]),
    field("NPDG", 0, 68, 2, &[]),
    field("NPDA", 0, 70, 2, &[]),
    field("NOWS", 0, 72, 2, &[]),
    field("MSSRL", 0, 74, 2, &[]),
    field("NSATTR", 0, 99, 1, &[]),
    field("WUSL", 6, 2, 1, &[]),
    field("CAP.MPSMAX", CAP, 52, 4, &[]),
    field("LBSTM", 5, 0, 8, &[]),
];

/// A field that says `value`, repeated to its width.
#[derive(Clone, Copy)]
struct Lie(Field, u64);

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:#x}", self.0.name, self.1)
    }
}

impl Lie {
    fn put(&self, page: &mut [u8]) {
        let Lie(Field { at, width, .. }, value) = *self;
        let bytes = value.to_le_bytes().into_iter().cycle();
        page[at..at + width].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    }

    fn put_bits(&self, cap: u64) -> u64 {
        let Lie(Field { at, width, .. }, value) = *self;
        let mask = ((1 << width) - 1) << at;
        cap & !mask | value << at & mask
    }
}

fn contents(number: u64) -> Vec<u8> {
    let bytes = [700, 4096, 300_000][number as usize % 3];
    (0..bytes).map(|at: u64| (at.wrapping_mul(number + 7) >> 3) as u8).collect()
}

/// Opens the controller, makes a store, uses it and opens it again. Returns the first refusal.
fn run(make: &str, lies: &[Lie]) -> Result<(), String> {
    let tail = format!("mem=64M{make}");
    let bus = SoftBus::new(tail.parse().expect("options"), Drive::Thread).expect("a bus");
    let (told, read) = (lies.to_vec(), bus.read64(0));
    let cap = lies.iter().filter(|lie| lie.0.cns == CAP).fold(read, |cap, lie| lie.put_bits(cap));
    bus.with_controller(|controller| {
        controller.set_cap(cap);
        controller.alter_identify(move |cns, page| {
            let lies = told.iter().filter(|lie| lie.0.cns == u16::from(cns));
            lies.for_each(|lie| lie.put(page));
        });
    });
    let text = |error: &dyn fmt::Display| error.to_string();
    let options = ControllerOptions { io_queues: 4, ..ControllerOptions::default() };
    let target: Target = format!("soft:{tail}").parse().expect("a target");
    let controller = Controller::attach(bus, &options).map_err(|error| text(&error))?;
    let namespace = controller.namespace_of(&target).map_err(|error| text(&error))?;
    let devices = vec![Device::of_namespace(controller, namespace, &target)];
    let format =
        FormatStore { devices: devices.clone(), objects_max: Some(400), ..FormatStore::default() };
    Store::format(&format).map_err(|error| text(&error))?;
    let options = OpenOptions {
        devices,
        pool_bytes: 4 << 20,
        discard_after: Duration::ZERO,
        ..OpenOptions::default()
    };
    let keys = || (0..6u64).map(|number| (Key::from(number), contents(number)));
    let mut kept = 0;
    for round in 0..2 {
        let store = Store::open(&options).map_err(|error| text(&error))?;
        for (key, bytes) in keys() {
            if round == 0 {
                store.put(key.clone(), bytes.clone()).wait().map_err(|error| text(&error))?;
            }
            let found = store.get(key).wait().map_err(|error| text(&error))?;
            if let Some(found) = found {
                assert!(found[..] == bytes[..], "wrong data");
                kept += 1;
            }
        }
        let (key, bytes) = (Key::from(99u64), vec![1; 1 << 20]);
        store.put(key.clone(), bytes).wait().map_err(|error| text(&error))?;
        store.delete(key).wait().map_err(|error| text(&error))?;
        store.commit().wait().map_err(|error| text(&error))?;
        store.close().wait().map_err(|error| text(&error))?;
    }
    if kept == 12 { Ok(()) } else { Err(format!("{} of 12 gets missed", 12 - kept)) }
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// One run at a time, so that a panic is that run's.
static RUN: Mutex<()> = Mutex::new(());
static WATCH: Once = Once::new();

/// Runs with these lies; any thread's panic is a failure that names them. Returns the refusal.
fn survives(make: &str, lies: &[Lie]) -> Result<(), String> {
    WATCH.call_once(watch);
    let _turn = RUN.lock().unwrap_or_else(PoisonError::into_inner);
    let take = || std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner));
    drop(take());
    let outcome = catch_unwind(AssertUnwindSafe(|| run(make, lies)));
    let panics = take();
    let said: Vec<String> = lies.iter().map(Lie::to_string).collect();
    assert!(panics.is_empty(), "{said:?} on 'mem=64M{make}': {panics:?}");
    outcome.expect("no thread panicked")
}

/// Collects the panics of all threads.
fn watch() {
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
        print(panic);
    }));
}

const VALUES: [u64; 4] = [0, 1, 0x8080_8080_8080_8080, u64::MAX];

#[test]
fn any_value_of_a_field_is_refused_by_name_or_works() {
    let mut wrong = Vec::new();
    for (field, value) in READ.into_iter().flat_map(|field| VALUES.map(|value| (field, value))) {
        let make = if field.name == "ELBAF" { ",pi=1" } else { "" };
        let lie = Lie(field, value);
        if let Err(why) = survives(make, &[lie])
            && !field.told.iter().any(|word| why.contains(word))
        {
            wrong.push(format!("{lie}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn fields_that_are_not_read_may_say_anything() {
    for value in VALUES {
        let lies = IGNORED.map(|field| Lie(field, value));
        assert_eq!(survives("", &lies), Ok(()), "{value:#x}");
    }
}

/// Runs of several lies.
const RUNS: u64 = 40;

/// Xorshift64*.
fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

#[test]
fn several_lies_at_once_are_survived() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let first = number("ADIT_FUZZ_SEED").unwrap_or(clock.map_or(1, |now| now.as_secs()));
    let mut outcomes = [0u32; 2];
    for seed in first..first + number("ADIT_FUZZ_RUNS").unwrap_or(RUNS) {
        eprintln!("ADIT_FUZZ_SEED={seed}");
        let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let makes = ["", ",sgl=off,mdts=0", ",lba=4096,sgl=dword", ",pi=1", ",mqes=3,dbbuf=off"];
        let make = makes[next(&mut state) as usize % makes.len()];
        let lies: Vec<Lie> = (0..=next(&mut state) >> 8 & 3).map(|_| lie(&mut state)).collect();
        let is_refused = survives(make, &lies).inspect_err(|why| assert!(!why.is_empty())).is_err();
        outcomes[usize::from(is_refused)] += 1;
    }
    let are_few = outcomes.iter().sum::<u32>() < RUNS as u32;
    assert!(are_few || outcomes.iter().all(|count| *count > 0), "{outcomes:?} work and do not");
}

fn lie(state: &mut u64) -> Lie {
    // LBAs that are shorter than the device's let it write beyond a buffer, which only the IOMMU could stop.
    let is_safe = |field: &&Field| !["FLBAS", "LBAF0.LBADS", "CAP.DSTRD"].contains(&field.name);
    let fields: Vec<&Field> = READ.iter().chain(&IGNORED).filter(is_safe).collect();
    let field = *fields[(next(state) >> 8) as usize % fields.len()];
    let value = match next(state) >> 8 & 3 {
        0 => next(state) >> 8 & 31,
        1 => 1 << (next(state) >> 8 & 63),
        2 => u64::MAX << (next(state) >> 8 & 63),
        _ => next(state),
    };
    Lie(field, value)
}

#[test]
fn the_documentation_says_what_each_field_does() {
    let text = include_str!("../../docs/design/nvme-coverage.md");
    let section = text.split("\n## ").find(|section| section.starts_with("Odd values"));
    let section = section.expect("it has a table of odd values");
    let words: Vec<&str> =
        section.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').collect();
    let is_told = |field: &&Field| {
        field.name.contains(' ') && section.contains(field.name)
            || words.iter().any(|word| word.trim_end_matches('.') == field.name)
    };
    let missing = READ.iter().chain(&IGNORED).filter(|field| !is_told(field));
    assert_eq!(missing.map(|field| field.name).collect::<Vec<_>>(), [""; 0]);
}
