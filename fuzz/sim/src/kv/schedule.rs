//! The schedule of a run: how the store is opened, used, lost and opened again.

use std::time::Duration;

use adit_kvstore::internals::format::{self, FormatOptions};
use adit_kvstore::internals::geometry::superblock_units;
use adit_kvstore::internals::superblock::choose;
use adit_kvstore::layout::Layout;
use adit_kvstore::shard::{Failure, Ledger, Shard};
use adit_kvstore::{Durability, LayoutId, Quota, TenantId, UNIT_BYTES, WhenReached};

use super::canary::StoreCanary;
use super::counts::Sum;
use super::frozen::Freezer;
use super::machine::lock;
use super::model::{Crash, Model};
use super::waiting::Waiting;
use super::world::{PATIENCE, Room, StoreWorld};
use crate::world::violated;

/// Maximum attempts to open a store on healthy devices.
const ATTEMPTS_MAX: u32 = 8;
/// Turns in which a shard with dead devices must have given everything back.
const LAST_TURNS: u32 = 16;
/// Steps until a journal has room.
const STEPS_MAX: u32 = 10_000;
/// After this time checkpoints are due for the ages of objects, however small a shard is.
const QUIET: Duration = Duration::from_secs(24 * 60 * 60);
const QUOTA_BYTES: [u64; 3] = [24 << 10, 80 << 10, 200 << 10];
/// The tenant with a quota.
pub(crate) const GUEST: &str = "guest";

/// How a life of the store ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// The power goes at this command of the run, or at the end of the life.
    Cut(u64),
    /// The process is killed; the devices stay on.
    Kill,
    /// Everything is answered and committed.
    Stop,
}

impl StoreWorld {
    /// Makes the whole run.
    pub(crate) fn run(&mut self) {
        self.begin();
        let mut is_there = self.open(true);
        for _ in 0..self.shape.lives {
            if !is_there {
                break;
            }
            let death = self.draw_death();
            self.live(death);
            self.die(death);
            is_there = self.open(true);
        }
        if is_there {
            self.finish();
        }
        self.count_run();
    }

    /// Formats the store.
    pub(crate) fn begin(&mut self) {
        lock(&self.machine).faults.set_calm(true);
        if self.random.one_in(20) {
            self.format_and_lose();
        }
        if let Err(error) = self.format() {
            violated(2, format_args!("healthy devices cannot be formatted: {error}"));
        }
        let mut lanes = self.lanes();
        let set = self.while_time_passes(|_, clock| format::read_set(&mut lanes, clock));
        self.give_lanes(lanes);
        let set = set.unwrap_or_else(|error| {
            violated(2, format_args!("what was formatted is no store: {error}"))
        });
        let (seed, keys) = (self.random.next(), self.keys(&set));
        self.model = Model::new(seed, set.shards(), keys, !self.shape.is_roomy);
        // Format honestly: a broken device acts only afterwards.
        lock(&self.machine).canary = self.canary;
        lock(&self.machine).faults.set_calm(false);
    }

    fn format(&mut self) -> adit_kvstore::Result<()> {
        let options = FormatOptions {
            shards: self.shape.shards,
            objects_max: self.shape.objects_max,
            key_bytes: 64,
            journal_bytes: self.shape.journal_bytes,
            label: "simulated".to_owned(),
            store_id: [self.random.below(256) as u8; 16],
            overwrite: true,
        };
        let mut lanes = self.lanes();
        let formatted =
            self.while_time_passes(|_, clock| format::format(&mut lanes, &options, clock));
        self.give_lanes(lanes);
        formatted.map(drop)
    }

    /// Formats the store and cuts the power meanwhile.
    fn format_and_lose(&mut self) {
        let at = lock(&self.machine).commands() + self.random.between(1, 8);
        lock(&self.machine).cut_at(Some(at));
        let formatted = self.format();
        self.note(&[40, at], format_args!("formatted, with a cut at command {at}: {formatted:?}"));
        lock(&self.machine).restart();
    }

