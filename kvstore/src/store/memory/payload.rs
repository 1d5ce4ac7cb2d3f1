//! The data of a put: bytes to copy, or memory that the devices read directly.

use std::io::IoSlice;

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_driver::sys::{SharedBytes, SharedBytesMut};
use bytes::Bytes;

use super::pool::PoolBuffer;
use super::segments::bytes_of;

/// The data of an object: bytes to copy, or memory that devices read directly ([`PoolBuffer`], [`Payload::lent`]).
#[derive(Debug)]
pub struct Payload<'a>(pub(super) Form<'a>);

#[derive(Debug)]
pub(super) enum Form<'a> {
    /// Plain bytes, which are copied to registered memory and counted as copied.
    Bytes(Plain<'a>),
    /// The store's own memory, which returns to its pool.
    Pooled(PoolBuffer),
    /// The caller's registered memory, which returns with the answer.
    Lent { memory: AnyBuffer, bytes: u64 },
}

/// Bytes in ordinary memory.
#[derive(Debug)]
pub(super) enum Plain<'a> {
    Slice(&'a [u8]),
    Owned(Bytes),
    /// Slices, concatenated.
    Slices(&'a [IoSlice<'a>]),
    /// Shared buffers, concatenated.
    Shared(&'a [Bytes]),
    /// Bytes that others may write at the same time.
    Changing(SharedBytes<'a>),
}

impl Plain<'_> {
    pub(super) fn len(&self) -> usize {
        if let Plain::Changing(bytes) = self {
            return bytes.len();
        }
        let mut len = 0;
        self.each(|slice| len += slice.len());
        len
    }

    /// Copies all bytes to `into`, which must have the same length.
    pub(super) fn copy_to(&self, into: &mut [u8]) {
        if let Plain::Changing(bytes) = self {
            return SharedBytesMut::from(into).copy_from(*bytes);
        }
        let mut rest = into;
        self.each(|slice| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(slice.len());
            now.copy_from_slice(slice);
            rest = later;
        });
        assert!(rest.is_empty(), "there is room for the bytes and no more");
    }

    /// Calls `f` with each slice. Skips changing bytes, to which no reference may exist.
    fn each(&self, mut f: impl FnMut(&[u8])) {
        match self {
            Plain::Slice(slice) => f(slice),
            Plain::Owned(bytes) => f(bytes),
            Plain::Slices(slices) => slices.iter().for_each(|slice| f(slice)),
            Plain::Shared(all) => all.iter().for_each(|bytes| f(bytes)),
            Plain::Changing(_) => unreachable!("its callers copy such bytes themselves"),
        }
    }
}

impl Payload<'static> {
    /// Lends the first `bytes` bytes of registered memory. A device reads them in place if the memory begins at a
    /// multiple of the device's LBA size and consists of whole units of 4 KiB; up to 4095 bytes behind the object's end
    /// are then zeroed. Otherwise the unaligned part is copied, and no byte of the memory changes.
    pub fn lent(memory: impl Into<AnyBuffer>, bytes: u64) -> Payload<'static> {
        Payload(Form::Lent { memory: memory.into(), bytes })
    }
}

impl Payload<'_> {
    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Form::Bytes(bytes) => bytes.len() as u64,
            Form::Pooled(buffer) => buffer.len() as u64,
            Form::Lent { bytes, .. } => *bytes,
        }
    }

    /// Returns whether the payload is the caller's registered memory, which may be longer than the data.
    pub(crate) fn is_lent(&self) -> bool {
        matches!(self.0, Form::Lent { .. })
    }

    /// Copies borrowed bytes to the heap. Also returns the number of bytes copied.
    pub(super) fn into_owned(self) -> (Payload<'static>, usize) {
        let (form, copied) = match self.0 {
            Form::Bytes(Plain::Owned(bytes)) => (Form::Bytes(Plain::Owned(bytes)), 0),
            Form::Bytes(plain) => {
                let mut bytes = vec![0; plain.len()];
                plain.copy_to(&mut bytes);
                let copied = bytes.len();
                (Form::Bytes(Plain::Owned(bytes.into())), copied)
            }
            Form::Pooled(buffer) => (Form::Pooled(buffer), 0),
            Form::Lent { memory, bytes } => (Form::Lent { memory, bytes }, 0),
        };
        (Payload(form), copied)
    }

    /// Returns the memory that the caller lent.
    pub(crate) fn into_lent(self) -> AnyBuffer {
        match self.0 {
            Form::Lent { memory, .. } => memory,
            Form::Bytes(_) | Form::Pooled(_) => AnyBuffer::None,
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Payload<'a> {
        Payload(Form::Bytes(Plain::Slice(bytes)))
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(bytes: &'a Vec<u8>) -> Payload<'a> {
        bytes.as_slice().into()
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Payload<'a> {
        bytes.as_slice().into()
    }
}

/// No other vector converts to a payload, so the type of `vec![]` is clear.
impl From<Vec<u8>> for Payload<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<Bytes> for Payload<'_> {
    fn from(bytes: Bytes) -> Self {
        Payload(Form::Bytes(Plain::Owned(bytes)))
    }
}

/// The object is the concatenation of the slices.
impl<'a> From<&'a [IoSlice<'a>]> for Payload<'a> {
    fn from(slices: &'a [IoSlice<'a>]) -> Payload<'a> {
        Payload(Form::Bytes(Plain::Slices(slices)))
    }
}

/// The object is the concatenation of the parts.
impl<'a> From<&'a [Bytes]> for Payload<'a> {
    fn from(parts: &'a [Bytes]) -> Payload<'a> {
        Payload(Form::Bytes(Plain::Shared(parts)))
    }
}

/// Others may write the bytes at the same time; the object has the bytes of the copy.
impl<'a> From<SharedBytes<'a>> for Payload<'a> {
    fn from(bytes: SharedBytes<'a>) -> Payload<'a> {
        Payload(Form::Bytes(Plain::Changing(bytes)))
    }
}

impl From<PoolBuffer> for Payload<'_> {
    fn from(buffer: PoolBuffer) -> Self {
        Payload(Form::Pooled(buffer))
    }
}

impl From<AnyBuffer> for Payload<'_> {
    fn from(memory: AnyBuffer) -> Self {
        let bytes = bytes_of(&memory);
        Payload(Form::Lent { memory, bytes })
    }
}

impl From<Buffer> for Payload<'_> {
    fn from(buffer: Buffer) -> Self {
        AnyBuffer::One(buffer).into()
    }
}
