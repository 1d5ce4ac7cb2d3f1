//! Requests and their replies, one at a time.
//!
//! The server is not trusted: a reply is used only if its type, message id, command and size are right and it
//! is complete within the deadline. The first wrong reply or a broken socket ends the connection for good
//! ([`Failure::Broken`]): later bytes could belong to anything. An error that the server reports properly
//! ([`Failure::Refused`]) does not.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::{FromZeros, IntoBytes};

use super::socket;
use super::wire::{Command, FLAG_ERROR, FLAG_TYPE_MASK, FLAG_TYPE_REPLY, HEADER_LEN, Header};

/// Longest reply accepted; the longest real ones (version, region capabilities) have a few hundred bytes.
const REPLY_LEN_MAX: usize = 64 << 10;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server refused, with an errno (0 if it gives none).
    Refused(i32),
    /// The connection has ended, for this reason.
    Broken(String),
}

pub(super) type Answer<T> = std::result::Result<T, Failure>;

/// A connected socket and the state of the exchange.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    deadline: Duration,
    /// Common limit for all requests, whatever their own deadlines.
    limit: Option<Instant>,
    next_id: u16,
    broken: Option<String>,
    /// The outgoing message; kept for reuse.
    outgoing: Vec<u8>,
    /// The body of the last reply; kept for reuse.
    body: Vec<u8>,
}

impl Connection {
    /// Connects; each later request has `deadline`.
    pub(super) fn connect(path: &Path, deadline: Duration) -> io::Result<Connection> {
        Ok(Connection::over(socket::connect(path, deadline)?, deadline))
    }

    fn over(stream: UnixStream, deadline: Duration) -> Connection {
        let (next_id, broken, outgoing, body) = (0, None, Vec::new(), Vec::new());
        let limit = None;
        Connection { stream, deadline, limit, next_id, broken, outgoing, body }
    }

    /// Sends a request in parts and returns the body of its reply.
    pub(super) fn request(&mut self, command: Command, parts: &[&[u8]]) -> Answer<&[u8]> {
        self.request_with_files(command, parts, &[]).map(|(body, _)| body)
    }

    /// Sends a request with files; also returns the file in the reply.
    pub(super) fn request_with_files(
        &mut self,
        command: Command,
        parts: &[&[u8]],
        files: &[RawFd],
    ) -> Answer<(&[u8], Option<File>)> {
        if let Some(reason) = &self.broken {
            return Err(Failure::Broken(reason.clone()));
        }
        match self.exchange(command, parts, files) {
            Ok(Ok(file)) => Ok((&self.body, file)),
            Ok(Err(errno)) => Err(Failure::Refused(errno)),
            Err(reason) => Err(Failure::Broken(self.give_up(format!("{command:?}: {reason}")))),
        }
    }

    /// Returns whether the connection has ended; detects a closed server.
    pub(super) fn is_gone(&mut self) -> bool {
        if self.broken.is_none() && socket::is_hung_up(&self.stream) {
            self.give_up("the server closed the connection".to_owned());
        }
        self.broken.is_some()
    }

    /// Sets or clears a common time limit for all further requests.
    pub(super) fn limit_to(&mut self, limit: Option<Instant>) {
        self.limit = limit;
    }

    /// Ends the connection; every later request fails with `reason`.
    pub(super) fn give_up(&mut self, reason: String) -> String {
        let _ = self.stream.shutdown(Shutdown::Both);
        self.broken = Some(reason.clone());
        reason
    }

