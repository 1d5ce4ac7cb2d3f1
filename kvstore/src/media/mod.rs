//! The format on the media: bytes in, bytes out. `format` and `survey` are the calls that wait for a device.

pub mod block;
pub(crate) mod bytes;
pub mod checkpoint;
pub mod checksum;
pub mod device_set;
pub mod format;
pub mod geometry;
pub mod journal;
pub mod record;
pub mod recovery;
pub mod superblock;
pub mod survey;
