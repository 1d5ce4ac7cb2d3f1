//! Tenants: names, quotas and usage.
//!
//! A tenant has a name and a number. Numbers are assigned in order and never reused, because objects on the media
//! refer to them; adding the same names in the same order yields the same numbers. Number 0 is the default tenant: it
//! has no name and always exists.
//!
//! Usage is counted in units, from when an extent is reserved.

use crate::error::{Error, Result};
use crate::model::object::TenantId;

/// Maximum length of a tenant's name in bytes.
pub(crate) const TENANT_NAME_BYTES_MAX: usize = 64;
/// Maximum number of tenants, besides the default one.
pub(crate) const TENANTS_MAX: usize = u8::MAX as usize;

/// A tenant and its usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name: 1 to 64 bytes, or empty for the default tenant.
    pub name: Box<str>,
    /// Its quota in units; unlimited if `None`.
    pub quota_units: Option<u64>,
    /// Units in use.
    pub units: u64,
    /// Objects in use.
    pub objects: u64,
}

/// A tenant would exceed its quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "tenant '{tenant}' has {units} of {quota_units} units and {asked_units} more were asked for: delete some of its \
     objects, or raise its quota"
)]
pub(crate) struct OverQuota {
    /// Its name.
    pub tenant: Box<str>,
    /// Units in use.
    pub units: u64,
    /// Its quota in units.
    pub quota_units: u64,
    /// Units requested.
    pub asked_units: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Tenants {
    /// Indexed by number.
    tenants: Vec<Tenant>,
}

impl Default for Tenants {
    fn default() -> Tenants {
        Tenants::new()
    }
}

impl Tenants {
    /// Creates the default tenant alone, without a quota.
    pub(crate) fn new() -> Tenants {
        Tenants { tenants: vec![Tenant::new("", None)] }
    }

    /// Adds a tenant.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is empty, longer than 64 bytes or taken, or there are 255 tenants.
    pub(crate) fn add(&mut self, name: &str, quota_units: Option<u64>) -> Result<TenantId> {
        let fix = if name.is_empty() || name.len() > TENANT_NAME_BYTES_MAX {
            "use 1 to 64 bytes"
        } else if self.find(name).is_some() {
            "there is a tenant of this name"
        } else if self.tenants.len() > TENANTS_MAX {
            "a store has 255 tenants at most"
        } else {
            let id = TenantId(self.tenants.len() as u8);
            self.tenants.push(Tenant::new(name, quota_units));
            return Ok(id);
        };
        Err(Error::invalid("name of a tenant", name, fix))
    }

    /// Returns the tenant of this name; the empty name is the default tenant.
    pub(crate) fn find(&self, name: &str) -> Option<TenantId> {
        let at = self.tenants.iter().position(|tenant| &*tenant.name == name)?;
        Some(TenantId(at as u8))
    }

    /// Returns a tenant by its number, which may come from the media.
    pub(crate) fn get(&self, id: TenantId) -> Option<&Tenant> {
        self.tenants.get(usize::from(id.0))
    }

    /// Sets a quota. If it is below the tenant's usage, the tenant keeps what it has and gets no more.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub(crate) fn set_quota(&mut self, id: TenantId, quota_units: Option<u64>) {
        self.tenant(id).quota_units = quota_units;
    }