    /// Opens the store and reads what came back, with power cuts if allowed. Returns false if faults have made that
    /// impossible.
    pub(crate) fn open(&mut self, may_be_cut: bool) -> bool {
        let mut last = String::new();
        // A cut would take what a kill left in the devices' caches.
        let may_be_cut = may_be_cut && self.crash == Crash::Cut;
        for attempt in 0..ATTEMPTS_MAX {
            if may_be_cut && attempt < 2 && self.random.one_in(5) {
                let at = lock(&self.machine).commands() + self.random.between(1, 60);
                lock(&self.machine).cut_at(Some(at));
            }
            self.draw_durability();
            lock(&self.machine).faults.set_calm(attempt > 0);
            let was_excused = self.model.is_excused();
            let opened = self.open_shards();
            self.excuse_if_struck();
            if !was_excused && self.model.is_excused() && self.durability != Durability::Volatile {
                // The journal may have been read stale, too.
                self.model.crash(Durability::Durable, Crash::Cut);
            }
            if opened.is_ok() {
                self.read_back();
            }
            lock(&self.machine).faults.set_calm(false);
            let is_off = lock(&self.machine).is_off();
            match opened {
                Ok(()) if !is_off => return true,
                Ok(()) => {}
                Err(_) if is_off => {
                    self.counts.count(Sum::OpeningCuts, 1);
                    self.note(&[41], format_args!("a cut while it was opened"));
                }
                Err(error) if self.model.is_excused() => {
                    self.note(&[42], format_args!("it does not open: {error}"));
                    last = error.to_string();
                }
                Err(error) => {
                    violated(2, format_args!("a healthy store does not open: {error}"));
                }
            }
            self.fall();
        }
        if !self.has_lost_superblocks() {
            violated(
                2,
                format_args!("a store does not open, and its superblocks are there: {last}"),
            );
        }
        self.counts.count(Sum::Unopenable, 1);
        false
    }

    /// Returns whether a device has no whole superblock: nothing else may keep a store from opening.
    fn has_lost_superblocks(&self) -> bool {
        let machine = lock(&self.machine);
        machine.media.iter().any(|media| {
            let lbas = UNIT_BYTES / media.lba_bytes() as u64;
            let copy = |unit: u64| match media.is_unreadable(unit * lbas, lbas) {
                true => vec![0; UNIT_BYTES as usize],
                false => media.read(unit * lbas, UNIT_BYTES as usize),
            };
            let [copy_a, copy_b] = superblock_units(media.lbas() / lbas).map(copy);
            choose(&copy_a, &copy_b).is_err()
        })
    }

    /// Sometimes changes the durability for the next opening.
    fn draw_durability(&mut self) {
        let one_in = self.shape.changes_durability;
        if one_in > 0 && self.random.one_in(one_in) {
            let all = [Durability::Volatile, Durability::Restart, Durability::Durable];
            let drawn = self.random.pick(&all);
            self.counts.count(Sum::OtherDurabilities, u64::from(drawn != self.durability));
            self.durability = drawn;
            self.note(&[47], format_args!("it is opened as {drawn}"));
        }
    }

    fn open_shards(&mut self) -> adit_kvstore::Result<()> {
        let is_volatile = self.durability == Durability::Volatile;
        if is_volatile {
            self.model.emptied(false);
        }
        let mut lanes = self.lanes();
        let set = self.while_time_passes(|_, clock| format::read_set(&mut lanes, clock))?;
        let mut lanes = Some(lanes);
        self.ledger = Ledger::default();
        self.begin_account();
        self.set = Some(set.clone());
        for shard in 0..set.shards() {
            let lanes = lanes.take().unwrap_or_else(|| self.lanes());
            let (shard, recovery) = self.while_time_passes(|world, clock| {
                Shard::open(shard, lanes, &set, world.options(), clock)
            })?;
            self.note(&[43], format_args!("opened: {recovery:?}"));
            self.check_losses(&recovery);
            self.shards.push(shard);
        }
        if is_volatile {
            self.model.emptied(true);
        }
        self.counts.count(Sum::Lives, 1);
        self.is_open = true;
        self.room = vec![Room::default(); self.shards.len()];
        self.waiting = Waiting::new(self.shape.memory_units, self.shards.len());
        self.define_tenants();
        self.define_layouts();
        self.lend_tiers();
        Ok(())
    }

