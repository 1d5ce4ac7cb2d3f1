//! Tenants of a shard: who pays for an object, and who has to give some up.
//!
//! A tenant that evicts its own objects may have more than its quota for a moment: a put is stored, and then the shard
//! removes the tenant's least recently used objects. If it has no other, it asks the other shards to do so, because the
//! quota is the store's. A tenant may also have more while its objects are leased: the shard goes on when a lease ends.

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::Shard;
use super::evicting::Evicted;
use crate::catalog::tenant::{OverQuota, TenantStats};
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::record::Record;
use crate::model::key::Key;
use crate::model::object::{Hold, LayoutId, Object, ObjectId, TenantId};
use crate::model::options::Quota;
use crate::model::place::UNIT_BYTES;

/// Limit of evictions for quotas per turn, which bounds a turn.
const EVICTIONS_PER_TURN: usize = 64;

/// Whether tenants may have more than their quotas.
#[derive(Debug, Default)]
pub(super) struct Shrinking {
    is_due: bool,
    /// Whether this shard stored an object, which then stays if it fits the quota: rather than that one, others' objects
    /// go.
    asks: bool,
    /// Whether a tenant still has more, because its objects here are leased.
    is_blocked: bool,
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Returns the tenant of this name, creating it without a quota if it is new. Its number stays its own while it has
    /// objects, a quota or a holder ([`Shard::hold_tenant`]).
    ///
    /// # Errors
    /// [`Failure::Tenant`] if there are 255 such tenants already, or the name is longer than 64 bytes; [`Failure::Device`] if it
    /// cannot be written to the journal; [`Failure::Full`] while the journal has no room, which polling makes.
    pub fn tenant(&mut self, now: Time, name: &str) -> Result<TenantId, Failure> {
        if let Some(id) = self.tenants.find(name) {
            return Ok(id);
        }
        self.check_definable()?;
        let id = self.tenants.add(name, self.may_replace()).map_err(Failure::Tenant)?;
        self.record_tenant(now, id);
        Ok(id)
    }

    /// Returns whether a number of a tenant or a layout may be given to another one: not while a checkpoint is being
    /// taken, which would have objects of both.
    pub(super) fn may_replace(&self) -> bool {
        !self.is_checkpointing()
    }

