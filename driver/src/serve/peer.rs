//! One connected socket: whole messages in, whole replies out, never blocking.
//!
//! Length fields are bounded before allocation. A message of impossible length ends the connection, since the stream
//! after it is unreadable; any other error leaves it usable. Nothing is read until the last reply is sent: a client
//! that does not read its replies stalls only itself.

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::{FromZeros, IntoBytes};

use super::closing::close_elsewhere;
use super::refusal::{Refusal, ServeResult};
use super::system;
use crate::bus::vfio_user::is_hung_up;
use crate::bus::vfio_user::wire::{FLAG_ERROR, FLAG_TYPE_REPLY, HEADER_LEN, Header};
use crate::sys::memory_file;

/// The longest accepted body; the longest useful ones are region accesses and SPDK's region queries.
pub(super) const BODY_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) body: Vec<u8>,
    /// Memory files and eventfds attached to it.
    pub(super) files: Vec<File>,
    /// Number of other attached files, which are closed.
    pub(super) strange_files: usize,
}

#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) body: Vec<u8>,
    pub(super) file: Option<OwnedFd>,
}

/// Result of polling the socket.
#[derive(Debug)]
pub(super) enum Incoming {
    /// No whole message yet.
    Nothing,
    Message(Message),
    Gone(String),
    /// The stream is unreadable from here on.
    Nonsense(String),
}

/// A socket, present until its peer is dropped.
#[derive(Debug)]
struct Stream(Option<UnixStream>);

impl Deref for Stream {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        self.0.as_ref().expect("taken away at the end only")
    }
}

#[derive(Debug)]
pub(super) struct Peer {
    stream: Stream,
    header: Header,
    /// Present once the header is complete.
    body: Option<Vec<u8>>,
    /// Bytes received of the header or of the body.
    filled: usize,
    files: Vec<File>,
    outgoing: Vec<u8>,
    sent: usize,
    outgoing_file: Option<OwnedFd>,
}

impl Peer {
    /// # Errors
    /// The system's error.
    pub(super) fn new(stream: UnixStream) -> io::Result<Peer> {
        stream.set_nonblocking(true)?;
        Ok(Peer {
            stream: Stream(Some(stream)),
            header: Header::new_zeroed(),
            body: None,
            filled: 0,
            files: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            outgoing_file: None,
        })
    }

    /// Returns the socket, and whether to wait until it is writable instead of readable.
    pub(super) fn awaits(&self) -> (BorrowedFd<'_>, bool) {
        (self.stream.as_fd(), !self.outgoing.is_empty())
    }

    /// Returns whether the client will send nothing more, even if data remains to be read.
    pub(super) fn is_hung_up(&self) -> bool {
        is_hung_up(&self.stream)
    }

    /// Returns the next message once it is complete and the last reply is sent.
    pub(super) fn receive(&mut self) -> Incoming {
        if let Err(why) = self.flush() {
            return Incoming::Gone(format!("cannot reply: {why}"));
        }
        if !self.outgoing.is_empty() {
            return Incoming::Nothing;
        }
        match self.fill() {
            Ok(Some(message)) => Incoming::Message(message),
            Ok(None) => Incoming::Nothing,
            Err(end) => end,
        }
    }

    fn fill(&mut self) -> Result<Option<Message>, Incoming> {
        if self.body.is_none() {
            if !self.fill_header()? {
                return Ok(None);
            }
            let len = self.check_len()?;
            self.filled = 0;
            self.body = Some(vec![0; len]);
        }
        let Peer { stream, filled, files, body, .. } = self;
        let Some(bytes) = body else { return Ok(None) };
        if !read_up(stream, bytes, filled, files)? {
            return Ok(None);
        }
        self.filled = 0;
        let body = self.body.take().unwrap_or_default();
        let files = std::mem::take(&mut self.files);
        let (files, strange): (_, Vec<File>) = files.into_iter().partition(never_waits);
        let strange_files = strange.len();
        if strange_files > 0 {
            close_elsewhere(strange);
        }
        Ok(Some(Message { header: self.header, body, files, strange_files }))
    }

    fn fill_header(&mut self) -> Result<bool, Incoming> {
        let Peer { stream, header, filled, files, .. } = self;
        read_up(stream, header.as_mut_bytes(), filled, files)
    }

    /// Returns the length of the body. Reports an invalid one to the client before it is dropped.
    fn check_len(&mut self) -> Result<usize, Incoming> {
        let size = self.header.message_size;
        let len = (size as usize).checked_sub(HEADER_LEN).filter(|len| *len <= BODY_MAX);
        len.ok_or_else(|| {
            let errno = if (size as usize) < HEADER_LEN { libc::EINVAL } else { libc::EMSGSIZE };
            let header = self.header;
            self.answer(&header, Err(Refusal::new(errno, "")));
            // The reply may not fit into a full socket; closing the connection suffices then.
            let _ = self.flush();
            Incoming::Nonsense(format!(
                "its message has {size} bytes; {HEADER_LEN} to {} are allowed",
                HEADER_LEN + BODY_MAX
            ))
        })
    }

