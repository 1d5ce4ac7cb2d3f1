//! The format of a stream of objects, for backups and for moving: `adit kv export` writes it, `adit kv import` reads it.
//! `docs/design/kv-stream.md` specifies it byte by byte.
//!
//! A header is followed by numbered frames with checksums: an object, its pieces, the next object, and at the end the
//! counts. A reader therefore detects a stream that was cut off, and a damaged, missing or swapped frame. It needs memory
//! for one frame, and refuses lengths beyond [`PIECE_BYTES`].

use std::io::{self, Read, Write};

use crate::error::{Error, Result};
use crate::media::checksum::Running;
use crate::model::key::{KEY_BYTES_MAX, Key};
use crate::model::layout::{ENCODED_BYTES, Layout};
use crate::model::object::{Object, Version};

/// Begins a stream.
pub const MAGIC: [u8; 8] = *b"ADITKVX\x01";
/// The version of the format.
pub const VERSION: u32 = 1;
/// The most bytes of a frame's body, and those of each piece of an object but its last.
pub const PIECE_BYTES: usize = 1 << 20;
/// Bytes of the stream before the first frame.
const START_BYTES: usize = 16;
/// Bytes of a frame before its body.
const HEAD_BYTES: usize = 16;
/// Bytes of an object's frame before its tenant and its key.
const OBJECT_BYTES: usize = 56;
/// The most bytes of a tenant's name.
const TENANT_BYTES_MAX: usize = 64;

/// The kind of a frame, as its first byte.
mod kind {
    pub(super) const OBJECT: u8 = 1;
    pub(super) const PIECE: u8 = 2;
    pub(super) const ABANDONED: u8 = 3;
    pub(super) const END: u8 = 4;
}

/// An object of a stream, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// Its length in bytes; of a KV block with its padding.
    pub bytes: u64,
    /// The name of its tenant; empty for the default tenant.
    pub tenant: Box<str>,
    /// When it expires, in seconds of Unix time.
    pub expires_s: Option<u64>,
    /// Its version, which says when it was stored.
    pub version: Version,
    /// Its layout, if it is a KV block.
    pub layout: Option<Layout>,
}

/// The contents of a stream, as its end counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Objects that are complete.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that were replaced or removed while they were written, and do not count.
    pub abandoned: u64,
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; OBJECT_BYTES];
        let key = self.key.as_bytes();
        bytes[0] = u8::from(self.expires_s.is_some()) | u8::from(self.layout.is_some()) << 1;
        bytes[1] = self.tenant.len() as u8;
        bytes[2..4].copy_from_slice(&(key.len() as u16).to_le_bytes());
        let numbers = [self.bytes, self.expires_s.unwrap_or(0), self.version.0];
        for (at, number) in numbers.iter().enumerate() {
            bytes[8 + at * 8..][..8].copy_from_slice(&number.to_le_bytes());
        }
        if let Some(layout) = &self.layout {
            bytes[32..OBJECT_BYTES].copy_from_slice(&layout.encode());
        }
        bytes.extend_from_slice(self.tenant.as_bytes());
        bytes.extend_from_slice(key);
        bytes
    }

    /// Decodes it; returns `None` for anything else.
    fn decode(body: &[u8]) -> Option<Entry> {
        let (head, names) = body.split_first_chunk::<OBJECT_BYTES>()?;
        let number = |at: usize| {
            u64::from_le_bytes(
                head[8 + at * 8..][..8].try_into().expect("a number has eight bytes"),
            )
        };
        let layout: &[u8; ENCODED_BYTES] = head[32..].try_into().expect("a layout has as many");
        let (tenant_bytes, key_bytes) =
            (usize::from(head[1]), u16::from_le_bytes([head[2], head[3]]));
        let (tenant, key) = names.split_at_checked(tenant_bytes)?;
        let is_known = head[0] <= 3 && head[4..8] == [0; 4] && tenant_bytes <= TENANT_BYTES_MAX;
        if !is_known || key.len() != usize::from(key_bytes) || key.len() > KEY_BYTES_MAX {
            return None;
        }
        let layout = match head[0] & 2 {
            0 if *layout == [0; ENCODED_BYTES] => None,
            0 => return None,
            _ => Some(Layout::decode(layout).ok()?),
        };
        let (bytes, expires_s) = (number(0), number(1));
        if bytes >= Object::BYTES_END || (head[0] & 1 == 0 && expires_s != 0) {
            return None;
        }
        Some(Entry {
            key: Key::new(key).ok()?,
            bytes,
            tenant: std::str::from_utf8(tenant).ok()?.into(),
            expires_s: (head[0] & 1 == 1).then_some(expires_s),
            version: Version(number(2)),
            layout,
        })
    }
}

