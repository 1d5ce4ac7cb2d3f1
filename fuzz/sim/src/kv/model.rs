//! The model: what may be read of each key.
//!
//! A put or delete takes effect at some moment between its begin and its end, and those of one key in the order of
//! their begins. A read may return what was in effect at some moment between its own begin and end. A version is
//! therefore wrong once another write began after it and lies wholly before the read. After a crash the same holds for
//! the state that comes back, at a moment: for `durable`, that of the crash itself; for `restart`, that of the last
//! commit or any later one; and one moment for all keys of a shard. A power cut may also take the data alone of a version
//! that replaced nothing, which is then listed and missing: in `durable` only if its put was not acknowledged. In
//! `restart`, it may take the data of any newer version alone, and the version before it is there then: an object that a
//! commit covers is never missing for that. A kill takes no data, and leaves what was acknowledged longer ago than a
//! record waits.
//!
//! A miss is never wrong data, but misses are checked: if nothing was evicted or expired and no fault struck, an
//! existing object must be found. After a fault, a crash may restore any version ever put under the key. Damage to a
//! flushed block of a journal does so for the keys that the block names, and for no others.

use std::ops::Range;

use adit_driver::Time;
use adit_kvstore::shard::Part;
use adit_kvstore::{Durability, Key, Version as StoreVersion};

use super::content;
use super::tensors::Tensors;
use names::Names;

/// A point in the order of begins and ends.
pub(crate) type Moment = u64;

/// How late the store may expire objects, in nanoseconds.
const EXPIRY_SLACK_NS: u64 = 2_000_000_000;

/// A version put under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Unique in the run; its contents derive from it.
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    /// Its tensors, if it is a KV block.
    pub(crate) tensors: Option<Tensors>,
    /// The earliest virtual time at which it may be gone.
    pub(crate) expires: Option<Time>,
    /// The latest virtual time at which it may still exist.
    pub(crate) gone: Option<Time>,
    /// The earliest of all times that it was ever given to expire: a crash may bring any of them back.
    earliest: Option<Time>,
    /// Whether it may have been given another time than that of its put.
    is_touched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It took effect.
    Acknowledged,
    /// It did not take effect and never will.
    Void,
    /// It may or may not have taken effect.
    Unknown,
}

/// A put or delete.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// `None` for a delete, and for the state before the first put.
    version: Option<Version>,
    begin: Moment,
    end: Option<Moment>,
    /// For a version that a crash left: the moments whose states contain it.
    window: (Moment, Moment),
    /// Whether it is part of a sweep, which takes effect whatever puts of the key began meanwhile.
    is_sweep: bool,
}

impl Write {
    fn over(version: Option<Version>, begin: Moment, end: Moment) -> Write {
        Write { version, begin, end: Some(end), window: ALWAYS, is_sweep: false }
    }

    /// Returns whether `other` takes effect later in any case.
    fn is_before(&self, other: &Write) -> bool {
        let begin = if self.is_sweep || other.is_sweep { self.end } else { Some(self.begin) };
        begin.is_some_and(|begin| other.begin > begin)
    }
}

const ALWAYS: (Moment, Moment) = (0, Moment::MAX);

/// A key and the writes to it.
#[derive(Clone, Debug)]
struct History {
    key: Key,
    shard: u16,
    writes: Vec<Write>,
    ever: Vec<Version>,
    /// Whether a crash may have left a version that replaced nothing without its data. Its record may since have come
    /// back and been committed.
    may_lack_data: bool,
    /// When another expiry of it last began.
    touched: Moment,
    /// When a put began that found it absent.
    claimed: Option<Moment>,
}

/// How a life of the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    /// By a power cut, which may take all that no flush covers.
    Cut,
    /// By a kill: the devices keep their data, and the records of what was acknowledged up to this moment.
    Kill { recorded: Moment },
}

/// A part of an object that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) part: &'a Part,
}

