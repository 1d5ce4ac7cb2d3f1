//! Splits byte ranges of a device into requests that a queue takes.
//!
//! A queue refuses a request of more commands than it has entries ([`crate::RejectReason::TooLarge`]). MDTS and the
//! boundary decide how many commands a request becomes, so code that moves more than one command's bytes at once
//! splits here first.

use std::ops::Range;

use super::info::DeviceInfo;

/// The extent of one request, for memory that is contiguous from an LBA's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The most bytes of a command, at least one LBA.
    pub command_bytes_max: u64,
    /// A request that crosses a multiple of this becomes several commands; 0 for no boundary.
    pub boundary_bytes: u64,
    /// The most commands of a request, at least one.
    pub commands: u32,
}

impl DeviceInfo {
    /// Returns the requests that an idle queue of `depth` commands takes.
    pub fn split(&self, depth: u32) -> Split {
        Split {
            command_bytes_max: self.command_bytes_max,
            boundary_bytes: self.boundary_bytes,
            commands: depth.min(self.queue_depth_max).max(1),
        }
    }
}

impl Split {
    /// Returns the length of the longest request from byte `offset`, at most `bytes`.
    #[inline]
    pub fn first(&self, offset: u64, bytes: u64) -> u64 {
        debug_assert!(self.command_bytes_max > 0 && self.commands > 0, "a request moves something");
        let mut length = 0u64;
        for _ in 0..self.commands {
            let to_boundary = match self.boundary_bytes {
                0 => u64::MAX,
                boundary => boundary - offset.wrapping_add(length) % boundary,
            };
            length = length.saturating_add(self.command_bytes_max.min(to_boundary));
            if length >= bytes {
                return bytes;
            }
        }
        length
    }

    /// Splits a range of bytes into requests, each as long as possible.
    pub fn pieces(self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut start = range.start;
        std::iter::from_fn(move || {
            let left = range.end.checked_sub(start).filter(|left| *left > 0)?;
            let piece = start..start + self.first(start, left);
            start = piece.end;
            Some(piece)
        })
    }

