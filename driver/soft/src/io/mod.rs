//! I/O commands (NVM Command Set 1.0 section 3.2): decode to a typed command,
//! then execute it.

mod copy;
mod decode;
mod placement;
mod protected;

use self::decode::IoCommand;
use self::protected::Protected;
use super::command::Command;
use super::controller::Controller;
use super::media::{LbaRun, MediaError};
use super::memory::Dma;
use super::namespace::Namespace;
use super::options::{CommandLimits, NAMESPACES_MAX};
use super::status::{
    Answer, COMPARE_FAILURE, DATA_TRANSFER_ERROR, DONE, INVALID_FIELD, INVALID_NAMESPACE,
    LBA_OUT_OF_RANGE, SIZE_LIMIT_EXCEEDED, UNRECOVERED_READ, WRITE_FAULT,
};
use adit_spec::Status;

pub(super) use copy::{COPY_LBAS_MAX, COPY_RANGE_LBAS_MAX, COPY_RANGES_MAX};
pub(super) use decode::{
    COMMANDS, IO_MANAGEMENT_RECEIVE, Range, changes_data, effort_of, range_of, writes,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum DataMove {
    ToHost,
    FromHost,
    Compare,
}

impl Controller {
    #[inline]
    pub(super) fn io(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        match IoCommand::decode(command)? {
            IoCommand::Read { range, fua } => self.read(command, range, fua, dma),
            IoCommand::Write { range, fua } => self.write(command, range, fua, dma),
            IoCommand::Compare(range) => self.compare(command, range, dma),
            IoCommand::Flush => self.flush(command.nsid),
            IoCommand::WriteZeroes { range, fua } => self.write_zeroes(command, range, fua),
            IoCommand::Verify(range) => self.verify(command, range),
            IoCommand::Deallocate { ranges } => self.deallocate(command, ranges, dma),
            IoCommand::Manage { ranges } => self.manage(command, ranges, dma),
            IoCommand::Handles { bytes } => self.handles(command, bytes, dma),
            IoCommand::Copy(copy) => self.copy(command, copy, dma),
        }
    }

    /// Executes Read. With FUA, makes the data durable before reading it (NVM 1.0 section 3.2.4).
    fn read(&mut self, command: &Command, range: Range, fua: bool, dma: &Dma<'_>) -> Answer {
        let run = self.media_run(command.nsid, range)?;
        let protected = self.acting(command, run)?;
        if fua {
            self.media.commit(run.offset, run.len).map_err(|_| UNRECOVERED_READ)?;
        }
        self.move_data(command, run, DataMove::ToHost, dma)?;
        // As on real drives, the host receives the data even if the command fails.
        if let Some(protected) = protected {
            self.check_protected(protected)?;
        }
        self.statistics.read(run.len);
        DONE
    }

    fn write(&mut self, command: &Command, range: Range, fua: bool, dma: &Dma<'_>) -> Answer {
        let run = self.media_run(command.nsid, range)?;
        let protected = self.acting(command, run)?;
        let handle = self.handle_of(command)?;
        self.move_data(command, run, DataMove::FromHost, dma)?;
        self.placements.written(handle, range.lba_count);
        if let Some(protected) = protected {
            self.protect(protected)?;
        }
        self.statistics.written(run.len);
        self.settle(run, fua)
    }

    /// Executes Compare; refuses protection information, whose tuples this controller does not transfer.
    fn compare(&mut self, command: &Command, range: Range, dma: &Dma<'_>) -> Answer {
        let run = self.media_run(command.nsid, range)?;
        match self.protected(command, run)? {
            Some(protected) => Err(protected.asked.only_checking().err().unwrap_or(INVALID_FIELD)),
            None => self.move_data(command, run, DataMove::Compare, dma),
        }
    }

    /// Returns the protection options of a read or write of `run`, if protected.
    #[inline]
    fn acting(&self, command: &Command, run: LbaRun) -> Result<Option<Protected>, Status> {
        let protected = self.protected(command, run)?;
        protected.map(|protected| protected.asked.acting().map(|_| protected)).transpose()
    }

    /// Makes a write durable if FUA is set or there is no write cache.
    fn settle(&mut self, run: LbaRun, fua: bool) -> Answer {
        if !self.is_losing_power && (fua || !self.features.has_write_cache()) {
            self.media.commit(run.offset, run.len).map_err(|_| WRITE_FAULT)?;
        }
        DONE
    }

    fn move_data(
        &mut self,
        command: &Command,
        run: LbaRun,
        way: DataMove,
        dma: &Dma<'_>,
    ) -> Answer {
        let LbaRun { offset: mut at, len, .. } = run;
        let rules = self.rules();
        let pieces = self.transfer.map(command, len, rules, dma)?;
        match way {
            DataMove::FromHost => self.media.start_write(run).map_err(|_| WRITE_FAULT)?,
            _ => self.media.check_readable(at, len).map_err(|_| UNRECOVERED_READ)?,
        }
        for piece in pieces {
            let len = piece.len as usize;
            let moved = match way {
                DataMove::ToHost => self.media.read(at, dma, piece.at, len),
                DataMove::FromHost => self.media.write(at, dma, piece.at, len),
                DataMove::Compare => self.media.compare(at, dma, piece.at, len),
            };
            moved.map_err(|error| status_of(error, way == DataMove::FromHost))?;
            at += piece.len;
        }
        DONE
    }

    fn flush(&mut self, nsid: u32) -> Answer {
        if nsid != u32::MAX {
            self.namespace(nsid)?;
        }
        self.media.flush().map_err(|_| WRITE_FAULT)?;
        DONE
    }

    fn write_zeroes(&mut self, command: &Command, range: Range, fua: bool) -> Answer {
        let run = self.media_run(command.nsid, range)?;
        check_pages(run, self.options.limits.wzsl)?;
        let protected = self.protected(command, run)?;
        self.media.zero(run).map_err(|_| WRITE_FAULT)?;
        match protected {
            Some(protected) if protected.asked.acts => self.protect(protected)?,
            Some(_) => self.unprotect(command.nsid, run)?,
            None => {}
        }
        self.settle(run, fua)
    }

    fn verify(&mut self, command: &Command, range: Range) -> Answer {
        let run = self.media_run(command.nsid, range)?;
        check_pages(run, self.options.limits.vsl)?;
        let protected = self.protected(command, run)?;
        self.media.check_readable(run.offset, run.len).map_err(|_| UNRECOVERED_READ)?;
        self.media.verify(run.offset, run.len).map_err(|_| UNRECOVERED_READ)?;
        if let Some(mut protected) = protected {
            protected.asked = protected.asked.only_checking()?;
            self.check_protected(protected)?;
        }
        DONE
    }

    /// Accepts Dataset Management without Deallocate; ignores its hints.
    fn manage(&mut self, command: &Command, ranges: usize, dma: &Dma<'_>) -> Answer {
        self.dataset_ranges(command, ranges, dma)?;
        DONE
    }

    fn deallocate(&mut self, command: &Command, ranges: usize, dma: &Dma<'_>) -> Answer {
        self.dataset_ranges(command, ranges, dma)?;
        for index in 0..ranges {
            let run = self.media_run(command.nsid, self.dataset_range(index))?;
            self.media.zero(run).map_err(|_| WRITE_FAULT)?;
            self.unprotect(command.nsid, run)?;
            self.settle(run, false)?;
        }
        DONE
    }

    /// Fetches the ranges of Dataset Management and checks all of them before use.
    fn dataset_ranges(
        &mut self,
        command: &Command,
        ranges: usize,
        dma: &Dma<'_>,
    ) -> Result<(), Status> {
        self.namespace(command.nsid)?;
        let rules = self.rules();
        self.transfer.receive(command, &mut self.page[..ranges * 16], rules, dma)?;
        for index in 0..ranges {
            self.media_range(command.nsid, self.dataset_range(index))?;
        }
        self.check_dataset(ranges)
    }

    /// Checks the limits that CNS 06h reports for Dataset Management.
    fn check_dataset(&self, ranges: usize) -> Result<(), Status> {
        let CommandLimits { dmrl, dmrsl_lbas, dmsl_lbas, .. } = self.options.limits;
        let exceeds = |is: u64, limit: u64| limit != 0 && is > limit;
        let mut all = 0;
        for index in 0..ranges {
            let lbas = self.dataset_range(index).lba_count;
            all += lbas;
            if exceeds(lbas, dmrsl_lbas.into()) {
                return Err(SIZE_LIMIT_EXCEEDED);
            }
        }
        let is_over = exceeds(ranges as u64, dmrl.into()) || exceeds(all, dmsl_lbas);
        if is_over { Err(SIZE_LIMIT_EXCEEDED) } else { Ok(()) }
    }

    fn dataset_range(&self, index: usize) -> Range {
        let (ranges, _) = self.page.as_chunks::<16>();
        let range = u128::from_le_bytes(ranges[index]);
        Range { first: (range >> 64) as u64, lba_count: u64::from((range >> 32) as u32) }
    }

    /// Returns the active namespace a command names. The broadcast value is valid, but few commands accept it (Base 2.0
    /// section 3.3.3.1, NSID).
    #[inline]
    pub(super) fn namespace(&self, nsid: u32) -> Result<&Namespace, Status> {
        match self.namespaces.active(nsid) {
            Some(namespace) => Ok(namespace),
            None if matches!(nsid, 1..=NAMESPACES_MAX | u32::MAX) => Err(INVALID_FIELD),
            None => Err(INVALID_NAMESPACE),
        }
    }

    /// Maps a range of LBAs to the storage.
    #[inline]
    pub(super) fn media_run(&self, nsid: u32, range: Range) -> Result<LbaRun, Status> {
        let namespace = self.namespace(nsid)?;
        let placed = namespace.range(range.first, range.lba_count).ok_or(LBA_OUT_OF_RANGE)?;
        Ok(LbaRun { offset: placed.0, len: placed.1, lba_bytes: 1 << namespace.lba_shift })
    }

    #[inline]
    fn media_range(&self, nsid: u32, range: Range) -> Result<(u64, u64), Status> {
        self.namespace(nsid)?.range(range.first, range.lba_count).ok_or(LBA_OUT_OF_RANGE)
    }
}

/// Checks a limit of `2^power` pages of 4 KiB; 0 is no limit.
fn check_pages(run: LbaRun, power: u8) -> Result<(), Status> {
    if power != 0 && run.len > 4096 << power { Err(INVALID_FIELD) } else { Ok(()) }
}

fn status_of(error: MediaError, is_write: bool) -> Status {
    match error {
        MediaError::Host => DATA_TRANSFER_ERROR,
        MediaError::Differ => COMPARE_FAILURE,
        MediaError::Media if is_write => WRITE_FAULT,
        MediaError::Media => UNRECOVERED_READ,
    }
}
