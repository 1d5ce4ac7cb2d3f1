//! Tenants: names, quotas and usage.
//!
//! A tenant has a name and a number, to which its objects on the media refer. Numbers are assigned in order; adding the
//! same names in the same order yields the same numbers. Once all are in use, the next tenant gets the number of one that
//! has neither objects nor a quota nor a holder ([`Hold`]). Number 0 is the default tenant: it has no name
//! and no quota, and always exists.
//!
//! A quota holds for the whole store: a [`Ledger`] sums up a tenant's use of all shards. [`Tenants`] are those of one
//! shard, with their counters. Units are charged when an extent is reserved.
//!
//! An object that replaces another one of its tenant is *covered* by it where the quota demands that: until the old one
//! is freed, its units do not count. So a replacement needs no more quota than the difference, and puts in flight at the
//! same time cannot use one old object twice.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use adit_driver::runtime::lock;

use crate::catalog::hash::NumberMap;
use crate::error::Failure;
use crate::model::object::{Hold, ObjectId, TenantId};
use crate::model::options::{Quota, WhenReached};
use crate::model::place::UNIT_BYTES;

/// Maximum length of a tenant's name in bytes.
pub(crate) const TENANT_NAME_BYTES_MAX: usize = 64;
/// Maximum number of tenants, besides the default one.
pub(crate) const TENANTS_MAX: usize = u8::MAX as usize;

/// A tenant's use of the store, and its operations since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantStats {
    /// Its name: 1 to 64 bytes, or empty for the default tenant.
    pub name: Box<str>,
    /// Its quota; unlimited if `None`.
    pub quota: Option<Quota>,
    /// Objects, including those being written.
    pub objects: u64,
    /// Their bytes, padding included.
    pub used_bytes: u64,
    /// Objects stored for the tenant.
    pub puts: u64,
    /// Gets that found an object of the tenant. A miss has no tenant.
    pub gets: u64,
    /// Gets that returned an object of the tenant.
    pub hits: u64,
    /// Objects evicted, for room or for the quota.
    pub evictions: u64,
    /// Puts and reservations refused because of the quota.
    pub refusals: u64,
}

impl TenantStats {
    /// Adds the same tenant's figures of another shard.
    pub(crate) fn add(&mut self, other: &TenantStats) {
        assert_eq!(self.name, other.name, "the same tenant");
        self.objects += other.objects;
        self.used_bytes += other.used_bytes;
        self.puts += other.puts;
        self.gets += other.gets;
        self.hits += other.hits;
        self.evictions += other.evictions;
        self.refusals += other.refusals;
    }
}

/// The use of a store by its tenants, in all shards. Clones are the same ledger.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Locked only to define a tenant.
    accounts: Mutex<Vec<Arc<Account>>>,
    /// A number that grows when all shards must check their tenants.
    news: AtomicU64,
    /// Wake the threads of the shards.
    wakers: Mutex<Vec<Waker>>,
}

/// A tenant in all shards.
#[derive(Debug)]
struct Account {
    name: Box<str>,
    /// Units charged.
    units: AtomicU64,
    /// A [`Quota`] in one word, so that its parts change together.
    quota: AtomicU64,
}

/// The word of no quota.
const UNLIMITED: u64 = u64::MAX;
/// The largest quota, which leaves room for a bit.
const QUOTA_BYTES_MAX: u64 = (1 << 62) - 1;

impl Ledger {
    /// Wakes `waker` whenever the shards must check their tenants.
    pub(crate) fn wake_on_news(&self, waker: Waker) {
        lock(&self.0.wakers).push(waker);
    }

    /// Makes all shards check their tenants. Returns the number of the news before.
    fn announce(&self) -> u64 {
        let before = self.0.news.fetch_add(1, Ordering::Release);
        lock(&self.0.wakers).iter().for_each(Waker::wake_by_ref);
        before
    }