impl Found<'_> {
    /// Returns whether it is this part of that version, whose contents derive from this seed.
    fn is_of(&self, version: &Version, seed: u64) -> bool {
        match (&version.tensors, self.part) {
            (None, Part::All) => self.is_run(version, 0..version.bytes, seed),
            (None, Part::Bytes(range)) => self.is_run(version, range.clone(), seed),
            (Some(tensors), Part::All) => tensors.are(self.bytes, 0..tensors.layers, seed),
            (Some(tensors), Part::Layer(layer)) => {
                tensors.are(self.bytes, *layer..*layer + 1, seed)
            }
            (Some(tensors), Part::Bytes(range)) => {
                let layers = tensors.layers_of(range);
                layers.is_some_and(|layers| tensors.are(self.bytes, layers, seed))
            }
            (None, Part::Layer(_)) => false,
        }
    }

    fn is_run(&self, version: &Version, range: Range<u64>, seed: u64) -> bool {
        let until = range.end.min(version.bytes);
        let is_long = self.bytes.len() as u64 == until.saturating_sub(range.start);
        is_long && content::difference(self.bytes, seed, range.start).is_none()
    }

    /// Returns where the part begins in a plain object.
    fn offset(&self) -> u64 {
        if let Part::Bytes(range) = self.part { range.start } else { 0 }
    }
}

/// The writes to all keys, and what reads may return.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    seed: u64,
    keys: Vec<History>,
    moment: Moment,
    versions: u64,
    /// Whether a fault struck: misses are excused, and old data may come back after a crash.
    is_excused: bool,
    may_evict: bool,
    /// For each shard, when its last completed commit began.
    committed: Vec<Moment>,
    /// For each shard, the moments that its state can be of, judging by reads after a crash.
    windows: Vec<(Moment, Moment)>,
    /// Versions as the store names them.
    names: Names,
}

