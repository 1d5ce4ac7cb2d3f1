//! A device of the rings, and how its commands address the pool.

use adit_driver::Namespace;
use adit_driver::transfer::SglSupport;

use crate::commands::cut::{CutLimits, Span};
use crate::commands::layout::Form;
use crate::commands::table::MappingTable;
use crate::error::Result;
use crate::reach::device::Device;
use crate::reach::paths::no_way;
use crate::reach::pool::Pool;

/// A device, and how its commands address the pool.
pub(crate) struct Member {
    pub(crate) table: MappingTable,
    pub(crate) device: Device,
}

pub(crate) fn shape(namespace: &Namespace, address_mask: u64) -> CutLimits {
    let limits = namespace.limits();
    assert_eq!(1 << limits.lba_shift, namespace.lba_bytes(), "one LBA size");
    CutLimits {
        lba_shift: limits.lba_shift,
        lba_count: namespace.lba_count(),
        max_bytes: limits.max_bytes,
        boundary_lbas: limits.boundary_lbas,
        address_mask,
    }
}

/// Prepares a device whose queues the GPU drives.
pub(crate) fn ring_member(index: usize, device: &Device, pool: &Pool) -> Result<Member> {
    let span =
        |region| Some(Span { address: pool.iova(index, region)?.0, bytes: pool.bytes(region) });
    let spans = (0..pool.region_count()).map(span).collect::<Option<Vec<_>>>();
    let spans = spans.ok_or_else(|| no_way(pool.reports()))?;
    assert_eq!(spans.len(), pool.region_count(), "each region has an address");
    let form = match device.controller.info().sgl {
        SglSupport::None => Form::Prp,
        SglSupport::Byte | SglSupport::Dword => Form::Sgl,
    };
    let mask = if device.controller.info().sgl == SglSupport::Dword { 3 } else { 0 };
    let shape = shape(&device.namespace, mask);
    let table = match form {
        Form::Sgl => MappingTable::sgl(shape, spans)?,
        Form::Prp => MappingTable::prp(shape, spans, |region| {
            pool.prp_lists(index, region).map(|lists| lists.lists)
        })?,
    };
    assert_eq!(table.form(), form, "the table is as the controller takes it");
    Ok(Member { table, device: device.clone() })
}
