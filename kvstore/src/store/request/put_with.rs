//! Options for storing an object, with the tenants and layouts that they name.

use std::sync::Arc;
use std::time::Duration;

use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{Hold, LayoutId, TenantId};
use crate::shard::{Condition, PutOptions};

/// Options for storing an object.
#[derive(Clone, Debug, Default)]
pub struct PutWith {
    /// Its tenant; the default tenant if not given.
    pub tenant: Option<Tenant>,
    /// Its maximum lifetime, rounded up to whole seconds.
    pub ttl: Option<Duration>,
    /// Its predecessor in a sequence. The object is placed next to it if one shard owns both.
    pub after: Option<Key>,
    /// Its layout; if not given, one contiguous extent, cut into pieces by length.
    pub layout: Option<DefinedLayout>,
    /// A condition on the key; if it does not hold, the put fails with
    /// [`Failure::Conflict`](crate::shard::Failure::Conflict). Checked for each object of a batch by itself, and for a
    /// writer's object at its commit.
    pub condition: Condition,
}

/// Identifies an open store among those of the process, because ids of one mean something else in another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity(Arc<()>);

impl Eq for Identity {}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The owner of objects in one open store, for [`PutWith`]. Cheap to clone. Another store, and this one when it is
/// opened again, has no such tenant ([`Failure::Undefined`](crate::shard::Failure::Undefined)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    ids: Arc<[(TenantId, Hold)]>,
    store: Identity,
}

impl Tenant {
    /// Creates a tenant with id `ids[n]` in shard n.
    pub(crate) fn new(ids: Vec<(TenantId, Hold)>, store: Identity) -> Tenant {
        Tenant { ids: ids.into(), store }
    }

    /// Returns its id in a shard of the store `store`; `None` if it is another store's.
    pub(crate) fn in_shard(&self, store: &Identity, shard: u16) -> Option<(TenantId, Hold)> {
        (self.store == *store).then(|| self.ids[usize::from(shard)].clone())
    }
}

/// A layout of KV blocks defined in one open store, for [`PutWith`]. Cheap to clone. Another store, and this one when
/// it is opened again, has no such layout ([`Failure::Undefined`](crate::shard::Failure::Undefined)). Neither has another
/// connection to a served store.
#[derive(Clone, Debug, PartialEq)]
pub struct DefinedLayout {
    layout: Arc<Layout>,
    known: KnownAs,
}

/// Where a layout is defined, and its names there.
#[derive(Clone, Debug, PartialEq)]
enum KnownAs {
    /// In this process: its id in each shard.
    Shards(Arc<[(LayoutId, Hold)]>, Identity),
    /// At the server of a connection: the connection, and the layout's number there.
    Served(u64, u32),
}

impl DefinedLayout {
    /// Creates a layout with id `ids[n]` in shard n.
    pub(crate) fn new(
        ids: Vec<(LayoutId, Hold)>,
        layout: Layout,
        store: Identity,
    ) -> DefinedLayout {
        DefinedLayout { layout: Arc::new(layout), known: KnownAs::Shards(ids.into(), store) }
    }

    /// Creates a layout that the server of a connection knows by a number.
    pub fn served(layout: Layout, connection: u64, number: u32) -> DefinedLayout {
        DefinedLayout { layout: Arc::new(layout), known: KnownAs::Served(connection, number) }
    }

    /// Returns its number at the server of a connection; `None` if it was not defined over this one.
    pub fn number_at(&self, connection: u64) -> Option<u32> {
        match self.known {
            KnownAs::Served(of, number) if of == connection => Some(number),
            _ => None,
        }
    }

    /// Returns the layout itself.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns its id in a shard of the store `store`; `None` if it is another store's.
    pub(crate) fn in_shard(&self, store: &Identity, shard: u16) -> Option<(LayoutId, Hold)> {
        match &self.known {
            KnownAs::Shards(ids, of) if of == store => Some(ids[usize::from(shard)].clone()),
            _ => None,
        }
    }
}

/// Returns a duration in seconds, rounded up.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Translates options for a shard, which numbers tenants and layouts by itself.
pub(crate) fn put_options(store: &Identity, shard: u16, with: &PutWith) -> PutOptions {
    let tenant = with.tenant.as_ref().map(|tenant| tenant.in_shard(store, shard));
    let layout = with.layout.as_ref().map(|layout| layout.in_shard(store, shard));
    let undefined = match (&tenant, &layout) {
        (Some(None), _) => Some("tenant"),
        (_, Some(None)) => Some("layout"),
        _ => None,
    };
    let (tenant, tenant_hold) = tenant.flatten().unzip();
    let (layout, layout_hold) = layout.flatten().unzip();
    PutOptions {
        tenant: tenant.unwrap_or_default(),
        ttl_s: with.ttl.map(whole_seconds),
        after: with.after.clone(),
        layout: layout.unwrap_or_default(),
        condition: with.condition,
        holds: [tenant_hold, layout_hold],
        undefined,
    }
}