impl Model {
    pub(crate) fn new(seed: u64, shards: u16, keys: Vec<(Key, u16)>, may_evict: bool) -> Model {
        let absent = Write::over(None, 0, 0);
        let history = |(key, shard)| History {
            key,
            shard,
            writes: vec![absent],
            ever: Vec::new(),
            may_lack_data: false,
            touched: 0,
            claimed: None,
        };
        let keys: Vec<History> = keys.into_iter().map(history).collect();
        let windows = vec![ALWAYS; usize::from(shards)];
        let committed = vec![0; usize::from(shards)];
        let (moment, versions, is_excused) = (1, 0, false);
        let names = Names::default();
        Model { seed, keys, moment, versions, is_excused, may_evict, committed, windows, names }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn key(&self, index: usize) -> &Key {
        &self.keys[index].key
    }

    pub(crate) fn shard(&self, index: usize) -> u16 {
        self.keys[index].shard
    }

    /// Returns the index of a key; `None` if the run does not use it.
    pub(crate) fn find(&self, key: &Key) -> Option<usize> {
        self.keys.iter().position(|history| history.key == *key)
    }

    /// Advances to the next moment.
    pub(crate) fn tick(&mut self) -> Moment {
        self.moment += 1;
        self.moment
    }

    /// Excuses misses from now on.
    pub(crate) fn excuse(&mut self) {
        self.is_excused = true;
    }

    pub(crate) fn is_excused(&self) -> bool {
        self.is_excused
    }

    /// Returns the length of the longest version of a key; 1 if it had none.
    pub(crate) fn longest(&self, key: usize) -> u64 {
        self.keys[key].ever.iter().map(|version| version.bytes).max().unwrap_or(1).max(1)
    }

    pub(crate) fn version(&mut self, bytes: u64, expires: Option<Time>) -> Version {
        self.versions += 1;
        let (tensors, gone, earliest, is_touched) = (None, None, expires, false);
        Version { number: self.versions, bytes, tensors, expires, gone, earliest, is_touched }
    }

    /// Creates a new version that is a KV block.
    pub(crate) fn block(&mut self, tensors: Tensors, expires: Option<Time>) -> Version {
        let version = self.version(tensors.memory_bytes(0..tensors.layers), expires);
        Version { tensors: Some(tensors), ..version }
    }

    /// Returns the seed of a version's contents.
    pub(crate) fn content(&self, version: Version) -> u64 {
        self.seed ^ version.number << 20
    }

    /// Begins a put of `version`, or a delete. Returns the moment that identifies it to [`Model::end`].
    pub(crate) fn begin(&mut self, key: usize, version: Option<Version>) -> Moment {
        let begin = self.tick();
        let history = &mut self.keys[key];
        history.ever.extend(version);
        history.writes.push(Write { end: None, ..Write::over(version, begin, begin) });
        begin
    }

    /// Begins a delete that is part of a sweep, as [`Model::begin`] does one alone.
    pub(crate) fn begin_swept(&mut self, key: usize) -> Moment {
        let begin = self.begin(key, None);
        self.keys[key].writes.last_mut().expect("it has just begun").is_sweep = true;
        begin
    }

    /// Ends the write that began at `begin`; its version is gone by `gone` at the latest.
    pub(crate) fn end(&mut self, key: usize, begin: Moment, ended: Ended, gone: Option<Time>) {
        let end = self.tick();
        let writes = &mut self.keys[key].writes;
        let found = writes.iter().position(|write| write.begin == begin && write.end.is_none());
        // A crash in between has settled it.
        let Some(index) = found else { return };
        match ended {
            Ended::Acknowledged => {
                writes[index].end = Some(end);
                if let Some(version) = &mut writes[index].version
                    && !version.is_touched
                {
                    version.gone = gone.map(|gone| gone + slack());
                }
            }
            Ended::Void => drop(writes.remove(index)),
            Ended::Unknown => {}
        }
    }

    /// Records a completed commit of a shard that began at `begin`.
    pub(crate) fn committed(&mut self, shard: u16, begin: Moment) {
        let committed = &mut self.committed[usize::from(shard)];
        *committed = begin.max(*committed);
    }

    /// Checks what a read of a key returned, which began at `begin` and at the time `since`, and under which name. Returns
    /// its version; `None` if it may be one of several, all without bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn hit(
        &self,
        key: usize,
        (found, name): (&Found<'_>, Option<StoreVersion>),
        begin: Moment,
        since: Time,
    ) -> Result<Option<Version>, String> {
        let history = &self.keys[key];
        let number = name.and_then(|name| self.named(key, name)).map(|version| version.number);
        let equals = |version: &&Version| {
            number.is_none_or(|number| number == version.number)
                && found.is_of(version, self.content(**version))
        };
        let equal: Vec<Version> = history.ever.iter().filter(equals).copied().collect();
        if equal.is_empty() {
            return Err(self.describe_wrong(history, found));
        }
        let is_current = |version: &&Version| {
            history.may_be(Some(**version), begin, self.moment) && !history.is_gone(version, since)
        };
        let mut current = equal.iter().filter(is_current);
        if let Some(version) = current.next() {
            return Ok(current.next().is_none().then_some(*version));
        }
        let numbers: Vec<u64> = equal.iter().map(|version| version.number).collect();
        Err(format!(
            "{} has version {numbers:?}, which is over: {}",
            history.key,
            history.describe()
        ))
    }

    fn describe_wrong(&self, history: &History, found: &Found<'_>) -> String {
        let strays = self
            .keys
            .iter()
            .flat_map(|other| other.ever.iter().map(move |version| (other, version)));
        let owner = strays.into_iter().find(|(_, version)| {
            let head = &found.bytes[..found.bytes.len().min(64)];
            head.len() >= 8
                && content::difference(head, self.content(**version), found.offset()).is_none()
        });
        let whose = owner.map_or("of no key".to_owned(), |(other, version)| {
            let at = content::difference(found.bytes, self.content(*version), found.offset());
            format!("version {} of {} up to {at:?}", version.number, other.key)
        });
        format!(
            "{} bytes of {}, {:?}, are none that were ever put there, but {whose}: {}",
            found.bytes.len(),
            history.key,
            found.part,
            history.describe()
        )
    }

    /// Returns whether an object of this length may have existed since `begin`.
    pub(crate) fn may_have(&self, key: usize, bytes: u64, begin: Moment) -> bool {
        let history = &self.keys[key];
        let mut ever = history.ever.iter().filter(|version| version.bytes == bytes);
        ever.any(|version| history.may_be(Some(*version), begin, self.moment))
    }

    /// Returns whether a put or delete of the key is in progress.
    pub(crate) fn is_being_written(&self, key: usize) -> bool {
        self.keys[key].writes.iter().any(|write| write.end.is_none())
    }

    /// Checks a miss of a read that began at `begin` and ended at `now`. A leased object was not evicted.
    ///
    /// # Errors
    /// Why the object should have been found.
    pub(crate) fn miss(
        &self,
        key: usize,
        begin: Moment,
        now: Time,
        is_leased: bool,
    ) -> Result<(), String> {
        let history = &self.keys[key];
        let may_be_evicted = self.may_evict && !is_leased;
        if self.is_excused || may_be_evicted || history.may_be_absent(begin, self.moment, now) {
            return Ok(());
        }
        Err(format!("{} is missing: {}", history.key, history.describe()))
    }

    /// Computes the state that may come back after a crash now.
    pub(crate) fn crash(&mut self, durability: Durability, crash: Crash) {
        let now = self.tick();
        let is_volatile = durability == Durability::Volatile;
        for committed in &mut self.committed {
            *committed = match (durability, crash) {
                (Durability::Volatile | Durability::Durable, _) => now,
                (Durability::Restart, Crash::Cut) => *committed,
                (Durability::Restart, Crash::Kill { recorded }) => recorded.max(*committed),
            };
        }
        self.forget_conditions();
        // In `durable`, a kill, too, may leave the record of a put in progress without its data.
        let may_lose_data = match durability {
            Durability::Volatile => false,
            Durability::Restart => crash == Crash::Cut,
            Durability::Durable => true,
        };
        let may_revert = may_lose_data && durability == Durability::Restart;
        for history in &mut self.keys {
            let from = self.committed[usize::from(history.shard)];
            let mut writes = std::mem::take(&mut history.writes);
            writes.iter_mut().filter_map(|write| write.version.as_mut()).for_each(Version::revert);
            history.ever.iter_mut().for_each(Version::revert);
            let all = history.ever.iter().map(|version| Some(*version)).chain([None]);
            let is_kept = |version: &Option<Version>| match version {
                Some(_) if is_volatile => false,
                None if is_volatile => true,
                _ => self.is_excused || may_be(&writes, version, from, now),
            };
            let kept: Vec<Option<Version>> = all.filter(is_kept).collect();
            let lost = may_lose_data && is_unsafe(&writes, from, now);
            let left = |version: Option<Version>| match version {
                None if lost => Write::over(version, now, now),
                _ => left(&writes, version, now, may_revert),
            };
            history.writes = kept.into_iter().map(left).collect();
            history.may_lack_data |= lost;
        }
        self.windows.fill(ALWAYS);
    }

    /// Records that the block of a record about this key was damaged at rest: any version, or none, is there now.
    pub(crate) fn damaged(&mut self, key: usize) {
        let now = self.tick();
        let history = &mut self.keys[key];
        let all = history.ever.iter().map(|version| Some(*version)).chain([None]);
        history.writes = all.map(|version| Write::over(version, now, now)).collect();
    }

    /// Records that a key of a shard may be missing from now on, though nothing removed it: damage at rest took a record
    /// that may have been about it. Its versions are what they were.
    pub(crate) fn outdated(&mut self, key: usize) {
        let now = self.tick();
        let writes = &mut self.keys[key].writes;
        // Neither the absence nor a version replaces the other.
        let begin = writes.iter().map(|write| write.begin).max().unwrap_or(now);
        writes.push(Write::over(None, begin, now));
    }

    /// Records that the store was opened as volatile, or that this had begun: it is empty or, unless that
    /// `is_certain`, perhaps unchanged.
    pub(crate) fn emptied(&mut self, is_certain: bool) {
        let now = self.tick();
        self.forget_conditions();
        for history in &mut self.keys {
            // Until it is certain, neither this nor the newest version replaces the other.
            let newest = history.writes.iter().map(|write| write.begin).max().unwrap_or(now);
            let begin = if is_certain { now } else { newest };
            if is_certain {
                history.writes.clear();
            }
            history.writes.push(Write::over(None, begin, now));
        }
    }

    /// Records that a key was read at rest after a crash: it stays so at least until the next crash.
    ///
    /// # Errors
    /// If the keys of its shard are not of one moment.
    pub(crate) fn settle(&mut self, key: usize, version: Option<Version>) -> Result<(), String> {
        let now = self.tick();
        let history = &mut self.keys[key];
        let expires =
            |write: &Write| write.version.is_some_and(|version| version.expires.is_some());
        let may_have_expired = history.writes.iter().any(expires);
        let mut same = history.writes.iter_mut().filter(|write| is_same(&write.version, &version));
        let Some(write) = same.next() else { return Ok(()) };
        // An object that a fault made a miss, or whose data a cut lost, may still be listed; one that was evicted may come
        // back with the next cut, which takes the record of that.
        let may_come_back = self.is_excused || self.may_evict || history.may_lack_data;
        let may_be_listed = may_come_back || write.window == ALWAYS;
        if version.is_none() && may_be_listed {
            return Ok(());
        }
        (write.begin, write.end) = (now, Some(now));
        let (from, to) = write.window;
        let window = &mut self.windows[usize::from(history.shard)];
        let both = (window.0.max(from), window.1.min(to));
        // An object that may have expired or been evicted says nothing about when it was deleted.
        let is_told = version.is_some() || !(self.may_evict || may_have_expired);
        if self.is_excused || !is_told {
            return Ok(());
        }
        if both.0 > both.1 {
            return Err(format!(
                "{} is of a moment from {from} to {to}, others of its shard are from {} to {}",
                history.key, window.0, window.1
            ));
        }
        *window = both;
        Ok(())
    }
}

impl History {
    /// Returns whether this version, or none, may be in effect at a moment in this range.
    fn may_be(&self, version: Option<Version>, from: Moment, to: Moment) -> bool {
        may_be(&self.writes, &version, from, to)
    }

