//! Checks the store's answers against the rules.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{Condition, Done, Failure, Outcome, Part, WriterId};
use adit_kvstore::{Version as StoreVersion, piece_bytes};

use super::canary::StoreCanary;
use super::counts::Sum;
use super::machine::lock;
use super::model::{Ended, Found, Moment, Version};
use super::pool::{gather, length, pieces_mut};
use super::world::{Item, Pending, RequestTag, StoreWorld, Writer};
use crate::world::violated;

pub(super) struct Answer {
    pub(super) tag: u64,
    shard: u16,
    pub(super) begin: Moment,
    since: Time,
    has_deadline: bool,
    pub(super) result: Result<Outcome, Failure>,
    /// The version that was stored or read.
    pub(super) version: Option<StoreVersion>,
}

impl StoreWorld {
    /// Takes an answer. What was read is verified now, or later.
    pub(crate) fn receive(&mut self, shard: usize, done: Done<RequestTag>) {
        if done.unverified.is_some() && self.random.one_in(2) {
            self.unverified.push((shard, done));
        } else {
            self.verify(shard, done);
        }
    }

    /// Verifies some of what was read, or all. Returns how many answers those were.
    pub(crate) fn verify_some(&mut self, all: bool) -> usize {
        let mut verified = 0;
        for (shard, done) in std::mem::take(&mut self.unverified) {
            if all || self.random.one_in(3) {
                self.verify(shard, done);
                verified += 1;
            } else {
                self.unverified.push((shard, done));
            }
        }
        verified
    }

    /// Verifies what was read, as its caller does, and checks the answer.
    fn verify(&mut self, shard: usize, mut done: Done<RequestTag>) {
        let Some(unverified) = done.unverified.take() else { return self.answer(done) };
        if self.canary == Some(StoreCanary::SkippedVerification) {
            self.shards[shard].judge(self.now, unverified.unread());
            return self.answer(done);
        }
        let (memory, verdict) = unverified.verify(done.memory);
        if !verdict.is_intact() {
            (done.result, done.version) = (Ok(Outcome::Miss), None);
        }
        self.shards[shard].judge(self.now, verdict);
        self.answer(Done { memory, ..done });
    }

    /// Checks the answer to an item of a request.
    pub(crate) fn answer(&mut self, done: Done<RequestTag>) {
        let Done { reply: RequestTag { tag, item }, result, memory, version, .. } = done;
        if self.canary == Some(StoreCanary::LostAnswer) && self.random.one_in(20) {
            return;
        }
        let Some(pending) = self.pending.get_mut(&tag) else {
            violated(4, format_args!("an answer to request {tag}, which is over: {result:?}"));
        };
        let Some(what) = pending.items.get_mut(item as usize).and_then(Option::take) else {
            violated(
                4,
                format_args!("a second answer to item {item} of request {tag}: {result:?}"),
            );
        };
        self.waiting.give(&what);
        let Pending { shard, begin, since, has_deadline, asked, .. } = *pending;
        if pending.items.iter().all(Option::is_none) {
            self.pending.remove(&tag);
            self.check_evictions(usize::from(shard), asked);
        }
        self.note(&[tag, u64::from(item), code(&result)], format_args!("{tag}.{item}: {result:?}"));
        let answer = Answer { tag, shard, begin, since, has_deadline, result, version };
        self.take(answer, what, memory);
    }

