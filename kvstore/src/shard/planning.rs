//! Reads for somebody else to carry out, such as a ring in GPU memory: what the devices are to do, without doing it.
//!
//! A plan holds what it reads by a lease, so that nothing is written there before [`Shard::release`] says that it was
//! carried out. Its bytes pass the store by: they are *unverified* until [`PlannedItem::is_intact`] has seen them, unless
//! the device protects its data ([`Verification`]).

use adit_driver::device::CommandQueue;
use adit_driver::spec::StatusCodeType;
use adit_driver::{CommandError, Protection, Time};

use super::Shard;
use super::parts::{Extract, extract};
use super::request::Part;
use crate::catalog::lease::LeaseId;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::checksum;
use crate::model::key::Key;
use crate::model::plan::{self, Plan};

/// Who verifies what a transfer reads, before anybody else looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The device, as its protection information allows, before it completes the command with success: flipped bits,
    /// torn sectors and, unless of type 3, data of another place are errors. Data that are older than the last write,
    /// because that was lost, are not found out; [`PlannedItem::is_intact`] finds them.
    Device(Protection),
    /// Nobody: the bytes are unverified until [`PlannedItem::is_intact`] has seen them.
    Unverified,
}

/// What is known of a transfer's bytes once it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// They are here, and the device has verified them ([`Verification::Device`]).
    Verified(Protection),
    /// They are here, *unverified*: only [`PlannedItem::is_intact`] tells whether they are what was put.
    Unverified,
    /// They are not what was put, or cannot be read from the medium: a miss, as of a checksum that does not fit. The
    /// device works; to read them again is useless.
    Corrupt,
    /// They are not here, for a reason that says nothing of them.
    Failed,
}

impl Verification {
    /// What the end of a transfer says of its bytes.
    pub fn certainty(self, result: &Result<u32, CommandError>) -> Certainty {
        match (result, self) {
            (Ok(_), Verification::Device(protection)) => Certainty::Verified(protection),
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

/// Reads of a batch that somebody else carries out.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What the devices are to do. Items are counted as the batch has them.
    pub plan: Plan,
    /// What is known of each item; none of those that are misses, which the plan does not have.
    pub items: Vec<Option<PlannedItem>>,
    /// Holds what is read. To be released when every transfer is over, whatever came of it.
    pub lease: LeaseId,
}

/// What one item of a plan reads.
#[derive(Clone, Debug)]
pub struct PlannedItem {
    extract: Extract,
    checksums: Vec<u32>,
    verification: Verification,
}

impl PlannedItem {
    /// Bytes of the part.
    pub fn bytes(&self) -> u64 {
        self.extract.bytes
    }

    /// Bytes of memory that it takes, in whole units.
    pub fn padded_bytes(&self) -> u64 {
        self.extract.padded_bytes
    }

    /// Who verifies the bytes of its transfers, all of which are of one device.
    pub fn verification(&self) -> Verification {
        self.verification
    }

    /// Whether `memory`, from the item's first byte on, is what was put.
    pub fn is_intact(&self, memory: &[u8]) -> bool {
        let pieces = &self.extract.pieces;
        memory.len() as u64 >= self.extract.bytes
            && (0..pieces.count).zip(&self.checksums).all(|(index, sum)| {
                let (start, len) = pieces.run(index);
                checksum::of(&memory[start as usize..(start + len) as usize]) == *sum
            })
    }
}

impl<Q: CommandQueue<Load>> Shard<Q> {
    /// Plans reads of these parts, and holds the objects until `until` or [`Shard::release`].
    ///
    /// # Errors
    /// [`Failure::Part`] if an object has no such part; [`Failure::Full`] when too many objects are leased.
    pub fn plan(
        &mut self,
        now: Time,
        asked: &[(Key, Part)],
        until: Time,
    ) -> Result<Planned, Failure> {
        let (mut parts, mut places) = (Vec::<plan::Part>::new(), Vec::new());
        let mut items = Vec::with_capacity(asked.len());
        for (number, (key, part)) in (0u32..).zip(asked) {
            let found = self.lookup(now, self.index.hash(key.as_bytes()), key);
            let Some(id) = found else {
                items.push(None);
                continue;
            };
            let object = self.index.object(id);
            let extract = extract(&self.spaces, &object, part, number, &mut parts)?;
            let first = extract.first_checksum as usize;
            let sums = &self.index.checksums(id)[first..first + extract.pieces.count as usize];
            let protection = self.lanes[usize::from(object.place.device)].info.protection;
            let verification = protection.map_or(Verification::Unverified, Verification::Device);
            items.push(Some(PlannedItem { extract, checksums: sums.to_vec(), verification }));
            places.push(object.place);
            self.policy.touched(id);
        }
        let lease = self.hold(&places, until)?;
        Ok(Planned { plan: Plan::of(&mut parts, &self.limits), items, lease })
    }
}
