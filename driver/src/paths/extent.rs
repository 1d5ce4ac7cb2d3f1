//! Checks requests against the size and limits of a kernel path.

use super::request::Operation;
use crate::memory::IoBuffer;
use crate::queue_pair::RejectReason;
use crate::spec::Lba;
use crate::sys::file_io::PIECES_MAX;
use crate::transfer::Unplannable;

/// The kernel truncates longer transfers (`MAX_RW_COUNT`: 2 GiB less a page).
pub(super) const TRANSFER_BYTES_MAX: u64 = 0x7fff_f000;

/// The size of a file or device in LBAs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    lbas: u64,
    lba_shift: u32,
    /// The most bytes and segments of a request.
    bytes_max: u64,
    segments_max: usize,
}

/// A run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Extent {
    /// Creates the extent of `bytes` in LBAs of `lba_bytes`, a power of two.
    pub(super) fn new(bytes: u64, lba_bytes: u32) -> Extent {
        assert!(lba_bytes.is_power_of_two(), "LBAs are a power of two of bytes");
        let lba_shift = lba_bytes.trailing_zeros();
        let (bytes_max, segments_max) = (TRANSFER_BYTES_MAX, PIECES_MAX);
        Extent { lbas: bytes >> lba_shift, lba_shift, bytes_max, segments_max }
    }

    /// Returns the bytes that a request covers; none for a flush.
    ///
    /// # Errors
    /// The reason why no queue takes it.
    #[inline]
    pub(super) fn run<B: IoBuffer>(
        &self,
        operation: Operation,
        buffer: &B,
    ) -> Result<ByteRange, RejectReason> {
        match operation {
            Operation::Read(lba) | Operation::Write(lba) => self.transfer(lba, buffer),
            Operation::Flush => Ok(ByteRange { offset: 0, bytes: 0 }),
            Operation::Deallocate(lba, lbas) => self.within(lba, u64::from(lbas)),
        }
    }

    #[inline]
    fn transfer<B: IoBuffer>(&self, lba: Lba, buffer: &B) -> Result<ByteRange, RejectReason> {
        let count = buffer.segment_count();
        if count > self.segments_max {
            return Err(too_large("segments", count, self.segments_max));
        }
        let bytes: u64 = (0..count).map(|index| buffer.segment(index).len).sum();
        let lba_bytes = 1u64 << self.lba_shift;
        if bytes == 0 {
            return Err(Unplannable::Empty.into());
        }
        if !bytes.is_multiple_of(lba_bytes) {
            return Err(Unplannable::PartialLba { bytes, lba_bytes }.into());
        }
        if bytes > self.bytes_max {
            return Err(too_large("bytes", bytes as usize, self.bytes_max as usize));
        }
        self.within(lba, bytes >> self.lba_shift)
    }

    #[inline]
    fn within(&self, lba: Lba, lbas: u64) -> Result<ByteRange, RejectReason> {
        let end = lba.0.saturating_add(lbas);
        if end > self.lbas || lbas == 0 {
            return Err(RejectReason::OutOfRange { lba: lba.0, end, lbas: self.lbas });
        }
        Ok(ByteRange { offset: lba.0 << self.lba_shift, bytes: lbas << self.lba_shift })
    }
}

fn too_large(what: &'static str, needs: usize, has: usize) -> RejectReason {
    RejectReason::TooLarge { what, needs, has }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::allocate_for_host;

    fn run(operation: Operation, bytes: usize) -> Result<ByteRange, RejectReason> {
        let mut buffer = allocate_for_host(64 << 10).expect("memory");
        drop(buffer.split_off(bytes));
        Extent::new(100_000, 4096).run(operation, &buffer)
    }

    #[test]
    fn a_request_is_inside_and_of_whole_lbas() {
        let run_of = |offset, bytes| Ok(ByteRange { offset, bytes });
        assert_eq!(run(Operation::Read(Lba(3)), 8192), run_of(3 * 4096, 8192));
        assert_eq!(run(Operation::Write(Lba(23)), 4096), run_of(23 * 4096, 4096));
        assert_eq!(run(Operation::Deallocate(Lba(0), 24), 4096), run_of(0, 24 * 4096));
        assert_eq!(run(Operation::Flush, 0), run_of(0, 0));
        for past in [(Operation::Read(Lba(23)), 8192), (Operation::Write(Lba(u64::MAX)), 4096)] {
            let refused = run(past.0, past.1).expect_err("past the end");
            assert!(matches!(refused, RejectReason::OutOfRange { lbas: 24, .. }), "{refused}");
        }
        assert!(run(Operation::Deallocate(Lba(0), 0), 4096).is_err(), "of nothing");
        for bytes in [0, 512, 4097] {
            let refused = run(Operation::Read(Lba(0)), bytes).expect_err("no whole LBAs");
            assert!(matches!(refused, RejectReason::Unplannable(_)), "{refused}");
        }
    }

    #[test]
    fn more_segments_than_a_system_call_takes_are_refused() {
        let mut all = allocate_for_host((PIECES_MAX + 1) * 512).expect("memory");
        let cut = |index| all.split_off(index * 512);
        let mut pieces: Vec<_> = (0..=PIECES_MAX).rev().map(cut).collect();
        let extent = Extent::new(1 << 30, 512);
        let refused = extent.run(Operation::Read(Lba(0)), &pieces).expect_err("one too many");
        assert!(matches!(refused, RejectReason::TooLarge { what: "segments", .. }));
        pieces.pop();
        assert!(extent.run(Operation::Read(Lba(0)), &pieces).is_ok());
    }
}
