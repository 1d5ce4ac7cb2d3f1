//! A user's handle to some control blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Blocks, Use};
use crate::commands::layout::CONTEXTS_MAX;
use crate::commands::outcome::IocbOutcome;
use crate::cuda::Event;
use crate::error::{Error, Result};

/// I/O control blocks filled by one call of `get_iocb`, to be issued and awaited together.
///
/// Dropping them returns their blocks: at once if not issued, otherwise when their commands have ended. Streams that
/// wait for unissued blocks then continue.
#[derive(Debug)]
pub struct Iocbs {
    pub(super) blocks: Arc<Blocks>,
    pub(super) uses: Vec<Use>,
    pub(super) after: Option<Arc<Event>>,
    pub(super) is_issued: AtomicBool,
    /// Whether their data were flushed after their end.
    pub(super) is_flushed: AtomicBool,
}

impl Iocbs {
    /// Returns the number of commands that the transfers were split into.
    pub fn commands(&self) -> u64 {
        let commands = self.uses.iter().map(|held| u64::from(held.count)).sum::<u64>();
        debug_assert!(commands >= self.uses.len() as u64, "a block has a command");
        debug_assert!(commands <= (self.uses.len() * CONTEXTS_MAX) as u64, "and a limit");
        commands
    }

    /// Returns the number of control blocks that they fill.
    pub fn blocks(&self) -> usize {
        assert!(self.uses.len() <= self.blocks.count() as usize, "a block has one holder");
        self.uses.len()
    }

    pub(crate) fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// Checks that they belong to `blocks`: positions and generations mean nothing elsewhere.
    ///
    /// # Errors
    /// [`Error::Invalid`] for blocks of other rings.
    pub(crate) fn check_of(&self, blocks: &Arc<Blocks>) -> Result<()> {
        if Arc::ptr_eq(&self.blocks, blocks) {
            let count = blocks.count();
            debug_assert!(self.uses.iter().all(|held| held.index < count), "there are such blocks");
            return Ok(());
        }
        let why = "other rings made them; use the rings whose get_iocb gave them";
        Err(Error::invalid("these control blocks", why))
    }

    pub(crate) fn after(&self) -> Option<&Arc<Event>> {
        self.after.as_ref()
    }

    /// Claims the one permitted issue.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they were issued before.
    pub(crate) fn claim(&self) -> Result<()> {
        if self.is_issued.swap(true, Ordering::Relaxed) {
            return Err(Error::invalid(
                "issue_io",
                "these control blocks were issued; get others with get_iocb",
            ));
        }
        debug_assert!(!self.uses.iter().any(Use::is_issued), "a way is set behind the claim");
        Ok(())
    }

    /// Returns whether all their commands have ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they were not issued.
    pub(crate) fn is_done(&self) -> Result<bool> {
        let has_way = self.uses.iter().any(Use::is_issued);
        let is_issued = self.is_issued.load(Ordering::Relaxed);
        assert!(is_issued || !has_way, "a way is set behind the claim");
        if !self.uses.is_empty() && !is_issued {
            return Err(Error::invalid(
                "wait for control blocks",
                "they were not issued; call issue_io first",
            ));
        }
        Ok(self.have_ended())
    }

    fn have_ended(&self) -> bool {
        let have_ended = self.uses.iter().all(|held| self.blocks.is_done(held));
        debug_assert!(!have_ended || self.uses.iter().all(Use::is_issued), "issued before it ends");
        have_ended
    }

    /// Runs `flush` unless it has succeeded before.
    ///
    /// # Errors
    /// Those of `flush`, which the next call retries.
    pub(crate) fn flush_once(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        debug_assert!(self.have_ended(), "data arrive before the end");
        if !self.is_flushed.load(Ordering::Acquire) {
            flush()?;
            self.is_flushed.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn outcome(&self) -> Result<IocbOutcome> {
        assert!(self.have_ended(), "statuses are written before the end");
        let mut outcome = IocbOutcome::default();
        for held in &self.uses {
            self.blocks.read_back(held, &mut outcome)?;
        }
        assert_eq!(outcome.commands, self.commands(), "each command has ended");
        assert!(outcome.failed.len() as u64 <= outcome.commands, "a command fails once");
        outcome.failed.sort_by_key(|(position, _)| *position);
        Ok(outcome)
    }
}

impl Drop for Iocbs {
    fn drop(&mut self) {
        for held in &mut self.uses {
            if self.blocks.is_awaited(held)
                && let Err(error) = self.blocks.end_unissued(held)
            {
                // Another use would have the same generation. Dropping the rings tries again.
                tracing::error!(
                    "a control block that was never issued is lost, as a stream waits for it: {error}"
                );
                continue;
            }
            self.blocks.give_back(held);
        }
    }
}
