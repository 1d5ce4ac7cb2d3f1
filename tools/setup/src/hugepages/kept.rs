//! Persistent state: the numbers of pages before the first change, and the numbers to set at boot.
//!
//! The record, `/var/lib/adit/setup/hugepages.json`, holds the changed pools and is written before the first
//! change. It is valid for one boot, because each boot starts with its own numbers; except for pools that a
//! boot sets on our behalf, whose previous numbers stay valid.
//!
//! `/etc/tmpfiles.d/adit-hugepages.conf` is read by systemd-tmpfiles at boot, one line per pool
//! (tmpfiles.d(5)).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::failure::Result;
use crate::inventory::pool::Pool;
use crate::operation::Operation;
use crate::record::{self, STATE, boot_id};
use crate::root::Root;

/// The record's format version.
const VERSION: u32 = 1;

/// Read by systemd-tmpfiles at boot.
pub(super) const AT_BOOT: &str = "/etc/tmpfiles.d/adit-hugepages.conf";

/// Returns the record's file.
pub(super) fn file() -> String {
    format!("{STATE}/hugepages.json")
}

/// The numbers of pages before the first change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    boot_id: String,
    pools: Vec<Before>,
}

/// A pool before the first change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Before {
    #[serde(flatten)]
    pool: Pool,
    pages: u64,
}

impl Record {
    /// Loads the record, if there is one.
    ///
    /// # Errors
    /// When the file exists but is no record of ours.
    pub(super) fn load(root: &Root) -> Result<Option<Record>> {
        let remedy = "set the numbers of hugepages by hand, then remove it";
        record::read(root, &file(), remedy, |record: &Record| {
            (record.version != VERSION).then(|| format!("version {}", record.version))
        })
    }

    /// Creates the record for a change of `pools`: `old`'s pools, if valid in this boot, plus the current
    /// numbers of `pools`. Other tools' changes to other pools are not recorded.
    pub(super) fn of_now(root: &Root, old: Option<&Record>, pools: &[Pool]) -> Record {
        let mut all = old.map(|old| old.to_put_back(root)).unwrap_or_default();
        for &pool in pools {
            let is_known = all.iter().any(|(other, _)| *other == pool);
            let pages = pool.pages(root).filter(|_| !is_known);
            all.extend(pages.map(|pages| (pool, pages.lasting())));
        }
        all.sort_unstable();
        let pools = all.into_iter().map(|(pool, pages)| Before { pool, pages }).collect();
        Record { version: VERSION, boot_id: boot_id(root), pools }
    }

    /// Returns the pools we have changed in this boot, and their previous numbers of pages.
    pub(super) fn to_put_back(&self, root: &Root) -> Vec<(Pool, u64)> {
        let at_boot = at_boot(root);
        let is_this_boot = self.boot_id == boot_id(root);
        let ours = |before: &&Before| is_this_boot || at_boot.contains_key(&before.pool);
        self.pools.iter().filter(ours).map(|before| (before.pool, before.pages)).collect()
    }

    /// Returns the change that writes the record.
    pub(super) fn stored(&self) -> Change {
        record::written(file(), self)
    }
}

/// Returns the change that removes the record.
pub(super) fn forgotten() -> Change {
    Change::remove(file())
}

/// Returns the change that stops setting pools at boot.
pub(super) fn removed_from_boot() -> Change {
    Change::remove(AT_BOOT)
}

/// Returns the pools set at boot; lines that are not ours are ignored.
pub(super) fn at_boot(root: &Root) -> BTreeMap<Pool, u64> {
    let text = root.text(AT_BOOT).unwrap_or_default();
    text.lines().filter_map(told).collect()
}

fn told(line: &str) -> Option<(Pool, u64)> {
    let mut words = line.split_whitespace();
    let kind = words.next()?;
    let pool = Pool::of_file(Path::new(words.next()?))?;
    // Mode, user, group and age are ignored for a write.
    let pages = words.nth(4)?.parse().ok()?;
    (kind == "w!" && words.next().is_none()).then_some((pool, pages))
}

/// Adds these pools to those set at boot.
///
/// # Errors
/// When the change fails.
pub(super) fn tell_boot(operation: &mut Operation, pools: &[(Pool, u64)]) -> Result<()> {
    let before = at_boot(operation.root);
    let mut all = before.clone();
    all.extend(pools.iter().copied());
    if all == before {
        return operation.say(format!("{AT_BOOT} already sets this"));
    }
    let mut content = "# Written by 'adit setup hugepages --persist'; 'adit setup hugepages --release' removes it.\n"
        .to_owned();
    for (pool, pages) in all {
        // '!' restricts it to boot; without it, any package could trigger systemd-tmpfiles.
        writeln!(content, "w! {} - - - - {pages}", pool.file().display())
            .expect("a string takes everything");
    }
    operation.change(Change::file(AT_BOOT, content))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_lines_for_a_boot_read_as_they_were_written() {
        let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let pool = Pool { node: None, page_bytes: 2 << 20 };
        assert_eq!(told(&format!("w! {path} - - - - 512")), Some((pool, 512)));
        for line in [
            String::new(),
            "# w!".into(),
            format!("w {path} - - - - 512"),
            format!("w! {path} - - - 512"),
            format!("w! {path} - - - - 512 513"),
            format!("w! {path} - - - - -1"),
            "w! /etc/shadow - - - - 512".into(),
        ] {
            assert_eq!(told(&line), None, "{line}");
        }
    }

    #[test]
    fn what_is_no_record_of_ours_is_named_and_not_guessed_at() {
        for text in ["{", "[]", "{\"version\": 2, \"boot_id\": \"x\", \"pools\": []}"] {
            let root = Root::recorded(&format!("{} = {text}", file()));
            let why = Record::load(&root).expect_err(text).to_string();
            assert!(why.contains("hugepages.json is damaged"), "{why}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let root = Root::recorded(&format!("{STATE}/\n/etc/tmpfiles.d/\n"));
            std::fs::write(root.path(file()), &bytes).expect("written");
            std::fs::write(root.path(AT_BOOT), &bytes).expect("written");
            let _ = Record::load(&root);
            at_boot(&root);
        }
    }
}
