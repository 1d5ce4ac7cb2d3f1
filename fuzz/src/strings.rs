//! User input: targets and options of the software controller.
//!
//! Half of the inputs are raw text, the other half words of the syntax in any order, because random bytes alone would
//! never spell a setting.

use adit_driver::Target;
use adit_driver::soft;

const WORDS: [&str; 130] = [
    "soft:",
    "vfio:",
    "vfio-user:",
    "mem=",
    "file=",
    "null",
    "size=",
    "lba=",
    "namespaces=",
    "mdts=",
    "sgl=",
    "cmb=",
    "dbbuf=",
    "ioqueues=",
    "mqes=",
    "noiob=",
    "serial=",
    "dstrd=",
    "ns=",
    "queues=",
    "host",
    "cmb",
    "on",
    "off",
    "byte",
    "dword",
    "512",
    "4096",
    "+",
    ",",
    "=",
    ":",
    ".",
    "/",
    "0",
    "1",
    "2",
    "9",
    "15",
    "16",
    "64",
    "65536",
    "4294967295",
    "18446744073709551615",
    "99999999999999999999",
    "k",
    "K",
    "M",
    "G",
    "T",
    "P",
    "0000",
    "01",
    "00",
    "0000:01:00.0",
    "-",
    " ",
    "ä",
    "\u{0}",
    "seed=",
    "vwc=",
    "model=",
    "faults=",
    "mem=1M",
    "lose",
    "mute",
    "hold",
    "delay(",
    "twice",
    "again(",
    "status(",
    "cid",
    "sqid",
    "sqhd",
    "phase",
    "media",
    "rot",
    "misdirect",
    "noabort",
    "cfs",
    "remove",
    "hang-enable",
    "slow-enable(",
    "slow-disable(",
    "refuse-disable",
    "refuse-reset",
    "refuse-nssr",
    "tear",
    "any",
    "io",
    "admin",
    "q=",
    "nsid=",
    "op=",
    "admin-op=",
    "p=",
    "n=",
    "t=",
    "times=",
    "dnr",
    "more",
    "crd1",
    "crd3",
    "@",
    ")",
    "(",
    "0.001",
    "1e-3",
    "1ms",
    "1us",
    "10s",
    "2:81",
    "0:0",
    "read",
    "write",
    "flush",
    "identify",
    "..",
    "..=",
    "0x",
    "nssr=",
    "crdt=",
    "pm9d3a",
    "990pro",
    "%",
    ";",
    "18446744073",
    "@p=1",
    "@n=3",
    "faults=lose@p=1",
];

/// Runs one input.
pub fn target(data: &[u8]) {
    let [kind, bytes @ ..] = data else { return };
    let text = match kind & 1 {
        0 => String::from_utf8_lossy(bytes).into_owned(),
        _ => bytes.iter().map(|&byte| WORDS[usize::from(byte) % WORDS.len()]).collect(),
    };
    check_target(&text);
    check_options(&text);
    check_plan(&text);
    check_options(text.strip_prefix("soft:").unwrap_or(&text));
}

fn check_target(text: &str) {
    match text.parse::<Target>() {
        Ok(target) => {
            let printed = target.to_string();
            assert!(printed.starts_with(&target.device()), "{text:?} prints its device first");
            let again = printed.parse::<Target>();
            assert_eq!(again.ok().as_ref(), Some(&target), "{text:?} prints as {printed:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty(), "{text:?} is refused with a reason"),
    }
}

fn check_plan(text: &str) {
    if let Err(error) = text.parse::<soft::FaultPlan>() {
        assert!(!error.to_string().is_empty(), "{text:?} is refused with a reason");
    }
}

fn check_options(text: &str) {
    match text.parse::<soft::Options>() {
        Ok(options) => options.check().expect("what parses is sound"),
        Err(error) => assert!(!error.to_string().is_empty(), "{text:?} is refused with a reason"),
    }
}
