//! What can go wrong, each with what to do about it.

use std::fmt;
use std::time::Duration;

/// The result of a call of the store's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver's error.
    #[error(transparent)]
    Driver(#[from] adit_driver::Error),
    /// A key is empty or too long.
    #[error("a key has {bytes} bytes: use 1 to 512, or a hash of it")]
    Key {
        /// How many it has.
        bytes: usize,
    },
    /// A setting that cannot be.
    #[error("{what} is '{value}': {fix}")]
    Invalid {
        /// Which.
        what: &'static str,
        /// What was given.
        value: String,
        /// What to give.
        fix: String,
    },
    /// What was asked for did not come about.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A deadline passed.
    #[error("waited {} ms for {waited_for}; {fix}", .after.as_millis())]
    Timeout {
        /// What should have happened.
        waited_for: &'static str,
        /// How long it was given.
        after: Duration,
        /// What to do.
        fix: &'static str,
    },
    /// What is on a device is no store of ours, or not one this version can open.
    #[error("{device}: {why}; {fix}")]
    Media {
        /// The device.
        device: String,
        /// What was found there.
        why: String,
        /// What to do.
        fix: String,
    },
}

/// Why a put was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decline {
    /// Admission: it has not been asked for often enough.
    Admission,
    /// The write budget of the day is used up.
    Budget,
}

impl fmt::Display for Decline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Decline::Admission => "it has not been asked for often enough; ask again",
            Decline::Budget => "the write budget of the day is used up; wait, or raise it",
        })
    }
}

/// Why an item failed. What it was about is as it was, unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It can never fit.
    #[error(
        "the object needs {needs} bytes and the store can hold {has} in one: use a larger store"
    )]
    TooLarge {
        /// Bytes with padding.
        needs: u64,
        /// What the largest device has for a shard.
        has: u64,
    },
    /// There is no room, and nothing that may go.
    #[error("the store is full and all of it is leased or in use: release leases or wait")]
    Full,
    /// The tenant has no more.
    #[error(
        "tenant '{tenant}' would exceed its quota of {quota_bytes} bytes: delete objects of it or raise the quota"
    )]
    Quota {
        /// Its name.
        tenant: Box<str>,
        /// Its quota.
        quota_bytes: u64,
    },
    /// The memory is too short, or no whole units.
    #[error(
        "the part takes {needs} bytes of memory in whole units of 4096 and there are {has}: give as many"
    )]
    Memory {
        /// Bytes with padding.
        needs: u64,
        /// Bytes given, those in whole units.
        has: u64,
    },
    /// The memory is registered with none of the store's devices, or not with the one the object is on.
    #[error(
        "the memory is not registered with device {device}: use the store's memory, or plain slices"
    )]
    Foreign {
        /// Its position among the targets.
        device: u8,
    },
    /// No such part.
    #[error("{0}")]
    Part(&'static str),
    /// No object is being written by this writer.
    #[error("no object is being written by this writer: it was sealed, abandoned or never made")]
    Writer,
    /// It was sealed with parts missing.
    #[error("{missing_bytes} bytes were never filled: fill them, then seal")]
    Unfilled {
        /// How many.
        missing_bytes: u64,
    },
    /// A handle asked for a writer, and the policy or the write budget is against it.
    #[error("no room is made for it: {0}")]
    Declined(Decline),
    /// No such layout or tenant was defined.
    #[error("no such {0} in this store: define it first")]
    Undefined(&'static str),
    /// It was not begun in time.
    #[error("its deadline passed before it was begun: have less in flight, or give it more time")]
    Deadline,
    /// A device failed. Of a write, the object may or may not be there later.
    #[error("device {device} failed: {why}; recover it, then re-attach it")]
    Device {
        /// Its position among the targets.
        device: u8,
        /// The first failure.
        why: String,
    },
    /// The store is being closed.
    #[error("the store is closed")]
    Closed,
}

impl Error {
    /// A setting that cannot be.
    pub(crate) fn invalid(what: &'static str, value: impl ToString, fix: impl ToString) -> Error {
        Error::Invalid { what, value: value.to_string(), fix: fix.to_string() }
    }
}
