//! Accounts of tenants in a shard: what each has, and whether one has more than its quota.

use crate::catalog::index::Index;
use crate::catalog::tenant::{TenantStats, Tenants};
use crate::error::Failure;
use crate::model::object::{Object, ObjectId, TenantId};
use crate::policy::evict::OwnOrder;

/// Whether tenants may have more than their quotas.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shrinking {
    pub(crate) is_due: bool,
    /// Whether this shard stored an object, which then stays if it fits the quota: rather than that one, others'
    /// objects go.
    pub(crate) asks: bool,
    /// Whether a tenant still has more, because its objects here are leased.
    is_blocked: bool,
}

/// The tenants of a shard.
pub(crate) struct Accounts {
    tenants: Tenants,
    /// The objects of tenants that evict their own.
    own: OwnOrder,
    shrinking: Shrinking,
}

impl Accounts {
    /// Begins with the tenants of an opening, for objects with ids below `objects_max`.
    pub(crate) fn new(tenants: Tenants, objects_max: u32) -> Accounts {
        let own = OwnOrder::new(objects_max);
        Accounts { tenants, own, shrinking: Shrinking::default() }
    }

    pub(crate) fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    pub(crate) fn tenants_mut(&mut self) -> &mut Tenants {
        &mut self.tenants
    }

    #[inline(always)]
    pub(crate) fn counters(&mut self, tenant: TenantId) -> &mut TenantStats {
        self.tenants.counters(tenant)
    }

    pub(crate) fn own(&self) -> &OwnOrder {
        &self.own
    }

    /// Notes that an object is in use.
    #[inline(always)]
    pub(crate) fn used(&mut self, id: ObjectId, tenant: TenantId) {
        self.own.used(id, tenant);
    }

    /// Charges a tenant for a new object. `old` is the object of its key, if it is the tenant's, and its units.
    pub(crate) fn charge(
        &mut self,
        tenant: TenantId,
        units: u64,
        old: impl FnOnce() -> Option<(ObjectId, u64)>,
    ) -> Result<(), Failure> {
        self.tenants.charge(tenant, units, old)?;
        self.note_growth(tenant);
        Ok(())
    }

    /// Takes an object that will not become visible off its tenant's account. `old` is the object of its key.
    pub(crate) fn uncharge(
        &mut self,
        tenant: TenantId,
        units: u64,
        old: impl FnOnce() -> Option<ObjectId>,
    ) {
        if self.tenants.has_covers()
            && let Some(old) = old()
        {
            self.tenants.uncover(old);
        }
        self.tenants.credit(tenant, units);
        // The bytes that the other one covered count again, perhaps beyond a quota that was lowered meanwhile.
        self.shrinking.is_due |= self.tenants.is_to_shrink(tenant);
    }

    /// Takes an object that is removed or replaced off its tenant's account and order.
    pub(crate) fn forget(&mut self, id: ObjectId, object: &Object, units: u64) {
        self.own.removed(id);
        self.tenants.uncover(id);
        self.tenants.credit(object.tenant, units);
    }

    /// Notes that an object became visible.
    pub(crate) fn note_stored(&mut self, id: ObjectId, tenant: TenantId) {
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
    pub(crate) fn note_unleased(&mut self) {
        self.shrinking.is_due |= self.shrinking.is_blocked;
    }

    /// Follows changed quotas. Returns the evictions to make if tenants may have too much. `age` tells when an object was
    /// used.
    pub(crate) fn follow_quotas(
        &mut self,
        index: &Index,
        age: impl Fn(ObjectId) -> u8,
    ) -> Option<Shrinking> {
        if self.tenants.read_news() {
            for id in self.tenants.ids() {
                self.own.keep(id, self.tenants.evicts_own(id));
            }
            self.shrinking.is_due = true;
        }
        self.own.link_some(index, age);
        (self.shrinking.is_due && !self.own.is_linking()).then_some(self.shrinking)
    }

    /// Ends evictions for quotas, which left all tenants within theirs or not. If not, and this shard stored an object,
    /// the other shards are asked.
    pub(crate) fn end_shrinking(&mut self, is_enough: bool) {
        let asks = self.shrinking.asks;
        self.shrinking = Shrinking { is_blocked: !is_enough, ..Shrinking::default() };
        if asks && !is_enough {
            self.tenants.ask_others();
        }
    }

    /// Returns whether tenants may have too much, of which turns remove some.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.shrinking.is_due
    }
}
