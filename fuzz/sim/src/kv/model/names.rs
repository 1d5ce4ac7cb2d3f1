//! What the model knows of conditions: versions as the store names them, and which were replaced by name.

use std::collections::{BTreeMap, BTreeSet};

use adit_driver::Time;
use adit_kvstore::Version as StoreVersion;

use super::{History, Model, Moment, Version, slack};

/// Versions as the store names them.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// The number of the version that a key had under a name.
    numbers: BTreeMap<(usize, StoreVersion), u64>,
    /// Names that changes have named and replaced, since the last crash.
    replaced: BTreeSet<(usize, StoreVersion)>,
}

impl Version {
    /// Forgets which of its expiries counts: a crash may take the record of the last.
    pub(super) fn revert(&mut self) {
        self.expires = self.earliest;
        if self.is_touched {
            self.gone = None;
        }
    }

    /// Notes that it may expire at another time, or never.
    fn loosen(&mut self, expires: Option<Time>) {
        self.expires = [self.expires, expires].into_iter().flatten().min();
        self.earliest = [self.earliest, expires].into_iter().flatten().min();
        (self.gone, self.is_touched) = (None, true);
    }
}

impl Model {
    /// Forgets what a crash may undo.
    pub(super) fn forget_conditions(&mut self) {
        self.names.replaced.clear();
        self.keys.iter_mut().for_each(|history| history.claimed = None);
    }

    /// Returns the newest name that the store gave a version of this key.
    pub(crate) fn newest_name(&self, key: usize) -> Option<StoreVersion> {
        let all = (key, StoreVersion::NONE)..=(key, StoreVersion(u64::MAX));
        self.names.numbers.range(all).next_back().map(|((_, name), _)| *name)
    }

    /// Learns the name of the version whose put began at `begin`.
    ///
    /// # Errors
    /// If another version of the key has this name.
    pub(crate) fn name_write(
        &mut self,
        key: usize,
        begin: Moment,
        name: StoreVersion,
    ) -> Result<(), String> {
        let writes = &self.keys[key].writes;
        let write = writes.iter().find(|write| write.begin == begin && write.end.is_none());
        // A crash in between has settled it.
        let Some(version) = write.and_then(|write| write.version) else { return Ok(()) };
        match self.names.numbers.insert((key, name), version.number) {
            Some(other) if other != version.number => {
                Err(format!("versions {other} and {} have the name {name}", version.number))
            }
            _ => Ok(()),
        }
    }

    /// Returns the version that has this name, if that is known.
    pub(super) fn named(&self, key: usize, name: StoreVersion) -> Option<Version> {
        let number = *self.names.numbers.get(&(key, name))?;
        self.keys[key].ever.iter().find(|version| version.number == number).copied()
    }

    /// Checks that an object with this name may have been there since `begin`, if the name is known.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn is_there(
        &self,
        key: usize,
        name: StoreVersion,
        begin: Moment,
    ) -> Result<(), String> {
        let history = &self.keys[key];
        match self.named(key, name) {
            Some(version) if !history.may_be(Some(version), begin, self.moment) => Err(format!(
                "{name} is version {}, which is over: {}",
                version.number,
                history.describe()
            )),
            _ => Ok(()),
        }
    }

    /// Records that a change named a version and replaced it.
    ///
    /// # Errors
    /// If it was not there, or another change has replaced it by its name.
    pub(crate) fn replace(
        &mut self,
        key: usize,
        name: StoreVersion,
        begin: Moment,
    ) -> Result<(), String> {
        if self.named(key, name).is_none() && !self.is_excused {
            return Err(format!("no version of {} has the name {name}", self.keys[key].key));
        }
        self.is_there(key, name, begin)?;
        match self.names.replaced.insert((key, name)) {
            true => Ok(()),
            false => Err(format!("{name} of {} was replaced twice", self.keys[key].key)),
        }
    }

    /// Records that the put that began at `begin` found no object.
    ///
    /// # Errors
    /// If an earlier one did, and nothing can have removed what it stored.
    pub(crate) fn claim(&mut self, key: usize, begin: Moment) -> Result<(), String> {
        let (is_excused, may_evict) = (self.is_excused, self.may_evict);
        let history = &mut self.keys[key];
        let Some(before) = history.claimed.replace(begin) else { return Ok(()) };
        let removes = |write: &super::Write| {
            write.version.is_none() && (write.begin > before || write.is_sweep)
        };
        let may_expire = history.ever.iter().any(|version| version.earliest.is_some());
        if is_excused || may_evict || may_expire || history.writes.iter().any(removes) {
            return Ok(());
        }
        Err(format!("two puts found {} absent: {}", history.key, history.describe()))
    }

    /// Begins another expiry of a key's object.
    pub(crate) fn begin_touch(&mut self, key: usize, expires: Option<Time>) -> Moment {
        let begin = self.tick();
        let history = &mut self.keys[key];
        history.touched = begin;
        history.each_version(|version| version.loosen(expires));
        begin
    }

    /// Ends another expiry that took effect.
    ///
    /// # Errors
    /// If there was no object.
    pub(crate) fn end_touch(
        &mut self,
        key: usize,
        begin: Moment,
        expires: Option<Time>,
        gone: Option<Time>,
    ) -> Result<(), String> {
        let (now, is_excused) = (self.tick(), self.is_excused);
        let history = &mut self.keys[key];
        let before = history.writes.iter().filter(|write| write.begin < begin);
        let mut numbers: Vec<u64> = before
            .filter_map(|write| write.version)
            .filter(|version| history.may_be(Some(*version), begin, now))
            .map(|version| version.number)
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        match numbers[..] {
            [] if !is_excused => {
                Err(format!("{} is not there: {}", history.key, history.describe()))
            }
            // If no later one may count.
            [only] if history.touched == begin => {
                history.each_version(|version| {
                    if version.number == only {
                        (version.expires, version.gone) =
                            (expires, gone.map(|gone| gone + slack()));
                    }
                });
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl History {
    fn each_version(&mut self, mut each: impl FnMut(&mut Version)) {
        self.ever.iter_mut().for_each(&mut each);
        self.writes.iter_mut().filter_map(|write| write.version.as_mut()).for_each(each);
    }
}
