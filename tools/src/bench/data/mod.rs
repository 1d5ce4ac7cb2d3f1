//! What written blocks hold, and whether what is read is what was written.

mod stamp;

pub(crate) use stamp::{Identity, Mismatch, Writer, fill};

use super::options::JobOptions;
use super::workload::random::mix;

/// The contents of a job's blocks; each thread has its own.
#[derive(Debug)]
pub(crate) struct Data {
    seed: u64,
    buffers: u64,
    zero: bool,
    stamped: bool,
}

impl Data {
    /// The contents that `job` asks for.
    ///
    /// # Errors
    /// What it asks for contradicts itself; says what to do.
    pub(crate) fn new(job: &JobOptions, seed: u64) -> Result<Data, String> {
        Ok(Data { seed, buffers: 0, zero: job.zero_buffers, stamped: job.verify.is_some() })
    }

    /// Fills a buffer of a job that writes; once for each.
    pub(crate) fn initial(&mut self, buffer: &mut [u8]) {
        self.buffers += 1;
        match self.zero {
            true => buffer.fill(0),
            false => stamp::fill(buffer, mix(self.seed ^ mix(self.buffers))),
        }
    }

    /// Whether [`before_write`](Data::before_write) has to be called.
    pub(crate) fn touches_writes(&self) -> bool {
        self.stamped
    }

    /// Makes `block` what is written at `offset`.
    pub(crate) fn before_write(&mut self, block: &mut [u8], offset: u64, writer: Writer) {
        if self.stamped {
            stamp::stamp(block, offset, writer);
        }
    }

    /// Checks that `block` is what `expected` says.
    ///
    /// # Errors
    /// The first thing about it that is not.
    pub(crate) fn check(&self, block: &[u8], expected: Identity) -> Result<(), Mismatch> {
        stamp::check(block, expected)
    }
}
