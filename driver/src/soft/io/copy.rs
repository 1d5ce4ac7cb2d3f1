//! Copy with descriptor format 0 (NVM Command Set 1.0 section 3.2.2).

use super::decode::{CopyTo, Range};
use crate::soft::command::Command;
use crate::soft::controller::Controller;
use crate::soft::memory::Dma;
use crate::soft::status::{Answer, SIZE_LIMIT_EXCEEDED, UNRECOVERED_READ, WRITE_FAULT};
use crate::spec::Status;

/// Identify Namespace MSSRL: LBAs in one source range.
pub(in crate::soft) const COPY_RANGE_LBAS_MAX: u16 = 4096;
/// Identify Namespace MCL: LBAs in one command.
pub(in crate::soft) const COPY_LBAS_MAX: u32 = 16384;
/// Source ranges in one command (Identify Namespace MSRC, which is zero-based).
pub(in crate::soft) const COPY_RANGES_MAX: usize = 16;

const DESCRIPTOR_BYTES: usize = 32;

impl Controller {
    pub(super) fn copy(&mut self, command: &Command, copy: CopyTo, dma: &Dma<'_>) -> Answer {
        self.namespace(command.nsid)?;
        if copy.ranges > COPY_RANGES_MAX {
            return Err(SIZE_LIMIT_EXCEEDED);
        }
        let rules = self.rules();
        let page = &mut self.page[..copy.ranges * DESCRIPTOR_BYTES];
        self.transfer.receive(command, page, rules, dma)?;
        let lba_count = self.check_sources(command.nsid, copy.ranges)?;
        let target = Range { first: copy.first, lba_count };
        let run = self.media_run(command.nsid, target)?;
        for index in 0..copy.ranges {
            let (from, len) = self.media_range(command.nsid, self.source(index))?;
            self.media.check_readable(from, len).map_err(|_| UNRECOVERED_READ)?;
        }
        self.media.start_write(run).map_err(|_| WRITE_FAULT)?;
        let mut to = run.offset;
        for index in 0..copy.ranges {
            let (from, len) = self.media_range(command.nsid, self.source(index))?;
            self.media.copy(from, to, len).map_err(|_| WRITE_FAULT)?;
            to += len;
        }
        self.settle(run, copy.fua)
    }

    /// Checks every source range before any is copied; returns the LBAs of all.
    fn check_sources(&self, nsid: u32, ranges: usize) -> Result<u64, Status> {
        let mut total = 0;
        for source in (0..ranges).map(|index| self.source(index)) {
            if source.lba_count > u64::from(COPY_RANGE_LBAS_MAX) {
                return Err(SIZE_LIMIT_EXCEEDED);
            }
            self.media_range(nsid, source)?;
            total += source.lba_count;
        }
        if total > u64::from(COPY_LBAS_MAX) { Err(SIZE_LIMIT_EXCEEDED) } else { Ok(total) }
    }

    fn source(&self, index: usize) -> Range {
        let (descriptors, _) = self.page.as_chunks::<DESCRIPTOR_BYTES>();
        let (words, _) = descriptors[index].as_chunks();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        Range { first: word(1), lba_count: (word(2) & 0xffff) + 1 }
    }
}