    fn may_be_absent(&self, from: Moment, to: Moment, now: Time) -> bool {
        let expired = |write: &Write| {
            let expires = write.version.and_then(|version| version.expires);
            expires.is_some_and(|at| at <= now) && self.may_be(write.version, from, to)
        };
        self.may_be(None, from, to) || self.writes.iter().any(expired)
    }

    /// Returns whether a version must have expired by now.
    fn is_gone(&self, version: &Version, now: Time) -> bool {
        let same = self.writes.iter().filter_map(|write| write.version);
        let mut same = same.filter(|other| other.number == version.number);
        same.any(|other| other.gone.is_some_and(|gone| gone < now))
    }

    fn describe(&self) -> String {
        let write = |write: &Write| {
            let what = write.version.map_or("nothing".to_owned(), |version| {
                let ends = version.expires.map_or(String::new(), |at| format!(" until {at}"));
                format!("version {} of {} bytes{ends}", version.number, version.bytes)
            });
            let end = write.end.map_or("?".to_owned(), |end| end.to_string());
            format!("{what} from {} to {end}", write.begin)
        };
        let writes: Vec<String> = self.writes.iter().map(write).collect();
        writes.join(", ")
    }
}

fn is_same(one: &Option<Version>, other: &Option<Version>) -> bool {
    one.map(|version| version.number) == other.map(|version| version.number)
}

fn may_be(writes: &[Write], version: &Option<Version>, from: Moment, to: Moment) -> bool {
    let same = writes.iter().filter(|write| is_same(&write.version, version));
    same.filter(|write| write.begin <= to).any(|write| !is_superseded(writes, write, from))
}

/// Returns whether a record may have reached the media without its data (cases 6 and 11 of
/// `docs/design/disk-format.md`).
fn is_unsafe(writes: &[Write], from: Moment, to: Moment) -> bool {
    let mut puts = writes.iter().filter(|write| write.version.is_some() && write.begin <= to);
    puts.any(|write| write.end.is_none_or(|end| end >= from))
}

/// Returns a version, or none, as a crash now leaves it.
fn left(writes: &[Write], version: Option<Version>, now: Moment, may_revert: bool) -> Write {
    let same: Vec<&Write> =
        writes.iter().filter(|write| is_same(&write.version, &version)).collect();
    let version = same.first().map_or(version, |write| write.version);
    let window = if let [write] = same[..] { window(writes, write, may_revert) } else { ALWAYS };
    Write { window, ..Write::over(version, now, now) }
}

/// Returns the moments whose states have this write in effect. If it may revert, it comes back from behind later puts
/// whose data are lost.
fn window(writes: &[Write], write: &Write, may_revert: bool) -> (Moment, Moment) {
    let replaces = |other: &&Write| other.version.is_none() || !may_revert;
    let behind = writes.iter().filter(|other| write.is_before(other)).filter(replaces);
    (write.begin, behind.filter_map(|other| other.end).min().unwrap_or(Moment::MAX))
}

/// Returns whether another write that takes effect after this one lies wholly before `from`.
fn is_superseded(writes: &[Write], write: &Write, from: Moment) -> bool {
    writes.iter().any(|other| write.is_before(other) && other.end.is_some_and(|end| end < from))
}

fn slack() -> std::time::Duration {
    std::time::Duration::from_nanos(EXPIRY_SLACK_NS)
}

mod names;
#[cfg(test)]
mod tests;
