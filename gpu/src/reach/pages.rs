//! Pages of a paged cache in a pool, and the transfers that fill or empty them.

use adit_driver::transfer::{Slice, Transfer};

use crate::error::Result;
use crate::reach::pool::Pool;

/// Maps the items of a plan to the pages of a paged cache.
///
/// An item is what one request of a plan reads or writes, such as a layer of a KV block: tensors of `page_bytes`, one
/// after the other. Each tensor has a region of the pool; an item's page in it is that of the block table.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use adit_driver::{Controller, ControllerOptions, Target, spec::Lba};
/// # use adit_gpu::{Device, Direction, GioUring, Gpu, Options, Pages, Place, Pool, Slice, Transfer};
/// # adit_gpu_emulated::load();
/// # let gpu = Gpu::open(0)?;
/// # let target: Target = "soft:mem=1M,dbbuf=off".parse()?;
/// # let off = ControllerOptions { shadow_doorbells: false, ..ControllerOptions::default() };
/// # let controller = Arc::new(Controller::open(&target, &off)?);
/// # let namespace = controller.namespace_of(&target)?;
/// // Keys are in region 0 and values in region 1, in pages of 8 KiB. The cache gave items 0 and 1 its pages 7 and 3.
/// let pool = Pool::allocate(&gpu, &[Arc::clone(&controller)], &[8 * 8192; 2], Some(Place::Host))?;
/// let pages = Pages { page_bytes: 8192, first_region: 0, regions: 2, table: &[7, 3] };
/// # pool.write(0, 3 * 8192, &[0xaa; 8192])?;
/// # pool.write(1, 3 * 8192, &[0xbb; 8192])?;
/// # let uring = GioUring::init_queue(&gpu, vec![Device { controller, namespace }], pool, &Options::default())?;
/// // From a store's plan: all of item 1 in one command.
/// let item = [Slice { region: 1, offset: 0, bytes: 2 * 8192 }];
/// # for direction in [Direction::Write, Direction::Read] {
/// let planned = [Transfer { device: 0, direction, lba: Lba(64), slices: &item[..] }];
///
/// let iocbs = uring.get_iocb(planned.into_iter().map(|transfer| pages.place(transfer)), None)?;
/// uring.issue_io(&iocbs, 0)?;
/// assert!(uring.wait(iocbs, Duration::from_secs(30))?.is_success());
/// # assert_eq!(pages.read(uring.pool(), 1)?, [[0xaa; 8192], [0xbb; 8192]].concat());
/// # for region in 0..2 { uring.pool().write(region, 3 * 8192, &[0; 8192])?; }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The region of the first tensor; the others' follow.
    pub first_region: u32,
    /// Tensors of an item.
    pub regions: u32,
    /// The page of each item, by its number in the plan.
    pub table: &'a [u32],
}

impl<'a> Pages<'a> {
    /// Returns a planned transfer with memory of the pool, for [`GioUring::get_iocb`](crate::GioUring::get_iocb).
    /// Slices are made on demand, without allocating.
    ///
    /// # Panics
    /// On iteration, if a slice is of an item beyond the table or ends behind its item's last tensor.
    pub fn place(
        self,
        planned: Transfer<&'a [Slice]>,
    ) -> Transfer<impl Iterator<Item = Slice> + use<'a>> {
        planned.map(|slices| slices.iter().flat_map(move |slice| self.split(*slice)))
    }

    /// Splits a slice of an item at page boundaries: the slices of the pool that hold it, in order, such as those of a
    /// [`Check`](crate::Check).
    ///
    /// # Panics
    /// If the item is beyond the table, or the slice ends behind its item's last tensor.
    pub fn split(self, slice: Slice) -> impl Iterator<Item = Slice> + use<'a> {
        let (page_bytes, end) = (self.page_bytes, slice.offset + slice.bytes);
        let page = u64::from(self.table[slice.region as usize]) * page_bytes;
        assert!(end <= u64::from(self.regions) * page_bytes, "a slice ends with its item");
        (slice.offset / page_bytes..end.div_ceil(page_bytes)).map(move |tensor| {
            let start = slice.offset.max(tensor * page_bytes);
            let bytes = end.min((tensor + 1) * page_bytes) - start;
            let region = self.first_region + tensor as u32;
            Slice { region, offset: page + start % page_bytes, bytes }
        })
    }

    /// Copies an item's bytes out of the pool, for example to verify them.
    ///
    /// # Errors
    /// As [`Pool::read`].
    ///
    /// # Panics
    /// For an item beyond the table.
    pub fn read(&self, pool: &Pool, item: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (self.page_bytes * u64::from(self.regions)) as usize];
        let at = u64::from(self.table[item as usize]) * self.page_bytes;
        for (tensor, page) in bytes.chunks_mut(self.page_bytes as usize).enumerate() {
            pool.read(self.first_region as usize + tensor, at, page)?;
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use adit_driver::spec::Lba;
    use adit_driver::transfer::Direction;
    use proptest::prelude::*;

    use super::*;

    const TABLE: [u32; 5] = [3, 0, 4, 1, 2];
    const PAGE: u64 = 16;

    proptest! {
        #[test]
        fn each_byte_of_an_item_has_its_place_in_the_items_page(
            parts in prop::collection::vec((0u32..5, 0u64..48, 1u64..48), 1..8)
        ) {
            let part = |(region, offset, bytes): (u32, u64, u64)| {
                Slice { region, offset, bytes: bytes.min(48 - offset) }
            };
            let slices: Vec<Slice> = parts.into_iter().map(part).collect();
            let planned =
                Transfer { device: 1, direction: Direction::Write, lba: Lba(9), slices: &slices[..] };
            let pages = Pages { page_bytes: PAGE, first_region: 2, regions: 3, table: &TABLE };
            let placed = pages.place(planned);
            prop_assert_eq!((placed.device, placed.direction, placed.lba.0), (1, Direction::Write, 9));
            let each = |slice: Slice| (0..slice.bytes).map(move |at| (slice.region, slice.offset + at));
            let place = |(item, at): (u32, u64)| {
                (2 + (at / PAGE) as u32, u64::from(TABLE[item as usize]) * PAGE + at % PAGE)
            };
            let should: Vec<_> = slices.iter().copied().flat_map(each).map(place).collect();
            prop_assert_eq!(placed.slices.flat_map(each).collect::<Vec<_>>(), should);
        }
    }

    #[test]
    #[should_panic(expected = "a slice ends with its item")]
    fn a_slice_behind_its_item_is_a_bug() {
        let slices = [Slice { region: 0, offset: 40, bytes: 9 }];
        let planned =
            Transfer { device: 0, direction: Direction::Read, lba: Lba(0), slices: &slices[..] };
        let pages = Pages { page_bytes: PAGE, first_region: 0, regions: 3, table: &TABLE };
        pages.place(planned).slices.for_each(drop);
    }
}