    /// Returns the length of the longest request that fits at every multiple of `lba_bytes`.
    pub fn anywhere(&self, lba_bytes: u32) -> u64 {
        // One LBA before a boundary, the first command is the shortest, and no start has shorter ones after it.
        self.first(self.boundary_bytes.saturating_sub(lba_bytes.into()), u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::paths::{CommandQueue, Device, DeviceOptions, Operation, QueueOptions, Request};
    use crate::spec::Lba;
    use crate::{Buffer, RejectReason, Rejected};

    /// Returns the commands of `bytes` from `offset`, counted one LBA at a time.
    fn commands(split: &Split, lba: u64, offset: u64, bytes: u64) -> u32 {
        let (mut commands, mut length) = (0, 0);
        for at in (offset..offset + bytes).step_by(lba as usize) {
            let is_at_boundary = split.boundary_bytes > 0 && at % split.boundary_bytes == 0;
            if length == 0 || length == split.command_bytes_max || is_at_boundary {
                (commands, length) = (commands + 1, 0);
            }
            length += lba;
        }
        commands
    }

    proptest! {
        #[test]
        fn pieces_cover_a_range_in_order_and_each_is_as_long_as_fits(
            shift in 9u32..13, command in 1u64..20, boundary in 0u64..30, depth in 1u32..9,
            start in 0u64..100, lbas in 0u64..300,
        ) {
            let lba = 1u64 << shift;
            let split = Split {
                command_bytes_max: command * lba,
                boundary_bytes: boundary * lba,
                commands: depth,
            };
            let range = start * lba..(start + lbas) * lba;
            let mut at = range.start;
            for piece in split.pieces(range.clone()) {
                prop_assert_eq!(piece.start, at);
                let bytes = piece.end - piece.start;
                prop_assert!(bytes > 0 && bytes % lba == 0 && piece.end <= range.end);
                prop_assert!(commands(&split, lba, piece.start, bytes) <= depth);
                let is_longest = commands(&split, lba, piece.start, bytes + lba) > depth;
                prop_assert!(is_longest || piece.end == range.end);
                at = piece.end;
            }
            prop_assert_eq!(at, range.end);
            let (shortest, end) = (split.anywhere(lba as u32), start + boundary.max(1));
            let longest = (start..end).map(|start| split.first(start * lba, u64::MAX));
            prop_assert_eq!(longest.min(), Some(shortest));
        }
    }

    #[test]
    fn a_path_without_limits_takes_everything_at_once() {
        let split = Split { command_bytes_max: u64::MAX, boundary_bytes: 0, commands: 3 };
        assert!(split.pieces(7..u64::MAX).eq(std::iter::once(7..u64::MAX)));
        assert_eq!((split.anywhere(512), split.pieces(7..7).count()), (u64::MAX, 0));
    }

    /// Posts a read of the range to an idle queue and waits for its end.
    fn read(
        device: &Device,
        queue: &mut impl CommandQueue<Buffer>,
        whole: &mut Buffer,
        range: Range<u64>,
    ) -> Result<(), RejectReason> {
        let rest = whole.split_off((range.end - range.start) as usize);
        let lba = Lba(range.start / u64::from(device.info().lba_bytes));
        let buffer = std::mem::replace(whole, rest);
        let request = Request { operation: Operation::Read(lba), buffer };
        let (mut buffer, reason) = match queue.post(device.now(), request) {
            Err(Rejected { buffer, reason }) => (buffer, Err(reason)),
            Ok(()) => {
                queue.ring();
                let mut done = None;
                while queue.poll(device.now(), |completion| done = Some(completion)) == 0 {}
                let done = done.expect("one was in flight");
                assert!(done.result.is_ok(), "{:?}", done.result);
                (done.buffer, Ok(()))
            }
        };
        std::mem::swap(whole, &mut buffer);
        whole.join(buffer).expect("they were one");
        reason
    }

    /// Checks the first pieces of a range, which ends at `end`, against a queue.
    fn check(target: &str, depth: u32, start: u64, end: u64) -> Result<(), TestCaseError> {
        let target = target.parse().expect("a target");
        let device = Device::open(&target, &DeviceOptions::default()).expect("opens");
        let (info, lba) = (device.info(), u64::from(device.info().lba_bytes));
        prop_assert!(info.boundary_bytes.is_multiple_of(4096));
        let depth = depth.min(info.queue_depth_max);
        let timeout = Duration::from_secs(10);
        let options = QueueOptions { depth, timeout, abort_timeout: timeout };
        let mut queue = device.create_queue(&options, &[]).expect("a queue");
        let range = start * lba..end.next_multiple_of(lba);
        let mut memory = device.allocate((range.end - range.start) as usize).expect("memory");
        for piece in info.split(depth).pieces(range.clone()).take(5) {
            prop_assert_eq!(read(&device, &mut queue, &mut memory, piece.clone()), Ok(()));
            if piece.end < range.end {
                let refused = read(&device, &mut queue, &mut memory, piece.start..piece.end + lba);
                let is_too_large = matches!(refused, Err(RejectReason::TooLarge { .. }));
                prop_assert!(is_too_large, "{:?}", refused);
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn a_queue_takes_each_piece_and_no_longer_one(
            lba in prop_oneof![Just(512u64), Just(4096)], mdts in 0u32..7, noiob in 0u32..70,
            sgl in prop_oneof![Just("off"), Just("on"), Just("dword")], depth in 1u32..10,
            mqes in 2u32..12, start in 0u64..2000, bytes in 1u64..(2 << 20),
        ) {
            let target = format!(
                "soft:null,size=64M,lba={lba},mdts={mdts},noiob={noiob},sgl={sgl},mqes={mqes}"
            );
            check(&target, depth, start, start * lba + bytes)?;
        }
    }

    #[test]
    fn a_command_without_sgls_is_no_longer_than_its_list() {
        for (mqes, end) in [(2, 17 << 20), (3, 33 << 20)] {
            let target = format!("soft:null,size=64M,mdts=0,sgl=off,mqes={mqes}");
            check(&target, 9, 1, end).expect("pieces fit");
        }
    }
}
