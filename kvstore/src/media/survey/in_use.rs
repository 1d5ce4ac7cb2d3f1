//! Surveys a store that another process writes to.
//!
//! The writer may change data that were just read, so a look may find false faults: a journal block in flight whose
//! successor is already on the media, or a checkpoint being replaced. Looking again distinguishes these from damage:
//!
//! - A look without a fault shows one moment: blocks are chained, and a mixture of two moments is not.
//! - Data in motion is elsewhere at the next look, while damage stays. A fault counts if every look finds it. The
//!   caller's pauses determine the number of looks, and must be longer than a write takes.
//! - A format, or an opening as `volatile`, voids everything read before: the survey then has no result.
//!
//! A survey does not make the writer wait, and does not read the objects' data.

use super::{DeviceFacts, Fault, Heads, ShardSurvey, heads, of_heads, shard};
use crate::error::Result;
use crate::media::recovery::Media;

/// A shard at one moment, as far as possible.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The result of the last look, with the faults that every look found.
    pub survey: ShardSurvey,
    /// Faults of the last look that earlier looks did not find: data in motion.
    pub moving: Vec<Fault>,
}

impl Moment {
    /// Returns whether the last look found no fault, so that another is unnecessary.
    pub fn is_whole(&self) -> bool {
        self.survey.faults.is_empty() && self.moving.is_empty()
    }
}

/// Reads and compares the superblocks, again after each `pause` while they have faults and `pause` returns true.
/// Returns them with the faults that stayed.
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

/// All looks so far at one shard.
///
/// To survey several shards, look at each, pause once for all of them, and look again at those that are not
/// [whole](Moment::is_whole). Damage in one shard then takes no time from data in motion in another.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    /// Faults that every look found; `None` before the first.
    steady: Option<Vec<Fault>>,
}

impl Looks {
    /// Surveys shard `number` once more. Returns `None` if `heads` are no longer current: read everything again.
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

/// Returns the faults seen again, in their latest form.
fn staying(steady: Vec<Fault>, seen: &[Fault]) -> Vec<Fault> {
    let is_steady = |fault: &&Fault| steady.iter().any(|steady| steady.is_same(fault));
    seen.iter().filter(is_steady).cloned().collect()
}

/// Returns whether the superblocks are still the same, as far as journals and checkpoints depend on them. Returns
/// false if they cannot be read now.
fn is_still<M: Media>(media: &mut M, earlier: &Heads, devices: &[DeviceFacts]) -> bool {
    let lineage =
        |heads: &Heads| (heads.copies[0].superblock.store, heads.agreed.epoch, heads.changes());
    heads(media, devices).is_ok_and(|now| lineage(&now) == lineage(earlier))
}
