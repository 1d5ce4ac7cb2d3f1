//! `adit kv tenant`: shows what tenants use, and sets or lifts their quotas.

use std::collections::BTreeMap;

use adit_kvstore::layout::Layout;
use adit_kvstore::survey::ShardSurvey;
use adit_kvstore::{Quota, UNIT_BYTES, WhenReached};
use clap::Args;
use serde_json::{Value, json};

use super::store_arg::{StoreArg, StoreArgs};
use crate::failure::Result;
use crate::human::{self, plural};
use crate::output;
use crate::units as parse;

const EXAMPLES: &str = "\
Examples:
  adit kv tenant uring:kv.img
  adit kv tenant uring:kv.img 'a team' --quota 10G
  adit kv tenant uring:kv.img 'a team' --quota 10G --evict-own
  adit kv tenant uring:kv.img 'a team' --no-quota

Shows tenants, even of a store that a server has open; the quota and what a server's tenants do are also in its \
metrics. --quota and --no-quota need the store for themselves; they create a tenant that is new.";

/// Shows what tenants use, or sets a tenant's quota
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TenantArgs {
    #[command(flatten)]
    store: StoreArg,

    /// The tenant; all of them by default
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Limits the bytes of its objects, padding included
    #[arg(long, value_name = "SIZE", requires = "name", value_parser = parse::block_bytes)]
    quota: Option<u64>,

    /// At the quota, evicts the tenant's least recently used objects instead of refusing new ones
    #[arg(long, requires = "quota")]
    evict_own: bool,

    /// Lifts its quota
    #[arg(long, requires = "name", conflicts_with = "quota")]
    no_quota: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A tenant's use of the media.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    quota: Option<Quota>,
    objects: u64,
    units: u64,
}

/// Runs the command.
///
/// # Errors
/// When there is no such tenant or store, and as [`StoreArgs::with`].
pub(crate) fn run(args: &TenantArgs) -> Result<()> {
    let store = args.store.all();
    if let Some(name) = args.name.as_deref().filter(|_| args.quota.is_some() || args.no_quota) {
        let when_reached = if args.evict_own { WhenReached::EvictOwn } else { WhenReached::Refuse };
        store.with(|session| {
            let tenant = session.tenant(name)?;
            session.set_quota(tenant, args.quota.map(|bytes| Quota { bytes, when_reached }))?;
            session.commit()
        })?;
    }
    show(args, &store)
}

fn show(args: &TenantArgs, store: &StoreArgs) -> Result<()> {
    let mut reader = store.reader(false)?;
    let picture = reader.picture(|_, shard, survey| Ok(usage(shard, &survey)))?;
    picture.warn_of_faults();
    let mut all: BTreeMap<String, Usage> = BTreeMap::new();
    for (name, found) in picture.shards.into_iter().flatten() {
        let tenant = all.entry(name).or_default();
        tenant.quota = tenant.quota.or(found.quota);
        tenant.objects += found.objects;
        tenant.units += found.units;
    }
    if let Some(name) = &args.name {
        all.retain(|known, _| known == name);
        if all.is_empty() {
            return Err(store.no_tenant(name));
        }
    }
    reader.warn_of_use();
    let report = || all.iter().map(report).collect::<Value>();
    output::report(args.json, report, || all.iter().map(line).collect())
}

/// Returns what each tenant has in a shard; quotas are in the first.
fn usage(shard: u16, survey: &ShardSurvey) -> BTreeMap<String, Usage> {
    let mut all = BTreeMap::from([(String::new(), Usage::default())]);
    for (_, name, quota) in &survey.tenants {
        let quota = quota.filter(|_| shard == 0);
        all.insert(name.clone(), Usage { quota, ..Usage::default() });
    }
    for found in &survey.objects {
        let tenant = all.entry(survey.tenant_of(found).to_owned()).or_default();
        let plain = || found.object.units();
        tenant.objects += 1;
        tenant.units += survey.layout_of(found).map_or_else(plain, Layout::block_units);
    }
    all
}

fn evicts(quota: &Quota) -> bool {
    quota.when_reached == WhenReached::EvictOwn
}

fn report((name, usage): (&String, &Usage)) -> Value {
    json!({
        "tenant": name,
        "objects": usage.objects,
        "used_bytes": usage.units * UNIT_BYTES,
        "quota_bytes": usage.quota.map(|quota| quota.bytes),
        "evicts_own": usage.quota.as_ref().is_some_and(evicts),
    })
}

fn line((name, usage): (&String, &Usage)) -> String {
    let name = if name.is_empty() { "(default)".to_owned() } else { human::printable(name) };
    let quota = match &usage.quota {
        None => String::new(),
        Some(quota) => {
            let then = if evicts(quota) { "its oldest objects go" } else { "puts are refused" };
            format!(" of {}, then {then}", human::capacity(quota.bytes))
        }
    };
    let used = human::capacity(usage.units * UNIT_BYTES);
    let objects = usage.objects;
    format!("{name}: {objects} object{}, {used}{quota}\n", plural(objects))
}