    /// Exchanges one request and reply: a file if one came, an errno if refused, or the reason that ends the
    /// connection.
    fn exchange(
        &mut self,
        command: Command,
        parts: &[&[u8]],
        files: &[RawFd],
    ) -> Result<Result<Option<File>, i32>, String> {
        let now = Instant::now();
        let own = adit_shared::deadline(self.deadline);
        let end = self.limit.map_or(own, |limit| limit.min(own));
        if now > end {
            return Err("the time limit for the whole answer has passed".to_owned());
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.compose(id, command, parts);
        self.send(files).map_err(|why| format!("cannot send: {}", self.in_words(&why)))?;
        let mut header = Header::new_zeroed();
        let file = self
            .receive_first(header.as_mut_bytes(), end)
            .map_err(|why| format!("no reply: {}", self.in_words(&why)))?;
        let len = check_header(&header, id, command)?;
        self.body.resize(len, 0);
        receive(&self.stream, &mut self.body, end)
            .map_err(|why| format!("reply cut short: {}", self.in_words(&why)))?;
        if header.flags & FLAG_ERROR != 0 {
            return Ok(Err(i32::try_from(header.error).unwrap_or(0)));
        }
        Ok(Ok(file))
    }

    fn compose(&mut self, message_id: u16, command: Command, parts: &[&[u8]]) {
        let len = HEADER_LEN + parts.iter().map(|part| part.len()).sum::<usize>();
        let message_size = u32::try_from(len).expect("requests are short");
        let command = command as u16;
        let header = Header { message_id, command, message_size, flags: 0, error: 0 };
        self.outgoing.clear();
        self.outgoing.extend_from_slice(header.as_bytes());
        for part in parts {
            self.outgoing.extend_from_slice(part);
        }
    }

    fn send(&mut self, files: &[RawFd]) -> io::Result<()> {
        let mut sent = 0;
        if !files.is_empty() {
            sent = self.stream.send_with_fds(&[self.outgoing.as_slice()], files)?;
        }
        (&self.stream).write_all(&self.outgoing[sent..])
    }

    /// Reads the first bytes of a reply, and a file that comes with them.
    fn receive_first(&self, into: &mut [u8], end: Instant) -> io::Result<Option<File>> {
        loop {
            match self.stream.recv_with_fd(into).map_err(io::Error::from) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, file)) => {
                    receive(&self.stream, &mut into[count..], end)?;
                    return Ok(file);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn in_words(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no answer within {} ms", self.deadline.as_millis())
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
                "the server closed the connection".to_owned()
            }
            _ => error.to_string(),
        }
    }
}

