//! The socket of a client: messages and their answers, and memory that is taken back.

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use adit_kvstore::{Error, Result};
use zerocopy::IntoBytes;

use crate::socket;
use crate::wire::{Code, Matter, Message};

/// The socket, for one message at a time.
pub(super) struct Control {
    end: Mutex<SocketEnd>,
    /// Dropped regions, of which the server has not been informed.
    dropped: Mutex<Vec<u64>>,
}

struct SocketEnd {
    stream: UnixStream,
    /// Bytes of messages that the socket has not taken yet.
    unsent: Vec<u8>,
}

impl Control {
    pub(super) fn new(stream: UnixStream) -> Arc<Control> {
        let end = Mutex::new(SocketEnd { stream, unsent: Vec::new() });
        Arc::new(Control { end, dropped: Mutex::default() })
    }

    fn dropped(&self) -> MutexGuard<'_, Vec<u64>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the dropped regions, unless another thread has the socket and does so afterwards.
    fn tell(&self) {
        while !self.dropped().is_empty() {
            let mut end = match self.end.try_lock() {
                Ok(end) => end,
                Err(TryLockError::Poisoned(end)) => end.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            end.unshare(std::mem::take(&mut *self.dropped()));
            if end.send_some().is_err() {
                // The server is gone, or releases them with the client.
                end.unsent.clear();
            }
        }
    }

    /// Sends a message and returns its answer. Without one, the connection ends.
    ///
    /// # Errors
    /// [`Error::Lost`] if the server is gone; the reason if it refuses.
    pub(super) fn ask(&self, message: &Message, files: &[&File]) -> Result<Message> {
        let answer = self.exchange(message, files);
        self.tell();
        let answer = answer?;
        match Code::of(answer.code) {
            Code::Done => Ok(answer),
            _ => Err(answer.reason().error()),
        }
    }

    fn exchange(&self, message: &Message, files: &[&File]) -> Result<Message> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        // In the order of the calls: dropped regions may make room for the requested one.
        end.unshare(std::mem::take(&mut *self.dropped()));
        let sent = end.send_all();
        let answer = sent.and_then(|()| socket::exchange(&mut end.stream, message, files));
        let answer = answer.map_err(|why| why.to_string());
        let answer =
            answer.and_then(|answer| match answer.matter() == Matter::of(message.matter) {
                true => Ok(answer),
                false => Err("it answered what was not asked".to_owned()),
            });
        answer.map_err(|why| {
            // A late answer would be taken for the answer to the next message.
            let _ = end.stream.shutdown(Shutdown::Both);
            Error::Lost { why }
        })
    }
}

impl SocketEnd {
    /// Adds messages that take regions back.
    fn unshare(&mut self, numbers: Vec<u64>) {
        for number in numbers {
            let message = Message::new(Matter::Unshare, [number, 0, 0, 0]);
            self.unsent.extend_from_slice(message.as_bytes());
        }
    }

    /// Sends what the socket has room for.
    ///
    /// # Errors
    /// The system's error.
    fn send_some(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let sent = self.send_all();
        self.stream.set_nonblocking(false)?;
        match sent {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }

    /// Sends all that has not been sent.
    ///
    /// # Errors
    /// The system's error.
    fn send_all(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }
}

/// Takes a region back from the server when it is dropped. The drop never waits: if the server does not read, or
/// another thread waits for an answer, the message goes later.
pub(super) struct Registration {
    pub(super) control: Arc<Control>,
    pub(super) number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.control.dropped().push(self.number);
        self.control.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_answer_that_comes_too_late_is_not_taken_for_another() {
        let (stream, mut server) = UnixStream::pair().expect("a pair");
        stream.set_read_timeout(Some(Duration::from_millis(10))).expect("set");
        let control = Control::new(stream);
        let share = Message::new(Matter::Share, [4096, 0, 0, 0]);
        let is_lost = |answer| matches!(answer, Err(Error::Lost { .. }));
        assert!(is_lost(control.ask(&share, &[])), "the server does not answer");
        let late = Message::new(Matter::Share, [1, 0, 0, 0]);
        // The connection may have ended.
        let _ = server.write_all(late.as_bytes());
        assert!(is_lost(control.ask(&share, &[])), "that was the first one's answer");
    }
}
