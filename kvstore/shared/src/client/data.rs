//! The data of an object to put.

use std::fmt;

use adit_shared::SharedBytes;

use crate::memory::Span;

/// The data of an object.
pub enum Data<'a> {
    /// Bytes to copy to the pool.
    Bytes(SharedBytes<'a>),
    /// The first bytes of shared memory, which comes back with the answer. Up to 4095 bytes of it are zeroed behind the
    /// object's end.
    Span(Span, u64),
}

impl Data<'_> {
    /// Returns the shared memory, if it is such.
    pub(super) fn into_span(self) -> Option<Span> {
        if let Data::Span(span, _) = self { Some(span) } else { None }
    }
}

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Data::Span(span, bytes) => write!(f, "Span({span:?}, {bytes})"),
        }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Data<'a> {
    fn from(bytes: &'a T) -> Data<'a> {
        Data::Bytes(bytes.as_ref().into())
    }
}

/// Bytes that others may write meanwhile: the object is what the copy holds.
impl<'a> From<SharedBytes<'a>> for Data<'a> {
    fn from(bytes: SharedBytes<'a>) -> Data<'a> {
        Data::Bytes(bytes)
    }
}

impl From<Span> for Data<'_> {
    fn from(span: Span) -> Self {
        let bytes = span.len() as u64;
        Data::Span(span, bytes)
    }
}