impl Counts {
    /// Counts the open object, of so many bytes, if none of them are left.
    fn complete(&mut self, open: &mut Option<(u64, u64)>) {
        if let Some((bytes, _)) = open.take_if(|(_, left)| *left == 0) {
            self.objects += 1;
            self.bytes += bytes;
        }
    }

    fn encode(&self) -> Vec<u8> {
        let numbers = [self.objects, self.bytes, self.abandoned];
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn decode(body: &[u8]) -> Option<Counts> {
        let (numbers, rest) = body.as_chunks::<8>();
        let [objects, bytes, abandoned] = *numbers else { return None };
        let [objects, bytes, abandoned] = [objects, bytes, abandoned].map(u64::from_le_bytes);
        rest.is_empty().then_some(Counts { objects, bytes, abandoned })
    }
}

/// Returns the bytes before the first frame.
fn start() -> [u8; START_BYTES] {
    let mut bytes = [0; START_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Returns the bytes before a frame's body.
fn head(kind: u8, number: u64, bytes: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0] = kind;
    head[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
    head[8..].copy_from_slice(&number.to_le_bytes());
    head
}

fn checksum(head: &[u8], body: &[u8]) -> [u8; 4] {
    let mut sum = Running::new();
    sum.update(head);
    sum.update(body);
    sum.finish().to_le_bytes()
}

/// Writes a stream. Without [`Exporter::end`] the stream counts as cut off.
#[derive(Debug)]
pub struct Exporter<W> {
    out: W,
    /// The number of the next frame.
    number: u64,
    counts: Counts,
    /// The length of the object that is being written, and its missing bytes.
    open: Option<(u64, u64)>,
}

impl<W: Write> Exporter<W> {
    /// Begins a stream.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W) -> io::Result<Exporter<W>> {
        out.write_all(&start())?;
        Ok(Exporter { out, number: 0, counts: Counts::default(), open: None })
    }

    /// Begins an object.
    ///
    /// # Errors
    /// Those of the output.
    ///
    /// # Panics
    /// If the object before it is not complete, or its tenant's name is too long for any store.
    pub fn object(&mut self, entry: &Entry) -> io::Result<()> {
        assert!(self.open.is_none(), "the object before it is complete");
        assert!(entry.tenant.len() <= TENANT_BYTES_MAX, "a store has no such tenant");
        self.open = Some((entry.bytes, entry.bytes));
        self.frame(kind::OBJECT, &entry.encode())?;
        self.counts.complete(&mut self.open);
        Ok(())
    }

    /// Writes the next bytes of the object.
    ///
    /// # Errors
    /// Those of the output.
    ///
    /// # Panics
    /// If the object has fewer bytes left, or only the last piece is not of [`PIECE_BYTES`].
    pub fn piece(&mut self, piece: &[u8]) -> io::Result<()> {
        let (_, left) = self.open.as_mut().expect("an object was begun");
        assert_eq!(piece.len() as u64, (*left).min(PIECE_BYTES as u64), "pieces are of one length");
        *left -= piece.len() as u64;
        self.frame(kind::PIECE, piece)?;
        self.counts.complete(&mut self.open);
        Ok(())
    }

    /// Abandons the object: a reader discards its bytes.
    ///
    /// # Errors
    /// Those of the output.
    pub fn abandon(&mut self) -> io::Result<()> {
        assert!(self.open.take().is_some(), "an object was begun");
        self.counts.abandoned += 1;
        self.frame(kind::ABANDONED, &[])
    }

    /// Ends the stream and returns its output, with the counts.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end(mut self) -> io::Result<(W, Counts)> {
        assert!(self.open.is_none(), "the last object is complete");
        self.frame(kind::END, &self.counts.encode())?;
        self.out.flush()?;
        Ok((self.out, self.counts))
    }

    fn frame(&mut self, kind: u8, body: &[u8]) -> io::Result<()> {
        let head = head(kind, self.number, body.len());
        self.number += 1;
        self.out.write_all(&head)?;
        self.out.write_all(body)?;
        self.out.write_all(&checksum(&head, body))
    }
}

/// Reads a stream: an object by [`Importer::object`], then its bytes by [`Read`].
#[derive(Debug)]
pub struct Importer<R> {
    from: R,
    /// Bytes of the stream that were read.
    at: u64,
    number: u64,
    counts: Counts,
    /// The length of the object that is being read, and its bytes in later frames.
    open: Option<(u64, u64)>,
    /// The body of the last piece, and how much of it was taken.
    piece: Vec<u8>,
    taken: usize,
    is_abandoned: bool,
    has_ended: bool,
}

impl<R: Read> Importer<R> {
    /// Begins to read a stream.
    ///
    /// # Errors
    /// [`Error::Stream`] if it is none, or of another version.
    pub fn new(from: R) -> Result<Importer<R>> {
        let mut stream = Importer {
            from,
            at: 0,
            number: 0,
            counts: Counts::default(),
            open: None,
            piece: Vec::new(),
            taken: 0,
            is_abandoned: false,
            has_ended: false,
        };
        let mut bytes = [0; START_BYTES];
        stream.fill(&mut bytes)?;
        if bytes[..8] != MAGIC {
            return Err(
                stream.error("this is no stream of objects: give what 'adit kv export' wrote")
            );
        }
        if bytes != start() {
            let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
            return Err(stream.error(format!(
                "the stream has version {version} of the format, and this Adit reads {VERSION}: import it with a newer one"
            )));
        }
        Ok(stream)
    }

