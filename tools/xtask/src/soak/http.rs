//! A connection to a server under test, which carries one request after another.
//!
//! It understands what the example server sends: a status, and a body whose length is in the head.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long a server may take for each part of an answer.
const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// A connection that its server keeps open.
pub(super) struct Connection(BufReader<TcpStream>);

/// The answer to a request.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// Whether the server takes another request on this connection.
    pub(super) is_kept: bool,
}

impl Connection {
    /// Connects to `address`, a host and a port.
    ///
    /// # Errors
    /// If the server is gone.
    pub(super) fn open(address: &str) -> Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection(BufReader::new(stream)))
    }

    /// Sends a request and waits for its answer. `headers` end with a line break each.
    ///
    /// # Errors
    /// If the server goes, takes too long, or sends what is no whole answer. The connection is then of no more use.
    pub(super) fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Result<Answer> {
        let stream = self.0.get_mut();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {length}\r\n{headers}\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let invalid = |what: &str| Error::new(ErrorKind::InvalidData, what);
        let status = self.line()?.split(' ').nth(1).and_then(|word| word.parse().ok());
        let mut answer = Answer { status: 0, body: Vec::new(), is_kept: true };
        answer.status = status.ok_or_else(|| invalid("no status"))?;
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                Some(("Content-Length", bytes)) => {
                    let bytes = bytes.parse().ok().filter(|bytes| *bytes <= ANSWER_BYTES_MAX);
                    answer.body = vec![0; bytes.ok_or_else(|| invalid("no length"))?];
                }
                Some(("Connection", "close")) => answer.is_kept = false,
                _ if line.is_empty() => break,
                _ => {}
            }
        }
        self.0.read_exact(&mut answer.body)?;
        Ok(answer)
    }

    /// Reads a line of a head.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Sends `answers` to a client, one for each request without a body, and returns what it made of them.
    fn ask(answers: &'static [&str]) -> Vec<Result<Answer>> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens").to_string();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            let mut stream = BufReader::new(stream);
            for answer in answers {
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    stream.read_line(&mut line).expect("a request");
                }
                stream.get_mut().write_all(answer.as_bytes()).expect("the client listens");
            }
        });
        let mut connection = Connection::open(&address).expect("the server listens");
        let asked = answers.iter().map(|_| connection.ask("GET", "/objects/1", "", &[])).collect();
        server.join().expect("it only sends");
        asked
    }

    #[test]
    fn answers_come_one_after_another_with_their_bodies() {
        let answers = ask(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Other: 1\r\n\r\nabc",
            "HTTP/1.1 507 Refused\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ]);
        let answers = answers.into_iter().map(|answer| answer.expect("a whole answer"));
        let told: Vec<_> = answers.map(|it| (it.status, it.body, it.is_kept)).collect();
        assert_eq!(told, [(200, b"abc".to_vec(), true), (507, Vec::new(), false)]);
    }

    #[test]
    fn an_answer_that_is_cut_off_or_has_no_sense_is_none() {
        for answer in [
            &["HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"][..],
            &["HTTP/1.1 200 OK\r\nContent-"],
            &["HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"],
            &["HTTP/1.1\r\n\r\n"],
            &[""],
        ] {
            assert!(ask(answer)[0].is_err(), "{answer:?}");
        }
    }
}
