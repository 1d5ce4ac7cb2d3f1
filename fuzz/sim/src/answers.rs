//! Checks the driver's answers against the model.

use adit_driver::{Buffer, Completion, Time};

use crate::arena::{gather, guards_hold};
use crate::bus::lock;
use crate::canary::Canary;
use crate::content::decode;
use crate::faults::Fault;
use crate::model::Written;
use crate::outcome::{self, Ending};
use crate::requests::{Ask, Parcel, Pending, Run, differs, is_ordinary};
use crate::shape::Shape;
use crate::world::{Lane, SPARED_MAX, World, violated};

impl World {
    /// Polls a lane and checks what finished.
    pub(crate) fn poll(&mut self, lane: usize) -> usize {
        let now = self.now();
        let in_service = self.in_service();
        let mut done = Vec::new();
        let finished = self.bounded("QueuePair::poll", |world| {
            world.lanes[lane].queue.poll(now, |completion| done.push(completion))
        });
        if finished != done.len() {
            violated(3, format_args!("poll counted {finished} and handed over {}", done.len()));
        }
        let id = self.lanes[lane].id;
        self.note(
            &[id, finished as u64],
            format_args!("queue {id}: polled at {now}, {finished} finished"),
        );
        self.spread_damage();
        for completion in done {
            self.finish(completion);
        }
        self.check_deadlines(lane, now);
        self.check_violations(lane, in_service);
        finished
    }

    pub(crate) fn in_service(&self) -> bool {
        self.controller.as_ref().is_some_and(|controller| controller.check().is_ok())
    }

    /// Marks the targets of copies from damaged LBAs as damaged.
    pub(crate) fn spread_damage(&mut self) {
        let mut plan = lock(&self.plan);
        if !plan.has_damage() {
            return;
        }
        for pending in self.pending.values() {
            if let Ask::Copy { to, source, .. } = pending.ask {
                let damaged = source.iter().filter(|lba| plan.is_damaged(*lba));
                let onto: Vec<u64> = damaged.map(|lba| lba - source.first + to).collect();
                onto.into_iter().for_each(|lba| plan.damage(lba));
            }
        }
    }

    /// Law 4: an aborted request ends by the poll after the abort's timeout.
    fn check_deadlines(&mut self, lane: usize, now: Time) {
        if self.is_stuck() {
            return;
        }
        if now < self.firmware_until {
            let here = self.pending.values_mut();
            return here.for_each(|pending| pending.late = None);
        }
        if std::mem::take(&mut self.lanes[lane].is_stale) {
            return self.sent_anew(self.lanes[lane].id);
        }
        let Lane { id, queue, .. } = &self.lanes[lane];
        let Shape { timeout, abort_timeout, .. } = self.shape;
        for pending in self.pending.values_mut().filter(|pending| pending.lane == *id) {
            match pending.late {
                Some(late)
                    if now >= late + abort_timeout
                        && !pending.rung
                        && pending.spared < SPARED_MAX =>
                {
                    pending.spared += 1;
                    pending.late = Some(now);
                }
                Some(late) if now >= late + abort_timeout => {
                    let Pending { tag, ask, at, .. } = pending;
                    let took = now.since(*at);
                    let stats = queue.stats();
                    violated(
                        4,
                        format_args!(
                            "request {tag} {ask:?} is in flight after {took:?}: {stats:?}"
                        ),
                    );
                }
                None if now >= pending.at + timeout => pending.late = Some(now),
                _ => {}
            }
        }
    }

    /// Treats commands that the device was never told of as sent to the new queue, late from then on.
    fn sent_anew(&mut self, id: u64) {
        for pending in self.pending.values_mut().filter(|pending| pending.lane == id) {
            (pending.rung, pending.late) = (true, None);
        }
    }

    /// Law 2: protocol violations are noticed, and honest completions are not taken for violations.
    fn check_violations(&mut self, lane: usize, was_in_service: bool) {
        let in_service = was_in_service && self.in_service() && !self.bus.is_away();
        let Lane { id, queue, .. } = &self.lanes[lane];
        let seen = queue.stats().violations();
        let mut plan = lock(&self.plan);
        let made = plan.take_violations(queue.qid().0);
        // With a drive's timing model they may come later.
        let at_once = self.shape.soft.model.is_none();
        if made > 0 && in_service && at_once {
            violated(2, format_args!("queue {id} goes on after {made} broken completions"));
        }
        if seen > 0 && plan.is_clean() {
            violated(2, format_args!("queue {id} takes honest completions for violations"));
        }
    }

