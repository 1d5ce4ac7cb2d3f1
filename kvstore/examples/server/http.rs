//! HTTP requests as calls of the store.

use std::collections::BTreeMap;
use std::io::{Cursor, ErrorKind};
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use adit_kvstore::shard::Failure;
use adit_kvstore::store::{DefinedLayout, LayoutConfig, PutWith, Unfinished, Value};
use adit_kvstore::{Error, Key, Store};

use crate::connection::{Answer, Body, Head};

/// A failed request: a status and a sentence.
struct Refusal(u16, String);

impl Answer {
    fn new(status: u16) -> Answer {
        Answer { status, headers: Vec::new(), length: 0, body: Box::new(std::io::empty()) }
    }

    fn text(status: u16, text: String) -> Answer {
        let headers = vec![("Content-Type", "text/plain; version=0.0.4".to_owned())];
        Answer { status, headers, length: text.len(), body: Box::new(Cursor::new(text)) }
    }

    /// Answers with a value, straight from the store's memory.
    fn value(status: u16, value: Value) -> Answer {
        let (length, body) = (value.len(), Box::new(Cursor::new(value)));
        let headers = vec![("Accept-Ranges", "bytes".to_owned())];
        Answer { status, headers, length, body }
    }

    fn with(mut self, name: &'static str, value: String) -> Answer {
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
            Error::Key { .. } | Error::Invalid { .. } | Error::Failed(Failure::Memory { .. }) => {
                400
            }
            Error::Failed(Failure::TooLarge { .. }) => 413,
            Error::Failed(Failure::Full | Failure::Quota { .. } | Failure::NoSpace { .. }) => 507,
            Error::Failed(Failure::Part(_)) => 416,
            _ => 503,
        };
        Refusal(status, error.to_string())
    }
}

/// The layouts of KV blocks, by the name that a request gives.
pub(crate) struct Layouts(BTreeMap<String, DefinedLayout>);

impl Layouts {
    /// Defines the layouts of the configuration in the store, where they persist.
    pub(crate) fn define(
        store: &Store,
        config: &BTreeMap<String, LayoutConfig>,
    ) -> Result<Layouts, Error> {
        let define = |(name, layout): (&String, &LayoutConfig)| {
            Ok((name.clone(), store.layout(layout.layout()?).wait()?))
        };
        Ok(Layouts(config.iter().map(define).collect::<Result<_, Error>>()?))
    }

    fn of(&self, head: &Head) -> Result<Option<DefinedLayout>, Refusal> {
        let Some(name) = head.header("X-Layout") else { return Ok(None) };
        let unknown = || {
            Refusal(
                400,
                format!("there is no layout '{name}': add it to the configuration's [layouts]"),
            )
        };
        self.0.get(name).cloned().map(Some).ok_or_else(unknown)
    }
}

/// What the connections share.
pub(crate) struct Service {
    pub(crate) store: Store,
    pub(crate) layouts: Layouts,
}

impl Service {
    pub(crate) fn answer(&self, head: &Head, body: &mut Body<'_, '_>) -> Answer {
        route(self, head, body)
            .unwrap_or_else(|Refusal(status, why)| Answer::text(status, format!("{why}\n")))
    }
}

fn route(service: &Service, head: &Head, body: &mut Body<'_, '_>) -> Result<Answer, Refusal> {
    let store = &service.store;
    let length = head.body_bytes().map_err(|why| Refusal(400, why))?;
    let path = head.path.split('?').next().unwrap_or_default();
    if let Some(key) = path.strip_prefix("/objects/") {
        let key = Key::new(&decoded(key)?)?;
        return object(service, key, (head, length), body);
    }
    match (head.method.as_str(), path) {
        ("GET", "/healthz") => {
            store.stats().wait()?;
            Ok(Answer::text(200, "ok\n".to_owned()))
        }
        ("GET", "/metrics") => Ok(Answer::text(200, store.prometheus().wait()?)),
        ("POST", "/commit") => {
            store.commit().wait()?;
            Ok(Answer::new(204))
        }
        (_, "/healthz" | "/metrics" | "/commit") => Err(not_allowed()),
        _ => Err(Refusal(404, "there are /objects/{key}, /commit, /metrics, /healthz".to_owned())),
    }
}

fn not_allowed() -> Refusal {
    Refusal(405, "this is not done with such a request".to_owned())
}

