//! What answers mean to callers.

use std::sync::Arc;

use adit_kvstore::store::Removed;
use adit_kvstore::{Key, UNIT_BYTES, Version};

use super::pending::Answer;
use super::shared::Shared;
use super::state::{Ended, Memory};
use super::streams::{Outline, SharedWriter};
use super::{Info, Lease, Put, Read, Scanned, Value};
use crate::error::{Error, Unfinished};
use crate::memory::Span;
use crate::wire::{Code, NEVER_S, REMOVED_BYTES, SCAN_END, SCANNED_BYTES};

fn failed(ended: Ended) -> Unfinished {
    let Ended { done, memory, is_lost, .. } = ended;
    let (code, text, value) = (Code::of(done.code), done.text(), done.value);
    let is_found = code == Code::Conflict && done.extra == 1;
    let found = is_found.then_some(Version(value));
    // A server whose store has ended ends, too.
    let error = match is_lost || code == Code::Closed {
        true => Error::Lost { why: text },
        false => Error::Refused { code, text, value, found },
    };
    Unfinished { memory: lent(memory), ..Unfinished::new(error) }
}

fn lent(memory: Memory) -> Option<Span> {
    match memory {
        Memory::Lent(span) => Some(span),
        Memory::None => None,
        Memory::Pooled(_) => {
            unreachable!("the pool has its memory back, unless it is a value's")
        }
    }
}

/// Passes on what did not fail.
fn checked(ended: Ended) -> Answer<(Code, Ended)> {
    let code = Code::of(ended.done.code);
    if code.is_failure() || ended.is_lost { Err(failed(ended)) } else { Ok((code, ended)) }
}

pub(super) fn put(_: &Arc<Shared>, ended: Ended) -> Answer<Put> {
    let (code, ended) = checked(ended)?;
    let is_stored = code == Code::Done;
    let version = is_stored.then_some(Version(ended.done.extra));
    Ok(Put { is_stored, memory: lent(ended.memory), version })
}

pub(super) fn read(_: &Arc<Shared>, ended: Ended) -> Answer<Read> {
    let (code, ended) = checked(ended)?;
    let is_read = code == Code::Done;
    let bytes = is_read.then_some(ended.done.value);
    let version = is_read.then_some(Version(ended.done.extra));
    let memory = lent(ended.memory).expect("a read that ends gives its memory back");
    Ok(Read { bytes, memory, version })
}

pub(super) fn value(shared: &Arc<Shared>, mut ended: Ended) -> Answer<Option<Value>> {
    if Code::of(ended.done.code) == Code::Memory && !ended.is_lost {
        let (needs, pool_bytes) = (ended.done.value, shared.options().pool_bytes);
        ended.done = ended.done.with_text(&format!(
            "the object takes {needs} bytes and the client's pool has {pool_bytes}: read it in pieces (Client::reader) or \
             into shared memory (Client::get_into), or raise pool_bytes"
        ));
    }
    let (_, ended) = checked(ended)?;
    let Memory::Pooled(span) = ended.memory else { return Ok(None) };
    let bytes = usize::try_from(ended.done.value).unwrap_or(usize::MAX).min(span.len());
    let (shared, version) = (Arc::clone(shared), Version(ended.done.extra));
    Ok(Some(Value { shared, span: Some(span), bytes, version }))
}

pub(super) fn info(_: &Arc<Shared>, ended: Ended) -> Answer<Option<Info>> {
    let (code, Ended { done, .. }) = checked(ended)?;
    Ok((code == Code::Done).then(|| Info {
        bytes: done.value,
        version: Version(done.extra),
        ttl_s: (done.ttl_s != NEVER_S).then_some(done.ttl_s.into()),
        tenant: done.text(),
    }))
}

pub(super) fn page(shared: &Arc<Shared>, ended: Ended) -> Answer<(Vec<Scanned>, Option<u64>)> {
    let (_, Ended { done, memory, .. }) = checked(ended)?;
    let next = (done.extra != SCAN_END).then_some(done.extra);
    let Memory::Pooled(span) = memory else { return Ok((Vec::new(), next)) };
    // Of what a server still writes, only a copy can be read: one that is not a page has fewer objects.
    let page = span.to_vec();
    let (mut found, mut rest) = (Vec::new(), &page[..]);
    for _ in 0..done.value {
        let Some((object, behind)) = scanned(rest) else { break };
        found.push(object);
        rest = behind;
    }
    shared.with(|state| {
        state.give_pooled(span);
        state.turn();
    });
    Ok((found, next))
}

/// Reads the first object of the rest of a page.
fn scanned(rest: &[u8]) -> Option<(Scanned, &[u8])> {
    let (head, rest) = rest.split_at_checked(SCANNED_BYTES)?;
    let word = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
    let key_bytes = u16::from_le_bytes(head[16..].try_into().ok()?);
    let (key, behind) = rest.split_at_checked(key_bytes.into())?;
    let (bytes, version) = (word(0)?, Version(word(8)?));
    Some((Scanned { key: Key::new(key).ok()?, bytes, version }, behind))
}

pub(super) fn removed(shared: &Arc<Shared>, ended: Ended) -> Answer<Removed> {
    let (_, Ended { done, memory, .. }) = checked(ended)?;
    let mut removed = Removed { keys: Vec::new(), next: done.extra, missed_some: done.ttl_s != 0 };
    let Memory::Pooled(span) = memory else { return Ok(removed) };
    // As in `page`.
    let page = span.to_vec();
    let mut rest = &page[..];
    for _ in 0..done.value {
        let Some((key, behind)) = key_of(rest) else {
            // A server that writes something else tells of fewer.
            removed.missed_some = true;
            break;
        };
        removed.keys.push(key);
        rest = behind;
    }
    shared.with(|state| {
        state.give_pooled(span);
        state.turn();
    });
    Ok(removed)
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

pub(super) fn length(_: &Arc<Shared>, ended: Ended) -> Answer<Option<u64>> {
    let (code, ended) = checked(ended)?;
    Ok((code == Code::Done).then_some(ended.done.value))
}

pub(super) fn outline(_: &Arc<Shared>, ended: Ended) -> Answer<Option<Outline>> {
    let (code, Ended { done, .. }) = checked(ended)?;
    Ok((code == Code::Done).then(|| Outline {
        bytes: done.value,
        version: Version(done.extra),
        piece_bytes: u64::from(done.ttl_s.max(1)) * UNIT_BYTES,
    }))
}

/// A writer, or `None` if the store declined the object.
pub(super) fn writer(shared: &Arc<Shared>, ended: Ended) -> Answer<Option<SharedWriter>> {
    let (code, Ended { done, .. }) = checked(ended)?;
    Ok((code == Code::Done).then(|| SharedWriter::new(shared, done.value)))
}

pub(super) fn filled(_: &Arc<Shared>, ended: Ended) -> Answer<Span> {
    Ok(lent(checked(ended)?.1.memory).expect("a part that is written gives its memory back"))
}

/// Whether it was stored.
pub(super) fn sealed(_: &Arc<Shared>, ended: Ended) -> Answer<bool> {
    Ok(checked(ended)?.0 == Code::Done)
}

pub(super) fn nothing(_: &Arc<Shared>, ended: Ended) -> Answer<()> {
    checked(ended).map(|_| ())
}

pub(super) fn lease(shared: &Arc<Shared>, ended: Ended) -> Answer<Lease> {
    let done = checked(ended)?.1.done;
    let (shared, number, count) = (Arc::clone(shared), done.value, done.extra as usize);
    Ok(Lease { shared, number, count })
}
