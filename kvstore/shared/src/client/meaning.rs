//! Turns the server's answers into results of calls.

use std::sync::Arc;

use adit_kvstore::shard::{Decline, Outcome};
use adit_kvstore::store::{Lease, ObjectInfo, Removed};
use adit_kvstore::{Error, Key, RefusalKind, ScanPage, Version};
use zerocopy::FromBytes;

use super::kept::{KeptThere, Value};
use super::requests::{Ended, Memory, Needs};
use super::shared::Shared;
use super::{Answer, Put, Read, Unfinished};
use crate::memory::Span;
use crate::wire::{Ask, Code, REMOVED_BYTES, SCAN_END, object_of};

fn lent(memory: Memory) -> Option<Span> {
    match memory {
        Memory::Lent(span) => Some(span),
        Memory::None => None,
        Memory::Pooled(_) => {
            unreachable!("the pool has its memory back, unless it is a value's")
        }
    }
}

/// Returns an answer that is no failure.
fn checked(ended: Ended) -> Answer<(Code, Ended)> {
    let code = Code::of(ended.done.code);
    if !code.is_failure() {
        return Ok((code, ended));
    }
    let error = ended.done.reason().error();
    Err(Unfinished { memory: lent(ended.memory), ..Unfinished::new(error) })
}

/// Returns how an object was stored, from an answer that is no failure.
fn stored(code: Code) -> Outcome {
    match code {
        Code::DeclinedByAdmission => Outcome::Declined(Decline::Admission),
        Code::DeclinedByBudget => Outcome::Declined(Decline::Budget),
        _ => Outcome::Stored,
    }
}

pub(super) fn put(_: &Arc<Shared>, ended: Ended) -> Answer<Put> {
    let (code, ended) = checked(ended)?;
    let outcome = stored(code);
    let version = (outcome == Outcome::Stored).then_some(Version(ended.done.extra));
    Ok(Put { outcome, memory: lent(ended.memory), version })
}

pub(super) fn read(_: &Arc<Shared>, ended: Ended) -> Answer<Read> {
    let (code, ended) = checked(ended)?;
    let is_read = code == Code::Done;
    let bytes = is_read.then_some(ended.done.value);
    let version = is_read.then_some(Version(ended.done.extra));
    Ok(Read { bytes, memory: lent(ended.memory), version })
}

pub(super) fn value(shared: &Arc<Shared>, ended: Ended) -> Answer<Option<Value>> {
    if Code::of(ended.done.code) == Code::Memory {
        let (needs, pool_bytes) = (ended.done.value, shared.options.pool_bytes);
        let why = format!(
            "the object takes {needs} bytes and the client's pool has {pool_bytes}: read it in pieces \
             (Client::reader) or into shared memory (Client::get_into), or raise pool_bytes"
        );
        return Err(Unfinished::new(Error::Refused { kind: RefusalKind::Pool, why }));
    }
    let (_, ended) = checked(ended)?;
    let (Memory::Pooled(span), Needs::Room { wanted, .. }) = (ended.memory, ended.wish.needs)
    else {
        return Ok(None);
    };
    // If the server gives less than the object has, the value is too short.
    let bytes = usize::try_from(ended.done.value).unwrap_or(usize::MAX).min(span.len());
    let end = wanted.end.min(bytes);
    let range = wanted.start.min(end)..end;
    Ok(Some(Value::new(shared, span, range, Version(ended.done.extra))))
}

pub(super) fn info(_: &Arc<Shared>, ended: Ended) -> Answer<Option<ObjectInfo>> {
    let (code, Ended { done, wish, .. }) = checked(ended)?;
    let Ask::Info(key) = &wish.ask else { unreachable!("this is the answer to such a request") };
    if code != Code::Done {
        return Ok(None);
    }
    let told = object_of(done.told(), Some(key)).map(|(info, _)| Some(info));
    let why = "it tells of an object what means nothing".to_owned();
    told.ok_or_else(|| Unfinished::new(Error::Lost { why }))
}

