//! Requests to the store.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{
    Action, Condition, FillItem, GetItem, Part, PutItem, PutOptions, Request, ReserveItem,
    Selection,
};
use adit_kvstore::{piece_bytes, units};

use super::canary::StoreCanary;
use super::content;
use super::counts::Sum;
use super::model::{Ended, Version};
use super::pool::{length, pieces_mut, scatter};
use super::schedule::GUEST;
use super::tensors::Tensors;
use super::world::{Item, Pending, RequestTag, StoreWorld};

/// After this many bytes put, a roomy store gets only short objects, so that it does not fill up.
const VOLUME_MAX: u64 = 12 << 20;
/// Maximum items of a batch.
const BATCH_MAX: u64 = 6;

impl StoreWorld {
    /// Submits a random request.
    pub(crate) fn submit_any(&mut self) {
        match self.random.below(100) {
            0..28 => self.submit_put(),
            28..30 => self.submit_touch(),
            30..38 => self.submit_puts(),
            38..65 => self.submit_get(),
            65..73 => self.submit_gets(),
            73..80 => self.submit_reserve(),
            80..92 if !self.writers.is_empty() => self.submit_writer(),
            80..92 => self.submit_get(),
            92..96 => self.submit_delete(),
            96 => self.submit_sweep(),
            _ => {
                let shard = self.random.below(self.shards.len() as u64) as u16;
                self.submit_commit(shard);
            }
        }
    }

    /// Submits requests together.
    pub(crate) fn submit(
        &mut self,
        shard: u16,
        actions: impl IntoIterator<Item = Action>,
        items: Vec<Item>,
    ) {
        self.next_tag += 1;
        let tag = self.next_tag;
        let has_deadline = !self.is_settling && self.random.one_in(30);
        let within = Duration::from_nanos(self.random.below(1_000_000));
        let deadline = if has_deadline { self.now + within } else { Time::NEVER };
        let begin = self.model.tick();
        self.note(&[tag, u64::from(shard)], format_args!("{tag} to shard {shard}: {items:?}"));
        let asked = items.iter().map(Item::asked_units).sum();
        self.room[usize::from(shard)].open += asked;
        let items = items.into_iter().map(Some).collect();
        let pending = Pending { shard, begin, since: self.now, has_deadline, asked, items };
        self.pending.insert(tag, pending);
        let request =
            |(item, action)| Request { reply: RequestTag { tag, item }, deadline, action };
        let requests = (0..).zip(actions).map(request).collect();
        self.arrive(shard, requests);
        self.keep_moments(false);
    }

    pub(crate) fn any_key(&mut self) -> usize {
        // Some keys are used more than others, and most those with a put that waits.
        if let Some(key) = self.waiting_key()
            && self.random.one_in(3)
        {
            return key;
        }
        let keys = self.model.len();
        let range = if self.random.one_in(2) { keys.div_ceil(4) } else { keys };
        self.random.index(range)
    }

    /// Draws the length of the next object.
    fn draw_bytes(&mut self) -> u64 {
        let random = &mut self.random;
        let usual = self.shape.bytes_usual;
        let bytes = match random.below(20) {
            0 if random.one_in(3) => 0,
            0 => random.between(1, 16),
            1 => 4096 * random.between(1, 8),
            2 => random.between(1, self.shape.bytes_max),
            3 => (128 << 10) * random.between(1, 3) - random.below(3),
            _ => random.between(1, usual),
        };
        let is_much = self.shape.is_roomy && self.volume > VOLUME_MAX;
        let bytes = if is_much { bytes.min(4096) } else { bytes.min(self.shape.bytes_max) };
        self.volume += bytes;
        bytes
    }

    fn draw_ttl(&mut self) -> Option<u64> {
        self.random.one_in(8).then(|| self.random.between(1, 20))
    }

