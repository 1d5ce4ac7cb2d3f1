//! Bytes that pass through a command.

use std::io::{self, Read, Write};

use crate::human;
use crate::interrupt::Interrupt;
use adit_tools_common::meter::Meter;

/// A file or a pipe that bytes pass through: shows how many have, and ends them at an interrupt.
pub(crate) struct Passing<T> {
    inner: T,
    done: u64,
    /// Bytes of all of it, if that is known.
    all: Option<u64>,
    meter: Meter,
    interrupt: Interrupt,
}

impl<T> Passing<T> {
    pub(crate) fn new(inner: T, all: Option<u64>, interrupt: &Interrupt) -> Passing<T> {
        let (meter, interrupt) = (Meter::of_long_work(), interrupt.clone());
        Passing { inner, done: 0, all, meter, interrupt }
    }

    fn pass(&mut self, bytes: usize) -> io::Result<usize> {
        if self.interrupt.requested() {
            return Err(io::Error::other("interrupted"));
        }
        self.done += bytes as u64;
        match self.all {
            Some(all) => self.meter.show_bytes(self.done, all),
            None => self.meter.show(|_| human::capacity(self.done)),
        }
        Ok(bytes)
    }
}

impl<T: Read> Read for Passing<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(into)?;
        self.pass(bytes)
    }
}

impl<T: Write> Write for Passing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = self.inner.write(bytes)?;
        self.pass(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