    /// Answers the message that began with `header`.
    pub(super) fn answer(&mut self, header: &Header, outcome: ServeResult<Reply>) {
        let (flags, error, reply) = match outcome {
            Ok(reply) => (FLAG_TYPE_REPLY, 0, reply),
            Err(refusal) => (FLAG_TYPE_REPLY | FLAG_ERROR, refusal.errno as u32, Reply::default()),
        };
        let message_size = (HEADER_LEN + reply.body.len()) as u32;
        let header = Header { flags, error, message_size, ..*header };
        self.outgoing.clear();
        self.outgoing.extend_from_slice(header.as_bytes());
        self.outgoing.extend_from_slice(&reply.body);
        self.sent = 0;
        self.outgoing_file = reply.file;
    }

    /// Sends as much of the reply as the socket takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            let rest = &self.outgoing[self.sent..];
            let sent = match &self.outgoing_file {
                Some(file) => {
                    self.stream.send_with_fds(&[rest], &[file.as_raw_fd()]).map_err(io::Error::from)
                }
                None => (&*self.stream).write(rest),
            };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    self.outgoing_file = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        Ok(())
    }
}

/// Returns whether closing `file` never blocks.
fn never_waits(file: &File) -> bool {
    memory_file::page_bytes(file).is_some() || system::is_eventfd(file)
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Tells the client now, however late the socket is closed.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(stream) = self.stream.0.take() {
            close_elsewhere((stream, std::mem::take(&mut self.files)));
        }
    }
}

/// Reads until `into` is full and returns true; false when no data is left for now, an error at the end of the stream.
fn read_up(
    stream: &UnixStream,
    into: &mut [u8],
    filled: &mut usize,
    files: &mut Vec<File>,
) -> Result<bool, Incoming> {
    while *filled < into.len() {
        match system::receive(stream, &mut into[*filled..], files) {
            Ok(0) => return Err(Incoming::Gone("it closed the connection".to_owned())),
            Ok(count) => *filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                return Err(too_many_files());
            }
            Err(error) => return Err(Incoming::Gone(format!("cannot read: {error}"))),
        }
        if files.len() > system::FILES_MAX {
            return Err(too_many_files());
        }
    }
    Ok(true)
}

fn too_many_files() -> Incoming {
    Incoming::Nonsense(format!("more than {} files came with a message", system::FILES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn header(message_size: u32) -> Header {
        Header { message_id: 7, command: 4, message_size, flags: 0, error: 0 }
    }

    fn pair() -> (Peer, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        (Peer::new(ours).expect("peer"), theirs)
    }

    #[test]
    fn a_message_may_come_byte_by_byte() {
        let (mut peer, mut client) = pair();
        let bytes = [header(20).as_bytes(), &[1, 2, 3, 4]].concat();
        for byte in &bytes[..19] {
            client.write_all(&[*byte]).expect("sent");
            assert!(matches!(peer.receive(), Incoming::Nothing));
        }
        client.write_all(&bytes[19..]).expect("sent");
        let Incoming::Message(message) = peer.receive() else { panic!("it is whole") };
        assert_eq!((message.header.message_id, message.body), (7, vec![1, 2, 3, 4]));
        assert!(matches!(peer.receive(), Incoming::Nothing));
    }

    #[test]
    fn impossible_lengths_are_answered_and_end_it() {
        for (size, errno) in [(0, libc::EINVAL), (15, libc::EINVAL), (u32::MAX, libc::EMSGSIZE)] {
            let (mut peer, mut client) = pair();
            client.write_all(header(size).as_bytes()).expect("sent");
            let Incoming::Nonsense(why) = peer.receive() else { panic!("{size} is no length") };
            assert!(why.contains(&format!("{size} bytes")), "{why}");
            let mut reply = Header::new_zeroed();
            client.read_exact(reply.as_mut_bytes()).expect("reply");
            assert_eq!((reply.flags, reply.error as i32, reply.message_id), (0x21, errno, 7));
        }
    }

    #[test]
    fn nothing_is_read_from_a_client_that_does_not_read() {
        let (mut peer, mut client) = pair();
        client.set_nonblocking(true).expect("set");
        let (mut asked, mut answered) = (0, 0);
        // Each reply is large; the sockets' buffers fill up eventually.
        while client.write(header(16).as_bytes()).is_ok_and(|count| count == 16) && asked < 100_000
        {
            asked += 1;
            if let Incoming::Message(message) = peer.receive() {
                answered += 1;
                peer.answer(&message.header, Ok(Reply { body: vec![0; 8192], file: None }));
            }
        }
        assert!(answered < asked, "it waits for the client");
        client.set_nonblocking(false).expect("set");
        let mut replies = vec![0; (16 + 8192) * asked];
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| client.read_exact(&mut replies));
            while !reader.is_finished() {
                if let Incoming::Message(message) = peer.receive() {
                    peer.answer(&message.header, Ok(Reply { body: vec![0; 8192], file: None }));
                }
                peer.flush().expect("sent");
            }
            reader.join().expect("no panic").expect("every reply came, whole");
        });
    }
}