    fn account(&self, name: &str) -> Arc<Account> {
        let mut accounts = lock(&self.0.accounts);
        // Drops accounts that no shard has any more; the shard that has read a quota keeps its account.
        accounts.retain(|account| Arc::strong_count(account) > 1);
        if let Some(known) = accounts.iter().find(|account| &*account.name == name) {
            return Arc::clone(known);
        }
        let (units, quota) = (AtomicU64::new(0), AtomicU64::new(UNLIMITED));
        let account = Arc::new(Account { name: name.into(), units, quota });
        accounts.push(Arc::clone(&account));
        account
    }
}

impl Account {
    fn quota(&self) -> Option<Quota> {
        let word = self.quota.load(Ordering::Relaxed);
        let when_reached = if word & 1 == 0 { WhenReached::Refuse } else { WhenReached::EvictOwn };
        (word != UNLIMITED).then_some(Quota { bytes: word >> 1, when_reached })
    }

    fn set_quota(&self, quota: Option<Quota>) {
        let word = quota.map_or(UNLIMITED, |Quota { bytes, when_reached }| {
            bytes.min(QUOTA_BYTES_MAX) << 1 | u64::from(when_reached == WhenReached::EvictOwn)
        });
        self.quota.store(word, Ordering::Relaxed);
    }

    /// Charges `units` if `quota` allows it, of which `covered` do not count.
    fn charge(&self, units: u64, covered: u64, quota: &Quota) -> bool {
        let quota_units = quota.bytes / UNIT_BYTES;
        let with = |has: u64| {
            let with = has + units - covered.min(units);
            (with <= quota_units || units <= covered).then_some(has + units - covered)
        };
        self.units.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok()
    }

    /// Returns whether it exceeds its quota and evicts its own objects for it.
    fn is_to_shrink(&self) -> bool {
        self.quota().is_some_and(|quota| {
            quota.when_reached == WhenReached::EvictOwn
                && self.units.load(Ordering::Relaxed) > quota.bytes / UNIT_BYTES
        })
    }
}

/// A tenant in one shard.
#[derive(Debug)]
struct Tenant {
    account: Arc<Account>,
    hold: Hold,
    /// Units in use.
    units: u64,
    /// Units charged to the account.
    charged: u64,
    /// Its figures, without the fields that come from elsewhere.
    stats: TenantStats,
}

/// The tenants of a shard.
#[derive(Debug)]
pub struct Tenants {
    /// Indexed by number.
    tenants: Vec<Tenant>,
    ledger: Ledger,
    /// The last news of the ledger that was read.
    read_news: u64,
    /// Objects that cover a replacement, with their tenants and units.
    covers: NumberMap<ObjectId, (TenantId, u64)>,
}

impl Tenants {
    /// Creates the default tenant alone.
    pub(crate) fn new(ledger: &Ledger) -> Tenants {
        let ledger = ledger.clone();
        let tenants = vec![Tenant::new(ledger.account(""))];
        Tenants { tenants, ledger, read_news: u64::MAX, covers: NumberMap::default() }
    }