/// Fills `into` or fails. Sending byte by byte does not extend the deadline: bytes missing after `end` are
/// late.
fn receive(mut stream: &UnixStream, into: &mut [u8], end: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        match stream.read(&mut into[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if filled < into.len() && Instant::now() > end {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

/// Returns the length of the body, if this is the reply to the request.
fn check_header(header: &Header, id: u16, command: Command) -> Result<usize, String> {
    if header.flags & FLAG_TYPE_MASK != FLAG_TYPE_REPLY {
        return Err(format!("not a reply but flags {:#x}", header.flags));
    }
    if header.message_id != id {
        return Err(format!("a reply to message {} instead of {id}", header.message_id));
    }
    if header.command != command as u16 {
        return Err(format!("a reply to command {}", header.command));
    }
    let len = (header.message_size as usize).checked_sub(HEADER_LEN);
    len.filter(|len| *len <= REPLY_LEN_MAX)
        .ok_or_else(|| format!("a reply of {} bytes", header.message_size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    /// The deadline for tests without a timely reply.
    const SOON: Duration = Duration::from_millis(50);
    /// The deadline for tests with a reply, however busy the machine is.
    const LATE: Duration = Duration::from_secs(60);

    /// Answers a client's request with `reply`; returns the client and its result.
    fn answered(
        deadline: Duration,
        reply: impl FnOnce(Header, &mut UnixStream) + Send,
    ) -> (Connection, Answer<Vec<u8>>) {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        ours.set_read_timeout(Some(deadline)).expect("timeout");
        let mut connection = Connection::over(ours, deadline);
        let (over, is_over) = channel::<()>();
        let answer = thread::scope(|scope| {
            scope.spawn(move || {
                let mut request = Header::new_zeroed();
                theirs.read_exact(request.as_mut_bytes()).expect("request");
                reply(request, &mut theirs);
                // Keep the socket open until the client has its answer, so that only the reply's content
                // counts.
                is_over.recv().expect_err("nothing is sent");
            });
            let answer = connection.request(Command::DeviceReset, &[]).map(<[u8]>::to_vec);
            drop(over);
            answer
        });
        (connection, answer)
    }

    fn reply_to(request: Header) -> Header {
        Header { flags: FLAG_TYPE_REPLY, ..request }
    }

    fn broken_by(deadline: Duration, reply: impl FnOnce(Header, &mut UnixStream) + Send) -> String {
        let (mut connection, answer) = answered(deadline, reply);
        let Err(Failure::Broken(reason)) = answer else { panic!("accepted: {answer:?}") };
        let again = connection.request(Command::DeviceReset, &[]).map(<[u8]>::to_vec);
        assert_eq!(again, Err(Failure::Broken(reason.clone())), "a broken connection stays so");
        assert!(connection.is_gone());
        reason
    }

    fn send(stream: &mut UnixStream, header: Header, body: &[u8]) {
        stream.write_all(header.as_bytes()).expect("header");
        stream.write_all(body).expect("body");
    }

    #[test]
    fn a_right_reply_is_its_body() {
        let (mut connection, answer) = answered(LATE, |request, stream| {
            send(stream, Header { message_size: 20, ..reply_to(request) }, &[1, 2, 3, 4]);
        });
        assert_eq!(answer, Ok(vec![1, 2, 3, 4]));
        assert!(connection.is_gone(), "the other end was dropped");
    }

    #[test]
    fn a_deadline_of_any_length_is_taken() {
        let (connection, answer) = answered(Duration::MAX, |request, stream| {
            send(stream, reply_to(request), &[]);
        });
        assert_eq!((connection.broken, answer), (None, Ok(Vec::new())));
    }

    #[test]
    fn an_error_reply_is_a_refusal_and_the_connection_lives() {
        let (connection, answer) = answered(LATE, |request, stream| {
            let error = libc::EINVAL as u32;
            let flags = FLAG_TYPE_REPLY | FLAG_ERROR;
            send(stream, Header { flags, error, ..reply_to(request) }, &[]);
        });
        assert_eq!(answer, Err(Failure::Refused(libc::EINVAL)));
        assert_eq!(connection.broken, None);
    }

    #[test]
    fn no_reply_ends_at_the_deadline() {
        assert!(broken_by(SOON, |_, _| ()).contains("within 50 ms"));
    }

    #[test]
    fn bytes_that_trickle_in_do_not_stretch_the_deadline() {
        let started = Instant::now();
        broken_by(SOON, |request, stream| {
            let header = Header { message_size: 1016, ..reply_to(request) };
            stream.write_all(header.as_bytes()).expect("header");
            for _ in 0..10 {
                thread::sleep(SOON / 4);
                // The client may have hung up already.
                let _ = stream.write_all(&[0]);
            }
        });
        assert!(started.elapsed() < 20 * SOON);
    }

    #[test]
    fn lies_in_the_header_break_the_connection() {
        let wrong_id =
            |request: Header| Header { message_id: request.message_id ^ 1, ..reply_to(request) };
        let wrong_command = |request| Header { command: 9, ..reply_to(request) };
        let command_instead = |request| Header { flags: 0, ..reply_to(request) };
        let too_short = |request| Header { message_size: 15, ..reply_to(request) };
        let too_long = |request| Header { message_size: u32::MAX, ..reply_to(request) };
        type Lie = fn(Header) -> Header;
        let lies: [(&str, Lie); 5] = [
            ("instead of", wrong_id),
            ("command 9", wrong_command),
            ("not a reply", command_instead),
            ("15 bytes", too_short),
            ("4294967295 bytes", too_long),
        ];
        for (expected, lie) in lies {
            let reason = broken_by(LATE, |request, stream| send(stream, lie(request), &[]));
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn a_truncated_reply_breaks_the_connection() {
        let reason = broken_by(LATE, |request, stream| {
            send(stream, Header { message_size: 32, ..reply_to(request) }, &[0; 8]);
            stream.shutdown(Shutdown::Write).expect("shutdown");
        });
        assert!(reason.contains("cut short"), "{reason}");
    }

    #[test]
    fn a_closed_socket_breaks_the_connection() {
        let reason =
            broken_by(LATE, |_, stream| stream.shutdown(Shutdown::Both).expect("shutdown"));
        assert!(reason.contains("closed the connection"), "{reason}");
    }
}
