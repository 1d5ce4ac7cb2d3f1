//! Creating and deleting I/O queues, aborting commands, shadow doorbells
//! (NVMe Base 2.0 sections 5.1, 5.4 to 5.8).

use crate::command::{Command, Pointer};
use crate::controller::Controller;
use crate::doorbells::Side;
use crate::memory::Dma;
use crate::queue::{CompletionQueue, Shadow, SubmissionQueue};
use crate::status::{
    ABORT_REQUESTED, ABORTED_SQ_DELETION, Answer, COMPLETION_QUEUE_INVALID, DATA_TRANSFER_ERROR,
    DONE, INVALID_FIELD, INVALID_QUEUE_DELETION, INVALID_QUEUE_ID, INVALID_QUEUE_SIZE,
    INVALID_VECTOR, PRP_OFFSET_INVALID, Reply,
};
use adit_spec::{Iova, Status};

const PHYSICALLY_CONTIGUOUS: u32 = 1;
const INTERRUPTS_ENABLED: u32 = 1 << 1;

impl Controller {
    pub(super) fn create_completion_queue(&mut self, command: &Command) -> Answer {
        let qid = command.low(10);
        if !self.is_io_qid(qid) || self.completion_queue(qid).is_some() {
            return Err(INVALID_QUEUE_ID);
        }
        let (base, entries) = self.ring_of(command)?;
        let is_interrupting = command.cdw(11) & INTERRUPTS_ENABLED != 0;
        let vector = command.high(11);
        if is_interrupting && vector >= self.vector_count() {
            return Err(INVALID_VECTOR);
        }
        let vector = is_interrupting.then_some(vector);
        self.add_completion_queue(CompletionQueue::new(qid, base, entries, vector));
        DONE
    }

    pub(super) fn create_submission_queue(&mut self, command: &Command) -> Answer {
        let (qid, cqid) = (command.low(10), command.high(11));
        if !self.is_io_qid(cqid) {
            return Err(INVALID_QUEUE_ID);
        }
        if self.completion_queue(cqid).is_none() {
            return Err(COMPLETION_QUEUE_INVALID);
        }
        if !self.is_io_qid(qid) || self.submission_queue(qid).is_some() {
            return Err(INVALID_QUEUE_ID);
        }
        let (base, entries) = self.ring_of(command)?;
        self.add_submission_queue(SubmissionQueue::new(qid, cqid, base, entries));
        DONE
    }

    fn is_io_qid(&self, qid: u16) -> bool {
        (1..=self.options.io_queue_count).contains(&qid)
    }

    /// Returns base and entries of the ring that a Create command describes.
    fn ring_of(&self, command: &Command) -> Result<(u64, u32), Status> {
        let entries = u32::from(command.high(10)) + 1;
        let is_valid = (2..=self.options.queue_entries_max).contains(&entries);
        if !is_valid || !self.registers.can_have_io_queues() {
            return Err(INVALID_QUEUE_SIZE);
        }
        if command.cdw(11) & PHYSICALLY_CONTIGUOUS == 0 {
            return Err(INVALID_FIELD);
        }
        let Pointer::Prp([base, _]) = command.pointer else { return Err(INVALID_FIELD) };
        if !base.is_multiple_of(self.rules().page_bytes) {
            return Err(PRP_OFFSET_INVALID);
        }
        Ok((base, entries))
    }

    pub(super) fn delete_submission_queue(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let qid = command.low(10);
        if qid == 0 || self.submission_queue(qid).is_none() {
            return Err(INVALID_QUEUE_ID);
        }
        self.end_held(qid, dma)?;
        let slot = self.queues.submission.get_mut(usize::from(qid)).and_then(Option::take);
        let cqid = slot.map_or(0, |queue| queue.cqid);
        if let Some(completion) = self.completion_queue(cqid) {
            completion.sq_count -= 1;
        }
        self.queues.submission_ids.retain(|id| *id != qid);
        self.doorbells.silence_one(qid, Side::Tail);
        DONE
    }

    /// Completes the waiting commands of a queue that is about to be deleted.
    fn end_held(&mut self, qid: u16, dma: &Dma<'_>) -> Result<(), Status> {
        while let Some(command) = self.take_waiting(|command| command.sqid.0 == qid) {
            self.complete_waiting(&command, Err(ABORTED_SQ_DELETION), dma)
                .map_err(|_| DATA_TRANSFER_ERROR)?;
        }
        Ok(())
    }

    pub(super) fn delete_completion_queue(&mut self, command: &Command) -> Answer {
        let qid = command.low(10);
        match self.completion_queue(qid) {
            Some(queue) if qid != 0 && queue.sq_count > 0 => return Err(INVALID_QUEUE_DELETION),
            Some(_) if qid != 0 => {}
            _ => return Err(INVALID_QUEUE_ID),
        }
        self.queues.completion[usize::from(qid)] = None;
        self.queues.completion_ids.retain(|id| *id != qid);
        self.doorbells.silence_one(qid, Side::Head);
        DONE
    }

    /// Aborts a waiting command: held, an event request, or not fetched yet. Dword 0 bit 0 is set if none was found.
    pub(super) fn abort(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let (sqid, cid) = (command.low(10), command.high(10));
        let is_meant = |command: &Command| command.sqid.0 == sqid && command.cid == cid;
        let target = match self.take_waiting(is_meant) {
            None if sqid == 0 => self.events.take_request(cid),
            target => target,
        };
        if let Some(target) = target {
            self.complete_waiting(&target, Err(ABORT_REQUESTED), dma)
                .map_err(|_| DATA_TRANSFER_ERROR)?;
            return Ok(Reply::Done(0));
        }
        let is_waiting = self.submission_queue(sqid).is_some_and(|q| q.abort_waiting(dma, cid));
        Ok(Reply::Done(u32::from(!is_waiting)))
    }

    pub(super) fn doorbell_buffer_config(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let Pointer::Prp([doorbells, event_indexes]) = command.pointer else {
            return Err(INVALID_FIELD);
        };
        let bytes = self.rules().page_bytes;
        if !doorbells.is_multiple_of(bytes) || !event_indexes.is_multiple_of(bytes) {
            return Err(INVALID_FIELD);
        }
        // Both buffers must be reachable before use.
        for buffer in [doorbells, event_indexes] {
            dma.load32(Iova(buffer)).map_err(|_| DATA_TRANSFER_ERROR)?;
        }
        let polled = self.polls_shadow;
        self.shadow = Some(Shadow { doorbells, event_indexes, bytes, polled });
        DONE
    }
}
