//! Requests that concern several shards: split on the way in, joined on the way out.
//!
//! Each part gets a tag of its own, which leads back to the request's tag and to the positions of its items. Writers
//! and tenants are numbered separately in each shard: an external writer id carries its shard in the high bits, and
//! external tenant ids are mapped by table.

use crate::media::format::Set;
use crate::model::key::Key;
use crate::model::object::{LayoutId, TenantId};
use crate::shard::{
    Action, Done, Failure, FillItem, Outcome, PutItem, PutOptions, Request, ReserveItem, WriterId,
};

/// Bits of a writer's number within its shard.
const WRITER_BITS: u32 = 48;
/// Limit for tenants and for layouts, including the default one.
const NAMES_MAX: usize = 256;

/// Splits requests into parts per shard and joins their answers.
pub(super) struct Cuts {
    set: Set,
    parts: Vec<Option<Part>>,
    free: Vec<u32>,
    commits: Vec<Commit>,
    tenants: Names<TenantId>,
    layouts: Names<LayoutId>,
}

/// Maps external ids to per-shard ids. Entry 0 is the default id.
struct Names<T>(Vec<Vec<T>>);

impl<T: Copy + Default + PartialEq> Names<T> {
    fn new(shards: u16) -> Names<T> {
        Names(vec![vec![T::default(); usize::from(shards)]])
    }

    /// Returns the external id for these per-shard ids, or `None` if the table is full.
    fn name(&mut self, ids: Vec<T>) -> Option<u8> {
        let known = self.0.iter().position(|known| *known == ids);
        let number = known.unwrap_or(self.0.len());
        if number < NAMES_MAX && known.is_none() {
            self.0.push(ids);
        }
        u8::try_from(number).ok()
    }

    fn in_shard(&self, shard: u16, number: u8) -> Option<T> {
        self.0.get(usize::from(number)).map(|ids| ids[usize::from(shard)])
    }
}

/// A part of a request that a shard is working on.
enum Part {
    /// Some of a request's items.
    Items { tag: u64, items: Vec<u32>, left: usize },
    /// One shard's part of a commit.
    Commit,
}

struct Commit {
    tag: u64,
    parts: Vec<u32>,
    failure: Option<Failure>,
}

/// The items of a list that belong to one shard, with their positions.
struct Dealt<T> {
    items: Vec<T>,
    places: Vec<u32>,
}

fn deal<T>(shards: u16, list: Vec<T>, shard_of: impl Fn(&T) -> u16) -> Vec<Dealt<T>> {
    let empty = |_| Dealt { items: Vec::new(), places: Vec::new() };
    let mut dealt: Vec<Dealt<T>> = (0..shards).map(empty).collect();
    for (item, place) in list.into_iter().zip(0..) {
        let to = &mut dealt[usize::from(shard_of(&item))];
        to.items.push(item);
        to.places.push(place);
    }
    dealt
}

impl Cuts {
    pub(super) fn new(set: Set) -> Cuts {
        let (tenants, layouts) = (Names::new(set.shards()), Names::new(set.shards()));
        Cuts { set, parts: Vec::new(), free: Vec::new(), commits: Vec::new(), tenants, layouts }
    }

    /// Splits `request` and gives each part, with its shard, to `submit`.
    pub(super) fn cut(&mut self, request: Request, mut submit: impl FnMut(u16, Request)) {
        let Request { tag, deadline, action } = request;
        let parts = match action {
            Action::Commit => {
                return self.commit(tag, |shard, tag| {
                    submit(shard, Request { tag, deadline, action: Action::Commit });
                });
            }
            Action::PutMany(list) => self.many(list, |item| &item.key, Cuts::put, Action::PutMany),
            Action::GetMany(list) => {
                self.many(list, |item| &item.key, |_, _, item| item, Action::GetMany)
            }
            Action::Reserve(list) => {
                self.many(list, |item| &item.key, Cuts::reserve, Action::Reserve)
            }
            Action::Fill(list) => self.fill(list),
            Action::Put(item) => {
                let shard = self.set.route(&item.key);
                vec![(shard, Action::Put(self.put(shard, item)), vec![0])]
            }
            Action::Get(item) => vec![(self.set.route(&item.key), Action::Get(item), vec![0])],
            Action::Delete(key) => vec![(self.set.route(&key), Action::Delete(key), vec![0])],
            Action::Seal(writer) => {
                let (shard, writer) = self.writer(writer);
                vec![(shard, Action::Seal(writer), vec![0])]
            }
        };
        for (shard, action, items) in parts {
            let left = items.len();
            let tag = self.enter(Part::Items { tag, items, left });
            submit(shard, Request { tag: u64::from(tag), deadline, action });
        }
    }

    /// Passes the answer of shard `shard` to `done` as an answer to the original request.
    pub(super) fn join(&mut self, shard: u16, answer: Done, done: &mut dyn FnMut(Done)) {
        let number = u32::try_from(answer.tag).expect("parts have small tags");
        let part = self.parts[number as usize].as_mut().expect("an answer is to a part");
        match part {
            Part::Items { tag, items, left } => {
                *left -= 1;
                let (tag, item) = (*tag, items[answer.item as usize]);
                if *left == 0 {
                    self.leave(number);
                }
                let result = answer.result.map(|outcome| known_outcome(shard, outcome));
                done(Done { tag, item, result, memory: answer.memory });
            }
            Part::Commit => self.committed(number, answer, done),
        }
    }