    fn define_tenants(&mut self) {
        self.tenants.clear();
        for shard in 0..self.shards.len() {
            let mut tenants = vec![TenantId::default()];
            for name in [GUEST, "a second tenant"] {
                tenants.extend(self.define_tenant(shard, name));
            }
            self.tenants.push(tenants);
        }
        self.define_quota();
    }

    /// Sets the quota of this life, or sometimes lifts that of the life before.
    fn define_quota(&mut self) {
        self.quota = None;
        let Some(when_reached) = self.shape.quota else { return };
        let quota = Quota { bytes: self.random.pick(&QUOTA_BYTES), when_reached };
        let quota = (!self.random.one_in(4)).then_some(quota);
        let Some(guest) = self.tenants[0].get(1).copied() else { return };
        let set = self.define(|world| world.shards[0].set_quota(world.now, guest, quota));
        self.quota = quota.filter(|_| set.is_some());
        self.quota_used_at_open = self.guest_bytes();
    }

    /// Returns what the tenant with the quota has in all shards.
    fn guest_bytes(&self) -> u64 {
        let stats = self.shards.iter().flat_map(|shard| shard.tenants().stats());
        stats.filter(|tenant| &*tenant.name == GUEST).map(|tenant| tenant.used_bytes).sum()
    }

    /// Checks at rest that the tenant has no more than its quota: where others are refused, no more than it had when
    /// the store was opened; where its own objects go, after some turns. Objects that are leased or being written stay.
    fn check_quota(&mut self) {
        let Some(quota) = self.quota else { return };
        let evicts = quota.when_reached == WhenReached::EvictOwn;
        let most = if evicts { quota.bytes } else { quota.bytes.max(self.quota_used_at_open) };
        for _ in 0..STEPS_MAX {
            let is_excused = self.model.is_excused() || lock(&self.machine).is_off();
            let stays = !self.writers.is_empty() || !self.leases.is_empty();
            if is_excused || stays || self.guest_bytes() <= most {
                return;
            }
            self.step();
        }
        violated(
            2,
            format_args!("{} bytes of a tenant whose quota is {quota:?}", self.guest_bytes()),
        );
    }

    /// Defines a tenant; returns `None` if its device fails.
    fn define_tenant(&mut self, shard: usize, name: &str) -> Option<TenantId> {
        self.define(|world| world.shards[shard].tenant(world.now, name))
    }

    /// Makes a definition as soon as the journal has room; returns `None` if its device fails.
    fn define<T>(
        &mut self,
        mut tell: impl FnMut(&mut StoreWorld) -> Result<T, Failure>,
    ) -> Option<T> {
        for _ in 0..STEPS_MAX {
            match tell(self) {
                Ok(id) => return Some(id),
                Err(Failure::Full) => self.step(),
                Err(failure) => {
                    self.excuse_if_struck();
                    let is_off = lock(&self.machine).is_off();
                    if !is_off && !self.model.is_excused() {
                        violated(2, format_args!("nothing can be defined: {failure}"));
                    }
                    return None;
                }
            }
            if lock(&self.machine).is_off() {
                return None;
            }
        }
        violated(4, "the journal never has room")
    }

    fn define_layouts(&mut self) {
        let layouts = self.shape.layouts.clone();
        self.layouts.clear();
        for shard in 0..self.shards.len() {
            let define = |layout: &Layout| {
                self.define(|world| world.shards[shard].layout(world.now, *layout))
            };
            let ids: Vec<Option<LayoutId>> = layouts.iter().map(define).collect();
            self.layouts.push(ids);
        }
    }

