//! How requests end, as numbers.

use adit_kvstore::shard::Decline;
use zerocopy::TryFromBytes;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u16)]
pub enum Code {
    /// As requested: stored, read, removed, counted.
    Done = 0,
    /// There is no such object.
    Miss = 1,
    /// Admission rejected the object, which is no failure.
    DeclinedByAdmission = 2,
    /// The write budget rejected the object, which is no failure.
    DeclinedByBudget = 3,
    /// Read and not verified: the client does that, by the digest ([`super::Done::digest`]). If the bytes do not match,
    /// it asks again and the server verifies the object (`is_checked` of [`super::Ask::Get`]).
    Unverified = 4,
    /// The object can never fit: it needs [`super::Done::value`] bytes and there are [`super::Done::extra`].
    TooLarge = 16,
    /// The store is full, or too many objects are leased.
    Full = 17,
    /// The quota of [`super::Done::value`] bytes of the tenant that the text names is used up.
    Quota = 18,
    /// The memory is too short: [`super::Done::value`] bytes are needed, [`super::Done::extra`] are there.
    Memory = 19,
    /// The object has no such part.
    Part = 20,
    /// The deadline passed before the request began.
    Deadline = 21,
    /// The device with the index [`super::Done::value`] failed.
    Device = 22,
    /// No space is left on the device that the text names.
    NoSpace = 23,
    /// The store is being closed.
    Closed = 24,
    /// Another failure of the store.
    Failed = 25,
    /// The key does not meet the request's condition: [`super::Done::value`] is the version found, if
    /// [`super::Done::extra`] is 1.
    Conflict = 26,
    /// The store cannot have such a tenant.
    Tenant = 27,
    /// The store cannot have another layout.
    Layout = 28,
    /// A device does not know the memory.
    Foreign = 29,
    /// There is no such writer.
    Writer = 30,
    /// The object was sealed with parts missing.
    Unfilled = 31,
    /// The request is invalid, or names an unknown region, layout or lease.
    Malformed = 32,
    /// A request in progress has some of this memory.
    InUse = 33,
    /// A limit of the server's is reached.
    Limit = 34,
    /// The tenant or the layout is not defined, which the text names.
    Undefined = 35,
    /// The store did not answer its server for [`super::Done::value`] ms.
    Timeout = 36,
}

impl Code {
    /// Returns the code with this number; [`Code::Failed`] for one that this version does not know.
    pub fn of(number: u16) -> Code {
        Code::try_read_from_bytes(&number.to_ne_bytes()).unwrap_or(Code::Failed)
    }

    /// Returns the code of an object that is not stored, or gets no room.
    pub fn of_decline(why: Decline) -> Code {
        match why {
            Decline::Admission => Code::DeclinedByAdmission,
            Decline::Budget => Code::DeclinedByBudget,
        }
    }

    /// Returns whether the request failed; an answer of its own kind is none.
    pub fn is_failure(self) -> bool {
        self as u16 >= Code::TooLarge as u16
    }
}
