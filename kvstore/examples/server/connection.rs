//! One client's connection: reads requests and writes answers, within a deadline.
//!
//! A client that stops in the middle of a request or an answer holds its thread and the store's memory only until the
//! deadline: [`Limits::timeout`] for a head, and the same again for each begun 16 MiB of a body or an answer.
//! Progress in small pieces does not extend it.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a waiting connection checks whether to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum length of a request's head in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum headers of a request.
const HEADERS_MAX: usize = 64;
/// Bytes for which a client gets another timeout.
const BYTES_PER_TIMEOUT: usize = 16 << 20;
/// Limit of unwanted body bytes to read, so that the client receives the answer.
const DRAINED_BYTES_MAX: usize = 1 << 20;
/// Bytes per write.
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    /// Time for a head, and for each begun 16 MiB of a body or an answer.
    pub(crate) timeout: Duration,
    /// Whether the server is stopping.
    pub(crate) stops: &'a AtomicBool,
}

pub(crate) struct Connection<'a> {
    stream: TcpStream,
    limits: Limits<'a>,
    /// Bytes read beyond the head.
    ahead: Vec<u8>,
}

/// A request without its body.
pub(crate) struct Head {
    /// For example `GET`.
    pub(crate) method: String,
    /// With the query, if any.
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    is_1_1: bool,
}

/// The body of a request, as it arrives.
pub(crate) struct Body<'a, 'b> {
    connection: &'a mut Connection<'b>,
    /// Bytes still to come.
    left: usize,
    until: Instant,
    /// Whether the client waits for `100 Continue`.
    is_awaited: bool,
}

impl Head {
    /// Returns a header by its name, ignoring case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the length of the body in bytes, or `None` if the request does not state it.
    ///
    /// # Errors
    /// If it is not a number, is too large, or is given twice: then the start of the next request is unknown.
    pub(crate) fn body_bytes(&self) -> std::result::Result<Option<usize>, String> {
        let is_length = |name: &str| name.eq_ignore_ascii_case("Content-Length");
        let mut said = None;
        for (_, value) in self.headers.iter().filter(|(name, _)| is_length(name)) {
            // The number parser accepts a sign; HTTP does not.
            let digits = Some(value.trim()).filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
            let bytes = digits.and_then(|digits| digits.parse().ok());
            let bytes = bytes.ok_or("Content-Length is a number of bytes")?;
            if said.is_some_and(|said| said != bytes) {
                return Err("there are two lengths: send one Content-Length".to_owned());
            }
            said = Some(bytes);
        }
        Ok(said)
    }

    /// Returns whether another request may follow.
    fn is_kept(&self) -> bool {
        let is_closed = self.header("Connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
        let is_length_known =
            self.body_bytes().is_ok() && self.header("Transfer-Encoding").is_none();
        self.is_1_1 && !is_closed && is_length_known
    }

    /// Parses the head in `bytes` and returns its length, or `None` if it is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let bad = |why: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidData, why.to_string());
        let httparse::Status::Complete(len) = request.parse(bytes).map_err(|why| bad(&why))? else {
            return Ok(None);
        };
        let header = |header: &httparse::Header<'_>| {
            let value = str::from_utf8(header.value).map_err(|why| bad(&why))?;
            Ok((header.name.to_owned(), value.to_owned()))
        };
        let headers = request.headers.iter().map(header).collect::<Result<_>>()?;
        let (method, path) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
        let is_1_1 = request.version == Some(1);
        Ok(Some((Head { method: method.to_owned(), path: path.to_owned(), headers, is_1_1 }, len)))
    }
}

