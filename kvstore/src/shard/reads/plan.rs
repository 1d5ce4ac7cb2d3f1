//! Planned reads for another executor, such as a ring in GPU memory.
//!
//! A plan holds the objects by a lease, so nothing is written there before
//! [`Shard::release`](crate::shard::Shard::release). The bytes bypass the store: they are *unverified* until their
//! reader has compared the checksums that come with the plan ([`PlannedItem::checks`], [`Certainty::checked`]), unless
//! the device protects its data ([`Verification`]).

use std::ops::Range;

use adit_driver::paths::CommandQueue;
use adit_driver::spec::StatusCodeType;
use adit_driver::{CommandError, Protection, Time};

use crate::catalog::lease::LeaseId;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::checksum;
use crate::model::key::Key;
use crate::model::plan::{self, Plan};
use crate::shard::extract::{Extract, extract};
use crate::shard::parts::Parts;
use crate::shard::request::Part;

/// Whether the device verifies the bytes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The device verifies before it completes the command with success, as far as its protection information allows.
    /// Flipped bits, torn sectors and, except for type 3, data of another place are errors. It cannot detect stale
    /// data after a lost write; the checksums can ([`PlannedItem::checks`]).
    Device(Protection),
    /// The bytes are unverified until their reader has compared the checksums ([`PlannedItem::checks`]).
    Unverified,
}

/// The part of the system that has verified bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verifier {
    /// The device, by its protection information.
    Device(Protection),
    /// Their reader, by the store's checksums.
    Checksums,
}

/// How far a transfer's bytes are verified once it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// The bytes arrived and were verified.
    Verified(Verifier),
    /// The bytes arrived *unverified*: only their checksums tell whether they are what was put.
    Unverified,
    /// The bytes are wrong or unreadable on the medium: a miss, as after a checksum mismatch. The device works, but
    /// reading again will not help.
    Corrupt,
    /// The bytes did not arrive, for a reason unrelated to their state on the medium.
    Failed,
}

impl Verification {
    /// Returns what the result of a transfer says about its bytes.
    pub fn certainty(self, result: &Result<u32, CommandError>) -> Certainty {
        match (result, self) {
            (Ok(_), Verification::Device(protection)) => {
                Certainty::Verified(Verifier::Device(protection))
            }
            (Ok(_), Verification::Unverified) => Certainty::Unverified,
            (Err(CommandError::Status(status)), _)
                if status.code_type() == StatusCodeType::MediaAndDataIntegrity =>
            {
                Certainty::Corrupt
            }
            (Err(_), _) => Certainty::Failed,
        }
    }
}

impl Certainty {
    /// Returns what is known about an item's bytes once their reader has compared all of [`PlannedItem::checks`]: bytes
    /// that arrived are verified, or a miss. Without all of the bytes, checksums say nothing.
    #[must_use]
    pub fn checked(self, is_intact: bool) -> Certainty {
        match self {
            Certainty::Verified(_) | Certainty::Unverified if is_intact => {
                Certainty::Verified(Verifier::Checksums)
            }
            Certainty::Verified(_) | Certainty::Unverified => Certainty::Corrupt,
            Certainty::Corrupt | Certainty::Failed => self,
        }
    }
}

/// A run of an item's bytes, and the checksum that was taken of it when it was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Offsets in the item, in bytes.
    pub range: Range<u64>,
    /// CRC-32C (Castagnoli, RFC 3720) of these bytes.
    pub crc32c: u32,
}

/// The reads of a batch, for another executor.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The transfers for the devices. Items are numbered as in the batch.
    pub plan: Plan,
    /// The LBA size of each device.
    pub lba_bytes: Vec<u32>,
    /// The planned items; `None` for misses, which the plan leaves out.
    pub items: Vec<Option<PlannedItem>>,
    /// Holds the objects. Release it when every transfer has ended, successfully or not.
    pub lease: LeaseId,
}

/// One item of a plan.
#[derive(Clone, Debug)]
pub struct PlannedItem {
    extract: Extract,
    checksums: Vec<u32>,
    verification: Verification,
}

impl PlannedItem {
    /// Returns the bytes of the part.
    pub fn bytes(&self) -> u64 {
        self.extract.bytes
    }

    /// Returns the bytes of memory that it takes, in whole units.
    pub fn padded_bytes(&self) -> u64 {
        self.extract.padded_bytes
    }

    /// Returns who verifies its bytes; all its transfers go to one device.
    pub fn verification(&self) -> Verification {
        self.verification
    }

    /// Returns whether `memory`, which starts with the item's first byte, holds what was put.
    pub fn is_intact(&self, memory: &[u8]) -> bool {
        let is_right = |Check { range, crc32c }: Check| {
            checksum::of(&memory[range.start as usize..range.end as usize]) == crc32c
        };
        memory.len() as u64 >= self.extract.bytes && self.checks().all(is_right)
    }

    /// Returns the store's checksums of its bytes, from the journal: those of the runs that the object was put in, in
    /// order. Whatever reads the bytes compares them, a GPU for example; what pads a run has none.
    pub fn checks(&self) -> impl ExactSizeIterator<Item = Check> {
        debug_assert_eq!(self.extract.pieces.count as usize, self.checksums.len(), "one each");
        let pieces = &self.extract.pieces;
        (0..pieces.count).zip(&self.checksums).map(|(index, crc32c)| {
            let (start, len) = pieces.run(index);
            Check { range: start..start + len, crc32c: *crc32c }
        })
    }
}

/// Plans reads of these parts, and holds the objects until `until`.
pub(crate) fn plan<Q: CommandQueue<Load>, R>(
    core: &mut Parts<Q, R>,
    now: Time,
    asked: &[(Key, Part)],
    until: Time,
) -> Result<Planned, Failure> {
    let (mut parts, mut held) = (Vec::<plan::Part>::new(), Vec::new());
    let mut items = Vec::with_capacity(asked.len());
    for (number, (key, part)) in (0u32..).zip(asked) {
        let found = core.lookup(now, core.objects.index().hash(key.as_bytes()), key);
        let Some(id) = found else {
            items.push(None);
            continue;
        };
        let (objects, lanes) = (&mut core.objects, &core.lanes);
        let object = objects.index().object(id);
        let layout = objects.layouts().get(object.layout);
        let extract = extract(layout, &object, part, number, &mut parts)?;
        let first = extract.first_checksum as usize;
        let sums = &objects.index().checksums(id)[first..first + extract.pieces.count as usize];
        let checksums = sums.to_vec();
        let protection = lanes.of(object.place.device).info.protection;
        let verification = protection.map_or(Verification::Unverified, Verification::Device);
        items.push(Some(PlannedItem { extract, checksums, verification }));
        held.push(object);
        objects.note_used(id, object.tenant);
    }
    let lanes = &core.lanes;
    let lease = core.objects.spaces_mut().lease(&held, until)?;
    let lba_bytes = lanes.iter().map(|lane| lane.info.lba_bytes).collect();
    Ok(Planned { plan: Plan::of(&mut parts, lanes.limits()), lba_bytes, items, lease })
}
