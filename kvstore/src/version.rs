//! The numbers that tell the versions of an object apart. Failures name them, so this lies below the model.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells one version of an object from every other of its key: microseconds of Unix time when it was stored, raised
/// where that is needed so that each put of a shard gets a higher one. It is stored with the object, so it survives
/// restarts. Two versions of a key can be equal only if the system's clock was set back over a restart, and hits the same
/// microsecond again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// The version of all objects that an Adit without versions stored (format 2).
    pub const NONE: Version = Version(0);

    /// Returns the version of an object stored at `wall`, in Unix time, where `last` is the newest so far.
    pub(crate) fn after(last: Version, wall: Duration) -> Version {
        Version(last.0.saturating_add(1).max(wall.as_micros() as u64))
    }

    /// Returns when the object was stored, to the microsecond unless many were stored at once; `None` for
    /// [`Version::NONE`].
    pub fn time(self) -> Option<SystemTime> {
        (self != Version::NONE).then(|| UNIX_EPOCH + Duration::from_micros(self.0))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