fn object(
    service: &Service,
    key: Key,
    (head, length): (&Head, Option<usize>),
    body: &mut Body<'_, '_>,
) -> Result<Answer, Refusal> {
    let store = &service.store;
    match head.method.as_str() {
        "PUT" => put(service, key, (head, length), body),
        "GET" => get(store, key, head.header("Range")),
        "HEAD" => {
            let info = store.info(key).wait()?.ok_or_else(missing)?;
            let length = info.bytes as usize;
            Ok(Answer { length, ..Answer::new(200) }.with("Accept-Ranges", "bytes".to_owned()))
        }
        "DELETE" if store.delete(key).wait()? => Ok(Answer::new(204)),
        "DELETE" => Err(missing()),
        _ => Err(not_allowed()),
    }
}

fn missing() -> Refusal {
    Refusal(404, "there is no such object".to_owned())
}

/// Stores the body, read straight into memory that the device reads.
fn put(
    Service { store, layouts }: &Service,
    key: Key,
    (head, length): (&Head, Option<usize>),
    body: &mut Body<'_, '_>,
) -> Result<Answer, Refusal> {
    let bytes = length.ok_or_else(|| Refusal(411, "say how long the body is".to_owned()))?;
    let ttl = match head.header("X-Ttl-Seconds").map(u64::from_str) {
        None => None,
        Some(Ok(seconds)) => Some(Duration::from_secs(seconds)),
        Some(Err(_)) => return Err(Refusal(400, "X-Ttl-Seconds is a whole number".to_owned())),
    };
    let with = PutWith { ttl, layout: layouts.of(head)?, ..PutWith::default() };
    let mut buffer = store.buffer(bytes).wait()?;
    body.begin();
    let cut_off = |why: std::io::Error| match why.kind() {
        ErrorKind::TimedOut => Refusal(408, "the body took too long: send it faster".to_owned()),
        _ => Refusal(400, format!("the body ended early: {why}")),
    };
    body.read_exact(&mut buffer).map_err(cut_off)?;
    let put = store.put_with(key, buffer, &with).wait()?;
    if put.is_stored() {
        Ok(Answer::new(201))
    } else {
        Err(Refusal(503, "the store declined it: it writes less today".to_owned()))
    }
}

fn get(store: &Store, key: Key, range: Option<&str>) -> Result<Answer, Refusal> {
    let Some(wanted) = range.and_then(Wanted::parse) else {
        return Ok(Answer::value(200, store.get(key).wait()?.ok_or_else(missing)?));
    };
    let bytes = store.info(key.clone()).wait()?.ok_or_else(missing)?.bytes;
    let Some(range) = wanted.of(bytes) else {
        let refused = Answer::text(416, "the object ends before the range begins\n".to_owned());
        return Ok(refused.with("Content-Range", format!("bytes */{bytes}")));
    };
    let start = range.start;
    let value = store.get_range(key, range).wait()?.ok_or_else(missing)?;
    let (end, all) = (start + value.len() as u64 - 1, value.object_bytes());
    Ok(Answer::value(206, value).with("Content-Range", format!("bytes {start}-{end}/{all}")))
}

/// A byte range as a request states it.
enum Wanted {
    From(u64),
    FromTo(u64, u64),
    Last(u64),
}

impl Wanted {
    /// Parses a single byte range. Returns `None` for anything else, including several ranges: the whole object may
    /// then be sent.
    fn parse(text: &str) -> Option<Wanted> {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        match (first.parse().ok(), last.parse().ok()) {
            (Some(first), Some(last)) if first <= last => Some(Wanted::FromTo(first, last)),
            (Some(first), None) if last.is_empty() => Some(Wanted::From(first)),
            (None, Some(count)) if first.is_empty() => Some(Wanted::Last(count)),
            _ => None,
        }
    }

    /// Returns the bytes of an object in this range, if any.
    fn of(&self, bytes: u64) -> Option<Range<u64>> {
        let range = match *self {
            Wanted::From(first) => first..bytes,
            Wanted::FromTo(first, last) => first..last.saturating_add(1).min(bytes),
            Wanted::Last(count) => bytes.saturating_sub(count)..bytes,
        };
        (range.start < range.end).then_some(range)
    }
}

/// Decodes a key in a path: `%41` is `A`.
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
