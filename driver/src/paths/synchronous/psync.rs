//! pread and pwrite, one at a time: the plainest path through the kernel, as a baseline.
#![allow(unsafe_code)]

use super::{Carry, SynchronousQueue};
use crate::memory::IoBuffer;
use crate::paths::extent::ByteRange;
use crate::paths::file::OpenFile;
use crate::paths::request::{Durability, Operation};
use crate::queue_pair::{CommandError, Errno};
use crate::sys::file_io::{self, PIECES_MAX, Pieces};

/// A queue of `psync:`. Deallocation is BLKDISCARD on a block device and a hole in a file; a flush is
/// fdatasync.
pub type PsyncQueue<B> = SynchronousQueue<B, Psync>;

/// Carries out each request with one system call.
#[derive(Debug)]
pub struct Psync {
    file: OpenFile,
    pieces: Pieces,
    durability: Durability,
}

pub(crate) fn create_queue<B>(file: &OpenFile, device: &str) -> PsyncQueue<B> {
    let pieces = Pieces::with_room(PIECES_MAX);
    let psync = Psync { file: file.clone(), pieces, durability: Durability::Cached };
    SynchronousQueue::new(psync, file.extent(), device.to_owned())
}

impl Psync {
    pub(crate) fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }

    fn name_pieces<B: IoBuffer>(&mut self, buffer: &B) {
        self.pieces.clear();
        for index in 0..buffer.segment_count() {
            self.pieces.push(buffer.pointer(index), buffer.segment(index).len);
        }
    }
}

impl Carry for Psync {
    fn carry_out<B: IoBuffer>(
        &mut self,
        operation: Operation,
        run: ByteRange,
        buffer: &B,
    ) -> Result<u64, CommandError> {
        let moved = match operation {
            Operation::Read(_) => {
                self.name_pieces(buffer);
                // SAFETY: the buffer owns its segments exclusively, and we have it.
                unsafe { file_io::read_at(self.file.file(), &self.pieces, run.offset) }
            }
            Operation::Write(_) => {
                self.name_pieces(buffer);
                let flags = self.durability.write_flags();
                // SAFETY: as above.
                unsafe { file_io::write_at(self.file.file(), &self.pieces, run.offset, flags) }
            }
            Operation::Flush => self.file.file().sync_data().map(|()| 0),
            Operation::Deallocate(..) => self.file.deallocate(run).map(|()| 0),
        };
        moved.map_err(|error| CommandError::System(Errno::of(&error)))
    }

    fn explain(&self, error: CommandError) -> CommandError {
        self.file.explain(error)
    }
}
