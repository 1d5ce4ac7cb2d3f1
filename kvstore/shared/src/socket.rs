//! Messages and files over the socket between a client and the server.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use adit_driver::serve::parts::{close_elsewhere, receive};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::{FromZeros, IntoBytes};

use crate::wire::{GREETING_FILES, Message};

/// Sends a message with files and waits for its answer.
///
/// # Errors
/// The system's error.
pub(crate) fn exchange(
    stream: &mut UnixStream,
    message: &Message,
    files: &[&File],
) -> io::Result<Message> {
    let mut rest = message.as_bytes();
    if !files.is_empty() {
        let numbers: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
        let sent = stream.send_with_fds(&[rest], &numbers).map_err(io::Error::from)?;
        rest = &rest[sent..];
    }
    stream.write_all(rest)?;
    let mut answer = Message::new_zeroed();
    stream.read_exact(answer.as_mut_bytes())?;
    Ok(answer)
}

/// The result of a read at the server's end of a socket.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// No whole message yet.
    Nothing,
    /// A message and its files.
    Message(Box<Message>, Files),
    /// The client is gone, or no more can be read.
    Gone(String),
}

/// Files that came with a message. The drop closes them on another thread: closing a file can wait for the process
/// behind it.
#[derive(Debug, Default)]
pub(crate) struct Files(pub(crate) Vec<File>);

impl Drop for Files {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            close_elsewhere(std::mem::take(&mut self.0));
        }
    }
}

/// The server's end, which never waits.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: UnixStream,
    message: Message,
    filled: usize,
    files: Files,
}

impl Peer {
    /// # Errors
    /// The system's error.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Peer> {
        stream.set_nonblocking(true)?;
        Ok(Peer { stream, message: Message::new_zeroed(), filled: 0, files: Files::default() })
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns the next message once it is complete.
    pub(crate) fn receive(&mut self) -> Incoming {
        while self.filled < size_of::<Message>() {
            let rest = &mut self.message.as_mut_bytes()[self.filled..];
            match receive(&self.stream, rest, &mut self.files.0) {
                Ok(0) => return Incoming::Gone("it closed the connection".to_owned()),
                Ok(count) => self.filled += count,
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Incoming::Nothing,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Incoming::Gone(format!("cannot read: {why}")),
            }
            if self.files.0.len() > GREETING_FILES {
                return Incoming::Gone("too many files came with a message".to_owned());
            }
        }
        self.filled = 0;
        Incoming::Message(Box::new(self.message), std::mem::take(&mut self.files))
    }

    /// Sends an answer.
    ///
    /// # Errors
    /// If the client is gone, or does not read its answers.
    pub(crate) fn answer(&mut self, answer: &Message) -> Result<(), String> {
        match self.stream.write(answer.as_bytes()) {
            Ok(count) if count == size_of::<Message>() => Ok(()),
            Ok(_) => Err("it does not read its answers".to_owned()),
            Err(why) => Err(format!("cannot answer: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Matter;

    #[test]
    fn a_message_may_come_byte_by_byte_and_with_files() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let mut peer = Peer::new(ours).expect("peer");
        let sent = Message::new(Matter::Share, [1, 2, 3, 4]).with_body(b"text");
        let null = File::open("/dev/null").expect("a file");
        let (first, rest) = sent.as_bytes().split_at(1);
        theirs.send_with_fds(&[first], &[null.as_raw_fd()]).expect("sent");
        for byte in rest {
            assert!(matches!(peer.receive(), Incoming::Nothing));
            (&theirs).write_all(&[*byte]).expect("sent");
        }
        let Incoming::Message(came, files) = peer.receive() else { panic!("it is whole") };
        assert_eq!((came.numbers, came.body(), files.0.len()), ([1, 2, 3, 4], &b"text"[..], 1));
        assert!(matches!(peer.receive(), Incoming::Nothing));
        drop(theirs);
        assert!(matches!(peer.receive(), Incoming::Gone(_)));
    }

    #[test]
    fn more_files_than_a_greeting_has_end_it_and_so_does_a_client_that_does_not_read() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let mut peer = Peer::new(ours).expect("peer");
        let null = File::open("/dev/null").expect("a file");
        theirs.send_with_fds(&[&b"x"[..]], &[null.as_raw_fd(); 4]).expect("sent");
        assert!(matches!(peer.receive(), Incoming::Gone(why) if why.contains("too many files")));
        let answer = Message::new(Matter::Stats, [0; 4]);
        let sent = (0..100_000).take_while(|_| peer.answer(&answer).is_ok()).count();
        assert!(sent < 100_000, "it does not wait for the client");
    }
}
