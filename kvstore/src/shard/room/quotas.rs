//! Evictions for quotas of tenants.
//!
//! A tenant that evicts its own objects may have more than its quota for a moment: a put is stored, and then the shard
//! removes the tenant's least recently used objects. If it has no other, it asks the other shards to do so, because the
//! quota is the store's. A tenant may also have more while its objects are leased: evictions continue when a lease
//! ends.

use super::RoomMaker;
use crate::model::object::{ObjectId, TenantId};
use crate::model::place::UNIT_BYTES;
use crate::shard::objects::Objects;

/// Limit of evictions for quotas per turn, which bounds a turn.
const EVICTIONS_PER_TURN: usize = 64;

impl RoomMaker<'_> {
    /// Follows changed quotas, and evicts objects of tenants that have too much, unless the journal `is_lost`.
    pub(crate) fn keep_quotas(&mut self, is_lost: bool) {
        let Some(shrinking) = self.objects.follow_quotas().filter(|_| !is_lost) else { return };
        if let Some(is_enough) = self.shrink(shrinking.asks) {
            self.objects.accounts_mut().end_shrinking(is_enough);
        }
    }

    /// Evicts objects of tenants that have too much. Returns whether that was enough, or `None` if some are left for
    /// the next turn.
    fn shrink(&mut self, spares_newest: bool) -> Option<bool> {
        let RoomMaker { room, objects, log, now } = self;
        let evicted = &mut room.stats.evictions.quota;
        let (mut left, mut is_enough) = (EVICTIONS_PER_TURN, true);
        for tenant in objects.tenants().ids() {
            while objects.tenants().is_to_shrink(tenant) {
                if !log.asks_small() {
                    return None;
                }
                let Some(victim) = own_victim(objects, tenant, spares_newest) else {
                    is_enough = false;
                    break;
                };
                let object = objects.index().object(victim);
                assert_eq!(object.tenant, tenant, "its own object");
                objects.remove(log, *now, victim);
                evicted.objects += 1;
                evicted.bytes += objects.units_of(&object) * UNIT_BYTES;
                objects.accounts_mut().counters(tenant).evictions += 1;
                left = left.checked_sub(1)?;
            }
        }
        Some(is_enough)
    }
}

/// Returns a tenant's least recently used object; with `spares_newest`, not the one just stored, unless it alone
/// exceeds the quota, which was lowered then.
fn own_victim(objects: &Objects, tenant: TenantId, spares_newest: bool) -> Option<ObjectId> {
    let own = objects.accounts().own();
    let quota_bytes = objects.tenants().quota(tenant).map_or(u64::MAX, |quota| quota.bytes);
    let fits = |id| objects.units_of(&objects.index().object(id)) * UNIT_BYTES <= quota_bytes;
    let oldest = own.oldest(tenant, |id| objects.is_leased(id));
    let spared = |id| spares_newest && own.is_newest(tenant, id) && fits(id);
    oldest.filter(|id| !spared(*id))
}
