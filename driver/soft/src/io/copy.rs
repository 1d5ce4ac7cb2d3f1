//! Copy with descriptor format 0 (NVM Command Set 1.0 section 3.2.2).

use super::decode::{CopyTo, Range};
use super::protected::Protected;
use crate::command::Command;
use crate::controller::Controller;
use crate::media::LbaRun;
use crate::memory::Dma;
use crate::protection::Asked;
use crate::status::{
    Answer, INVALID_FIELD, INVALID_PROTECTION, SIZE_LIMIT_EXCEEDED, UNRECOVERED_READ, WRITE_FAULT,
};
use adit_spec::Status;

/// LBAs in one source range (Identify Namespace MSSRL).
pub(crate) const COPY_RANGE_LBAS_MAX: u16 = 4096;
/// LBAs in one command (Identify Namespace MCL).
pub(crate) const COPY_LBAS_MAX: u32 = 16384;
/// Source ranges in one command (Identify Namespace MSRC, which is zero-based).
pub(crate) const COPY_RANGES_MAX: usize = 16;

const DESCRIPTOR_BYTES: usize = 32;

impl Controller {
    pub(super) fn copy(&mut self, command: &Command, copy: CopyTo, dma: &Dma<'_>) -> Answer {
        let asked = self.copy_protection(command)?;
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
            let source = self.media_run(command.nsid, self.source(index))?;
            self.media.check_readable(source.offset, source.len).map_err(|_| UNRECOVERED_READ)?;
            if let Some(protected) = self.protected_source(command, source, index)? {
                self.check_protected(protected)?;
            }
        }
        self.media.start_write(run).map_err(|_| WRITE_FAULT)?;
        let mut to = run.offset;
        for index in 0..copy.ranges {
            let (from, len) = self.media_range(command.nsid, self.source(index))?;
            self.media.copy(from, to, len).map_err(|_| WRITE_FAULT)?;
            to += len;
        }
        if let Some(protected) =
            asked.and_then(|asked| self.protected_run(command.nsid, run, asked))
        {
            self.protect(protected)?;
        }
        self.settle(run, copy.fua)
    }

    /// Returns the protection options of the written data (PRINFOW) if the namespace is protected. Those of the read
    /// data (PRINFOR) must match, since tuples are dropped and regenerated.
    fn copy_protection(&self, command: &Command) -> Result<Option<Asked>, Status> {
        let options = command.cdw(12);
        let (read, written) = (options >> 12 & 0xf, options >> 26 & 0xf);
        match self.namespace(command.nsid)?.protection {
            None if read | written != 0 => Err(INVALID_PROTECTION),
            None => Ok(None),
            Some(_) if (read ^ written) & 1 << 3 != 0 => Err(INVALID_FIELD),
            Some(protection) => Asked::of(protection.kind, command)?.acting().map(Some),
        }
    }

    /// Returns the protection options of a source: PRINFOR, and the tags of its descriptor.
    fn protected_source(
        &self,
        command: &Command,
        source: LbaRun,
        index: usize,
    ) -> Result<Option<Protected>, Status> {
        let Some(protection) = self.namespace(command.nsid)?.protection else { return Ok(None) };
        let prinfo = command.cdw(12) >> 12 & 0xf;
        let first = self.source(index).first;
        let asked = Asked::new(protection.kind, prinfo, self.source_reference(index), first)?;
        Ok(self.protected_run(command.nsid, source, asked))
    }

    /// Returns the expected initial reference tag of a source (EILBRT).
    fn source_reference(&self, index: usize) -> u32 {
        let (descriptors, _) = self.page.as_chunks::<DESCRIPTOR_BYTES>();
        let (dwords, _) = descriptors[index].as_chunks();
        u32::from_le_bytes(dwords[6])
    }

    /// Checks every source range before copying any; returns the total number of LBAs.
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
