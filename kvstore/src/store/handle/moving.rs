//! Exports and imports: the objects of a store as a stream ([`crate::stream`]), in bounded memory.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Store;
use super::supply::unreadable;
use crate::error::{Error, Failure, Result};
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::shard::{Condition, Outcome};
use crate::store::answer::{ObjectInfo, Pending, Put, Value};
use crate::store::request::{DefinedLayout, PutWith, Tenant};
use crate::stream::{Counts, Entry, Exporter, Importer, PIECE_BYTES};

/// Number of objects that a scan returns at once.
const PAGE: usize = 1024;
/// Bytes of objects that are read ahead, or being put, at a time.
const AHEAD_BYTES: u64 = 16 << 20;
/// How often the export of an object begins that is replaced meanwhile.
const TRIES: usize = 3;

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn unwritten(why: io::Error) -> Error {
    Error::Output { why: why.to_string() }
}

fn entry(info: &ObjectInfo) -> Entry {
    Entry {
        key: info.key.clone(),
        bytes: info.read_bytes(),
        tenant: info.tenant.clone(),
        expires_s: info.ttl_s.map(|ttl_s| now_s().saturating_add(ttl_s)),
        version: info.version,
        layout: info.layout,
    }
}

impl Store {
    /// Writes all objects whose keys begin with `prefix` as a stream, and returns what it has. Blocks the thread; other
    /// requests go on. An object that is replaced meanwhile is written in one of its versions, or not if it is replaced
    /// again and again; one that is put meanwhile may be missing. Quotas are not part of a stream.
    ///
    /// # Errors
    /// [`Error::Output`] if `out` fails; as [`Store::scan_prefix`] and [`Store::get`].
    pub fn export(&self, prefix: &[u8], out: impl Write) -> Result<Counts> {
        let mut stream = Exporter::new(out).map_err(unwritten)?;
        let mut from = Some(0);
        while let Some(cursor) = from {
            let (page, next) = self.scan_prefix(prefix, cursor, PAGE).wait()?;
            self.export_page(page, &mut stream)?;
            from = next;
        }
        Ok(stream.end().map_err(unwritten)?.1)
    }

    fn export_page(&self, page: Vec<ObjectInfo>, stream: &mut Exporter<impl Write>) -> Result<()> {
        let most = AHEAD_BYTES.min(self.core.pools.bytes_max() as u64 / 4);
        let mut ahead: VecDeque<(ObjectInfo, Pending<Option<Value>>)> = VecDeque::new();
        let (mut page, mut ahead_bytes) = (page.into_iter(), 0);
        loop {
            while ahead_bytes <= most
                && let Some(info) = page.next()
            {
                if info.read_bytes() > PIECE_BYTES as u64 {
                    self.export_in_pieces(&info.key, stream)?;
                    continue;
                }
                ahead_bytes += info.read_bytes();
                let (key, version) = (info.key.clone(), Some(info.version));
                ahead.push_back((info, self.core.send(self.core.fetch(key, None, version))));
            }
            let Some((info, pending)) = ahead.pop_front() else { return Ok(()) };
            ahead_bytes -= info.read_bytes();
            match pending.wait() {
                Ok(None) => {}
                Ok(Some(value)) => {
                    stream.object(&entry(&info)).map_err(unwritten)?;
                    if !value.is_empty() {
                        stream.piece(&value).map_err(unwritten)?;
                    }
                }
                Err(why) => match why.failure() {
                    Some(Failure::Conflict { .. }) => self.export_in_pieces(&info.key, stream)?,
                    _ => return Err(why.into()),
                },
            }
        }
    }

    /// Writes an object of any length, unless it is replaced meanwhile again and again.
    fn export_in_pieces(&self, key: &Key, stream: &mut Exporter<impl Write>) -> Result<()> {
        for _ in 0..TRIES {
            let Some(info) = self.info(key.clone()).wait()? else { break };
            let Some(mut reader) = self.reader(key.clone()).wait()? else { break };
            if reader.version() != info.version {
                continue;
            }
            stream.object(&entry(&info)).map_err(unwritten)?;
            let (mut left, mut piece) = (info.read_bytes(), Vec::new());
            while left > 0 {
                piece.resize(left.min(PIECE_BYTES as u64) as usize, 0);
                match reader.read_exact(&mut piece).map_err(unreadable) {
                    Ok(()) => stream.piece(&piece).map_err(unwritten)?,
                    Err(Error::Gone { .. }) => break,
                    Err(why) => return Err(why),
                }
                left -= piece.len() as u64;
            }
            if left == 0 {
                return Ok(());
            }
            stream.abandon().map_err(unwritten)?;
        }
        Ok(())
    }

    /// Begins to store the objects of a stream, which [`Import::run`] does.
    ///
    /// # Errors
    /// As [`Importer::new`].
    pub fn import<R: Read>(&self, from: R, with: ImportWith) -> Result<Import<'_, R>> {
        let stream = Importer::new(from)?;
        Ok(Import {
            store: self,
            stream,
            with,
            told: Imported::default(),
            tenants: HashMap::new(),
            layouts: Vec::new(),
            putting: VecDeque::new(),
            putting_bytes: 0,
        })
    }
}

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportWith {
    /// Passes over objects whose keys do not begin with this.
    pub prefix: Vec<u8>,
    /// Keeps objects that are there, so that an import that was interrupted goes on where it was.
    pub keeps: bool,
}