    /// Returns what was read so far: objects that are complete.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns how many bytes of the stream were read.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Returns whether the object that was read last was given up by the writer: it is not complete.
    pub fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Returns the next object, behind what is left of the one before. `None` at the end, if all objects have come.
    ///
    /// # Errors
    /// [`Error::Stream`] for a stream that is cut off or damaged.
    pub fn object(&mut self) -> Result<Option<Entry>> {
        while self.open.is_some() {
            self.next_piece()?;
        }
        (self.piece, self.taken) = (Vec::new(), 0);
        self.is_abandoned = false;
        if self.has_ended {
            return Ok(None);
        }
        let (kind, body) = self.frame()?;
        match kind {
            kind::OBJECT => {
                let Some(entry) = Entry::decode(&body) else {
                    return Err(self.error("an object's header means nothing to this version"));
                };
                self.open = Some((entry.bytes, entry.bytes));
                self.counts.complete(&mut self.open);
                Ok(Some(entry))
            }
            kind::END => self.end(&body).map(|()| None),
            _ => Err(self.error("a frame is out of place")),
        }
    }

    /// Checks the end of the stream.
    fn end(&mut self, body: &[u8]) -> Result<()> {
        let counts = Counts::decode(body);
        if counts != Some(self.counts) {
            let Counts { objects, bytes, abandoned } = self.counts;
            return Err(self.error(format!(
                "the end does not count the {objects} objects of {bytes} bytes, and {abandoned} abandoned, that came"
            )));
        }
        if self.from.read(&mut [0]).map_err(|why| self.error(why))? > 0 {
            return Err(self.error("there are bytes behind the end"));
        }
        self.has_ended = true;
        Ok(())
    }

    /// Reads the next piece of the object.
    fn next_piece(&mut self) -> Result<()> {
        let (kind, body) = self.frame()?;
        let (_, left) = self.open.as_mut().expect("an object was begun");
        match kind {
            kind::PIECE if body.len() as u64 == (*left).min(PIECE_BYTES as u64) => {
                *left -= body.len() as u64;
                (self.piece, self.taken) = (body, 0);
                self.counts.complete(&mut self.open);
                Ok(())
            }
            kind::ABANDONED if body.is_empty() => {
                (self.open, self.is_abandoned) = (None, true);
                self.counts.abandoned += 1;
                Ok(())
            }
            _ => Err(self.error("a frame is out of place")),
        }
    }

    /// Reads the next frame, and returns its kind and its body.
    fn frame(&mut self) -> Result<(u8, Vec<u8>)> {
        let mut told = [0; HEAD_BYTES];
        self.fill(&mut told)?;
        let bytes = u32::from_le_bytes(told[4..8].try_into().expect("four bytes")) as usize;
        if bytes > PIECE_BYTES || told != head(told[0], self.number, bytes) {
            return Err(self.error("a frame is damaged, missing or out of order"));
        }
        let (mut body, mut sum) = (vec![0; bytes], [0; 4]);
        self.fill(&mut body)?;
        self.fill(&mut sum)?;
        if sum != checksum(&told, &body) {
            return Err(self.error("a frame's checksum does not match: the stream is damaged"));
        }
        self.number += 1;
        Ok((told[0], body))
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        let read = self.from.read_exact(into);
        read.map_err(|why| match why.kind() {
            io::ErrorKind::UnexpectedEof => {
                let objects = self.counts.objects;
                self.error(format!(
                    "it is cut off, after {objects} complete objects and before its end"
                ))
            }
            _ => self.error(why),
        })?;
        self.at += into.len() as u64;
        Ok(())
    }

    fn error(&self, why: impl ToString) -> Error {
        Error::Stream { at: self.at, why: why.to_string() }
    }
}

/// The bytes of the object that was begun. They are checked before they are given out.
impl<R: Read> Read for Importer<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.piece.len() && self.open.is_some() {
            self.next_piece().map_err(io::Error::other)?;
        }
        if self.is_abandoned {
            return Err(io::Error::other(
                "the object was replaced or removed while it was exported",
            ));
        }
        let bytes = into.len().min(self.piece.len() - self.taken);
        into[..bytes].copy_from_slice(&self.piece[self.taken..self.taken + bytes]);
        self.taken += bytes;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
