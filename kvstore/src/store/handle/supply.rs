//! Puts of any length from a reader, in bounded memory.
//!
//! An object's room is reserved before its first byte is written, so its length has to be known. Data of unknown length
//! are kept in a temporary file first, unless they are short.

use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Store;
use super::reader::step_bytes;
use super::writer::Writer;
use crate::error::{Error, Result};
use crate::model::key::Key;
use crate::model::object::piece_bytes;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Failure, Outcome};
use crate::store::answer::Answer;
use crate::store::request::PutWith;

/// The most bytes of unknown length that are kept in memory.
const MEMORY_BYTES: u64 = 8 << 20;

/// Reads `from` to its end, and returns the number of its bytes with a reader of them. Keeps more than 8 MiB in a
/// temporary file without a name, in the folder of [`std::env::temp_dir`].
///
/// # Errors
/// Those of `from`, and those of the system for the file.
pub fn measured<'a>(mut from: impl Read + 'a) -> io::Result<(u64, Box<dyn Read + 'a>)> {
    let mut first = Vec::new();
    let bytes = from.by_ref().take(MEMORY_BYTES + 1).read_to_end(&mut first)? as u64;
    if bytes <= MEMORY_BYTES {
        return Ok((bytes, Box::new(Cursor::new(first))));
    }
    let folder = std::env::temp_dir();
    let kept = |why: io::Error| {
        let text =
            format!("its length is not known, so it is kept in {} first: {why}", folder.display());
        io::Error::new(why.kind(), text)
    };
    let mut file = unnamed(&folder).map_err(kept)?;
    file.write_all(&first).map_err(kept)?;
    drop(first);
    let bytes = bytes + io::copy(&mut from, &mut file).map_err(kept)?;
    file.rewind().map_err(kept)?;
    Ok((bytes, Box::new(file)))
}

/// Creates a file that disappears when it is closed.
fn unnamed(folder: &std::path::Path) -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("adit-{}-{number}.part", process::id()));
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Returns the error of data that cannot be read: the store's own, if that is the reason.
pub fn unreadable(why: io::Error) -> Error {
    if why.kind() == io::ErrorKind::UnexpectedEof {
        return Error::Source { why: "it has fewer bytes than were announced".to_owned() };
    }
    let own = why.get_ref().and_then(|own| own.downcast_ref::<Error>());
    own.cloned().unwrap_or_else(|| Error::Source { why: why.to_string() })
}

impl Store {
    /// Stores the next `bytes` bytes of `from` as an object, or all that it gives if `bytes` is `None`
    /// ([`measured`]), with some MiB of the pool at a time. The object appears whole or not at all. Blocks the
    /// thread; a reservation that admission or the write budget rejects is [`Outcome::Declined`].
    ///
    /// # Errors
    /// [`Error::Source`] if `from` cannot be read or ends too soon; [`Error::Invalid`] if the pool has no room for a
    /// piece; as [`Store::reserve`].
    pub fn put_from(
        &self,
        key: Key,
        bytes: Option<u64>,
        mut from: impl Read,
        with: &PutWith,
    ) -> Result<Outcome> {
        let Some(bytes) = bytes else {
            let (bytes, mut from) = measured(from).map_err(unreadable)?;
            return self.put_from(key, Some(bytes), &mut from, with);
        };
        let step = self.supply_step(bytes, with)?;
        if bytes <= step {
            let mut all = vec![0; bytes as usize];
            from.read_exact(&mut all).map_err(unreadable)?;
            return Ok(self.put_with(key, all, with).wait()?.outcome);
        }
        let writer = match declined(self.reserve(key, bytes, with).wait()) {
            Ok(writer) => writer?,
            Err(outcome) => return Ok(outcome),
        };
        let mut last = None;
        for (at, len) in steps(bytes, step) {
            let mut buffer = writer.buffer(len).wait()?;
            from.read_exact(&mut buffer).map_err(unreadable)?;
            if let Some(before) = last.replace(writer.fill(at, buffer)) {
                before.wait()?;
            }
        }
        last.map_or(Ok(()), |last| last.wait().map(drop))?;
        Ok(writer.commit().wait()?)
    }

    /// Async form of [`Store::put_from`], for data of a known length.
    ///
    /// # Errors
    /// As [`Store::put_from`].
    #[cfg(feature = "tokio")]
    pub async fn put_from_async(
        &self,
        key: Key,
        bytes: u64,
        mut from: impl tokio::io::AsyncRead + Unpin,
        with: &PutWith,
    ) -> Result<Outcome> {
        let step = self.supply_step(bytes, with)?;
        let writer = match declined(self.reserve(key, bytes, with).await) {
            Ok(writer) => writer?,
            Err(outcome) => return Ok(outcome),
        };
        let mut last = None;
        for (at, len) in steps(bytes, step) {
            let mut buffer = writer.buffer(len).await?;
            fill(&mut from, &mut buffer).await.map_err(unreadable)?;
            if let Some(before) = last.replace(writer.fill(at, buffer)) {
                before.await?;
            }
        }
        if let Some(last) = last {
            last.await?;
        }
        Ok(writer.commit().await?)
    }

    /// Returns how many bytes of an object go to the store at once.
    fn supply_step(&self, bytes: u64, with: &PutWith) -> Result<u64> {
        let layout = with.layout.as_ref().map(|defined| defined.layout());
        let piece = layout.map_or(piece_bytes(bytes), |layout| layout.run_units() * UNIT_BYTES);
        step_bytes(bytes, piece, self.core.pools.bytes_max() as u64)
    }
}

/// Separates a declined reservation from one that failed.
fn declined(reserved: Answer<Writer>) -> Result<Result<Writer>, Outcome> {
    match reserved {
        Err(why) => match why.failure() {
            Some(Failure::Declined(why)) => Err(Outcome::Declined(*why)),
            _ => Ok(Err(why.into())),
        },
        Ok(writer) => Ok(Ok(writer)),
    }
}

/// Returns where parts of an object begin, and their lengths.
fn steps(bytes: u64, step: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..bytes.div_ceil(step)).map(move |number| {
        let at = number * step;
        (at, step.min(bytes - at) as usize)
    })
}

/// Fills `into` from the reader.
#[cfg(feature = "tokio")]
async fn fill(from: &mut (impl tokio::io::AsyncRead + Unpin), into: &mut [u8]) -> io::Result<()> {
    let mut buffer = tokio::io::ReadBuf::new(into);
    while buffer.remaining() > 0 {
        let before = buffer.filled().len();
        std::future::poll_fn(|context| {
            std::pin::Pin::new(&mut *from).poll_read(context, &mut buffer)
        })
        .await?;
        if buffer.filled().len() == before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}