    fn take(&mut self, answer: Answer, item: Item, mut memory: AnyBuffer) {
        if answer.result.is_err() {
            self.counts.count(Sum::Failed, 1);
        }
        let expected = match item {
            Item::Put { bytes, .. } | Item::Get { bytes, .. } | Item::Fill { bytes, .. } => bytes,
            _ => 0,
        };
        if length(&memory) != expected {
            let has = length(&memory);
            violated(3, format_args!("{has} of {expected} bytes came back with {}", answer.tag));
        }
        match item {
            Item::Put { key, begin, ttl_s, condition, .. }
            | Item::Seal { key, begin, ttl_s, condition } => {
                self.take_put(&answer, (key, begin), ttl_s, condition);
            }
            Item::Get { key, part, version, .. } => {
                self.take_get(&answer, (key, version), &part, &mut memory);
            }
            Item::Reserve { key, version, ttl_s, condition } => {
                self.take_reserve(&answer, (key, version), ttl_s, condition);
            }
            Item::Fill { writer, .. } => self.take_fill(&answer, writer),
            Item::Delete { key, begin, condition } => {
                self.take_delete(&answer, (key, begin), condition);
            }
            Item::Touch { key, begin, ttl_s, expires } => {
                self.take_touch(&answer, (key, begin), ttl_s, expires);
            }
            Item::Sweep { keys, is_of_tenant } => self.take_sweep(&answer, &keys, is_of_tenant),
            Item::Commit => self.take_commit(&answer),
        }
        self.pool.give(memory);
    }

    fn take_put(
        &mut self,
        answer: &Answer,
        (key, begin): (usize, Moment),
        ttl_s: Option<u64>,
        condition: Condition,
    ) {
        let ended = match &answer.result {
            Ok(Outcome::Stored) => {
                self.check_stored(answer, (key, begin), condition);
                Ended::Acknowledged
            }
            Err(Failure::Conflict { found }) => {
                self.check_conflict(answer, key, condition, *found);
                Ended::Void
            }
            Ok(Outcome::Declined(_)) => {
                self.counts.count(Sum::Declined, 1);
                Ended::Void
            }
            Err(Failure::Device { .. }) => self.unknown(answer),
            Err(failure) => {
                self.check_refusal(answer, failure);
                Ended::Void
            }
            other => unfit(answer, other),
        };
        let gone = ttl_s.map(|ttl_s| self.at_wall(self.wall_s() + ttl_s));
        self.model.end(key, begin, ended, gone);
    }

    /// Checks that a device failure has a reason.
    pub(super) fn unknown(&mut self, answer: &Answer) -> Ended {
        self.excuse_if_struck();
        if !self.model.is_excused() && !lock(&self.machine).is_off() {
            violated(2, format_args!("request {} failed on healthy devices", answer.tag));
        }
        Ended::Unknown
    }

    pub(super) fn check_refusal(&mut self, answer: &Answer, failure: &Failure) {
        self.excuse_if_struck();
        let is_tight = !self.shape.is_roomy || self.model.is_excused();
        let is_apt = match failure {
            Failure::Deadline => answer.has_deadline,
            Failure::Full | Failure::TooLarge { .. } => is_tight,
            Failure::Quota { .. } => self.shape.quota.is_some(),
            // Its device is gone.
            Failure::Writer => self.model.is_excused(),
            _ => false,
        };
        if !is_apt && !lock(&self.machine).is_off() {
            violated(2, format_args!("request {} is refused: {failure}", answer.tag));
        }
    }

    fn take_get(
        &mut self,
        answer: &Answer,
        (key, version): (usize, Option<StoreVersion>),
        part: &Part,
        memory: &mut AnyBuffer,
    ) {
        let condition = version.map_or(Condition::Always, Condition::Version);
        match &answer.result {
            Ok(Outcome::Hit { .. })
                if answer.version.is_none() || (version.is_some() && version != answer.version) =>
            {
                let read = answer.version;
                violated(1, format_args!("request {} read version {read:?}", answer.tag));
            }
            Err(Failure::Conflict { found }) => {
                self.check_conflict(answer, key, condition, *found);
            }
            Ok(Outcome::Hit { bytes }) => self.take_hit(answer, key, part, *bytes, memory),
            Ok(Outcome::Miss) => self.take_miss(answer, key),
            Err(Failure::Device { .. }) => drop(self.unknown(answer)),
            // Another version may exist than the one that the part was chosen for.
            Err(Failure::Part(_)) if *part != Part::All => {}
            Err(Failure::Memory { has, .. }) if self.model.longest(key) > *has => {}
            Err(failure) => self.check_refusal(answer, failure),
            other => unfit(answer, other),
        }
    }

