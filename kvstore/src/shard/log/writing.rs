//! Sending the journal's blocks and flushes to the lanes.

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::Log;
use crate::io::lane::{Fault, Lane, Load, Purpose};
use crate::io::schedule::Class;
use crate::media::journal::Journal;
use crate::model::place::UNIT_BYTES;
use crate::shard::lanes::Lanes;

impl Log {
    /// Sends sealed blocks, as many as there is memory for.
    pub(crate) fn write_blocks<Q: CommandQueue<Load>>(&mut self, lanes: &mut Lanes<Q>, now: Time) {
        while self.has_sealed() {
            let lane = lanes.home_mut();
            let Some(mut memory) = lane.take_memory(self.sealed_bytes()) else { break };
            // One command, whose completion is that of the write.
            let start = self.journal.as_ref().map_or(0, Journal::next_unit) * UNIT_BYTES;
            let fits = lane.info.split().first(start, memory.len() as u64);
            let Some(write) = self.take(&mut memory[..fits as usize]) else {
                lane.keep(memory);
                break;
            };
            let bytes = write.bytes();
            self.stats.journal_bytes += bytes as u64;
            let purpose = Purpose::Journal { end: write.sequences.end };
            let commands =
                lanes.write_home(now, (purpose, Class::Metadata), write.unit, memory, bytes);
            assert_eq!(commands, 1, "blocks count as written when their only command is done");
        }
    }

    /// Handles the end of the write of blocks before `end`. If it failed, its device is out of service, and it is
    /// written again when that is back.
    pub(crate) fn finish_write<Q: CommandQueue<Load>>(
        &mut self,
        lane: &mut Lane<Q>,
        end: u64,
        result: Result<(), Fault>,
    ) {
        let Err(fault) = result else { return self.written(end) };
        let is_full = matches!(fault, Fault::Command(error) if error.is_no_space());
        let fix = if is_full { "; free space on its file system first" } else { "" };
        lane.fail(&format!("its journal cannot be written: {fault}{fix}"));
    }

    /// Counts how late blocks were sent, once none waits in the lane.
    pub(crate) fn note_sent<Q: CommandQueue<Load>>(&mut self, lanes: &Lanes<Q>, now: Time) {
        if !lanes.home().has_waiting_metadata() {
            let delay = self.sent(now).map_or(0, |delay| delay.as_nanos() as u64);
            self.stats.journal_delay_max_ns = self.stats.journal_delay_max_ns.max(delay);
        }
    }

    /// Flushes the journal's device and every device that was written to since its last flush.
    pub(crate) fn flush<Q: CommandQueue<Load>>(&mut self, lanes: &mut Lanes<Q>, now: Time) {
        let devices = lanes.flush(now, self.flush_begun() + 1);
        self.begin_flush(now, devices);
    }
}
