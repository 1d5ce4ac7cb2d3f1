//! The order of use of the objects of each tenant that evicts its own.
//!
//! It is exact LRU for each such tenant, beside the policy, and so takes 8 bytes for each of their objects; a store
//! without such tenants has none of it. Objects that were there before their tenant got its order are linked a few at a
//! time, in no order of use.

use super::links::Links;
use crate::catalog::index::Index;
use crate::model::object::{ObjectId, TenantId};

/// Number of tenants, each with a queue.
const TENANTS: usize = 256;
/// Limit of objects linked per call of [`OwnOrder::link_some`].
const LINKED_PER_CALL: usize = 1024;

/// The order of use of each tenant's objects.
#[derive(Debug)]
pub(crate) struct OwnOrder {
    /// `None` until a tenant needs them.
    links: Option<Links>,
    is_ordered: [bool; TENANTS],
    objects_max: u32,
    /// Older objects from this id on are not linked yet.
    linking: Option<u32>,
}

impl OwnOrder {
    /// Creates an order of no tenants, for ids below `objects_max`.
    pub(crate) fn new(objects_max: u32) -> OwnOrder {
        OwnOrder { links: None, is_ordered: [false; TENANTS], objects_max, linking: None }
    }

    /// Begins or ends to keep the order of a tenant's objects.
    pub(crate) fn keep(&mut self, tenant: TenantId, is_ordered: bool) {
        let before = std::mem::replace(&mut self.is_ordered[usize::from(tenant.0)], is_ordered);
        if is_ordered && !before {
            let make = || Links::new(self.objects_max, TENANTS as u32);
            self.links.get_or_insert_with(make);
            self.linking = Some(0);
        }
    }

    /// Returns whether older objects are still to be linked.
    pub(crate) fn is_linking(&self) -> bool {
        self.linking.is_some()
    }

    /// Links some older objects of ordered tenants.
    pub(crate) fn link_some(&mut self, index: &Index) {
        let (Some(links), Some(from)) = (&mut self.links, self.linking) else { return };
        self.linking = index.next_live(from).map(|id| id.0);
        for _ in 0..LINKED_PER_CALL {
            let Some(id) = self.linking.map(ObjectId) else { return };
            let tenant = index.object(id).tenant;
            if self.is_ordered[usize::from(tenant.0)] && !links.is_linked(id) {
                links.push_front(tenant.0.into(), id);
            }
            self.linking = index.next_live(id.0 + 1).map(|id| id.0);
        }
    }

    /// An object of a tenant was inserted or used.
    #[inline]
    pub(crate) fn used(&mut self, id: ObjectId, tenant: TenantId) {
        let Some(links) = &mut self.links else { return };
        if self.is_ordered[usize::from(tenant.0)] {
            if links.is_linked(id) {
                links.unlink(id);
            }
            links.push_front(tenant.0.into(), id);
        }
    }

    /// An object is no longer its tenant's.
    #[inline]
    pub(crate) fn removed(&mut self, id: ObjectId) {
        if let Some(links) = &mut self.links
            && links.is_linked(id)
        {
            links.unlink(id);
        }
    }

    /// Returns the tenant's least recently used object that is not leased. With `spares_newest`, not the most recently
    /// used one, even if it is the only one.
    pub(crate) fn oldest(
        &self,
        tenant: TenantId,
        spares_newest: bool,
        is_leased: impl Fn(ObjectId) -> bool,
    ) -> Option<ObjectId> {
        let links = self.links.as_ref()?;
        let mut at = links.back(tenant.0.into());
        while let Some(id) = at.filter(|id| is_leased(*id)) {
            at = links.before(id);
        }
        at.filter(|id| !spares_newest || links.before(*id).is_some())
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.links.as_ref().map_or(0, Links::memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TenantId = TenantId(1);
    const LAST: TenantId = TenantId(255);

    #[test]
    fn each_tenant_has_an_order_of_its_own_and_leased_objects_are_passed_over() {
        let mut order = OwnOrder::new(10);
        let id = ObjectId;
        order.used(id(9), ONE);
        assert_eq!(
            (order.oldest(ONE, false, |_| false), order.memory_bytes()),
            (None, 0),
            "not kept"
        );
        order.keep(ONE, true);
        order.keep(LAST, true);
        for number in 0..6 {
            order.used(id(number), if number % 2 == 0 { ONE } else { LAST });
        }
        order.used(id(0), ONE);
        assert_eq!(order.oldest(ONE, false, |_| false), Some(id(2)));
        assert_eq!(order.oldest(ONE, false, |leased| leased == id(2)), Some(id(4)));
        assert_eq!(order.oldest(LAST, false, |_| false), Some(id(1)));
        order.removed(id(1));
        order.removed(id(7));
        assert_eq!(order.oldest(LAST, false, |_| false), Some(id(3)));
        assert_eq!(order.oldest(LAST, false, |_| true), None);
        assert_eq!(order.oldest(LAST, true, |_| false), Some(id(3)));
        assert_eq!(order.oldest(LAST, true, |leased| leased == id(3)), None, "5 is the newest");
    }
}