    /// Checks a completion against the model.
    fn finish(&mut self, completion: Completion<Parcel>) {
        let (pieces, tag) = completion.buffer;
        let Some(mut pending) = self.pending.remove(&tag) else {
            violated(3, format_args!("request {tag} came back twice"));
        };
        self.note(
            &[tag, outcome::code(&completion.result)],
            format_args!("request {tag} ended: {}", outcome::text(&completion.result)),
        );
        self.check_layout(tag, &pending.layout, &pieces);
        self.bus.watch().forget_data(tag);
        self.pin(&pending.ask, -1);
        if self.canary == Some(Canary::Scribble)
            && let Some(guard) = pending.guards.first_mut()
        {
            guard[0] ^= 1;
        }
        if !guards_hold(&pending.guards) {
            violated(2, format_args!("memory beside the buffer of request {tag} was written"));
        }
        let result = completion.result;
        let ending = Ending::of(&result);
        self.counts.ended(&ending);
        let (clean, tainted) = {
            let plan = lock(&self.plan);
            (plan.is_clean(), plan.is_tainted())
        };
        if clean && !is_ordinary(&pending.ask, &result) {
            let text = outcome::text(&result);
            violated(2, format_args!("request {tag} failed and nothing was wrong: {text}"));
        }
        self.model.tick();
        self.wrote(&pending, ending, tainted);
        if !tainted {
            self.learn(&pending, ending, differs(&result), &pieces);
        }
    }

    /// Reports to the model how a writing request ended.
    pub(crate) fn wrote(&mut self, pending: &Pending, ending: Ending, tainted: bool) {
        let is_write = matches!(pending.ask, Ask::Write(_));
        let durable = self.shape.soft.vwc_bytes == 0 || (pending.fua && is_write);
        let forgets = self.canary == Some(Canary::ForgetWrite) && is_write;
        let written = match ending {
            _ if tainted => Written::Maybe,
            Ending::Done if forgets => Written::No,
            Ending::Done => Written::Yes { durable },
            Ending::Failed | Ending::Ended { may_have_written: true } => Written::Maybe,
            Ending::Ended { may_have_written: false } => Written::No,
        };
        let oldest = self.pending.values().map(|other| other.began).min().unwrap_or(u64::MAX);
        for (lba, _) in pending.ask.writes(pending.tag) {
            let of = (pending.tag, pending.began, oldest);
            if let Err(what) = self.model.end(of, lba, written) {
                violated(1, what);
            }
        }
    }

    /// Records what a request reveals about the medium.
    fn learn(&mut self, pending: &Pending, ending: Ending, differs: bool, pieces: &[Buffer]) {
        match (&pending.ask, ending) {
            (Ask::Read(run), Ending::Done) => self.check_read(pending, *run, pieces),
            (Ask::Flush, Ending::Done) => self.model.flushed(pending.began),
            (Ask::Compare(run, values), Ending::Done) => {
                for (lba, value) in run.iter().zip(values) {
                    self.observe(pending, lba, *value);
                }
            }
            (Ask::Compare(run, values), _) if differs => {
                let may_differ = |(lba, value): (u64, &u64)| {
                    self.model.possible(pending.began, lba).iter().any(|other| other != value)
                };
                if !run.iter().zip(values).any(may_differ) && !self.may_lie() {
                    violated(1, format_args!("request {} differs from what is there", pending.tag));
                }
            }
            _ => {}
        }
    }

    /// Returns whether a status may be made up.
    fn may_lie(&self) -> bool {
        let plan = lock(&self.plan);
        let made_up = [Fault::FailIo, Fault::BadStatus];
        made_up.into_iter().any(|fault| plan.has_struck(fault)) || plan.has_damage()
    }

    fn check_read(&mut self, pending: &Pending, run: Run, pieces: &[Buffer]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        gather(pieces, &mut scratch);
        let lba_bytes = scratch.len() / run.lbas as usize;
        for (lba, bytes) in run.iter().zip(scratch.chunks_exact(lba_bytes)) {
            if lock(&self.plan).is_damaged(lba) {
                continue;
            }
            let Some(value) = decode(bytes) else {
                let start = &bytes[..16];
                violated(
                    1,
                    format_args!(
                        "request {} read LBA {lba} as no value: {start:x?} ...",
                        pending.tag
                    ),
                );
            };
            self.observe(pending, lba, value);
        }
        self.counts.lbas_checked += run.lbas;
        self.scratch = scratch;
    }

    fn observe(&mut self, pending: &Pending, lba: u64, value: u64) {
        if lock(&self.plan).is_damaged(lba) {
            return;
        }
        if let Err(what) = self.model.observe(pending.began, lba, value) {
            violated(1, format_args!("request {}: {what}", pending.tag));
        }
    }
}
