//! Splits requests longer than a command, and joins their completions.

use crate::memory::IoBuffer;
use crate::queue_pair::{CommandError, RejectReason};
use crate::transfer::Unplannable;

/// The limits of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutter {
    pub(crate) lba_bytes: u32,
    /// A multiple of the LBA.
    pub(crate) command_bytes_max: u64,
}

/// One command of a request: a run of bytes on the device, and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandPiece {
    /// Byte offset on the device.
    pub(super) at: u64,
    pub(super) bytes: u64,
    segment: usize,
    /// Byte offset in its segment.
    offset: u64,
}

impl CommandPiece {
    #[inline]
    pub(super) fn segment(&self) -> usize {
        self.segment
    }

    /// Returns the address of its data in `buffer`, which it was split from.
    #[inline]
    pub(super) fn data<B: IoBuffer>(&self, buffer: &B) -> *mut u8 {
        let start = buffer.pointer(self.segment).as_ptr();
        start.wrapping_add(self.offset as usize)
    }
}

impl Cutter {
    /// Returns the number of commands of a transfer.
    ///
    /// # Errors
    /// If a segment ends inside an LBA.
    pub(super) fn count<B: IoBuffer>(&self, buffer: &B) -> Result<usize, RejectReason> {
        let lba_bytes = u64::from(self.lba_bytes);
        let mut count = 0;
        for index in 0..buffer.segment_count() {
            let bytes = buffer.segment(index).len;
            if !bytes.is_multiple_of(lba_bytes) {
                return Err(Unplannable::PartialLba { bytes, lba_bytes }.into());
            }
            count += bytes.div_ceil(self.command_bytes_max) as usize;
        }
        Ok(count)
    }

    /// Iterates over the commands of a transfer that starts `at` bytes into the device, in order.
    pub(super) fn pieces<B: IoBuffer>(
        self,
        at: u64,
        buffer: &B,
    ) -> impl Iterator<Item = CommandPiece> + '_ {
        let mut before = at;
        (0..buffer.segment_count()).flat_map(move |segment| {
            let (len, start) = (buffer.segment(segment).len, before);
            before += len;
            (0..len).step_by(self.command_bytes_max as usize).map(move |offset| {
                let bytes = self.command_bytes_max.min(len - offset);
                CommandPiece { at: start + offset, bytes, segment, offset }
            })
        })
    }
}

/// The commands of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Join {
    /// Commands not yet completed.
    left: u32,
    /// Bytes asked for and moved; none if the entries do not count them.
    asked: u64,
    moved: u64,
    /// The first failure.
    failed: Option<CommandError>,
}

impl Join {
    pub(super) fn of(commands: usize, asked: u64) -> Join {
        Join { left: commands as u32, asked, moved: 0, failed: None }
    }

    /// Records a command's end and the bytes it moved; after the last, returns the request's result.
    #[inline]
    pub(super) fn end(
        &mut self,
        result: Result<u64, CommandError>,
    ) -> Option<Result<u32, CommandError>> {
        assert!(self.left > 0, "a request ends once");
        match result {
            Ok(moved) => self.moved += moved,
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
        self.left -= 1;
        let Join { asked, moved, .. } = *self;
        let short = (moved < asked).then_some(CommandError::Short { moved, asked });
        (self.left == 0).then(|| self.failed.or(short).map_or(Ok(0), Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::allocate_for_host;
    use crate::spec::Status;
    use proptest::prelude::*;

    #[test]
    fn a_long_request_is_cut_into_commands_that_cover_it_once() {
        let cutter = Cutter { lba_bytes: 512, command_bytes_max: 5 * 512 };
        let mut first = allocate_for_host(24 * 512).expect("memory");
        let buffers = vec![first.split_off(11 * 512), first];
        let pieces: Vec<CommandPiece> = cutter.pieces(100 * 512, &buffers).collect();
        assert_eq!(cutter.count(&buffers), Ok(pieces.len()));
        let lbas: Vec<u64> = pieces.iter().map(|piece| piece.at / 512).collect();
        assert_eq!(lbas, [100, 105, 110, 113, 118, 123]);
        let sizes: Vec<u64> = pieces.iter().map(|piece| piece.bytes / 512).collect();
        assert_eq!(sizes, [5, 5, 3, 5, 5, 1], "cut at the limit and where a segment ends");
        assert_eq!(pieces[4].data(&buffers).addr(), buffers[1].as_ptr().addr() + 5 * 512);
    }

    proptest! {
        #[test]
        fn commands_cover_every_byte_once_and_none_is_too_long(
            at in 0u64..1000,
            max in 1u64..9,
            segments in proptest::collection::vec(1usize..20, 1..6),
        ) {
            let cutter = Cutter { lba_bytes: 512, command_bytes_max: max * 512 };
            let mut rest = allocate_for_host(100 * 512).expect("memory");
            let buffers: Vec<_> = segments
                .iter()
                .map(|lbas| {
                    let tail = rest.split_off(lbas * 512);
                    std::mem::replace(&mut rest, tail)
                })
                .collect();
            let bytes = buffers
                .iter()
                .flat_map(|buffer| (0..buffer.len()).map(|at| buffer.as_ptr().addr() + at));
            let expected: Vec<(u64, usize)> = (at * 512..).zip(bytes).collect();
            let mut found = Vec::new();
            for piece in cutter.pieces(at * 512, &buffers) {
                prop_assert!((1..=max).contains(&(piece.bytes / 512)) && piece.bytes % 512 == 0);
                let data = piece.data(&buffers).addr();
                found.extend((0..piece.bytes).map(|byte| (piece.at + byte, data + byte as usize)));
            }
            prop_assert_eq!(found, expected);
            let count = cutter.pieces(at * 512, &buffers).count();
            prop_assert_eq!(cutter.count(&buffers).expect("whole LBAs"), count);
        }
    }

    #[test]
    fn a_segment_that_ends_inside_an_lba_is_refused() {
        let cutter = Cutter { lba_bytes: 512, command_bytes_max: 4096 };
        let mut first = allocate_for_host(1024).expect("memory");
        let buffers = vec![first.split_off(100), first];
        let refused = cutter.count(&buffers).expect_err("no whole LBAs");
        assert!(matches!(refused, RejectReason::Unplannable(Unplannable::PartialLba { .. })));
    }

    #[test]
    fn a_request_ends_with_its_last_command_and_its_first_failure() {
        let (mut join, failure) = (Join::of(3, 1536), CommandError::Status(Status::WRITE_FAULT));
        assert_eq!(join.end(Ok(512)), None);
        assert_eq!(join.end(Err(failure)), None);
        assert_eq!(join.end(Err(CommandError::Short { moved: 1, asked: 2 })), Some(Err(failure)));
        let mut whole = Join::of(2, 612);
        assert_eq!((whole.end(Ok(512)), whole.end(Ok(100))), (None, Some(Ok(0))));
        let mut short = Join::of(1, 512);
        let missing = CommandError::Short { moved: 100, asked: 512 };
        assert_eq!(short.end(Ok(100)), Some(Err(missing)));
    }
}
