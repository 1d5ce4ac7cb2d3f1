//! The crate's public error, whose variants say what the caller can do.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::version::Version;

/// The result of a store call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] adit_driver::Error),
    /// A key is empty or too long.
    #[error("a key has {bytes} bytes: use 1 to 512, or a hash of it")]
    Key {
        /// The key's length in bytes.
        bytes: usize,
    },
    /// An invalid setting or argument.
    #[error("{what} is '{value}': {fix}")]
    Invalid {
        /// The name of the setting.
        what: &'static str,
        /// The value given.
        value: String,
        /// How to correct it.
        fix: String,
    },
    /// The store could not complete the request.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The object that a reader reads was replaced or removed.
    #[error(
        "the object was replaced or removed when {at} of its {bytes} bytes were read: read it again from its beginning"
    )]
    Gone {
        /// How many bytes were read.
        at: u64,
        /// The object's length in bytes.
        bytes: u64,
    },
    /// A stream of objects could not be written.
    #[error("the stream of objects cannot be written: {why}")]
    Output {
        /// The reason.
        why: String,
    },
    /// A stream of objects ([`crate::stream`]) is damaged or cut off.
    #[error("the stream of objects, at byte {at}: {why}")]
    Stream {
        /// How many bytes of it were read before.
        at: u64,
        /// The reason.
        why: String,
    },
    /// The data to store could not be read.
    #[error("the data to store cannot be read: {why}; nothing was stored")]
    Source {
        /// The reason.
        why: String,
    },
    /// A deadline passed.
    #[error("waited {} ms for {waited_for}; {fix}", .after.as_millis())]
    Timeout {
        /// The event waited for.
        waited_for: &'static str,
        /// How long the call waited.
        after: Duration,
        /// The next step for the user.
        fix: &'static str,
    },
    /// A thread of the store has panicked. Its shards are out of reach, and the media are as after a crash of the
    /// process: close the store and open it again.
    #[error(
        "the store's thread {thread} died ({why}): open the store again, and report this, as it is a bug of Adit's, or \
         of the eviction policy that the program supplied"
    )]
    Died {
        /// The thread's name.
        thread: String,
        /// The panic's message.
        why: String,
    },
    /// The server of a served store is gone or does not answer, and the connection with it.
    #[error("the server of the store is lost ({why}): connect again once 'adit kv serve' runs")]
    Lost {
        /// How that showed.
        why: String,
    },
    /// The server of a served store refused the request, which its store did not get or answered with an error that is
    /// no [`Failure`].
    #[error("{why}")]
    Refused {
        /// The kind of refusal.
        kind: RefusalKind,
        /// The reason, in the server's words.
        why: String,
    },
    /// The system refused memory, a socket or a descriptor for a served store.
    #[error("cannot {what}: {why}")]
    System {
        /// The operation that failed.
        what: String,
        /// The system's reason.
        why: Arc<io::Error>,
    },
    /// A device holds no store, or a store that this version cannot open.
    #[error("{device}: {why}; {fix}")]
    Media {
        /// The device.
        device: String,
        /// The fault in its contents.
        why: String,
        /// The next step for the user.
        fix: String,
    },
}

/// How the server of a store refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The request means nothing, or names what is not there.
    Malformed,
    /// A request in progress has some of this memory.
    InUse,
    /// A limit of the server's is reached, which the reason names.
    Limit,
    /// The object does not fit in the pool of the client.
    Pool,
    /// The server's store failed by another error than a [`Failure`].
    Failed,
}

/// Why a put was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decline {
    /// Admission: the object has not been requested often enough.
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

