//! Why an access to the storage fails.

use crate::memory::Fault;

/// Why moving data failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaError {
    /// The host side failed: an unmapped address.
    Host,
    /// The media side failed: the file behind it.
    Media,
    Differ,
}

impl From<Fault> for MediaError {
    fn from(_: Fault) -> MediaError {
        MediaError::Host
    }
}

impl From<std::io::Error> for MediaError {
    fn from(_: std::io::Error) -> MediaError {
        MediaError::Media
    }
}

pub(crate) type MediaResult<T = ()> = std::result::Result<T, MediaError>;