/// The results of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Objects that were stored.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that stayed as they were ([`ImportWith::keeps`]).
    pub kept: u64,
    /// Objects of the stream that have expired since.
    pub expired: u64,
    /// Objects that admission or the write budget rejected.
    pub declined: u64,
}

/// A stream that is being imported.
pub struct Import<'a, R> {
    store: &'a Store,
    stream: Importer<R>,
    with: ImportWith,
    told: Imported,
    tenants: HashMap<Box<str>, Tenant>,
    layouts: Vec<(Layout, DefinedLayout)>,
    /// Short objects on their way, with their lengths.
    putting: VecDeque<(u64, Pending<Put>)>,
    putting_bytes: u64,
}

impl<R: Read> Import<'_, R> {
    /// Stores all objects of the stream, in their order, and makes them durable. Blocks the thread. Each appears
    /// whole or not at all, with a version of its own, replacing one with its key unless the import keeps that. A
    /// tenant that is new has no quota.
    ///
    /// # Errors
    /// [`Error::Stream`] for a stream that is cut off or damaged; as [`Store::put_from`]. Objects before that are
    /// stored and durable.
    pub fn run(&mut self) -> Result<()> {
        let read = self.read();
        let put = self.settle(0);
        let durable = self.store.commit().wait();
        read.and(put)?;
        Ok(durable?)
    }

    /// Returns the results so far.
    pub fn told(&self) -> Imported {
        self.told
    }

    fn read(&mut self) -> Result<()> {
        while let Some(entry) = self.stream.object()? {
            if !entry.key.as_bytes().starts_with(&self.with.prefix) {
                continue;
            }
            let ttl = entry.expires_s.map(|at| Duration::from_secs(at.saturating_sub(now_s())));
            if ttl == Some(Duration::ZERO) {
                self.told.expired += 1;
                continue;
            }
            let tenant = self.tenant(&entry.tenant)?;
            let layout = entry.layout.map(|layout| self.layout(layout)).transpose()?;
            let condition = if self.with.keeps { Condition::Absent } else { Condition::Always };
            let with = PutWith { tenant, ttl, layout, condition, after: None };
            self.put(entry, &with)?;
        }
        Ok(())
    }

    fn put(&mut self, Entry { key, bytes, .. }: Entry, with: &PutWith) -> Result<()> {
        if bytes > PIECE_BYTES as u64 {
            let put = self.store.put_from(key, Some(bytes), &mut self.stream, with);
            return match put {
                Err(_) if self.stream.is_abandoned() => Ok(()),
                put => self.note(bytes, put),
            };
        }
        let mut data = vec![0; bytes as usize];
        match self.stream.read_exact(&mut data) {
            Err(_) if self.stream.is_abandoned() => return Ok(()),
            read => read.map_err(unreadable)?,
        }
        self.putting_bytes += bytes;
        self.putting.push_back((bytes, self.store.put_with(key, data, with)));
        let most = AHEAD_BYTES.min(self.store.core.pools.bytes_max() as u64 / 4);
        self.settle(most)
    }

    /// Waits until the objects on their way have at most `most` bytes, and are not too many.
    fn settle(&mut self, most: u64) -> Result<()> {
        let mut first = Ok(());
        let count_max = if most > 0 { PAGE } else { 0 };
        while self.putting_bytes > most || self.putting.len() > count_max {
            let Some((bytes, pending)) = self.putting.pop_front() else { break };
            self.putting_bytes -= bytes;
            let put = pending.wait().map(|put| put.outcome).map_err(Error::from);
            let noted = self.note(bytes, put);
            first = first.and(noted);
        }
        first
    }

    fn note(&mut self, bytes: u64, put: Result<Outcome>) -> Result<()> {
        match put {
            Ok(Outcome::Declined(_)) => self.told.declined += 1,
            Ok(_) => {
                self.told.objects += 1;
                self.told.bytes += bytes;
            }
            Err(Error::Failed(Failure::Conflict { .. })) if self.with.keeps => self.told.kept += 1,
            Err(why) => return Err(why),
        }
        Ok(())
    }

    fn tenant(&mut self, name: &str) -> Result<Option<Tenant>> {
        if name.is_empty() {
            return Ok(None);
        }
        if !self.tenants.contains_key(name) {
            let tenant = self.store.tenant(name).wait()?;
            self.tenants.insert(name.into(), tenant);
        }
        Ok(self.tenants.get(name).cloned())
    }

    fn layout(&mut self, layout: Layout) -> Result<DefinedLayout> {
        if let Some((_, defined)) = self.layouts.iter().find(|(known, _)| *known == layout) {
            return Ok(defined.clone());
        }
        let defined = self.store.layout(layout).wait()?;
        self.layouts.push((layout, defined.clone()));
        Ok(defined)
    }
}
