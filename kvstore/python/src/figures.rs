//! Returns the store's counters by name.

use adit_kvshare::wire::Serving;
use adit_kvstore::UNIT_BYTES;
use adit_kvstore::shard::Stats;
use adit_kvstore::store::TenantStats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns the counters of a store.
pub(crate) fn of_store<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let evictions = &stats.evictions;
    let bytes = |units: u64| units * UNIT_BYTES;
    let all = [
        ("gets", stats.gets),
        ("hits", stats.hits),
        ("misses", stats.misses),
        ("misses_corrupt", stats.misses_corrupt),
        ("puts", stats.puts),
        ("declined", stats.declined),
        ("deletes", stats.deletes),
        ("evictions", evictions.objects()),
        ("evictions_space", evictions.space.objects),
        ("evictions_records", evictions.records.objects),
        ("evictions_fragmentation", evictions.fragmentation.objects),
        ("evictions_quota", evictions.quota.objects),
        ("expirations", stats.expirations),
        ("bytes_read", stats.bytes_read),
        ("bytes_written", stats.bytes_written),
        ("copied_bytes", stats.copied_bytes),
        ("bytes_to_device", stats.bytes_to_device),
        ("journal_bytes", stats.journal_bytes),
        ("checkpoint_bytes", stats.checkpoint_bytes),
        ("flushes", stats.flushes),
        ("discards_bytes", stats.discards_bytes),
        ("commands_read", stats.commands_read),
        ("commands_write", stats.commands_write),
        ("spills", stats.spills),
        ("spilled_bytes", stats.spilled_bytes),
        ("checkpoints", stats.checkpoints),
        ("device_failures", stats.device_failures),
        ("journal_delay_max_ns", stats.journal_delay_max_ns),
        ("journal_lost_blocks", stats.journal_lost_blocks),
        ("journal_outdated_objects", stats.journal_outdated_objects),
        ("objects", stats.objects),
        ("used_bytes", bytes(stats.used_units)),
        ("capacity_bytes", bytes(stats.capacity_units)),
        ("free_runs", stats.free_runs),
        ("largest_free_bytes", bytes(stats.largest_free_units)),
        ("leased", stats.leased),
        ("memory_bytes", stats.memory_bytes),
        ("tier_hits", stats.tier_hits),
        ("tier_hit_bytes", stats.tier_hit_bytes),
        ("tier_admissions", stats.tier_admissions),
        ("tier_evictions", stats.tier_evictions),
        ("tier_invalidations", stats.tier_invalidations),
        ("tier_objects", stats.tier_objects),
        ("tier_object_bytes", stats.tier_object_bytes),
        ("tier_bytes", stats.tier_bytes),
        ("tier_pinned_bytes", stats.tier_pinned_bytes),
        ("tier_given_up_bytes", stats.tier_given_up_bytes),
    ];
    let figures = PyDict::new(py);
    add(&figures, &all).map(|()| figures)
}

fn add(figures: &Bound<'_, PyDict>, more: &[(&str, u64)]) -> PyResult<()> {
    more.iter().try_for_each(|(name, figure)| figures.set_item(name, figure))
}

/// Returns the counters of a served store and of its server.
pub(crate) fn of_server<'py>(
    py: Python<'py>,
    stats: &Stats,
    serving: &Serving,
) -> PyResult<Bound<'py, PyDict>> {
    let figures = of_store(py, stats)?;
    let more = [
        ("clients_now", serving.clients_now),
        ("clients_expelled", serving.clients_expelled),
        ("clients_turned_away", serving.clients_turned_away),
        ("mapped_bytes_now", serving.mapped_bytes_now),
        ("leases_now", serving.leases_now),
    ];
    add(&figures, &more).map(|()| figures)
}

/// Returns the figures of a tenant.
pub(crate) fn of_tenant<'py>(
    py: Python<'py>,
    tenant: &TenantStats,
) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    figures.set_item("quota_bytes", tenant.quota.map(|quota| quota.bytes))?;
    let more = [
        ("objects", tenant.objects),
        ("used_bytes", tenant.used_bytes),
        ("puts", tenant.puts),
        ("gets", tenant.gets),
        ("hits", tenant.hits),
        ("evictions", tenant.evictions),
        ("refusals", tenant.refusals),
    ];
    add(&figures, &more).map(|()| figures)
}
