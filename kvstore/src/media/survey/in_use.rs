//! Looking at a store that somebody else writes to.
//!
//! Nothing keeps the writer from changing what was just read, so a look may find faults that are none: a block of the
//! journal that is on its way while the one behind it is there already, a checkpoint that is being replaced. They are told
//! from damage by looking again.
//!
//! - A look without a fault is a picture of one moment: blocks are chained, and no mixture of two moments is.
//! - What is in motion is somewhere else at the next look. Damage stays where it is: a fault counts if every look finds
//!   it, up to the last one. The caller's pauses say how many there are, and must be longer than a write takes.
//! - A format, or an opening as `volatile`, voids all that was read before: then there is nothing to tell.
//!
//! What it does not do: keep the writer waiting, or read the objects' data.

use super::{DeviceFacts, Fault, Heads, ShardSurvey, heads, of_heads, shard};
use crate::error::Result;
use crate::media::recovery::Media;

/// A shard as it was at one moment, as far as that was to be had.
#[derive(Clone, Debug)]
pub struct Moment {
    /// What the last look found. Its faults are those that every look found.
    pub survey: ShardSurvey,
    /// Faults of the last look that earlier looks did not find: something was in motion there.
    pub moving: Vec<Fault>,
}

impl Moment {
    /// Whether the last look found nothing wrong: another look has nothing to tell.
    pub fn is_whole(&self) -> bool {
        self.survey.faults.is_empty() && self.moving.is_empty()
    }
}

/// Reads and compares the superblocks, again after each `pause` while there is something wrong with them, until that is
/// false; gives them with the faults that stayed.
///
/// # Errors
/// As [`heads`], if the last look fails so.
pub fn heads_in_use<M: Media>(
    media: &mut M,
    devices: &[DeviceFacts],
    pause: &mut dyn FnMut() -> bool,
) -> Result<(Heads, Vec<Fault>)> {
    let mut steady: Option<Vec<Fault>> = None;
    loop {
        let found = heads(media, devices);
        if let Ok(found) = &found {
            let seen = of_heads(found, devices);
            steady = Some(steady.map_or_else(|| seen.clone(), |steady| staying(steady, &seen)));
        }
        let is_whole = found.is_ok() && steady.as_ref().is_some_and(Vec::is_empty);
        if is_whole || !pause() {
            return found.map(|found| (found, steady.unwrap_or_default()));
        }
    }
}

/// What the looks at one shard so far come to.
///
/// Whoever looks at several shards looks at each, pauses once for all of them, and looks again at those that are not
/// [whole](Moment::is_whole): so damage in one shard takes no time from what is in motion in another.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    /// Faults that every look found; none before the first.
    steady: Option<Vec<Fault>>,
}

impl Looks {
    /// Surveys shard `number` once more. None where `heads` are those of the store no more: everything is to be read
    /// anew.
    ///
    /// # Errors
    /// As [`shard`].
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn look<M: Media>(
        &mut self,
        media: &mut M,
        (heads, devices): (&Heads, &[DeviceFacts]),
        number: u16,
    ) -> Result<Option<Moment>> {
        let mut survey = shard(media, heads, number)?;
        if !is_still(media, heads, devices) {
            return Ok(None);
        }
        let seen = std::mem::take(&mut survey.faults);
        let stay = self.steady.take().map_or_else(|| seen.clone(), |steady| staying(steady, &seen));
        let is_moving = |fault: &Fault| !stay.iter().any(|steady| steady.is_same(fault));
        let moving = seen.into_iter().filter(is_moving).collect();
        survey.faults.clone_from(&stay);
        self.steady = Some(stay);
        Ok(Some(Moment { survey, moving }))
    }
}

/// Those of the faults that were seen again, as they look now.
fn staying(steady: Vec<Fault>, seen: &[Fault]) -> Vec<Fault> {
    let is_steady = |fault: &&Fault| steady.iter().any(|steady| steady.is_same(fault));
    seen.iter().filter(is_steady).cloned().collect()
}

/// Whether these are still the superblocks of the store, as far as journals and checkpoints depend on them. Where they
/// cannot be read just now they are not.
fn is_still<M: Media>(media: &mut M, earlier: &Heads, devices: &[DeviceFacts]) -> bool {
    let lineage = |heads: &Heads| (heads.copies[0].superblock.store, heads.agreed.epoch);
    heads(media, devices).is_ok_and(|now| lineage(&now) == lineage(earlier))
}
