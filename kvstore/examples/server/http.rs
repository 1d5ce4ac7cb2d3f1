//! Requests of HTTP as calls of the store's.

use std::io::{Cursor, Read};
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use adit_kvstore::shard::Failure;
use adit_kvstore::store::{PutWith, Unfinished, Value};
use adit_kvstore::{Error, Key, Store};
use tiny_http::{Header, Method, Request, Response, StatusCode};

type Body = Box<dyn Read + Send>;

/// What is answered.
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    /// Where it is not the body's: what HEAD says.
    length: Option<usize>,
    body: Body,
}

/// Why a request was not done: a status, and a sentence.
struct Refusal(u16, String);

impl Reply {
    fn new(status: u16) -> Reply {
        Reply { status, headers: Vec::new(), length: Some(0), body: Box::new(std::io::empty()) }
    }

    fn text(status: u16, text: String) -> Reply {
        let length = Some(text.len());
        let headers = vec![("Content-Type", "text/plain; version=0.0.4".to_owned())];
        Reply { status, headers, length, body: Box::new(Cursor::new(text)) }
    }

    /// The bytes of a value, from the store's memory.
    fn value(status: u16, value: Value) -> Reply {
        let (length, body) = (Some(value.len()), Box::new(Cursor::new(value)));
        let headers = vec![("Accept-Ranges", "bytes".to_owned())];
        Reply { status, headers, length, body }
    }

    fn with(mut self, name: &'static str, value: String) -> Reply {
        self.headers.push((name, value));
        self
    }
}

impl From<Unfinished> for Refusal {
    fn from(unfinished: Unfinished) -> Refusal {
        let error = Error::from(unfinished);
        error.into()
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let status = match &error {
            Error::Key { .. } | Error::Invalid { .. } => 400,
            Error::Failed(Failure::TooLarge { .. }) => 413,
            Error::Failed(Failure::Full | Failure::Quota { .. }) => 507,
            Error::Failed(Failure::Part(_)) => 416,
            _ => 503,
        };
        Refusal(status, error.to_string())
    }
}

/// Answers one request. A client that went away meanwhile is no failure of ours.
pub(crate) fn answer(store: &Store, mut request: Request) {
    let Reply { status, headers, length, body } = route(store, &mut request)
        .unwrap_or_else(|Refusal(status, why)| Reply::text(status, format!("{why}\n")));
    let header = |(name, value): (&str, String)| {
        Header::from_bytes(name.as_bytes(), value.as_bytes()).expect("a header of printable text")
    };
    let headers = headers.into_iter().map(header).collect();
    let response = Response::new(StatusCode(status), headers, body, length, None);
    // Else bodies of no small length would be sent in chunks, without their length.
    let _ = request.respond(response.with_chunked_threshold(usize::MAX));
}

fn route(store: &Store, request: &mut Request) -> Result<Reply, Refusal> {
    let path = request.url().split('?').next().unwrap_or_default().to_owned();
    let method = request.method().clone();
    if let Some(key) = path.strip_prefix("/objects/") {
        let key = Key::new(&decoded(key)?)?;
        return object(store, &method, key, request);
    }
    match (method, path.as_str()) {
        (Method::Get, "/healthz") => {
            store.stats().wait()?;
            Ok(Reply::text(200, "ok\n".to_owned()))
        }
        (Method::Get, "/metrics") => Ok(Reply::text(200, store.prometheus()?)),
        (Method::Post, "/commit") => {
            store.commit().wait()?;
            Ok(Reply::new(204))
        }
        (_, "/healthz" | "/metrics" | "/commit") => Err(not_allowed()),
        _ => Err(Refusal(404, "there are /objects/{key}, /commit, /metrics, /healthz".to_owned())),
    }
}

fn not_allowed() -> Refusal {
    Refusal(405, "this is not done with such a request".to_owned())
}