    fn take_hit(
        &mut self,
        answer: &Answer,
        key: usize,
        part: &Part,
        bytes: u64,
        memory: &mut AnyBuffer,
    ) {
        if bytes > length(memory) as u64 {
            violated(1, format_args!("{bytes} bytes were read into {}", length(memory)));
        }
        if self.canary == Some(StoreCanary::FlippedByte)
            && let Some(first) = pieces_mut(memory).next()
        {
            first[0] ^= 1;
        }
        let mut found = gather(memory);
        found.truncate(bytes as usize);
        self.counts.count(Sum::Hits, 1);
        self.counts.count(Sum::Layers, u64::from(matches!(part, Part::Layer(_))));
        self.counts.count(Sum::BytesChecked, bytes);
        let key = if self.canary == Some(StoreCanary::SwappedObject) {
            (key + 1) % self.model.len()
        } else {
            key
        };
        let found = Found { bytes: &found, part };
        match self.model.hit(key, (&found, answer.version), answer.begin, answer.since) {
            Ok(Some(version)) => self.settle(key, Some(version)),
            Ok(None) => {}
            Err(what) => violated(1, format_args!("request {}: {what}", answer.tag)),
        }
    }

    fn take_miss(&mut self, answer: &Answer, key: usize) {
        // Devices without power have no data.
        if lock(&self.machine).is_off() {
            return;
        }
        self.counts.count(Sum::Misses, 1);
        self.excuse_if_struck();
        self.counts.count(Sum::ExcusedMisses, u64::from(self.model.is_excused()));
        self.check_miss(key, answer.begin, format_args!("request {}", answer.tag));
        self.settle(key, None);
    }

    /// Checks that a miss has a reason; for a leased object, a better one than eviction.
    pub(crate) fn check_miss(&self, key: usize, begin: Moment, what: std::fmt::Arguments<'_>) {
        let is_leased = |lease: &super::world::Lease| {
            lease.begin < begin && self.now < lease.until && lease.keys.contains(&key)
        };
        let is_leased = self.leases.iter().any(is_leased);
        if let Err(why) = self.model.miss(key, begin, self.now, is_leased) {
            violated(1, format_args!("{what}: {why} (leased: {is_leased})"));
        }
    }

    fn settle(&mut self, key: usize, version: Option<Version>) {
        if self.is_settling
            && let Err(what) = self.model.settle(key, version)
        {
            violated(1, what);
        }
    }

    fn take_reserve(
        &mut self,
        answer: &Answer,
        (key, version): (usize, Version),
        ttl_s: Option<u64>,
        condition: Condition,
    ) {
        match &answer.result {
            Ok(Outcome::Reserved { writer: id, .. }) => {
                let parts = parts(&version);
                let (id, shard) = (*id, answer.shard);
                let part_count = parts.len();
                self.writers.push(Writer {
                    id,
                    shard,
                    key,
                    version,
                    ttl_s,
                    condition,
                    parts,
                    part_count,
                    unanswered: 0,
                });
            }
            Ok(Outcome::Declined(_)) => self.counts.count(Sum::Declined, 1),
            Err(Failure::Conflict { found }) => {
                self.check_conflict(answer, key, condition, *found);
            }
            Err(Failure::Device { .. }) => drop(self.unknown(answer)),
            Err(failure) => self.check_refusal(answer, failure),
            other => unfit(answer, other),
        }
    }

