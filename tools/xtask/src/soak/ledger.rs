//! What a key may hold: every write of its one owner, as far as it may still be there.
//!
//! Writes to a key go one after another. An acknowledged write excludes all earlier ones, as long as the server lives.
//! A write without an answer may or may not have happened. After a server was killed, each write is possible from the
//! last one on that its acknowledgement promised to keep; what is then read is the value from there on.

use std::time::{Duration, Instant};

/// How long `restart` may take to keep a write. It promises 10 ms; the rest is for the machine.
pub(super) const RESTART_BOUND: Duration = Duration::from_secs(1);

/// A version of a key's value; `None` if the key was deleted.
pub(super) type Version = Option<u32>;

#[derive(Clone, Copy, Debug)]
struct Write {
    version: Version,
    acknowledged: Option<Instant>,
    is_committed: bool,
}

/// The writes of a key that may be read, oldest first; at least one.
#[derive(Clone, Debug)]
pub(super) struct History {
    writes: Vec<Write>,
    /// The oldest write that may be read while the server lives.
    floor: usize,
    next_version: u32,
    /// A server was killed, and nothing was read or acknowledged since.
    is_open: bool,
}

/// The end of a server's life.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) at: Instant,
    /// It ended by SIGTERM, and made everything durable.
    pub(super) is_clean: bool,
    /// It answered when everything was durable.
    pub(super) is_durable: bool,
}

impl End {
    fn keeps(self, write: &Write) -> bool {
        let Some(at) = write.acknowledged else { return false };
        self.is_clean || self.is_durable || write.is_committed || at + RESTART_BOUND <= self.at
    }
}

impl History {
    /// A key that was never written.
    pub(super) fn new(now: Instant) -> History {
        let absent = Write { version: None, acknowledged: Some(now), is_committed: true };
        History { writes: vec![absent], floor: 0, next_version: 1, is_open: false }
    }

    /// Begins a put and returns its version.
    pub(super) fn begin_put(&mut self) -> u32 {
        let version = self.next_version;
        self.next_version += 1;
        self.begin(Some(version));
        version
    }

    /// Begins a delete.
    pub(super) fn begin_delete(&mut self) {
        self.begin(None);
    }

    fn begin(&mut self, version: Version) {
        self.writes.push(Write { version, acknowledged: None, is_committed: false });
    }

    /// Notes that the last write was acknowledged.
    pub(super) fn acknowledged(&mut self, now: Instant) {
        self.floor = self.writes.len() - 1;
        self.writes[self.floor].acknowledged = Some(now);
        self.is_open = false;
        self.forget(now);
    }

    /// Forgets writes that no server brings back.
    fn forget(&mut self, now: Instant) {
        let end = End { at: now, is_clean: false, is_durable: false };
        let kept =
            self.writes[..=self.floor].iter().rposition(|write| end.keeps(write)).unwrap_or(0);
        self.writes.drain(..kept);
        self.floor -= kept;
    }

    /// Notes that everything acknowledged before `at` was committed.
    pub(super) fn committed(&mut self, at: Instant) {
        let is_before = |write: &&mut Write| write.acknowledged.is_some_and(|then| then < at);
        self.writes.iter_mut().filter(is_before).for_each(|write| write.is_committed = true);
    }

    /// Notes the end of a server.
    pub(super) fn ended(&mut self, end: End) {
        self.floor = self.writes.iter().rposition(|write| end.keeps(write)).unwrap_or(0);
        self.is_open = true;
    }