    /// Keeps a tenant's number from being given to another.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub fn hold_tenant(&self, id: TenantId) -> Hold {
        self.tenants.hold(id)
    }

    /// Sets a tenant's quota in all shards that share the ledger, or lifts it. Call it on shard 0: the quotas in its
    /// journal are those that come back.
    ///
    /// # Errors
    /// [`Failure::Undefined`] if there is no such tenant; [`Failure::Tenant`] for the default one;
    /// [`Failure::Device`] and [`Failure::Full`] as [`Shard::tenant`].
    pub fn set_quota(
        &mut self,
        now: Time,
        id: TenantId,
        quota: Option<Quota>,
    ) -> Result<(), Failure> {
        match self.tenants.name(id) {
            None => return Err(Failure::Undefined("tenant")),
            Some(_) if id == TenantId::default() => {
                let why = "the default tenant cannot have a quota: put the objects for another one";
                return Err(Failure::Tenant(why));
            }
            Some(_) => self.check_definable()?,
        }
        self.tenants.set_quota(id, quota);
        self.record_tenant(now, id);
        Ok(())
    }

    /// Records a tenant as it is now.
    fn record_tenant(&mut self, now: Time, id: TenantId) {
        let name = self.tenants.name(id).expect("a tenant has a name");
        self.log.append(now, &Record::Tenant { id, name, quota: self.tenants.quota(id) });
    }

    /// Returns what each tenant has in this shard and did there, by number.
    pub fn tenant_stats(&self) -> Vec<TenantStats> {
        self.tenants.stats()
    }

    /// Returns the name of the tenant with this id.
    pub fn tenant_name(&self, id: TenantId) -> Option<&str> {
        self.tenants.name(id)
    }

    /// Charges a tenant for a new object.
    pub(super) fn charge(
        &mut self,
        (key, hash): (&Key, u64),
        (tenant, layout): (TenantId, LayoutId),
        units: u64,
    ) -> Result<(), Failure> {
        let old = || {
            let id = self.index.find_hashed(hash, key.as_bytes())?;
            let old = self.index.object(id);
            (old.tenant == tenant).then(|| (id, self.spaces.units_of(&old)))
        };
        let charged = self.tenants.charge(tenant, units, old);
        let over =
            |OverQuota { tenant, quota }| Failure::Quota { tenant, quota_bytes: quota.bytes };
        charged.map_err(over)?;
        self.spaces.enter(layout);
        self.note_growth(tenant);
        Ok(())
    }

    /// Takes an object that will not become visible off its tenant's account.
    pub(super) fn uncharge(&mut self, (key, hash): (&Key, u64), object: &Object) {
        if self.tenants.has_covers()
            && let Some(old) = self.index.find_hashed(hash, key.as_bytes())
        {
            self.tenants.uncover(old);
        }
        self.tenants.credit(object.tenant, self.spaces.units_of(object));
        self.spaces.leave(object.layout);
        // What the other one covered counts again, perhaps beyond a quota that was lowered meanwhile.
        self.shrinking.is_due |= self.tenants.is_to_shrink(object.tenant);
    }

    /// Takes an object that is removed or replaced off its tenant's account and order.
    pub(super) fn forget_tenants(&mut self, id: ObjectId, object: &Object) {
        self.own.removed(id);
        self.tenants.uncover(id);
        self.tenants.credit(object.tenant, self.spaces.units_of(object));
        self.spaces.leave(object.layout);
    }

    /// Notes that an object became visible.
    pub(super) fn note_stored(&mut self, id: ObjectId, tenant: TenantId) {
        self.tenants.counters(tenant).puts += 1;
        self.own.used(id, tenant);
        self.note_growth(tenant);
    }

    fn note_growth(&mut self, tenant: TenantId) {
        if tenant != TenantId::default() && self.tenants.is_to_shrink(tenant) {
            (self.shrinking.is_due, self.shrinking.asks) = (true, true);
        }
    }

    /// Notes that a lease ended, whose objects a quota may have waited for.
    pub(super) fn note_unleased(&mut self) {
        self.shrinking.is_due |= self.shrinking.is_blocked;
    }

    /// Follows changed quotas, and evicts objects of tenants that have too much.
    pub(super) fn tenant_step(&mut self, now: Time) {
        if self.tenants.read_news() {
            for id in self.tenants.ids() {
                self.own.keep(id, self.tenants.evicts_own(id));
            }
            self.shrinking.is_due = true;
        }
        self.own.link_some(&self.index, |id| self.policy.age(id));
        if !self.shrinking.is_due || self.own.is_linking() || self.check_home().is_err() {
            return;
        }
        let Some(is_enough) = self.shrink(now) else { return };
        let asks = self.shrinking.asks;
        self.shrinking = Shrinking { is_blocked: !is_enough, ..Shrinking::default() };
        if asks && !is_enough {
            self.tenants.ask_others();
        }
    }

    /// Evicts objects of tenants that have too much. Returns whether that was enough, or `None` if some are left for
    /// the next turn.
    fn shrink(&mut self, now: Time) -> Option<bool> {
        let (mut left, mut is_enough) = (EVICTIONS_PER_TURN, true);
        for id in self.tenants.ids() {
            while self.tenants.is_to_shrink(id) {
                match self.evict_own(now, id, self.shrinking.asks) {
                    Evicted::One if left > 0 => left -= 1,
                    Evicted::Nothing => {
                        is_enough = false;
                        break;
                    }
                    _ => return None,
                }
            }
        }
        Some(is_enough)
    }

    /// Removes a tenant's least recently used object; with `spares_newest`, not the one just stored, unless it alone
    /// exceeds the quota, which was lowered then.
    fn evict_own(&mut self, now: Time, tenant: TenantId, spares_newest: bool) -> Evicted {
        if !self.log.has_room_for_small() {
            self.want_journal();
            return Evicted::NotYet;
        }
        let (index, leases) = (&self.index, &self.leases);
        let is_leased = |id| leases.is_leased(index.object(id).place);
        let quota_bytes = self.tenants.quota(tenant).map_or(u64::MAX, |quota| quota.bytes);
        let fits = |id| self.spaces.units_of(&index.object(id)) * UNIT_BYTES <= quota_bytes;
        let oldest = self.own.oldest(tenant, is_leased);
        let spared = |id| spares_newest && self.own.is_newest(tenant, id) && fits(id);
        let Some(victim) = oldest.filter(|id| !spared(*id)) else { return Evicted::Nothing };
        assert_eq!(index.object(victim).tenant, tenant, "its own object");
        let bytes = self.spaces.units_of(&self.index.object(victim)) * UNIT_BYTES;
        self.remove(now, victim);
        self.stats.evictions.quota.objects += 1;
        self.stats.evictions.quota.bytes += bytes;
        self.tenants.counters(tenant).evictions += 1;
        Evicted::One
    }

    /// Returns whether the next turn removes objects for a quota or a sweep.
    pub(super) fn has_objects_to_remove(&self) -> bool {
        let is_due = self.shrinking.is_due || !self.sweeps.is_empty();
        self.own.is_linking() || is_due && self.log.has_room_for_small()
    }
}