    fn take_fill(&mut self, answer: &Answer, id: WriterId) {
        let found =
            self.writers.iter().position(|writer| writer.id == id && writer.shard == answer.shard);
        match (&answer.result, found) {
            (Ok(Outcome::Filled), Some(index)) => self.writers[index].unanswered -= 1,
            // It was abandoned meanwhile.
            (Ok(Outcome::Filled) | Err(Failure::Writer), None) => {}
            (Err(failure), found) => {
                if matches!(failure, Failure::Device { .. }) {
                    self.unknown(answer);
                } else if found.is_some() {
                    self.check_refusal(answer, failure);
                }
                if let Some(index) = found {
                    let writer = self.writers.swap_remove(index);
                    self.shards[usize::from(writer.shard)].abandon(writer.id);
                }
            }
            (other, _) => unfit(answer, other),
        }
    }

    fn take_delete(
        &mut self,
        answer: &Answer,
        (key, begin): (usize, Moment),
        condition: Condition,
    ) {
        let ended = match &answer.result {
            Ok(Outcome::Deleted) => {
                self.check_held(answer, (key, begin), condition);
                Ended::Acknowledged
            }
            Err(Failure::Conflict { found }) => {
                self.check_conflict(answer, key, condition, *found);
                Ended::Void
            }
            Ok(Outcome::Miss) if lock(&self.machine).is_off() => Ended::Unknown,
            Ok(Outcome::Miss) => {
                self.check_miss(key, answer.begin, format_args!("delete {}", answer.tag));
                Ended::Acknowledged
            }
            Err(Failure::Device { .. }) => self.unknown(answer),
            Err(failure) => {
                self.check_refusal(answer, failure);
                Ended::Void
            }
            other => unfit(answer, other),
        };
        self.model.end(key, begin, ended, None);
    }

    fn take_sweep(&mut self, answer: &Answer, keys: &[(usize, Moment)], is_of_tenant: bool) {
        let ended = match &answer.result {
            Ok(Outcome::Swept { .. }) if is_of_tenant => Ended::Unknown,
            Ok(Outcome::Swept { .. }) => Ended::Acknowledged,
            Err(Failure::Device { .. }) => self.unknown(answer),
            Err(failure) => {
                self.check_refusal(answer, failure);
                Ended::Void
            }
            other => unfit(answer, other),
        };
        for (key, begin) in keys {
            self.model.end(*key, *begin, ended, None);
        }
    }

    fn take_commit(&mut self, answer: &Answer) {
        match &answer.result {
            Ok(Outcome::Committed) => self.model.committed(answer.shard, answer.begin),
            Err(Failure::Device { .. }) => drop(self.unknown(answer)),
            Err(failure) => self.check_refusal(answer, failure),
            other => unfit(answer, other),
        }
    }
}

/// Returns the parts in which an object is written.
fn parts(version: &Version) -> Vec<Part> {
    if let Some(tensors) = version.tensors {
        return (0..tensors.layers).map(Part::Layer).collect();
    }
    let piece = piece_bytes(version.bytes);
    let starts = (0..version.bytes).step_by(piece as usize);
    starts.map(|at| Part::Bytes(at..(at + piece).min(version.bytes))).collect()
}

pub(super) fn unfit(answer: &Answer, result: &Result<Outcome, Failure>) -> ! {
    violated(2, format_args!("request {} is answered with {result:?}", answer.tag));
}

/// Returns a number that distinguishes results.
fn code(result: &Result<Outcome, Failure>) -> u64 {
    match result {
        Ok(Outcome::Stored) => 1,
        Ok(Outcome::Declined(_)) => 2,
        Ok(Outcome::Hit { bytes }) => 1 << 32 | bytes,
        Ok(Outcome::Miss) => 3,
        Ok(Outcome::Reserved { .. }) => 4,
        Ok(Outcome::Filled) => 5,
        Ok(Outcome::Deleted) => 6,
        Ok(Outcome::Committed) => 7,
        Ok(Outcome::Touched) => 9,
        Ok(Outcome::Swept { objects }) => 2 << 32 | objects,
        Err(Failure::Device { device, .. }) => 100 + u64::from(*device),
        Err(_) => 8,
    }
}