    /// Checks what was read. With `may_miss`, the key may be gone for want of room; a server that is killed then may
    /// still bring it back.
    ///
    /// # Errors
    /// A description of the fault.
    pub(super) fn read(
        &mut self,
        now: Instant,
        version: Version,
        may_miss: bool,
    ) -> Result<(), String> {
        if version.is_none() && may_miss {
            return Ok(());
        }
        let possible = &self.writes[self.floor..];
        let Some(at) = possible.iter().rposition(|write| write.version == version) else {
            let known: Vec<String> = possible.iter().map(|write| said(write.version)).collect();
            return Err(format!("{} instead of {}", said(version), known.join(" or ")));
        };
        if std::mem::take(&mut self.is_open) {
            // What a server found when it began stays there.
            let found = Write { acknowledged: Some(now), is_committed: true, ..possible[at] };
            (self.writes, self.floor) = (vec![found], 0);
        }
        Ok(())
    }
}

fn said(version: Version) -> String {
    version.map_or("nothing".to_owned(), |version| format!("version {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: fn(Instant) -> End = |at| End { at, is_clean: false, is_durable: false };

    fn put(entry: &mut History, at: Instant) {
        entry.begin_put();
        entry.acknowledged(at);
    }

    #[test]
    fn a_live_server_has_the_last_version_and_no_other() {
        let start = Instant::now();
        let mut entry = History::new(start);
        assert!(entry.read(start, None, false).is_ok());
        put(&mut entry, start);
        put(&mut entry, start);
        assert!(entry.read(start, Some(2), false).is_ok());
        assert_eq!(
            entry.read(start, Some(1), true),
            Err("version 1 instead of version 2".to_owned())
        );
        assert!(entry.read(start, None, true).is_ok(), "a cache may evict it");
        assert_eq!(entry.read(start, None, false), Err("nothing instead of version 2".to_owned()));
        entry.begin_delete();
        assert!(
            entry.read(start, Some(2), false).is_ok() && entry.read(start, None, false).is_ok()
        );
        entry.acknowledged(start);
        assert!(entry.read(start, Some(2), true).is_err(), "it was deleted");
    }

    #[test]
    fn a_killed_server_loses_the_last_second_at_most() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut entry = History::new(start);
        put(&mut entry, at(0));
        put(&mut entry, at(1000));
        put(&mut entry, at(2500));
        entry.ended(KILLED(at(3000)));
        for (version, is_possible) in
            [(Some(3), true), (Some(2), true), (Some(1), false), (None, false)]
        {
            assert_eq!(
                entry.clone().read(at(4000), version, false).is_ok(),
                is_possible,
                "{version:?}"
            );
        }
        assert!(entry.read(at(4000), Some(2), false).is_ok());
        assert!(entry.read(at(5000), Some(3), false).is_err(), "it was found without it");
    }

    #[test]
    fn what_is_committed_or_durable_or_closed_is_there() {
        let start = Instant::now();
        let mut entry = History::new(start);
        put(&mut entry, start);
        let is_kept = |mut entry: History, end: End| {
            entry.ended(end);
            entry.read(start, None, false).is_err()
        };
        assert!(!is_kept(entry.clone(), KILLED(start)));
        assert!(is_kept(entry.clone(), End { is_clean: true, ..KILLED(start) }));
        assert!(is_kept(entry.clone(), End { is_durable: true, ..KILLED(start) }));
        entry.committed(start + Duration::from_millis(1));
        assert!(is_kept(entry, KILLED(start)));
    }

    #[test]
    fn a_write_without_an_answer_may_have_happened() {
        let start = Instant::now();
        let mut entry = History::new(start);
        put(&mut entry, start);
        entry.begin_put();
        entry.ended(End { is_durable: true, ..KILLED(start) });
        assert!(entry.clone().read(start, Some(1), false).is_ok());
        assert!(entry.clone().read(start, Some(2), false).is_ok());
        assert!(entry.read(start, None, false).is_err());
    }

    #[test]
    fn what_no_server_brings_back_is_forgotten() {
        let start = Instant::now();
        let mut entry = History::new(start);
        (0..100).for_each(|second| put(&mut entry, start + Duration::from_secs(second * 2)));
        assert!(entry.writes.len() <= 2, "{:?}", entry.writes);
    }
}