impl<'a> Connection<'a> {
    /// Wraps a client's connection.
    ///
    /// # Errors
    /// If the client is already gone.
    pub(crate) fn new(stream: TcpStream, limits: Limits<'a>) -> Result<Connection<'a>> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(LOOK))?;
        Ok(Connection { stream, limits, ahead: Vec::new() })
    }

    /// Reads requests and sends the answers of `answer`, until the client or the server is done.
    ///
    /// # Errors
    /// The reason, if it ends before the client is done.
    pub(crate) fn serve(
        mut self,
        mut answer: impl FnMut(&Head, &mut Body<'_, 'a>) -> Answer,
    ) -> Result<()> {
        while let Some(head) = self.head()? {
            let (left, until) = (head.body_bytes().ok().flatten().unwrap_or(0), self.until(0));
            let is_awaited = head.header("Expect").is_some();
            let mut body = Body { connection: &mut self, left, until, is_awaited };
            body.until = body.connection.until(left);
            let answer = answer(&head, &mut body);
            let is_kept = head.is_kept() && body.drain();
            self.send(answer, is_kept, head.method == "HEAD")?;
            if !is_kept {
                break;
            }
        }
        Ok(())
    }

    /// Returns the deadline of a client for `bytes`.
    fn until(&self, bytes: usize) -> Instant {
        let times = 1 + (bytes / BYTES_PER_TIMEOUT).min(1 << 20) as u32;
        Instant::now() + self.limits.timeout * times
    }

    /// Reads the next request, or returns `None` if the client is done.
    fn head(&mut self) -> Result<Option<Head>> {
        let until = self.until(0);
        let mut room = [0; 4096];
        loop {
            if let Some((head, len)) = Head::parse(&self.ahead)? {
                self.ahead.drain(..len);
                return Ok(Some(head));
            }
            if self.ahead.len() > HEAD_BYTES_MAX {
                return Err(Error::new(
                    ErrorKind::InvalidData,
                    "the head of a request is too long",
                ));
            }
            match self.receive(&mut room, until)? {
                0 if self.ahead.is_empty() => return Ok(None),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.ahead.extend_from_slice(&room[..count]),
            }
        }
    }

    /// Waits for data from the client; returns 0 at its end.
    fn receive(&mut self, into: &mut [u8], until: Instant) -> Result<usize> {
        loop {
            match self.stream.read(into) {
                Err(why) if is_early(&why) => self.check(until)?,
                other => return other,
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8], until: Instant) -> Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(why) if is_early(&why) => {}
                Err(why) => return Err(why),
            }
            self.check(until)?;
        }
        Ok(())
    }

    /// Fails if the deadline has passed or the server is stopping.
    fn check(&self, until: Instant) -> Result<()> {
        if Instant::now() >= until || self.limits.stops.load(Ordering::Relaxed) {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Sends an answer; only its head for a HEAD request.
    fn send(&mut self, answer: Answer, is_kept: bool, is_head: bool) -> Result<()> {
        let Answer { status, headers, length, mut body } = answer;
        let until = self.until(length);
        let reason = if status < 400 { "OK" } else { "Refused" };
        let mut head = format!("HTTP/1.1 {status} {reason}\r\nContent-Length: {length}\r\n");
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        head += if is_kept { "\r\n" } else { "Connection: close\r\n\r\n" };
        self.write(head.as_bytes(), until)?;
        let mut room = vec![0; if is_head { 0 } else { length.min(CHUNK_BYTES) }];
        loop {
            match body.read(&mut room)? {
                0 => return Ok(()),
                count => self.write(&room[..count], until)?,
            }
        }
    }
}

pub(crate) struct Answer {
    /// For example 200.
    pub(crate) status: u16,
    /// Names and values.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Bytes of the body; for HEAD, of the body that GET would return.
    pub(crate) length: usize,
    pub(crate) body: Box<dyn Read + Send>,
}

impl Body<'_, '_> {
    /// Restarts the client's deadline: until now the server was not ready.
    pub(crate) fn begin(&mut self) {
        self.until = self.connection.until(self.left);
    }

    /// Reads exactly as much as `into` holds.
    ///
    /// # Errors
    /// If the client ends early, or takes too long.
    pub(crate) fn read_exact(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            let count = Read::read(self, into)?;
            into = &mut into[count..];
        }
        Ok(())
    }

    /// Reads some of the body; fails at its end.
    fn some(&mut self, into: &mut [u8]) -> Result<usize> {
        let ahead = &mut self.connection.ahead;
        let most = into.len().min(self.left);
        let count = if ahead.is_empty() {
            self.connection.check(self.until)?;
            self.connection.receive(&mut into[..most], self.until)?
        } else {
            let count = most.min(ahead.len());
            into[..count].copy_from_slice(&ahead[..count]);
            ahead.drain(..count);
            count
        };
        self.left -= count;
        if count == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(count) }
    }

    /// Reads an unwanted body. Returns false if it is too long or does not arrive.
    fn drain(&mut self) -> bool {
        let mut room = [0; 4096];
        while self.left > 0 && self.left <= DRAINED_BYTES_MAX && !self.is_awaited {
            if self.some(&mut room).is_err() {
                return false;
            }
        }
        self.left == 0
    }
}

/// Asks a client that waits for that to send the body.
impl Read for Body<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if std::mem::take(&mut self.is_awaited) {
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n", self.until)?;
        }
        self.some(into)
    }
}

/// Returns whether no data was available yet.
fn is_early(why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