    /// Adds a tenant.
    ///
    /// # Errors
    /// The reason if the name is empty, longer than 64 bytes or taken, or if there are 255 tenants and `may_replace`
    /// spares each.
    pub(crate) fn add(&mut self, name: &str, may_replace: bool) -> Result<TenantId, &'static str> {
        if name.is_empty() || name.len() > TENANT_NAME_BYTES_MAX {
            return Err("a tenant's name has 1 to 64 bytes: choose another name");
        }
        if self.find(name).is_some() {
            return Err("there is a tenant of this name: use it");
        }
        if self.tenants.len() <= TENANTS_MAX {
            let id = TenantId(self.tenants.len() as u8);
            self.tenants.push(Tenant::new(self.ledger.account(name)));
            return Ok(id);
        }
        let free = self.tenants.iter().skip(1).position(Tenant::is_free).filter(|_| may_replace);
        let Some(at) = free.map(|at| at + 1) else {
            return Err(
                "a store has at most 255 tenants with objects, a quota or a user: use one of them, remove the objects \
                 of one, or try again once a checkpoint has ended",
            );
        };
        assert_eq!(self.tenants[at].units, 0, "it has no objects");
        self.tenants[at] = Tenant::new(self.ledger.account(name));
        Ok(TenantId(at as u8))
    }

    /// Reserves a tenant's number, so that no other tenant gets it.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub fn hold(&self, id: TenantId) -> Hold {
        self.tenants[usize::from(id.0)].hold.clone()
    }

    /// Returns the tenant of this name; the empty name is the default tenant.
    pub(crate) fn find(&self, name: &str) -> Option<TenantId> {
        let at = self.tenants.iter().position(|tenant| &*tenant.account.name == name)?;
        Some(TenantId(at as u8))
    }

    /// Returns a tenant's name by its number, which may come from the media.
    pub fn name(&self, id: TenantId) -> Option<&str> {
        self.tenants.get(usize::from(id.0)).map(|tenant| &*tenant.account.name)
    }

    /// Returns the numbers of all tenants.
    pub(crate) fn ids(&self) -> impl Iterator<Item = TenantId> + use<> {
        (0..self.tenants.len()).map(|number| TenantId(number as u8))
    }

    /// Returns a tenant's quota.
    pub fn quota(&self, id: TenantId) -> Option<Quota> {
        self.tenants[usize::from(id.0)].account.quota()
    }

    /// Sets a quota, in all shards. A tenant beyond it is refused further objects, or loses its oldest ones.
    ///
    /// # Panics
    /// If there is no such tenant, or it is the default one.
    pub(crate) fn set_quota(&mut self, id: TenantId, quota: Option<Quota>) {
        assert!(id != TenantId::default(), "the default tenant has no quota");
        self.tenant(id).account.set_quota(quota);
        self.ledger.announce();
    }

    /// Returns the statistics of all tenants.
    pub fn stats(&self) -> Vec<TenantStats> {
        let stats = |tenant: &Tenant| TenantStats {
            name: tenant.account.name.clone(),
            quota: tenant.account.quota(),
            used_bytes: tenant.units * UNIT_BYTES,
            ..tenant.stats.clone()
        };
        self.tenants.iter().map(stats).collect()
    }

    /// Returns a tenant's counters.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub(crate) fn counters(&mut self, id: TenantId) -> &mut TenantStats {
        &mut self.tenant(id).stats
    }

    /// Counts an object of `units`, if the quota allows it. `old` returns the object of the same tenant that it
    /// replaces, with its units. A tenant that evicts its own objects is refused only what exceeds the whole quota.
    ///
    /// # Errors
    /// [`Failure::Quota`], which is counted as a refusal; nothing else is counted then.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub(crate) fn charge(
        &mut self,
        id: TenantId,
        units: u64,
        old: impl FnOnce() -> Option<(ObjectId, u64)>,
    ) -> Result<(), Failure> {
        let Tenant { account, .. } = self.tenant(id);
        let Some(quota) = account.quota() else {
            self.count(id, units);
            return Ok(());
        };
        if account.charge(units, 0, &quota) {
            self.note(id, units, units);
            return Ok(());
        }
        let account = Arc::clone(account);
        if let Some((object, covered)) = old().filter(|(old, _)| !self.covers.contains_key(old))
            && account.charge(units, covered, &quota)
        {
            self.covers.insert(object, (id, covered));
            self.note(id, units, units);
            self.tenant(id).charged -= covered;
            return Ok(());
        }
        let evicts = quota.when_reached == WhenReached::EvictOwn;
        if evicts && units <= quota.bytes / UNIT_BYTES {
            self.count(id, units);
            return Ok(());
        }
        self.tenant(id).stats.refusals += 1;
        Err(Failure::Quota { tenant: account.name.clone(), quota_bytes: quota.bytes })
    }

    /// Counts an existing object of `units` regardless of the quota.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub(crate) fn count(&mut self, id: TenantId, units: u64) {
        // All shards would write the default tenant's account for nothing: it has no quota.
        let charged = if id == TenantId::default() { 0 } else { units };
        if charged > 0 {
            self.tenant(id).account.units.fetch_add(charged, Ordering::Relaxed);
        }
        self.note(id, units, charged);
    }

    /// Notes units that the account already has.
    fn note(&mut self, id: TenantId, units: u64, charged: u64) {
        let tenant = self.tenant(id);
        tenant.units = tenant.units.checked_add(units).expect("units of real devices");
        tenant.charged += charged;
        tenant.stats.objects += 1;
    }

    /// Subtracts an object of `units`.
    ///
    /// # Panics
    /// If there is no such tenant, or it has less.
    pub(crate) fn credit(&mut self, id: TenantId, units: u64) {
        let tenant = self.tenant(id);
        assert!(tenant.units >= units && tenant.stats.objects > 0, "only what was counted goes");
        tenant.units -= units;
        tenant.stats.objects -= 1;
        if id != TenantId::default() {
            tenant.charged -= units;
            tenant.account.units.fetch_sub(units, Ordering::Relaxed);
        }
    }

    /// Makes an object's units count again, because it is freed or its replacement failed. Ignores an object that covers
    /// nothing.
    #[inline]
    pub(crate) fn uncover(&mut self, object: ObjectId) {
        if self.has_covers()
            && let Some((id, units)) = self.covers.remove(&object)
        {
            let tenant = self.tenant(id);
            tenant.charged += units;
            tenant.account.units.fetch_add(units, Ordering::Relaxed);
        }
    }

    /// Returns whether any object covers a replacement.
    #[inline]
    pub(crate) fn has_covers(&self) -> bool {
        !self.covers.is_empty()
    }

    /// Returns whether [`Tenants::read_news`] would return true.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.ledger.0.news.load(Ordering::Acquire) != self.read_news
    }

    /// Returns whether a quota has changed, or a tenant may have more than its quota, since the last call.
    pub(crate) fn read_news(&mut self) -> bool {
        let news = self.ledger.0.news.load(Ordering::Acquire);
        std::mem::replace(&mut self.read_news, news) != news
    }

    /// Makes the other shards evict objects of tenants beyond their quotas.
    pub(crate) fn ask_others(&mut self) {
        let before = self.ledger.announce();
        if before == self.read_news {
            // This shard need not react to its own request.
            self.read_news += 1;
        }
    }

    /// Returns whether a tenant evicts its own objects when it reaches its quota.
    pub(crate) fn evicts_own(&self, id: TenantId) -> bool {
        self.quota(id).is_some_and(|quota| quota.when_reached == WhenReached::EvictOwn)
    }

    /// Returns whether a tenant has to evict objects of its own.
    pub(crate) fn is_to_shrink(&self, id: TenantId) -> bool {
        self.tenants[usize::from(id.0)].account.is_to_shrink()
    }

    fn tenant(&mut self, id: TenantId) -> &mut Tenant {
        self.tenants.get_mut(usize::from(id.0)).expect("only tenants that exist are named")
    }
}