    /// Reads every key, or sometimes only some, at rest.
    fn read_back(&mut self) {
        self.is_settling = true;
        let percent = if self.random.one_in(6) { 50 } else { 100 };
        for key in 0..self.model.len() {
            if self.random.chance(percent) && !lock(&self.machine).is_off() {
                self.submit_whole_get(key);
            }
            if self.pending.len() >= self.shape.pending_max {
                self.drain();
            }
        }
        self.drain();
        self.is_settling = false;
    }

    fn draw_death(&mut self) -> Death {
        match self.random.below(6) {
            0..3 => {
                let within = self.random.pick(&[20, 200, 600]);
                Death::Cut(lock(&self.machine).commands() + self.random.between(1, within))
            }
            3..5 => Death::Kill,
            _ => Death::Stop,
        }
    }

    fn live(&mut self, death: Death) {
        self.crash = Crash::Cut;
        self.note(&[44], format_args!("a life that ends by {death:?}"));
        if let Death::Cut(at) = death {
            lock(&self.machine).cut_at(Some(at));
        }
        let first = self.next_tag;
        for action in 0.. {
            let done = if self.shape.counts_requests { self.next_tag - first } else { action };
            if done >= self.shape.actions || lock(&self.machine).is_off() {
                return;
            }
            self.trace.step();
            self.act();
        }
    }

    fn act(&mut self) {
        match self.random.below(100) {
            0..55 if self.pending.len() < self.shape.pending_max => self.submit_any(),
            0..90 => self.step(),
            90..94 => self.pass(),
            94..96 => self.attach(),
            _ => self.look(),
        }
    }

    fn pass(&mut self) {
        let most_ns = self.random.pick(&[100_000, 20_000_000, 4_000_000_000]);
        let mut time = Duration::from_nanos(self.random.below(most_ns));
        if self.pending.is_empty() && self.random.one_in(16) {
            // Checkpoints become due for the ages.
            time += QUIET;
        }
        self.note(&[45], format_args!("{time:?} pass"));
        self.now = self.now + time;
    }

    fn die(&mut self, death: Death) {
        match death {
            Death::Cut(_) => {
                self.counts.count(Sum::Cuts, 1);
                lock(&self.machine).cut_now();
            }
            Death::Kill => {
                self.counts.count(Sum::Kills, 1);
                // The cut of an opening may strike later than the opening.
                if self.random.one_in(2) && !lock(&self.machine).is_off() {
                    // A late device writes late what it was sent in time.
                    let is_late = lock(&self.machine).faults.has_delayed();
                    let recorded = if is_late { 0 } else { self.recorded() };
                    self.crash = Crash::Kill { recorded };
                }
            }
            Death::Stop => {
                self.counts.count(Sum::Stops, 1);
                self.stop();
            }
        }
        self.note(&[46], format_args!("{death:?}"));
        let stopped = if death == Death::Stop { self.record_stop() } else { None };
        self.fall();
        if let Some(ends) = stopped
            && self.shape.faults.kinds().next().is_none()
            && (self.random.one_in(2) || self.canary == Some(StoreCanary::KeptOutdated))
        {
            self.damage_journal(&ends);
        }
    }

    fn stop(&mut self) {
        self.drain();
        for shard in 0..self.shards.len() {
            self.submit_commit(shard as u16);
        }
        self.drain();
        self.check_quota();
        self.keep_ages();
    }

    /// Has the shards take their last checkpoints. Sometimes the process does not wait for them.
    fn keep_ages(&mut self) {
        let now = self.now;
        let within = self.random.pick(&[Duration::from_millis(50), Duration::from_secs(5)]);
        self.shards.iter_mut().for_each(|shard| shard.keep_ages(now, within));
        let until = now + PATIENCE;
        let steps_max = if self.random.one_in(4) { self.random.below(60) } else { u64::MAX };
        for _ in 0..steps_max {
            let is_off = lock(&self.machine).is_off();
            if is_off || self.model.is_excused() || self.shards.iter().all(Shard::is_idle) {
                return;
            }
            if self.now > until {
                violated(4, "a store that is closed takes checkpoints for long");
            }
            self.step();
        }
    }