fn object(
    store: &Store,
    method: &Method,
    key: Key,
    request: &mut Request,
) -> Result<Reply, Refusal> {
    match method {
        Method::Put => put(store, key, request),
        Method::Get => get(store, key, header(request, "Range")),
        Method::Head => {
            let info = store.info(key).wait()?.ok_or_else(missing)?;
            let length = Some(info.bytes as usize);
            Ok(Reply { length, ..Reply::new(200) }.with("Accept-Ranges", "bytes".to_owned()))
        }
        Method::Delete if store.delete(key).wait()? => Ok(Reply::new(204)),
        Method::Delete => Err(missing()),
        _ => Err(not_allowed()),
    }
}

fn missing() -> Refusal {
    Refusal(404, "there is no such object".to_owned())
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let is_it = |header: &&Header| header.field.as_str().as_str().eq_ignore_ascii_case(name);
    let found = request.headers().iter().find(is_it);
    found.map(|header| header.value.as_str())
}

/// The body goes straight into memory that the device reads.
fn put(store: &Store, key: Key, request: &mut Request) -> Result<Reply, Refusal> {
    let length = request.body_length();
    let bytes = length.ok_or_else(|| Refusal(411, "say how long the body is".to_owned()))?;
    let ttl = match header(request, "X-Ttl-Seconds").map(u64::from_str) {
        None => None,
        Some(Ok(seconds)) => Some(Duration::from_secs(seconds)),
        Some(Err(_)) => return Err(Refusal(400, "X-Ttl-Seconds is a whole number".to_owned())),
    };
    let mut buffer = store.buffer(bytes)?;
    let cut_off = |why: std::io::Error| Refusal(400, format!("the body ended early: {why}"));
    request.as_reader().read_exact(&mut buffer).map_err(cut_off)?;
    let put = store.put_with(key, buffer, &PutWith { ttl, ..PutWith::default() }).wait()?;
    if put.is_stored() {
        Ok(Reply::new(201))
    } else {
        Err(Refusal(503, "the store declined it: it writes less today".to_owned()))
    }
}

fn get(store: &Store, key: Key, range: Option<&str>) -> Result<Reply, Refusal> {
    let Some(wanted) = range.and_then(Wanted::parse) else {
        return Ok(Reply::value(200, store.get(key).wait()?.ok_or_else(missing)?));
    };
    let bytes = store.info(key.clone()).wait()?.ok_or_else(missing)?.bytes;
    let Some(range) = wanted.of(bytes) else {
        let refused = Reply::text(416, "the object ends before the range begins\n".to_owned());
        return Ok(refused.with("Content-Range", format!("bytes */{bytes}")));
    };
    let start = range.start;
    let value = store.get_range(key, range).wait()?.ok_or_else(missing)?;
    let (end, all) = (start + value.len() as u64 - 1, value.object_bytes());
    Ok(Reply::value(206, value).with("Content-Range", format!("bytes {start}-{end}/{all}")))
}

/// A range of bytes as a request names it.
enum Wanted {
    From(u64),
    FromTo(u64, u64),
    Last(u64),
}

impl Wanted {
    /// One range of bytes; nothing for what is another, or several: then all is sent, as it may be.
    fn parse(text: &str) -> Option<Wanted> {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        match (first.parse().ok(), last.parse().ok()) {
            (Some(first), Some(last)) if first <= last => Some(Wanted::FromTo(first, last)),
            (Some(first), None) if last.is_empty() => Some(Wanted::From(first)),
            (None, Some(count)) if first.is_empty() => Some(Wanted::Last(count)),
            _ => None,
        }
    }

    /// Which bytes of an object these are, if any.
    fn of(&self, bytes: u64) -> Option<Range<u64>> {
        let range = match *self {
            Wanted::From(first) => first..bytes,
            Wanted::FromTo(first, last) => first..last.saturating_add(1).min(bytes),
            Wanted::Last(count) => bytes.saturating_sub(count)..bytes,
        };
        (range.start < range.end).then_some(range)
    }
}

/// A key as it stands in a path: `%41` is `A`.
fn decoded(text: &str) -> Result<Vec<u8>, Refusal> {
    let bad = || Refusal(400, "a '%' in a key is followed by two digits of hexadecimal".to_owned());
    let mut key = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            key.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
        key.push((high << 4 | low) as u8);
    }
    Ok(key)
}