    /// Draws a new version for a key of this shard, and its lifetime. A third are KV blocks, in stores that have
    /// them.
    fn draw_version(&mut self, shard: u16) -> (Version, Option<u64>) {
        let ttl_s = self.draw_ttl();
        let expires = ttl_s.map(|ttl_s| self.at_wall(self.wall_s() + ttl_s));
        let layouts = self.layouts[usize::from(shard)].iter().zip(&self.shape.layouts).enumerate();
        let there = layouts.filter(|(_, (id, _))| id.is_some());
        let there: Vec<Tensors> =
            there.map(|(number, (_, layout))| Tensors::of(number, layout)).collect();
        let version = if !there.is_empty() && self.random.one_in(3) {
            self.counts.count(Sum::Blocks, 1);
            self.model.block(self.random.pick(&there), expires)
        } else {
            let bytes = self.draw_bytes();
            self.model.version(bytes, expires)
        };
        self.longest = self.longest.max(units(version.bytes));
        (version, ttl_s)
    }

    fn put_options(
        &mut self,
        shard: u16,
        version: &Version,
        ttl_s: Option<u64>,
        condition: Condition,
    ) -> PutOptions {
        let ids = &self.layouts[usize::from(shard)];
        let layout = version.tensors.and_then(|tensors| ids[tensors.layout]).unwrap_or_default();
        let tenants = &self.tenants[usize::from(shard)];
        let tenant = if self.random.one_in(2) { self.random.pick(tenants) } else { tenants[0] };
        let after = self.random.one_in(3).then(|| self.any_key());
        let after = after.map(|key| self.model.key(key).clone());
        let is_ignored = self.canary == Some(StoreCanary::IgnoredCondition);
        let condition = if is_ignored { Condition::Always } else { condition };
        PutOptions { tenant, ttl_s, after, layout, condition, ..PutOptions::default() }
    }

    fn memory_with(&mut self, version: Version, part: &Part) -> AnyBuffer {
        let content = self.model.content(version);
        let Some(tensors) = version.tensors else {
            let range =
                if let Part::Bytes(range) = part { range.clone() } else { 0..version.bytes };
            return self.memory_of(content, range.start, range.end - range.start);
        };
        let layers =
            if let Part::Layer(layer) = part { *layer..*layer + 1 } else { 0..tensors.layers };
        let bytes = tensors.fill(layers, content);
        let mut memory = self.pool.take(bytes.len() as u64, &mut self.random);
        scatter(&mut memory, &bytes);
        memory
    }

    /// Returns memory with bytes of a plain object.
    fn memory_of(&mut self, content: u64, offset: u64, bytes: u64) -> AnyBuffer {
        let mut memory = self.pool.take(bytes, &mut self.random);
        let (mut at, end) = (offset, offset + bytes);
        for piece in pieces_mut(&mut memory) {
            let len = piece.len().min((end - at) as usize);
            content::fill(&mut piece[..len], content, at);
            // Bytes behind the end are arbitrary.
            piece[len..].fill(0xee);
            at += len as u64;
        }
        memory
    }

    fn put_item(&mut self, key: usize) -> (PutItem, Item) {
        let shard = self.model.shard(key);
        let (version, ttl_s) = self.draw_version(shard);
        let data = self.memory_with(version, &Part::All);
        self.unlease(key);
        let begin = self.model.begin(key, Some(version));
        if self.canary == Some(StoreCanary::EarlyAcknowledgement) {
            self.model.end(key, begin, Ended::Acknowledged, None);
        }
        self.counts.count(Sum::Puts, 1);
        let condition = self.draw_condition(key);
        let options = self.put_options(shard, &version, ttl_s, condition);
        let (bytes, asked) = (length(&data), units(version.bytes).max(1));
        let item = Item::Put { key, begin, ttl_s, bytes, asked, condition };
        (PutItem { key: self.model.key(key).clone(), bytes: version.bytes, data, options }, item)
    }

    fn submit_put(&mut self) {
        let key = self.any_key();
        let (put, item) = self.put_item(key);
        self.submit(self.model.shard(key), [Action::Put(put)], vec![item]);
    }

