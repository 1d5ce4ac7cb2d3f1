//! The pages of a paged KV cache on the GPU, and the transfers that fill them from a store's plan.
//!
//! A region of the pool holds one tensor (keys or values) of every block: a page per block, in the random order
//! in which a used cache hands out its pages. So, as in a server, no two tensors of a block are adjacent.
//!
//! Invariants: each block has exactly one page, shared with no other block; what a plan reads into an item's
//! memory goes byte for byte to its block's pages.

use adit_gpu::{Direction, Transfer};
use adit_kvstore::layout::Layout;
use adit_kvstore::store::{self, Plan, ShardTransfers, Slice};
use adit_kvstore::{Place, UNIT_BYTES};

use crate::failure::Result;
use adit_bench::mix;

/// Seed of the assignment of pages to blocks, fixed for reproducible traces.
const SEED: u64 = 0xad17;

/// Where the blocks of a layer are in the pool.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    /// Bytes of a page: a tensor, padded to whole units.
    page_bytes: u64,
    /// Tensors of a layer, one region each.
    regions: u16,
    /// The page of each block.
    page_of: Vec<u32>,
}

impl Pages {
    /// Creates pages for `blocks` blocks of a layout.
    pub(super) fn new(layout: &Layout, blocks: u32) -> Pages {
        let page_bytes = layout.tensor_units() * UNIT_BYTES;
        let regions = u16::from(layout.block().tensors_per_layer);
        let mut page_of: Vec<u32> = (0..blocks).collect();
        for end in (1..page_of.len()).rev() {
            page_of.swap(end, (mix(SEED ^ end as u64) % (end as u64 + 1)) as usize);
        }
        Pages { page_bytes, regions, page_of }
    }

    /// Returns the bytes of each region of the pool.
    pub(super) fn region_bytes(&self) -> Vec<u64> {
        vec![self.page_bytes * self.page_of.len() as u64; usize::from(self.regions)]
    }

    /// Returns the tensors of the layer, that is, the pages to fill.
    pub(super) fn tensors(&self) -> u64 {
        u64::from(self.regions) * self.page_of.len() as u64
    }

    /// Returns the reads that fill the pages with this part of a plan. Transfers are created on demand, without
    /// copying.
    pub(super) fn transfers<'a>(
        &'a self,
        part: &'a ShardTransfers,
        lba_bytes: u32,
    ) -> impl Iterator<Item = Transfer> + 'a {
        let slices = part.plan.transfers().iter().flat_map(|whole| placed(&part.plan, whole));
        slices.flat_map(move |(place, slice)| {
            let block = part.positions[slice.item as usize];
            self.pieces(block, slice).map(move |(at, region, offset, bytes)| Transfer {
                device: u16::from(place.device),
                lba: behind(place, at).lba(lba_bytes),
                region,
                offset,
                bytes,
                direction: Direction::Read,
            })
        })
    }

    /// Splits a slice of a block's memory at page boundaries: position in the slice, region, offset in the
    /// region, bytes.
    fn pieces(&self, block: u32, slice: Slice) -> impl Iterator<Item = (u64, u16, u64, u64)> {
        let page = u64::from(self.page_of[block as usize]) * self.page_bytes;
        let (page_bytes, end) = (self.page_bytes, slice.offset + slice.bytes);
        let first = slice.offset / page_bytes;
        (first..end.div_ceil(page_bytes)).map(move |tensor| {
            let from = slice.offset.max(tensor * page_bytes);
            let to = end.min((tensor + 1) * page_bytes);
            (from - slice.offset, tensor as u16, page + from % page_bytes, to - from)
        })
    }

    /// Returns the bytes of a block: its page in each region, in order. `read` copies from a region.
    ///
    /// # Errors
    /// As `read`.
    pub(super) fn block(
        &self,
        block: u32,
        mut read: impl FnMut(usize, u64, &mut [u8]) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (self.page_bytes * u64::from(self.regions)) as usize];
        let at = u64::from(self.page_of[block as usize]) * self.page_bytes;
        for (region, page) in bytes.chunks_mut(self.page_bytes as usize).enumerate() {
            read(region, at, page)?;
        }
        Ok(bytes)
    }
}

