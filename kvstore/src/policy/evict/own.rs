//! The order of use of the objects of each tenant that evicts its own.
//!
//! The order is exact LRU for each such tenant, in addition to the policy, and takes 8 bytes for each of their objects;
//! a store without such tenants has no such order. Objects stored before their tenant got its order are linked a few at
//! a time: first to a queue of their age, and finally all of these, oldest last, behind objects used meanwhile.

use super::links::{AGES, Links, Queue};
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

/// Returns the queue of a tenant's objects.
fn queue(tenant: TenantId) -> Queue {
    tenant.0.into()
}

/// Returns the queue of a tenant's older objects of an age, while they are being linked.
fn queue_of_age(tenant: TenantId, age: u8) -> Queue {
    assert!(usize::from(age) < AGES, "an age saturates");
    (TENANTS + usize::from(tenant.0) * AGES + usize::from(age)) as Queue
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
            let make = || Links::new(self.objects_max, (TENANTS * (1 + AGES)) as u32);
            self.links.get_or_insert_with(make);
            self.linking = Some(0);
        }
    }

    /// Returns whether older objects are still to be linked.
    pub(crate) fn is_linking(&self) -> bool {
        self.linking.is_some()
    }

    /// Links some older objects of ordered tenants, by their ages.
    pub(crate) fn link_some(&mut self, index: &Index, age: impl Fn(ObjectId) -> u8) {
        let (Some(links), Some(mut from)) = (&mut self.links, self.linking) else { return };
        for _ in 0..LINKED_PER_CALL {
            let Some(id) = index.next_live(from) else { return self.end_linking() };
            let tenant = index.object(id).tenant;
            if self.is_ordered[usize::from(tenant.0)] && !links.is_linked(id) {
                links.push_front(queue_of_age(tenant, age(id)), id);
            }
            from = id.0 + 1;
        }
        self.linking = Some(from);
    }

    /// Moves the older objects behind those that were used since the linking began.
    fn end_linking(&mut self) {
        let Some(links) = &mut self.links else { return };
        for tenant in (0..=u8::MAX).map(TenantId).filter(|id| self.is_ordered[usize::from(id.0)]) {
            for age in 0..AGES as u8 {
                links.append(queue(tenant), queue_of_age(tenant, age));
            }
        }
        self.linking = None;
    }

    /// An object of a tenant was inserted or used.
    #[inline]
    pub(crate) fn used(&mut self, id: ObjectId, tenant: TenantId) {
        let Some(links) = &mut self.links else { return };
        if self.is_ordered[usize::from(tenant.0)] {
            if links.is_linked(id) {
                links.unlink(id);
            }
            links.push_front(queue(tenant), id);
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

    /// Returns the tenant's least recently used object that is not leased.
    pub(crate) fn oldest(
        &self,
        tenant: TenantId,
        is_leased: impl Fn(ObjectId) -> bool,
    ) -> Option<ObjectId> {
        let links = self.links.as_ref()?;
        let mut at = links.back(queue(tenant));
        while let Some(id) = at.filter(|id| is_leased(*id)) {
            at = links.before(id);
        }
        at
    }

    /// Returns whether an object is the tenant's most recently used one.
    pub(crate) fn is_newest(&self, tenant: TenantId, id: ObjectId) -> bool {
        let is_front = |links: &Links| links.is_linked(id) && links.before(id).is_none();
        self.is_ordered[usize::from(tenant.0)] && self.links.as_ref().is_some_and(is_front)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.links.as_ref().map_or(0, Links::memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::key::KeyHasher;
    use crate::model::object::{LayoutId, Object, Version};
    use crate::model::place::Place;

    const ONE: TenantId = TenantId(1);
    const LAST: TenantId = TenantId(255);

    #[test]
    fn older_objects_go_by_age_before_those_used_since() {
        let (count, key) = (2 * LINKED_PER_CALL as u32, |number: u32| number.to_le_bytes());
        let mut index = Index::new(count, KeyHasher::new([0; 16])).expect("a capacity");
        let place = Place { device: 0, unit: 0 };
        for number in 0..count {
            let tenant = if number % 3 == 0 { LAST } else { ONE };
            let object =
                Object { place, bytes: 1, layout: LayoutId::PLAIN, tenant, version: Version::NONE };
            let id = index.insert(&key(number), object, &[0]).expect("room");
            assert_eq!(id, ObjectId(number));
        }
        let age = |id: ObjectId| (id.0 * 7 % AGES as u32) as u8;
        let mut order = OwnOrder::new(count);
        order.keep(ONE, true);
        order.keep(LAST, true);
        order.link_some(&index, age);
        // One that is linked, one that is not, and one that goes.
        let used = [ObjectId(1), ObjectId(count - 1)];
        used.iter().for_each(|id| order.used(*id, ONE));
        order.removed(ObjectId(2));
        index.remove(ObjectId(2));
        assert!(order.is_linking());
        while order.is_linking() {
            order.link_some(&index, age);
        }
        for tenant in [ONE, LAST] {
            let older = (0..count).map(ObjectId).filter(|id| *id != ObjectId(2));
            let mut model: Vec<_> = older
                .filter(|id| index.object(*id).tenant == tenant && !used.contains(id))
                .map(|id| (std::cmp::Reverse(age(id)), id.0))
                .collect();
            model.sort_unstable();
            let used = used.into_iter().filter(|id| index.object(*id).tenant == tenant);
            for id in model.into_iter().map(|(_, id)| ObjectId(id)).chain(used) {
                assert_eq!(order.oldest(tenant, |_| false), Some(id));
                order.removed(id);
            }
            assert_eq!(order.oldest(tenant, |_| false), None);
        }
    }

    #[test]
    fn each_tenant_has_an_order_of_its_own_and_leased_objects_are_passed_over() {
        let mut order = OwnOrder::new(10);
        let id = ObjectId;
        order.used(id(9), ONE);
        assert_eq!((order.oldest(ONE, |_| false), order.memory_bytes()), (None, 0), "not kept");
        order.keep(ONE, true);
        order.keep(LAST, true);
        for number in 0..6 {
            order.used(id(number), if number % 2 == 0 { ONE } else { LAST });
        }
        order.used(id(0), ONE);
        assert_eq!(order.oldest(ONE, |_| false), Some(id(2)));
        assert_eq!(order.oldest(ONE, |leased| leased == id(2)), Some(id(4)));
        assert_eq!(order.oldest(LAST, |_| false), Some(id(1)));
        order.removed(id(1));
        order.removed(id(7));
        assert_eq!(order.oldest(LAST, |_| false), Some(id(3)));
        assert_eq!(order.oldest(LAST, |_| true), None);
        assert!(order.is_newest(LAST, id(5)) && !order.is_newest(LAST, id(3)));
    }
}