impl Drop for Tenants {
    /// Takes the shard's objects off the ledger, which the other shards keep using.
    fn drop(&mut self) {
        for tenant in &self.tenants {
            tenant.account.units.fetch_sub(tenant.charged, Ordering::Relaxed);
        }
    }
}

impl Tenant {
    fn new(account: Arc<Account>) -> Tenant {
        let hold = Hold::default();
        Tenant { account, hold, units: 0, charged: 0, stats: TenantStats::default() }
    }

    /// Returns whether another tenant may get its number.
    fn is_free(&self) -> bool {
        self.stats.objects == 0 && self.account.quota().is_none() && self.hold.is_alone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn refuse(units: u64) -> Option<Quota> {
        Some(Quota { bytes: units * UNIT_BYTES, when_reached: WhenReached::Refuse })
    }

    fn evict_own(units: u64) -> Option<Quota> {
        Some(Quota { bytes: units * UNIT_BYTES, when_reached: WhenReached::EvictOwn })
    }

    /// A shard's tenants with one tenant that has a quota.
    fn one(quota: Option<Quota>) -> (Tenants, TenantId) {
        let mut tenants = Tenants::new(&Ledger::default());
        let id = tenants.add("a", true).expect("a name");
        tenants.set_quota(id, quota);
        (tenants, id)
    }

    fn charge(tenants: &mut Tenants, id: TenantId, units: u64) -> bool {
        tenants.charge(id, units, || None).is_ok()
    }

    fn units(tenants: &Tenants, id: TenantId) -> u64 {
        tenants.stats()[usize::from(id.0)].used_bytes / UNIT_BYTES
    }

    #[test]
    fn names_and_numbers_lead_to_each_other() {
        let mut tenants = Tenants::new(&Ledger::default());
        let (first, second) =
            (tenants.add("a", true).expect("a name"), tenants.add("ä", true).expect("a name"));
        assert_eq!((first, second), (TenantId(1), TenantId(2)));
        assert_eq!((tenants.find("ä"), tenants.find("b")), (Some(second), None));
        assert_eq!((tenants.name(second), tenants.name(TenantId(3))), (Some("ä"), None));
    }

    #[test]
    fn tenants_added_in_the_order_of_a_walk_have_the_same_numbers() {
        let mut tenants = Tenants::new(&Ledger::default());
        for number in 0..TENANTS_MAX {
            tenants.add(&format!("tenant {number}"), true).expect("room");
        }
        let mut again = Tenants::new(&Ledger::default());
        for id in tenants.ids().skip(1) {
            let name = tenants.name(id).expect("it was added");
            assert_eq!(again.add(name, true).expect("room"), id);
        }
        again.add("one more", false).expect_err("255 are all");
        // Those in use keep their numbers: by objects, a quota, or a holder.
        again.count(TenantId(1), 5);
        again.set_quota(TenantId(2), refuse(1));
        let hold = again.hold(TenantId(3));
        again.counters(TenantId(4)).puts = 9;
        assert_eq!(again.add("one more", true), Ok(TenantId(4)));
        assert_eq!((again.name(TenantId(4)), again.find("tenant 3")), (Some("one more"), None));
        assert_eq!(again.stats()[4].puts, 0, "the other's are gone");
        drop(hold);
        assert_eq!(again.add("and another", true), Ok(TenantId(3)));
        again.credit(TenantId(1), 5);
        again.set_quota(TenantId(2), None);
        assert_eq!(again.add("the first", true), Ok(TenantId(1)));
        let accounts = lock(&again.ledger.0.accounts).len();
        assert!(accounts <= 1 + 2 * TENANTS_MAX, "{accounts}: those without a shard are gone");
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        let mut tenants = Tenants::new(&Ledger::default());
        tenants.add(&"a".repeat(TENANT_NAME_BYTES_MAX), true).expect("a name");
        for name in ["", &"a".repeat(TENANT_NAME_BYTES_MAX), &"b".repeat(TENANT_NAME_BYTES_MAX + 1)]
        {
            tenants.add(name, true).expect_err("no name");
        }
    }

    #[test]
    fn a_quota_that_shrinks_takes_nothing_away_and_gives_nothing_more() {
        let (mut tenants, id) = one(None);
        assert!(charge(&mut tenants, id, 10), "no quota");
        tenants.set_quota(id, refuse(4));
        let refused = tenants.charge(id, 1, || None).expect_err("no room");
        let quota_bytes = refuse(4).expect("a quota").bytes;
        assert_eq!(refused, Failure::Quota { tenant: "a".into(), quota_bytes });
        tenants.credit(id, 10);
        assert!(charge(&mut tenants, id, 4), "room");
        tenants.set_quota(id, None);
        assert!(charge(&mut tenants, id, 1 << 20), "the quota was lifted");
    }

    #[test]
    fn a_quota_holds_for_all_shards_together_and_a_shard_that_ends_gives_its_share_back() {
        let ledger = Ledger::default();
        let mut shards = [Tenants::new(&ledger), Tenants::new(&ledger)];
        let [first, second] = shards.each_mut().map(|shard| shard.add("a", true).expect("a name"));
        shards[0].set_quota(first, refuse(10));
        assert!(charge(&mut shards[1], second, 9), "whatever the spread");
        assert!(!charge(&mut shards[0], first, 2) && charge(&mut shards[0], first, 1));
        let [mut rest, ended] = shards;
        drop(ended);
        assert!(charge(&mut rest, first, 9) && !charge(&mut rest, first, 1));
    }

    #[test]
    fn a_replacement_is_charged_the_difference_and_one_object_covers_one_replacement() {
        let (mut tenants, id) = one(refuse(10));
        assert!(charge(&mut tenants, id, 6) && charge(&mut tenants, id, 4));
        let old = |number, units| move || Some((ObjectId(number), units));
        tenants.charge(id, 6, old(1, 6)).expect("the old one goes");
        tenants.charge(id, 4, old(2, 4)).expect("and this one, at the same time");
        tenants.charge(id, 6, old(1, 6)).expect_err("it covers one already");
        assert_eq!(units(&tenants, id), 20, "both exist");
        for (object, units) in [(1, 6), (2, 4)] {
            tenants.uncover(ObjectId(object));
            tenants.credit(id, units);
        }
        assert_eq!(units(&tenants, id), 10);
        assert!(!charge(&mut tenants, id, 1), "the quota is used up again");
        tenants.charge(id, 5, old(2, 4)).expect_err("it grows");
        tenants.set_quota(id, refuse(3));
        tenants.charge(id, 4, old(2, 4)).expect("it does not grow");
    }

    #[test]
    fn a_replacement_that_ends_leaves_no_quota_behind() {
        let (mut tenants, id) = one(refuse(10));
        assert!(charge(&mut tenants, id, 10));
        tenants.charge(id, 10, || Some((ObjectId(1), 10))).expect("it is covered");
        tenants.uncover(ObjectId(1));
        tenants.credit(id, 10);
        assert!(!charge(&mut tenants, id, 1), "10 units are there, of one object or the other");
    }

    #[test]
    fn a_tenant_that_evicts_its_own_has_too_much_rather_than_too_little() {
        let (mut tenants, id) = one(evict_own(10));
        assert!(charge(&mut tenants, id, 10) && !tenants.is_to_shrink(id));
        assert!(!charge(&mut tenants, id, 11), "no eviction makes room for it");
        assert!(charge(&mut tenants, id, 3) && tenants.is_to_shrink(id));
        tenants.credit(id, 3);
        assert!(!tenants.is_to_shrink(id) && tenants.evicts_own(id));
        assert_eq!(tenants.stats()[1].refusals, 1);
    }

    #[test]
    fn a_new_quota_is_news_to_every_shard_once() {
        let ledger = Ledger::default();
        let mut shards = [Tenants::new(&ledger), Tenants::new(&ledger)];
        assert!(shards.iter_mut().all(Tenants::read_news), "all there is, is news");
        assert!(!shards.iter().any(Tenants::has_news));
        let id = shards[0].add("a", true).expect("a name");
        shards[0].set_quota(id, evict_own(1));
        assert!(shards.iter().all(Tenants::has_news));
        assert!(shards.iter_mut().all(Tenants::read_news));
        assert!(!shards.iter_mut().any(Tenants::read_news));
        shards[1].ask_others();
        assert!(shards[0].has_news() && !shards[1].has_news(), "only others are asked");
    }

    proptest! {
        #[test]
        fn what_is_charged_is_what_is_there(
            steps in vec((0_u64..9, any::<bool>()), 1..100), quota_units in 0_u64..40,
        ) {
            let (mut tenants, id) = one(refuse(quota_units));
            let mut model: Vec<u64> = Vec::new();
            for (units, comes) in steps {
                let has_units: u64 = model.iter().sum();
                if comes {
                    let charged = charge(&mut tenants, id, units);
                    prop_assert_eq!(charged, has_units + units <= quota_units || units == 0);
                    model.extend(charged.then_some(units));
                } else if let Some(units) = model.pop() {
                    tenants.credit(id, units);
                }
                let stats = &tenants.stats()[usize::from(id.0)];
                let has = (stats.used_bytes / UNIT_BYTES, stats.objects);
                prop_assert_eq!(has, (model.iter().sum(), model.len() as u64));
            }
        }
    }
}