/// Returns the slices of a command, each with its start on the device.
fn placed<'a>(
    plan: &'a Plan,
    whole: &'a store::Transfer,
) -> impl Iterator<Item = (Place, Slice)> + 'a {
    plan.slices(whole).iter().scan(whole.place, |next, slice| {
        let place = *next;
        *next = behind(place, slice.bytes);
        Some((place, *slice))
    })
}

/// Returns the place `bytes`, in whole units, after another.
fn behind(place: Place, bytes: u64) -> Place {
    Place { unit: place.unit + bytes / UNIT_BYTES, ..place }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use adit_kvstore::plan::{Limits, Part};

    use super::*;

    const FIRST_UNIT: u64 = 1000;

    /// The plan of a layer of `blocks` that are stored one after the other from [`FIRST_UNIT`].
    fn part(layout: &Layout, blocks: u32, command_bytes_max: u64) -> ShardTransfers {
        let bytes = layout.run_units() * UNIT_BYTES;
        let place = |item| Place { device: 0, unit: FIRST_UNIT + layout.run_units() * item };
        let of = |item: u32| Part { place: place(u64::from(item)), item, offset: 0, bytes };
        let limits = Limits { command_bytes_max, boundary_bytes: 0, slices_max: 8 };
        let plan = Plan::of(&mut (0..blocks).map(of).collect::<Vec<_>>(), &limits);
        ShardTransfers { plan, items: Vec::new(), positions: (0..blocks).collect() }
    }

    /// Returns the device unit each unit of the pool receives, by region and offset.
    fn carried_out(pages: &Pages, part: &ShardTransfers) -> BTreeMap<(u16, u64), u64> {
        let mut memory = BTreeMap::new();
        for transfer in pages.transfers(part, UNIT_BYTES as u32) {
            assert_eq!(transfer.direction, Direction::Read);
            for unit in 0..transfer.bytes / UNIT_BYTES {
                let at = (transfer.region, transfer.offset + unit * UNIT_BYTES);
                assert_eq!(memory.insert(at, transfer.lba.0 + unit), None, "{at:?} is read twice");
            }
        }
        memory
    }

    #[test]
    fn every_unit_of_a_plan_goes_to_its_blocks_pages_and_to_no_other() {
        let layout = Layout::named("llama-3-8b", 16).expect("it is known");
        let pages = Pages::new(&layout, 9);
        // Commands that end within pages, and commands for several blocks.
        for command_bytes_max in [12 << 10, 1 << 20] {
            let part = part(&layout, 9, command_bytes_max);
            let memory = carried_out(&pages, &part);
            assert_eq!(memory.len() as u64, 9 * layout.run_units());
            for block in 0..9 {
                let mut units = Vec::new();
                let read = |region: usize, at: u64, page: &mut [u8]| {
                    let of = |offset| memory[&(region as u16, at + offset * UNIT_BYTES)];
                    units.extend((0..page.len() as u64 / UNIT_BYTES).map(of));
                    Ok(())
                };
                pages.block(block, read).expect("nothing fails");
                let first = FIRST_UNIT + layout.run_units() * u64::from(block);
                assert!(units.into_iter().eq(first..first + layout.run_units()), "block {block}");
            }
        }
    }

    #[test]
    fn pages_are_handed_out_once_each_and_in_no_order() {
        let layout = Layout::named("deepseek-v3", 16).expect("it is known");
        let pages = Pages::new(&layout, 100);
        let mut sorted = pages.page_of.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..100) && sorted != pages.page_of);
        assert_eq!((pages.tensors(), pages.region_bytes().len()), (100, 1));
    }
}