    /// Returns the external id of a tenant with these per-shard ids.
    pub(super) fn tenant(&mut self, ids: Vec<TenantId>) -> Result<TenantId, Failure> {
        if let [only] = ids.as_slice() {
            return Ok(*only);
        }
        self.tenants.name(ids).map(TenantId).ok_or(Failure::Undefined("tenant"))
    }

    /// Returns the external id of a layout with these per-shard ids.
    pub(super) fn layout(&mut self, ids: Vec<LayoutId>) -> Result<LayoutId, Failure> {
        if let [only] = ids.as_slice() {
            return Ok(*only);
        }
        self.layouts.name(ids).map(LayoutId).ok_or(Failure::Undefined("layout"))
    }

    pub(super) fn writer(&self, writer: WriterId) -> (u16, WriterId) {
        if self.set.shards() == 1 {
            return (0, writer);
        }
        let shard = (writer.0 >> WRITER_BITS) as u16;
        // An id that no shard issued goes to shard 0, which reports it as unknown.
        let shard = if shard < self.set.shards() { shard } else { 0 };
        (shard, WriterId(writer.0 & ((1 << WRITER_BITS) - 1)))
    }

    fn many<T>(
        &mut self,
        list: Vec<T>,
        key: impl Fn(&T) -> &Key,
        known: impl Fn(&Cuts, u16, T) -> T,
        action: impl Fn(Vec<T>) -> Action,
    ) -> Vec<(u16, Action, Vec<u32>)> {
        let dealt = deal(self.set.shards(), list, |item| self.set.route(key(item)));
        let parts = dealt.into_iter().zip(0..).filter(|(dealt, _)| !dealt.items.is_empty());
        parts
            .map(|(Dealt { items, places }, shard)| {
                let items = items.into_iter().map(|item| known(self, shard, item)).collect();
                (shard, action(items), places)
            })
            .collect()
    }

    fn fill(&mut self, list: Vec<FillItem>) -> Vec<(u16, Action, Vec<u32>)> {
        let dealt = deal(self.set.shards(), list, |item| self.writer(item.writer).0);
        let parts = dealt.into_iter().zip(0..).filter(|(dealt, _)| !dealt.items.is_empty());
        parts
            .map(|(Dealt { mut items, places }, shard)| {
                items.iter_mut().for_each(|item| item.writer = self.writer(item.writer).1);
                (shard, Action::Fill(items), places)
            })
            .collect()
    }

    fn put(&self, shard: u16, item: PutItem) -> PutItem {
        PutItem { options: self.options(shard, item.options), ..item }
    }

    fn reserve(&self, shard: u16, item: ReserveItem) -> ReserveItem {
        ReserveItem { options: self.options(shard, item.options), ..item }
    }

    fn options(&self, shard: u16, options: PutOptions) -> PutOptions {
        // An id that was never defined maps to one that is undefined in the shard as well.
        let tenant = self.tenants.in_shard(shard, options.tenant.0).unwrap_or(TenantId(u8::MAX));
        let layout = self.layouts.in_shard(shard, options.layout.0).unwrap_or(LayoutId(u8::MAX));
        PutOptions { tenant, layout, ..options }
    }

    fn commit(&mut self, tag: u64, mut submit: impl FnMut(u16, u64)) {
        let parts: Vec<u32> = (0..self.set.shards()).map(|_| self.enter(Part::Commit)).collect();
        self.commits.push(Commit { tag, parts: parts.clone(), failure: None });
        for (part, shard) in parts.into_iter().zip(0..) {
            submit(shard, u64::from(part));
        }
    }

    fn committed(&mut self, number: u32, answer: Done, done: &mut dyn FnMut(Done)) {
        self.leave(number);
        let is = |commit: &Commit| commit.parts.contains(&number);
        let at = self.commits.iter().position(is).expect("a part of a commit has its commit");
        let commit = &mut self.commits[at];
        commit.parts.retain(|part| *part != number);
        commit.failure = commit.failure.take().or(answer.result.err());
        if commit.parts.is_empty() {
            let Commit { tag, failure, .. } = self.commits.swap_remove(at);
            let result = failure.map_or(Ok(Outcome::Committed), Err);
            done(Done { tag, item: 0, result, memory: answer.memory });
        }
    }

    fn enter(&mut self, part: Part) -> u32 {
        if let Some(number) = self.free.pop() {
            let before = self.parts[number as usize].replace(part);
            assert!(before.is_none(), "a free place is empty");
            return number;
        }
        self.parts.push(Some(part));
        u32::try_from(self.parts.len() - 1).expect("fewer than 2^32 parts are on their way")
    }

    fn leave(&mut self, number: u32) {
        self.parts[number as usize] = None;
        self.free.push(number);
    }
}

fn known_outcome(shard: u16, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Reserved(WriterId(number)) => {
            assert!(number < 1 << WRITER_BITS, "a writer's number has 48 bits");
            Outcome::Reserved(WriterId(u64::from(shard) << WRITER_BITS | number))
        }
        other => other,
    }
}