    /// Counts an object of `units`, if the quota allows it.
    ///
    /// # Errors
    /// [`OverQuota`] if it does not; nothing is counted then.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub(crate) fn charge(&mut self, id: TenantId, units: u64) -> Result<(), OverQuota> {
        let tenant = self.tenant(id);
        if let Some(quota_units) = tenant.quota_units
            && units > quota_units.saturating_sub(tenant.units)
        {
            return Err(OverQuota {
                tenant: tenant.name.clone(),
                units: tenant.units,
                quota_units,
                asked_units: units,
            });
        }
        self.count(id, units);
        Ok(())
    }

    /// Counts an existing object of `units` regardless of the quota, for recovery.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub(crate) fn count(&mut self, id: TenantId, units: u64) {
        let tenant = self.tenant(id);
        tenant.units = tenant.units.checked_add(units).expect("units of real devices");
        tenant.objects += 1;
    }

    /// Subtracts an object of `units`.
    ///
    /// # Panics
    /// If there is no such tenant, or it has less.
    pub(crate) fn credit(&mut self, id: TenantId, units: u64) {
        let tenant = self.tenant(id);
        assert!(tenant.units >= units && tenant.objects > 0, "only what was counted is taken off");
        tenant.units -= units;
        tenant.objects -= 1;
    }

    fn tenant(&mut self, id: TenantId) -> &mut Tenant {
        self.tenants.get_mut(usize::from(id.0)).expect("only tenants that exist are named")
    }
}

impl Tenant {
    fn new(name: &str, quota_units: Option<u64>) -> Tenant {
        Tenant { name: name.into(), quota_units, units: 0, objects: 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_and_numbers_lead_to_each_other() {
        let mut tenants = Tenants::new();
        let (first, second) =
            (tenants.add("a", None).expect("a name"), tenants.add("ä", Some(5)).expect("a name"));
        assert_eq!((first, second), (TenantId(1), TenantId(2)));
        assert_eq!((tenants.find("ä"), tenants.find("b")), (Some(second), None));
        assert_eq!(tenants.get(second).map(|tenant| &*tenant.name), Some("ä"));
        assert_eq!(tenants.get(TenantId(3)), None);
    }

    #[test]
    fn tenants_added_in_the_order_of_a_walk_have_the_same_numbers() {
        let mut tenants = Tenants::new();
        for number in 0..TENANTS_MAX {
            tenants.add(&format!("tenant {number}"), Some(number as u64)).expect("room");
        }
        let mut again = Tenants::new();
        for (id, tenant) in (1..=u8::MAX).map(TenantId).zip(&tenants.tenants[1..]) {
            assert_eq!(again.add(&tenant.name, tenant.quota_units).expect("room"), id);
        }
        assert_eq!(again.tenants, tenants.tenants);
        again.add("one more", None).expect_err("255 are all");
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        let mut tenants = Tenants::new();
        tenants.add(&"a".repeat(TENANT_NAME_BYTES_MAX), None).expect("a name");
        for name in ["", &"a".repeat(TENANT_NAME_BYTES_MAX), &"b".repeat(TENANT_NAME_BYTES_MAX + 1)]
        {
            tenants.add(name, None).expect_err("no name");
        }
    }

    #[test]
    fn a_quota_that_shrinks_takes_nothing_away_and_gives_nothing_more() {
        let mut tenants = Tenants::new();
        let id = tenants.add("a", None).expect("a name");
        tenants.charge(id, 10).expect("no quota");
        tenants.set_quota(id, Some(4));
        let refused = tenants.charge(id, 1).expect_err("no room");
        assert_eq!((refused.units, refused.quota_units, refused.asked_units), (10, 4, 1));
        tenants.credit(id, 10);
        tenants.charge(id, 4).expect("room");
    }

    proptest! {
        #[test]
        fn what_is_charged_is_what_is_there(
            steps in vec((0_u64..9, any::<bool>()), 1..100), quota_units in 0_u64..40,
        ) {
            let mut tenants = Tenants::new();
            let id = tenants.add("a", Some(quota_units)).expect("a name");
            let mut model: Vec<u64> = Vec::new();
            for (units, comes) in steps {
                let has_units: u64 = model.iter().sum();
                if comes {
                    let charged = tenants.charge(id, units).is_ok();
                    prop_assert_eq!(charged, has_units + units <= quota_units);
                    model.extend(charged.then_some(units));
                } else if let Some(units) = model.pop() {
                    tenants.credit(id, units);
                }
                let tenant = tenants.get(id).expect("it was added");
                let has = (tenant.units, tenant.objects);
                prop_assert_eq!(has, (model.iter().sum(), model.len() as u64));
            }
        }
    }
}
