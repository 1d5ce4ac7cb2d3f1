//! Protection information of commands: generated on writes, checked on reads.

use crate::command::Command;
use crate::controller::Controller;
use crate::media::LbaRun;
use crate::protection::{Asked, TUPLE_BYTES};
use crate::status::{INVALID_PROTECTION, UNRECOVERED_READ, WRITE_FAULT};
use adit_spec::Status;

/// LBAs whose tuples are generated or checked at a time.
const CHUNK_LBAS: u64 = 128;

/// A run of LBAs of a protected namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Protected {
    pub(super) run: LbaRun,
    /// Storage offset of the tuple of its first LBA.
    pub(super) tuples: u64,
    pub(super) asked: Asked,
}

impl Protected {
    fn lba_count(&self) -> u64 {
        self.run.len / self.run.lba_bytes
    }

    /// Splits the run into parts of at most [`CHUNK_LBAS`]: index of the first LBA, run, offset of the tuples.
    fn parts(self) -> impl Iterator<Item = (u32, LbaRun, u64)> {
        let Protected { run, tuples, .. } = self;
        (0..self.lba_count()).step_by(CHUNK_LBAS as usize).map(move |first| {
            let count = CHUNK_LBAS.min(self.lba_count() - first);
            let offset = run.offset + first * run.lba_bytes;
            let part = LbaRun { offset, len: count * run.lba_bytes, lba_bytes: run.lba_bytes };
            (first as u32, part, tuples + first * TUPLE_BYTES as u64)
        })
    }
}

impl Controller {
    /// Returns the protection options of a single-range command, if its namespace is protected.
    #[inline]
    pub(super) fn protected(
        &self,
        command: &Command,
        run: LbaRun,
    ) -> Result<Option<Protected>, Status> {
        let namespace = self.namespace(command.nsid)?;
        let Some(protection) = namespace.protection else {
            let is_asked = command.cdw(12) >> 26 & 0xf != 0;
            return if is_asked { Err(INVALID_PROTECTION) } else { Ok(None) };
        };
        let asked = Asked::of(protection.kind, command)?;
        Ok(self.protected_run(command.nsid, run, asked))
    }

    /// Adds the place of the tuples to `run`, if its namespace is protected.
    pub(super) fn protected_run(&self, nsid: u32, run: LbaRun, asked: Asked) -> Option<Protected> {
        let namespace = self.namespaces.active(nsid)?;
        let first = (run.offset - namespace.offset) / run.lba_bytes;
        let tuples = namespace.protection?.tuples + first * TUPLE_BYTES as u64;
        Some(Protected { run, tuples, asked })
    }

    /// Checks the stored data of a run against its tuples.
    pub(super) fn check_protected(&mut self, protected: Protected) -> Result<(), Status> {
        let lba_bytes = protected.run.lba_bytes as usize;
        let (mut data, mut tuples) = (Vec::new(), Vec::new());
        for (first, part, place) in protected.parts() {
            data.resize(part.len as usize, 0);
            tuples.resize(part.len as usize / lba_bytes * TUPLE_BYTES, 0);
            self.media.load(part.offset, &mut data).map_err(|_| UNRECOVERED_READ)?;
            self.media.tuples(part, place, &mut tuples).map_err(|_| UNRECOVERED_READ)?;
            let lbas = data.chunks_exact(lba_bytes).zip(tuples.as_chunks().0);
            for (index, (lba, tuple)) in (first..).zip(lbas) {
                protected.asked.check(index, lba, *tuple)?;
            }
        }
        Ok(())
    }

    /// Generates the tuples of a run that the same command has just written.
    pub(super) fn protect(&mut self, protected: Protected) -> Result<(), Status> {
        let lba_bytes = protected.run.lba_bytes as usize;
        let (mut data, mut tuples) = (Vec::new(), Vec::new());
        for (first, part, place) in protected.parts() {
            data.resize(part.len as usize, 0);
            self.media.load(part.offset, &mut data).map_err(|_| WRITE_FAULT)?;
            tuples.clear();
            for (index, lba) in (first..).zip(data.chunks_exact(lba_bytes)) {
                tuples.extend(protected.asked.make(index, lba));
            }
            self.media.put_tuples(part, place, &tuples).map_err(|_| WRITE_FAULT)?;
        }
        Ok(())
    }

    /// Removes the protection of a run that was just deallocated: it reads as zeros, unchecked.
    pub(super) fn unprotect(&mut self, nsid: u32, run: LbaRun) -> Result<(), Status> {
        let Some(namespace) = self.namespaces.active(nsid) else { return Ok(()) };
        let Some(protection) = namespace.protection else { return Ok(()) };
        let first = (run.offset - namespace.offset) / run.lba_bytes;
        let place = protection.tuples + first * TUPLE_BYTES as u64;
        self.media.clear_tuples(run, place).map_err(|_| WRITE_FAULT)
    }
}
