//! HTTP requests as calls of the store.

use std::collections::BTreeMap;
use std::io::{Cursor, ErrorKind};
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use adit_kvstore::shard::{Condition, Failure, Outcome};
use adit_kvstore::store::{DefinedLayout, LayoutConfig, PutWith, Unfinished, Value};
use adit_kvstore::{Error, Key, Store, Version};

use crate::connection::{Answer, Body, Head};

/// Bytes from which an object passes through the store's memory in pieces.
const LONG_BYTES: u64 = 8 << 20;

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
        let etag = etag(value.version());
        let (length, body) = (value.len(), Box::new(Cursor::new(value)));
        let headers = vec![("Accept-Ranges", "bytes".to_owned()), ("ETag", etag)];
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
            Error::Failed(Failure::Conflict { .. }) => 412,
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

/// The state that connections share.
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
        "GET" => get(store, key, head),
        "HEAD" => {
            let info = store.info(key).wait()?.ok_or_else(missing)?;
            let answer = Answer { length: info.bytes as usize, ..Answer::new(200) };
            let answer = answer.with("Accept-Ranges", "bytes".to_owned());
            Ok(answer.with("ETag", etag(info.version)))
        }
        "DELETE" => {
            let is_gone = match version(head, "If-Match")? {
                Some(version) => store.delete_if(key, version).wait()?,
                None => store.delete(key).wait()?,
            };
            if is_gone { Ok(Answer::new(204)) } else { Err(missing()) }
        }
        _ => Err(not_allowed()),
    }
}

fn missing() -> Refusal {
    Refusal(404, "there is no such object".to_owned())
}

/// Returns an object's version as HTTP names it.
fn etag(version: Version) -> String {
    format!("\"{version}\"")
}

/// Reads the version in a header.
fn version(head: &Head, name: &str) -> Result<Option<Version>, Refusal> {
    let Some(text) = head.header(name) else { return Ok(None) };
    let version = text.trim().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let version = version.and_then(|text| text.parse().ok());
    let refused = || Refusal(400, format!("{name} is one ETag of this server's, in quotes"));
    version.map(Some).ok_or_else(refused)
}

/// Returns what a put's headers ask of the object that is there.
fn condition(head: &Head) -> Result<Condition, Refusal> {
    match head.header("If-None-Match") {
        None => Ok(version(head, "If-Match")?.map_or(Condition::Always, Condition::Version)),
        Some(any) if any.trim() == "*" => Ok(Condition::Absent),
        Some(_) => Err(Refusal(400, "If-None-Match of a put is *".to_owned())),
    }
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
    let (layout, condition) = (layouts.of(head)?, condition(head)?);
    let with = PutWith { ttl, layout, condition, ..PutWith::default() };
    if bytes as u64 > LONG_BYTES {
        let put = store.put_from(key.clone(), Some(bytes as u64), &mut *body, &with)?;
        let stored = if put == Outcome::Stored { store.info(key).wait()? } else { None };
        return stored
            .map(|info| Answer::new(201).with("ETag", etag(info.version)))
            .ok_or_else(declined);
    }
    let mut buffer = store.buffer(bytes).wait()?;
    body.begin();
    let cut_off = |why: std::io::Error| match why.kind() {
        ErrorKind::TimedOut => Refusal(408, "the body took too long: send it faster".to_owned()),
        _ => Refusal(400, format!("the body ended early: {why}")),
    };
    body.read_exact(&mut buffer).map_err(cut_off)?;
    let put = store.put_with(key, buffer, &with).wait()?;
    match put.version {
        Some(version) => Ok(Answer::new(201).with("ETag", etag(version))),
        None => Err(declined()),
    }
}

fn declined() -> Refusal {
    Refusal(503, "the store declined it: it writes less today".to_owned())
}

/// Returns an object or a range of it. A range is of the version whose length it was cut to.
fn get(store: &Store, key: Key, head: &Head) -> Result<Answer, Refusal> {
    let (matched, ranged) = (version(head, "If-Match")?, version(head, "If-Range")?);
    let Some(wanted) = head.header("Range").and_then(Wanted::parse) else {
        return whole(store, key, matched);
    };
    loop {
        let info = store.info(key.clone()).wait()?.ok_or_else(missing)?;
        if ranged.is_some_and(|ranged| ranged != info.version) {
            // The client's part is of another object.
            return whole(store, key, matched);
        }
        let Some(range) = wanted.of(info.bytes) else {
            let refused = Answer::text(416, "the object ends before the range begins\n".to_owned());
            return Ok(refused.with("Content-Range", format!("bytes */{}", info.bytes)));
        };
        if range.end - range.start > LONG_BYTES {
            return in_pieces(store, key, Some(wanted), matched);
        }
        let start = range.start;
        let read = store.get_range_if(key.clone(), range, matched.unwrap_or(info.version)).wait();
        let value = match read {
            Ok(value) => value.ok_or_else(missing)?,
            // It was replaced since, and the client did not ask for a version.
            Err(why) if is_conflict(&why) && matched.is_none() => continue,
            Err(why) => return Err(why.into()),
        };
        let (end, all) = (start + value.len() as u64 - 1, value.object_bytes());
        let sent = format!("bytes {start}-{end}/{all}");
        return Ok(Answer::value(206, value).with("Content-Range", sent));
    }
}

fn is_conflict(why: &Unfinished) -> bool {
    matches!(why.failure(), Some(Failure::Conflict { .. }))
}

fn whole(store: &Store, key: Key, matched: Option<Version>) -> Result<Answer, Refusal> {
    let value = match store.get(key.clone()).wait().map_err(Error::from) {
        // It is longer than the pool, perhaps.
        Err(Error::Invalid { .. }) => return in_pieces(store, key, None, matched),
        value => value?.ok_or_else(missing)?,
    };
    check(matched, value.version())?;
    Ok(Answer::value(200, value))
}

fn check(matched: Option<Version>, found: Version) -> Result<(), Refusal> {
    if matched.is_some_and(|matched| matched != found) {
        return Err(Refusal(412, format!("the object has the ETag {}", etag(found))));
    }
    Ok(())
}

/// Returns an object of any length or a range of it, of one version, while it is read.
fn in_pieces(
    store: &Store,
    key: Key,
    wanted: Option<Wanted>,
    matched: Option<Version>,
) -> Result<Answer, Refusal> {
    let mut reader = store.reader(key).wait()?.ok_or_else(missing)?;
    let (all, version) = (reader.object_bytes(), reader.version());
    check(matched, version)?;
    // Another version than the one whose length was looked at may be shorter.
    let range =
        wanted.as_ref().map_or(Some(0..all), |wanted| wanted.of(all)).ok_or_else(missing)?;
    let status = if wanted.is_some() { 206 } else { 200 };
    let sent = wanted.map(|_| format!("bytes {}-{}/{all}", range.start, range.end - 1));
    let mut headers = vec![("Accept-Ranges", "bytes".to_owned()), ("ETag", etag(version))];
    headers.extend(sent.map(|sent| ("Content-Range", sent)));
    let length = (range.end - range.start) as usize;
    reader.set_range(range);
    Ok(Answer { status, headers, length, body: Box::new(reader) })
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
