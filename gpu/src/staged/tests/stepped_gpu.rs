//! A GPU that copies when the test says so.
//!
//! Copies happen when they are run, not when they are requested, and through the addresses of the request: a chunk that
//! is reused too early shows as wrong data.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use adit_driver::Buffer;

use crate::error::{Error, Result};
use crate::staged::copies::Copies;

/// Start of its memory.
pub(super) const BASE: u64 = 0x7000_0000_0000;

#[derive(Clone, Copy, Debug)]
enum Task {
    ToGpu { to: usize, from: usize, bytes: usize },
    FromGpu { to: usize, from: usize, bytes: usize },
    Word { at: usize, value: u32 },
    Wait { event: usize },
}

#[derive(Default)]
struct Track {
    tasks: VecDeque<Task>,
    asked: u64,
    done: u64,
}

#[derive(Default)]
struct State {
    memory: Vec<u8>,
    tracks: Vec<Track>,
    events: Vec<bool>,
    registrations: usize,
    refuses: bool,
    refuses_lines: bool,
    refuses_marks: bool,
    is_stuck: bool,
}

/// A handle to the GPU; all clones share it.
#[derive(Clone, Default)]
pub(super) struct SteppedGpu(Arc<Mutex<State>>);

/// A registration, which counts itself out.
pub(super) struct Registered {
    gpu: SteppedGpu,
    _owner: Buffer,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.gpu.state().registrations -= 1;
    }
}

impl SteppedGpu {
    pub(super) fn new(bytes: usize) -> SteppedGpu {
        let gpu = SteppedGpu::default();
        gpu.state().memory = vec![0; bytes];
        gpu
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    pub(super) fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let at = (at - BASE) as usize;
        self.state().memory[at..at + bytes].to_vec()
    }

    pub(super) fn word(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.read(at, 4).try_into().expect("four bytes"))
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        let at = (at - BASE) as usize;
        self.state().memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Creates an event that has not happened.
    pub(super) fn event(&self) -> usize {
        let mut state = self.state();
        state.events.push(false);
        state.events.len() - 1
    }

    pub(super) fn happen(&self, event: usize) {
        self.state().events[event] = true;
    }

    /// Sets whether calls fail from now on.
    pub(super) fn refuse(&self, refuses: bool) {
        self.state().refuses = refuses;
    }

    /// Sets whether creating streams fails from now on.
    pub(super) fn refuse_lines(&self, refuses: bool) {
        self.state().refuses_lines = refuses;
    }

    /// Sets whether creating marks fails from now on.
    pub(super) fn refuse_marks(&self, refuses: bool) {
        self.state().refuses_marks = refuses;
    }

    /// Sets whether requests stay undone from now on.
    pub(super) fn stick(&self, is_stuck: bool) {
        self.state().is_stuck = is_stuck;
    }

    pub(super) fn registrations(&self) -> usize {
        self.state().registrations
    }

    /// Does up to `most` tasks of each stream; returns how many were done.
    pub(super) fn run(&self, most: usize) -> usize {
        let mut state = self.state();
        if state.is_stuck {
            return 0;
        }
        (0..state.tracks.len()).map(|track| state.run_track(track, most)).sum()
    }
}

impl State {
    fn run_track(&mut self, track: usize, most: usize) -> usize {
        for done in 0..most {
            let Some(task) = self.tracks[track].tasks.front().copied() else { return done };
            if let Task::Wait { event } = task
                && !self.events[event]
            {
                return done;
            }
            self.carry_out(task);
            self.tracks[track].tasks.pop_front();
            self.tracks[track].done += 1;
        }
        most
    }

    fn carry_out(&mut self, task: Task) {
        match task {
            Task::ToGpu { to, from, bytes } => {
                // SAFETY: a chunk that the lane keeps until the copy is over, which is what is tested.
                let from = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
                self.memory[to..to + bytes].copy_from_slice(from);
            }
            Task::FromGpu { to, from, bytes } => {
                // SAFETY: as above.
                let to = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, bytes) };
                to.copy_from_slice(&self.memory[from..from + bytes]);
            }
            Task::Word { at, value } => {
                self.memory[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            Task::Wait { .. } => {}
        }
    }

    fn ask(&mut self, stream: usize, task: Task) -> Result<()> {
        if self.refuses {
            return Err(Error::invalid("a copy", "the test's GPU refuses it"));
        }
        self.tracks[stream].tasks.push_back(task);
        self.tracks[stream].asked += 1;
        Ok(())
    }
}

impl Copies for SteppedGpu {
    type Stream = usize;
    type Mark = (usize, u64);
    type Event = usize;
    type Registration = Registered;

    fn register(&mut self, _memory: &mut Buffer, owner: Buffer) -> Result<Registered> {
        self.state().registrations += 1;
        Ok(Registered { gpu: self.clone(), _owner: owner })
    }

    fn stream(&mut self) -> Result<usize> {
        let mut state = self.state();
        if state.refuses_lines {
            return Err(Error::invalid("a stream", "the test's GPU makes no more"));
        }
        state.tracks.push(Track::default());
        Ok(state.tracks.len() - 1)
    }

    fn wait(&mut self, stream: &usize, event: &usize) -> Result<()> {
        self.state().ask(*stream, Task::Wait { event: *event })
    }

    fn has_happened(&mut self, event: &usize) -> Result<bool> {
        Ok(self.state().events[*event])
    }

    fn copy_to_gpu(&mut self, stream: &usize, to: u64, from: &Buffer, bytes: usize) -> Result<()> {
        let from = from[..bytes].as_ptr().expose_provenance();
        self.state().ask(*stream, Task::ToGpu { to: (to - BASE) as usize, from, bytes })
    }

    fn copy_from_gpu(
        &mut self,
        stream: &usize,
        to: &mut Buffer,
        from: u64,
        bytes: usize,
    ) -> Result<()> {
        let to = to[..bytes].as_mut_ptr().expose_provenance();
        self.state().ask(*stream, Task::FromGpu { to, from: (from - BASE) as usize, bytes })
    }

    fn write_word(&mut self, stream: &usize, at: u64, value: u32) -> Result<()> {
        self.state().ask(*stream, Task::Word { at: (at - BASE) as usize, value })
    }

    fn mark(&mut self, stream: &usize) -> Result<(usize, u64)> {
        let state = self.state();
        if state.refuses_marks {
            return Err(Error::invalid("a mark", "the test's GPU makes no more"));
        }
        Ok((*stream, state.tracks[*stream].asked))
    }

    fn is_over(&mut self, (stream, position): &(usize, u64)) -> Result<bool> {
        Ok(self.state().tracks[*stream].done >= *position)
    }

    fn is_idle(&mut self, stream: &usize) -> Result<bool> {
        Ok(self.state().tracks[*stream].tasks.is_empty())
    }

    fn drain(&mut self, stream: &usize, _at_most: Duration) -> bool {
        self.run(usize::MAX);
        self.state().tracks[*stream].tasks.is_empty()
    }
}