pub(super) fn page(shared: &Arc<Shared>, ended: Ended) -> Answer<ScanPage> {
    let (_, Ended { done, memory, .. }) = checked(ended)?;
    let next = (done.extra != SCAN_END).then_some(done.extra);
    let Memory::Pooled(span) = memory else { return Ok((Vec::new(), next)) };
    let (found, _) = items(shared, span, done.value, |rest| object_of(rest, None));
    Ok((found, next))
}

pub(super) fn removed(shared: &Arc<Shared>, ended: Ended) -> Answer<Removed> {
    let (_, Ended { done, memory, .. }) = checked(ended)?;
    let (next, missed_some) = (done.extra, done.missed != 0);
    let Memory::Pooled(span) = memory else {
        return Ok(Removed { keys: Vec::new(), next, missed_some });
    };
    let (keys, are_all) = items(shared, span, done.value, key_of);
    // Of a page with other bytes, fewer objects are returned.
    Ok(Removed { keys, next, missed_some: missed_some || !are_all })
}

/// Decodes at most `count` items of a page, and returns whether it has as many. Gives the page's memory back: the
/// server may still write it, so only a copy is read.
fn items<T>(
    shared: &Arc<Shared>,
    span: Span,
    count: u64,
    first: impl Fn(&[u8]) -> Option<(T, &[u8])>,
) -> (Vec<T>, bool) {
    let page = span.to_vec();
    shared.give_pooled(span);
    let (mut found, mut rest) = (Vec::new(), &page[..]);
    while (found.len() as u64) < count {
        let Some((item, behind)) = first(rest) else { return (found, false) };
        found.push(item);
        rest = behind;
    }
    (found, true)
}

/// Reads the first removal of the rest of a page.
fn key_of(rest: &[u8]) -> Option<(Key, &[u8])> {
    let (head, rest) = rest.split_first_chunk::<REMOVED_BYTES>()?;
    let (key, behind) = rest.split_at_checked(u16::from_le_bytes(*head).into())?;
    Some((Key::new(key).ok()?, behind))
}

pub(super) fn yes(_: &Arc<Shared>, ended: Ended) -> Answer<bool> {
    Ok(checked(ended)?.1.done.value != 0)
}

pub(super) fn count(_: &Arc<Shared>, ended: Ended) -> Answer<usize> {
    Ok(usize::try_from(checked(ended)?.1.done.value).unwrap_or(usize::MAX))
}

pub(super) fn objects(_: &Arc<Shared>, ended: Ended) -> Answer<u64> {
    Ok(checked(ended)?.1.done.value)
}

/// Returns the room of an object, or why the store declined it.
pub(super) fn writer(shared: &Arc<Shared>, ended: Ended) -> Answer<Result<KeptThere, Decline>> {
    let (code, Ended { done, .. }) = checked(ended)?;
    Ok(match stored(code) {
        Outcome::Declined(why) => Err(why),
        _ => Ok(KeptThere::new(shared, done.value, Ask::Abandon)),
    })
}

pub(super) fn filled(_: &Arc<Shared>, ended: Ended) -> Answer<Span> {
    Ok(lent(checked(ended)?.1.memory).expect("a part that is written gives its memory back"))
}

pub(super) fn outcome(_: &Arc<Shared>, ended: Ended) -> Answer<Outcome> {
    Ok(stored(checked(ended)?.0))
}

pub(super) fn nothing(_: &Arc<Shared>, ended: Ended) -> Answer<()> {
    checked(ended).map(|_| ())
}

pub(super) fn lease(shared: &Arc<Shared>, ended: Ended) -> Answer<Lease> {
    let done = checked(ended)?.1.done;
    let kept = KeptThere::new(shared, done.value, Ask::Release);
    let bytes = u64::read_from_prefix(done.told()).map_or(0, |(bytes, _)| bytes);
    Ok(Lease::served(kept, done.extra as usize, bytes))
}