/// Why an item failed. The object is unchanged unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The object can never fit.
    #[error(
        "the object needs {needs} bytes and the store can hold {has} in one: use a larger store"
    )]
    TooLarge {
        /// Bytes including padding.
        needs: u64,
        /// The shard's share of its largest device in bytes.
        has: u64,
    },
    /// There is no room, and nothing may be evicted.
    #[error("the store is full and all of it is leased or in use: release leases or wait")]
    Full,
    /// The tenant's quota is used up.
    #[error(
        "tenant '{tenant}' would exceed its quota of {quota_bytes} bytes: delete objects of it or raise the quota"
    )]
    Quota {
        /// The tenant's name.
        tenant: Box<str>,
        /// Its quota in bytes.
        quota_bytes: u64,
    },
    /// There cannot be such a tenant, or it cannot have a quota.
    #[error("{0}")]
    Tenant(Cow<'static, str>),
    /// There are too many layouts.
    #[error("{0}")]
    Layout(Cow<'static, str>),
    /// The memory is too short or not whole units.
    #[error(
        "the part takes {needs} bytes of memory in whole units of 4096 and there are {has}: pass a larger buffer"
    )]
    Memory {
        /// Bytes including padding.
        needs: u64,
        /// Bytes given, in whole units.
        has: u64,
    },
    /// The memory is registered with no device of the store, or not with the object's.
    #[error(
        "the memory is not registered with device {device}: use the store's memory, or plain slices"
    )]
    Foreign {
        /// The device's index among the targets.
        device: u8,
    },
    /// The key does not have what the request asked for ([`Condition`](crate::shard::Condition), or the version of a
    /// get). Nothing was changed.
    #[error("{}", conflict(*.found))]
    Conflict {
        /// The version of the object that is there; `None` if there is none.
        found: Option<Version>,
    },
    /// The object has no such part.
    #[error("{0}")]
    Part(Cow<'static, str>),
    /// No object is being written by this writer.
    #[error("no object is being written by this writer: it was sealed, abandoned or never made")]
    Writer,
    /// The object was sealed with parts missing.
    #[error("{missing_bytes} bytes were never filled: fill them, then seal")]
    Unfilled {
        /// Bytes that were never filled.
        missing_bytes: u64,
    },
    /// Admission or the write budget rejected a reservation made through a handle.
    #[error("no room is made for it: {0}")]
    Declined(Decline),
    /// The layout or tenant is not defined.
    #[error("no such {0} in this store: define it first")]
    Undefined(&'static str),
    /// The item did not begin in time.
    #[error("its deadline passed before it was begun: have less in flight, or give it more time")]
    Deadline,
    /// A device failed. After a failed write, the object may or may not exist later.
    #[error("device {device} failed: {why}; recover it, then re-attach it")]
    Device {
        /// The device's index among the targets.
        device: u8,
        /// The first failure.
        why: String,
    },
    /// No space is left where the data of an object was to be written: on the file system of a sparse file, or in a
    /// thinly provisioned namespace.
    #[error(
        "{device}: no space is left for the data: free space on its file system and put the object again, or \
         allocate the whole file with 'fallocate'"
    )]
    NoSpace {
        /// The device.
        device: String,
    },
    /// The store is being closed, or a thread of it has died ([`Store::check`](crate::Store::check) says so).
    #[error("the store is closed")]
    Closed,
}

fn conflict(found: Option<Version>) -> String {
    match found {
        Some(Version::NONE) => {
            "the object is there, without a version from before there were any: get it, then decide"
                .to_owned()
        }
        Some(version) => {
            format!("the object is there in version {version}: get it, then decide")
        }
        None => {
            "there is no object with this key: put it if it is absent, or do without".to_owned()
        }
    }
}

impl Error {
    /// Creates the error of what the system refused.
    pub fn system(what: impl ToString, why: impl Into<io::Error>) -> Error {
        Error::System { what: what.to_string(), why: Arc::new(why.into()) }
    }

    /// Creates the error of the calling thread, which has panicked.
    pub(crate) fn died(why: &str) -> Error {
        let thread = std::thread::current();
        Error::Died { thread: thread.name().unwrap_or("?").to_owned(), why: why.to_owned() }
    }

    pub(crate) fn media(device: &str, why: impl ToString, fix: impl ToString) -> Error {
        Error::Media { device: device.to_owned(), why: why.to_string(), fix: fix.to_string() }
    }

    /// Creates the error of an argument or option: its name, its value, and how to correct it.
    pub fn invalid(what: &'static str, value: impl ToString, fix: impl ToString) -> Error {
        Error::Invalid { what, value: value.to_string(), fix: fix.to_string() }
    }
}