    /// Returns distinct keys of one shard.
    fn any_keys(&mut self) -> Vec<usize> {
        let first = self.any_key();
        let shard = self.model.shard(first);
        let mut keys = vec![first];
        for _ in 0..self.random.below(BATCH_MAX) {
            let key = self.any_key();
            if self.model.shard(key) == shard && !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    fn submit_puts(&mut self) {
        let keys = self.any_keys();
        let shard = self.model.shard(keys[0]);
        let (puts, items): (Vec<_>, _) = keys.into_iter().map(|key| self.put_item(key)).unzip();
        self.submit(shard, puts.into_iter().map(Action::Put), items);
    }

    /// Draws a part to read, and the most memory it takes.
    fn draw_part(&mut self, longest: u64) -> (Part, u64) {
        if !self.shape.layouts.is_empty() && self.random.one_in(3) {
            let number = self.random.index(self.shape.layouts.len());
            let layout = &self.shape.layouts[number];
            let layer = self.random.below(u64::from(layout.block().layers)) as u32;
            let tensors = Tensors::of(number, layout);
            let most = tensors.memory_bytes(layer..layer + 1);
            let from = tensors.memory_bytes(0..layer);
            // Both name the same bytes.
            let is_range = layer.is_multiple_of(2);
            let part = if is_range { Part::Bytes(from..from + most) } else { Part::Layer(layer) };
            return (part, most);
        }
        let piece = piece_bytes(longest);
        let pieces = longest.div_ceil(piece);
        let first = self.random.below(pieces);
        let from = first * piece;
        let until = (from + piece * self.random.between(1, pieces - first)).min(longest);
        (Part::Bytes(from..until), until - from)
    }

    fn get_item(&mut self, key: usize, is_whole: bool) -> (GetItem, Item) {
        let longest = self.model.longest(key);
        let (part, most) = if is_whole || self.random.one_in(2) {
            (Part::All, longest)
        } else {
            self.draw_part(longest)
        };
        let mut into = self.pool.take(most, &mut self.random);
        pieces_mut(&mut into).for_each(|piece| piece.fill(0xab));
        self.counts.count(Sum::Gets, 1);
        let version = if self.random.one_in(8) { self.model.newest_name(key) } else { None };
        let item = Item::Get { key, part: part.clone(), bytes: length(&into), version };
        (GetItem { key: self.model.key(key).clone(), part, into, version }, item)
    }

    /// Reads a whole object.
    pub(crate) fn submit_whole_get(&mut self, key: usize) {
        let (get, item) = self.get_item(key, true);
        self.submit(self.model.shard(key), [Action::Get(get)], vec![item]);
    }

    fn submit_get(&mut self) {
        let key = self.any_key();
        let (get, item) = self.get_item(key, false);
        self.submit(self.model.shard(key), [Action::Get(get)], vec![item]);
    }

    fn submit_gets(&mut self) {
        let keys = self.any_keys();
        let shard = self.model.shard(keys[0]);
        let (gets, items): (Vec<_>, _) =
            keys.into_iter().map(|key| self.get_item(key, false)).unzip();
        self.submit(shard, gets.into_iter().map(Action::Get), items);
    }

    fn submit_reserve(&mut self) {
        let keys = self.any_keys();
        let shard = self.model.shard(keys[0]);
        let mut reserve = |key: usize| {
            let (version, ttl_s) = self.draw_version(shard);
            let condition = self.draw_condition(key);
            let options = self.put_options(shard, &version, ttl_s, condition);
            let key_bytes = self.model.key(key).clone();
            let item = ReserveItem { key: key_bytes, bytes: version.bytes, options };
            (item, Item::Reserve { key, version, ttl_s, condition })
        };
        let (reserves, items): (Vec<_>, _) = keys.into_iter().map(&mut reserve).unzip();
        self.submit(shard, reserves.into_iter().map(Action::Reserve), items);
    }

    /// Takes the next step of an object written in parts: mostly another part, sometimes its end.
    fn submit_writer(&mut self) {
        let index = self.random.index(self.writers.len());
        if self.random.one_in(20) {
            let writer = self.writers.swap_remove(index);
            self.note(&[31], format_args!("{:?} is abandoned", writer.id));
            self.shards[usize::from(writer.shard)].abandon(writer.id);
        } else if self.writers[index].parts.is_empty() {
            self.submit_seal(index);
        } else {
            self.submit_fills(index);
        }
    }

    fn submit_fills(&mut self, index: usize) {
        let (mut fills, mut items) = (Vec::new(), Vec::new());
        for _ in 0..self.random.between(1, 3) {
            let writer = &mut self.writers[index];
            if writer.parts.is_empty() {
                break;
            }
            let is_only = writer.part_count == 1;
            let part = writer.parts.swap_remove(self.random.index(writer.parts.len()));
            writer.unanswered += 1;
            let (id, version) = (writer.id, writer.version);
            let part = if is_only && self.random.one_in(2) { Part::All } else { part };
            let data = self.memory_with(version, &part);
            items.push(Item::Fill { writer: id, bytes: length(&data) });
            fills.push(FillItem { writer: id, part, data });
        }
        let shard = self.writers[index].shard;
        self.submit(shard, fills.into_iter().map(Action::Fill), items);
    }

    fn submit_seal(&mut self, index: usize) {
        if self.writers[index].unanswered > 0 {
            return;
        }
        let writer = self.writers.swap_remove(index);
        self.unlease(writer.key);
        let begin = self.model.begin(writer.key, Some(writer.version));
        let (key, ttl_s, condition) = (writer.key, writer.ttl_s, writer.condition);
        let item = Item::Seal { key, begin, ttl_s, condition };
        self.counts.count(Sum::Sealed, 1);
        self.submit(writer.shard, [Action::Seal(writer.id)], vec![item]);
    }

    fn submit_delete(&mut self) {
        let key = self.any_key();
        self.unlease(key);
        let begin = self.model.begin(key, None);
        self.counts.count(Sum::Deletes, 1);
        let name = self.model.key(key).clone();
        let version = if self.random.one_in(3) { self.model.newest_name(key) } else { None };
        let (action, condition) = match version {
            Some(version) => (Action::DeleteIf(name, version), Condition::Version(version)),
            None => (Action::Delete(name), Condition::Always),
        };
        let item = Item::Delete { key, begin, condition };
        self.submit(self.model.shard(key), [action], vec![item]);
    }

    /// Removes all keys of a shard, those with a prefix, or, where misses need no reason, those of a tenant.
    fn submit_sweep(&mut self) {
        let first = self.any_key();
        let shard = self.model.shard(first);
        let is_of_tenant = !self.shape.is_roomy && self.random.one_in(2);
        let prefix = &self.model.key(first).as_bytes()[..usize::from(!self.random.one_in(10))];
        let selection = match is_of_tenant {
            true => Selection::Tenant(GUEST.into()),
            false => Selection::Prefix(prefix.into()),
        };
        let is_hit = |key: &usize| {
            let is_prefixed = self.model.key(*key).as_bytes().starts_with(prefix);
            self.model.shard(*key) == shard && (is_of_tenant || is_prefixed)
        };
        let keys: Vec<usize> = (0..self.model.len()).filter(is_hit).collect();
        keys.iter().for_each(|key| self.unlease(*key));
        let begun = keys.into_iter().map(|key| (key, self.model.begin_swept(key)));
        let keys = begun.collect();
        self.counts.count(Sum::Sweeps, 1);
        let item = Item::Sweep { keys, is_of_tenant };
        self.submit(shard, [Action::DeleteWhere(selection)], vec![item]);
    }

    pub(crate) fn submit_commit(&mut self, shard: u16) {
        self.counts.count(Sum::Commits, 1);
        if self.canary == Some(StoreCanary::EarlyCommit) {
            let begin = self.model.tick();
            self.model.committed(shard, begin);
        }
        self.submit(shard, [Action::Commit], vec![Item::Commit]);
    }

    /// Drops a key that is rewritten from all leases.
    pub(crate) fn unlease(&mut self, key: usize) {
        self.leases.iter_mut().for_each(|lease| lease.keys.retain(|other| *other != key));
    }
}
