//! Fuzz targets: what a hostile device, server or host can send.
//!
//! Each target is a plain function of bytes that panics if a law is broken. The same function is run by libFuzzer
//! (`targets/`, feature `libfuzzer`), by the seeded one-second tests, and over the inputs kept in `seeds/`
//! (`tests/targets.rs`).
//!
//! | target | the bytes are | what must hold |
//! |---|---|---|
//! | [`spec_bytes`] | what a device reports | every parser, accessor and formatter works on anything |
//! | [`hostile_controller`] | how a controller misbehaves, and what its user does meanwhile | no panic, every call bounded in virtual time, every buffer back once, nothing left mapped |
//! | [`recovery`] | the same, with a user who calls `recover()` again and again | the same |
//! | [`planner`] | limits and segments of a request | each byte moves once and in order, by the independent walker |
//! | [`vfio_user_client`] | what a vfio-user server answers | no panic, no wait beyond the deadline |
//! | [`vfio_user_server`] | what vfio-user clients do with messages, memory files and eventfds | no panic, no wait; their memory is given back, the next client is served |
//! | [`soft_host`] | what a host writes to the software controller | no panic, bounded work in each step |
//! | [`strings`] | target strings and options | no panic; what parses prints as something that parses to the same |
//! | [`kv_media`], five of them | what is on the media of a KV store, with checksums corrected | no panic, bounded work; what decodes encodes to the same; the journal can continue |
//! | [`kv_stream`] | a stream of objects to import, with checksums corrected | no panic, bounded memory; what is read whole is written to the same bytes |
//! | [`jobfile`] | job files of `adit bench` | no panic; what parses is shown as a command line of the same jobs |

pub mod hostile;
pub mod input;
pub mod jobfile;
pub mod kv_media;
pub mod kv_stream;
pub mod planner;
pub mod soft_host;
pub mod spec_bytes;
pub mod strings;
pub mod vfio_user_client;
pub mod vfio_user_server;

/// [`hostile`] with a user who gives up a failed controller.
pub mod hostile_controller {
    /// Runs one input; see [`crate::hostile`].
    pub fn target(data: &[u8]) {
        crate::hostile::run(data, false);
    }
}

/// [`hostile`] with a user who recovers the controller whenever it fails.
pub mod recovery {
    /// Runs one input; see [`crate::hostile`].
    pub fn target(data: &[u8]) {
        crate::hostile::run(data, true);
    }
}

/// A target's name and function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 15] = [
    ("spec_bytes", spec_bytes::target),
    ("hostile_controller", hostile_controller::target),
    ("recovery", recovery::target),
    ("planner", planner::target),
    ("vfio_user_client", vfio_user_client::target),
    ("vfio_user_server", vfio_user_server::target),
    ("soft_host", soft_host::target),
    ("strings", strings::target),
    ("jobfile", jobfile::target),
    ("kv_superblock", kv_media::superblock),
    ("kv_record", kv_media::record),
    ("kv_block", kv_media::block),
    ("kv_checkpoint", kv_media::checkpoint),
    ("kv_recovery", kv_media::recovery),
    ("kv_stream", kv_stream::target),
];
