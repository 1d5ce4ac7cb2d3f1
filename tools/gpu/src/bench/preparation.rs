//! The CPU time to fill control blocks for one layer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_driver::spec::Lba;
use adit_driver::transfer::{Direction, Slice, Transfer};
use adit_gpu::internals::cut::{Shape, Span};
use adit_gpu::internals::layout::{CONTEXTS_MAX, Form};
use adit_gpu::internals::table::MappingTable;
use adit_gpu::internals::{Blocks, Filling};
use adit_gpu::{Gpu, Result};

use super::report::{Preparation, percentile};

/// Tensors of a layer.
pub(super) const TENSORS: u64 = 8_000;
const TENSOR_BYTES: u64 = 4096;
const LBA_SHIFT: u32 = 9;
/// Number of fillings.
const REPEATS: usize = 64;

/// Fills control blocks for a layer repeatedly. Nothing is issued.
///
/// # Errors
/// CUDA's, of the pinned memory.
pub(super) fn measure(gpu: &Arc<Gpu>) -> Result<Preparation> {
    let blocks = TENSORS.div_ceil(CONTEXTS_MAX as u64) as u32;
    let blocks = Arc::new(Blocks::new(gpu, blocks, Duration::from_secs(1))?);
    let shape = Shape {
        lba_shift: LBA_SHIFT,
        lba_count: 1 << 32,
        max_bytes: 1 << 20,
        boundary_lbas: 0,
        address_mask: 0,
    };
    let span = Span { address: 1 << 30, bytes: TENSORS * TENSOR_BYTES };
    let table = MappingTable::without_lists(shape, vec![span], Form::Sgl)?;
    let transfers: Vec<Transfer<[Slice; 1]>> = (0..TENSORS).map(transfer).collect();
    let mut samples = Vec::with_capacity(REPEATS);
    let mut commands = 0;
    for _ in 0..REPEATS {
        let begin = Instant::now();
        let mut filling = Filling::new(&blocks, std::iter::once(table.cut(1 << 32)));
        for (position, transfer) in transfers.iter().enumerate() {
            filling.add(position, *transfer)?;
        }
        let iocbs = filling.finish(None);
        samples.push(begin.elapsed().as_nanos() as u64);
        commands = iocbs.commands();
    }
    let p50_ns = percentile(&mut samples, 0.5);
    Ok(Preparation { tensors: TENSORS, commands, p50_ns, least_ns: samples[0] })
}

/// Returns the transfer of a tensor, spread over the device and packed in the pool.
fn transfer(index: u64) -> Transfer<[Slice; 1]> {
    Transfer {
        device: 0,
        direction: Direction::Read,
        lba: Lba((index * 7919 % (1 << 28)) << 3),
        slices: [Slice { region: 0, offset: index * TENSOR_BYTES, bytes: TENSOR_BYTES }],
    }
}