    /// Ends the store; the next one finds what the devices keep.
    pub(crate) fn fall(&mut self) {
        self.count_shards();
        lock(&self.machine).hang_up();
        self.end_shards();
        for (_, done) in std::mem::take(&mut self.unverified) {
            self.pool.give(done.memory);
        }
        self.pending.clear();
        self.waiting = Waiting::default();
        self.writers.clear();
        self.leases.clear();
        self.let_all_go();
        self.excuse_if_struck();
        lock(&self.machine).restart();
        // An unopened store has written nothing: the state is as before, except for what faults do.
        if std::mem::take(&mut self.is_open) {
            self.model.crash(self.durability, self.crash);
        } else if self.model.is_excused() {
            self.model.crash(Durability::Durable, Crash::Cut);
        }
        self.forget_turns();
    }

    /// Takes the shards' last turns, in which they return what is in flight, and their memory.
    pub(crate) fn end_shards(&mut self) {
        for mut shard in std::mem::take(&mut self.shards) {
            let (now, pool) = (self.now, &mut self.pool);
            for _ in 0..LAST_TURNS {
                if shard.poll(now, &mut |done| pool.give(done.memory)).moved == 0 {
                    break;
                }
            }
            self.give_lanes(shard.into_lanes());
        }
    }

    /// Ends the run: no more faults, and every request is answered.
    fn finish(&mut self) {
        lock(&self.machine).faults.set_calm(true);
        self.drain();
        self.scan();
        self.stop();
        self.fall();
    }

    pub(crate) fn count_shards(&mut self) {
        for shard in &self.shards {
            let stats = shard.stats();
            self.counts.count(Sum::Evictions, stats.evictions.objects());
            self.counts.count(Sum::Unfragmented, stats.evictions.fragmentation.objects);
            self.counts.count(Sum::QuotaEvictions, stats.evictions.quota.objects);
            self.counts.count(Sum::Expirations, stats.expirations);
            self.counts.count(Sum::Corrupt, stats.misses_corrupt);
            self.counts.count(Sum::Checkpoints, stats.checkpoints);
            self.counts.count(Sum::TierHits, stats.tier_hits);
            self.counts.count(Sum::TierForgotten, stats.tier_invalidations);
            self.counts.count(Sum::TierEvicted, stats.tier_evictions);
            self.journal_bytes += stats.journal_bytes;
        }
    }

    fn count_run(&mut self) {
        self.counts.count(Sum::Schedules, 1);
        let ring = self.shape.journal_bytes.map(|bytes| bytes * u64::from(self.shape.shards));
        self.counts.count(Sum::JournalRounds, ring.map_or(0, |bytes| self.journal_bytes / bytes));
        let machine = lock(&self.machine);
        self.counts.count(Sum::Commands, machine.commands());
        self.counts.struck = machine.faults.struck().to_vec();
    }

    /// Runs one life on healthy devices, with a power cut at its end. Returns the number of commands.
    pub(crate) fn run_long_life(&mut self) -> u64 {
        self.begin();
        self.open(false);
        let before = lock(&self.machine).commands();
        let death = Death::Cut(u64::MAX);
        self.live(death);
        let commands = lock(&self.machine).commands() - before;
        self.die(death);
        self.open(false);
        self.finish();
        self.count_run();
        commands
    }

    /// Runs the same life up to the last of `cuts`, which are its commands from 1, in order, and keeps the state at
    /// each.
    pub(crate) fn run_to_cuts(&mut self, cuts: &[u64]) {
        self.begin();
        self.open(false);
        {
            let mut machine = lock(&self.machine);
            let before = machine.commands();
            machine.freezer = Freezer::new(cuts.iter().map(|cut| before + cut));
        }
        self.note(&[44], format_args!("a life that is cut at its commands {cuts:?}"));
        while lock(&self.machine).freezer.is_on() {
            self.trace.step();
            self.act();
        }
    }

    /// Continues after the power cut.
    pub(crate) fn run_from_cut(&mut self) {
        self.counts.count(Sum::Cuts, 1);
        self.fall();
        self.open(false);
        self.finish();
        self.count_run();
    }
}
