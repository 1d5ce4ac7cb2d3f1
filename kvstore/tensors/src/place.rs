//! Places tensors on a device or in a file, and derives the commands that reach them: Dual-Blade's binding (equations 3
//! to 6), its translation of an index into an LBA (algorithm 2), and its commands (equations 7 to 11).
//!
//! Tensors are bound one behind another, from a first LBA on. Every map asserts three invariants: tensors begin and end
//! at LBAs (alignment), no LBA belongs to two (disjointness), and each begins where its predecessor ends (contiguity).

use std::ops::Range;

use crate::error::{Error, Result};
use crate::shape::{Shape, TensorId};

/// A run of LBAs that holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorLbas {
    /// The first LBA.
    pub(crate) lba_start: u64,
    /// The number of LBAs of the tensor's final size.
    pub(crate) lbas: u64,
}

/// The range of a device that a transfer covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first LBA.
    pub(crate) slba: u64,
    /// The length in bytes, a multiple of the LBA.
    pub(crate) bytes: u64,
}

/// The part of a device that tensors are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    /// Bytes of an LBA, a power of two.
    pub(crate) lba_bytes: u32,
    /// The alignment of tensors in bytes: the LBA, or a page in files under the page cache.
    pub(crate) align_bytes: u32,
    /// The first LBA.
    pub(crate) first: u64,
    /// The LBA behind the last one.
    pub(crate) limit: u64,
}

impl Area {
    /// Returns the LBAs from `first` to `limit`, which is excluded.
    pub(crate) fn new(lba_bytes: u32, first: u64, limit: u64) -> Area {
        Area { lba_bytes, align_bytes: lba_bytes, first, limit }
    }
}

/// The map from tensors to their LBAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorMap {
    lba_bytes: u64,
    /// The first LBA; the next field is the number of LBAs per tensor.
    first: u64,
    lbas: u64,
    /// The tensors in the order of their LBAs.
    order: Vec<TensorId>,
    /// The index of each tensor in `order`, by its number.
    ranks: Vec<Option<u32>>,
}

impl TensorMap {
    /// Binds `tensors` of `shape`, in this order, to an area.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an impossible shape, if a token's bytes are not a multiple of the LBA (the precondition
    /// of table II), or if the area is too small.
    pub(crate) fn bind(shape: &Shape, tensors: &[TensorId], area: Area) -> Result<TensorMap> {
        shape.check()?;
        check_unit(shape, area.lba_bytes)?;
        let Area { first, limit, .. } = area;
        assert!(area.align_bytes.is_multiple_of(area.lba_bytes), "tensors begin at LBAs");
        let lba_bytes = u64::from(area.lba_bytes);
        let lbas = shape.tensor_bytes().next_multiple_of(area.align_bytes.into()) / lba_bytes;
        let needs = lbas.saturating_mul(tensors.len() as u64);
        if first.checked_add(needs).is_none_or(|end| end > limit) {
            let has = limit.saturating_sub(first).saturating_mul(lba_bytes);
            let fix = format!(
                "its {} tensors take {} bytes: enlarge it, or give more memory to the page cache",
                tensors.len(),
                needs.saturating_mul(lba_bytes)
            );
            return Err(Error::invalid("the extent", format!("{has} bytes"), fix));
        }
        let layers = shape.model.layers;
        let mut ranks = vec![None; 2 * layers as usize];
        for (rank, tensor) in (0..).zip(tensors) {
            let other = ranks[tensor.number(layers) as usize].replace(rank);
            assert!(other.is_none(), "{tensor} is bound once");
        }
        assert!(lbas * lba_bytes >= shape.tensor_bytes(), "a tensor fits at its final size");
        Ok(TensorMap { lba_bytes, first, lbas, order: tensors.to_vec(), ranks })
    }

    fn rank(&self, tensor: TensorId) -> Option<u32> {
        self.ranks[tensor.number(self.ranks.len() as u32 / 2) as usize]
    }

    /// Returns the LBAs of a tensor, if it is bound.
    pub(crate) fn lbas(&self, tensor: TensorId) -> Option<TensorLbas> {
        let lba_start = self.first + u64::from(self.rank(tensor)?) * self.lbas;
        Some(TensorLbas { lba_start, lbas: self.lbas })
    }

    /// Returns the device offset of byte `at` of a tensor, if it is bound.
    pub(crate) fn byte(&self, tensor: TensorId, at: u64) -> Option<u64> {
        assert!(at < self.lbas * self.lba_bytes, "byte {at} lies inside the tensor");
        self.lbas(tensor).map(|found| found.lba_start * self.lba_bytes + at)
    }

    /// Returns the LBAs of all tensors.
    pub(crate) fn extent(&self) -> TensorLbas {
        TensorLbas { lba_start: self.first, lbas: self.lbas * self.order.len() as u64 }
    }

    /// Returns the tensor behind another one, if there is one.
    pub(crate) fn next(&self, tensor: TensorId) -> Option<TensorId> {
        self.order.get(self.rank(tensor)? as usize + 1).copied()
    }
}

/// Checks the precondition of table II: the bytes of a token in one tensor are a multiple of the LBA.
///
/// # Errors
/// [`Error::Invalid`], which names the batches that work.
pub(crate) fn check_unit(shape: &Shape, lba_bytes: u32) -> Result<()> {
    let (unit, lba) = (shape.unit_bytes(), u64::from(lba_bytes));
    assert!(lba.is_power_of_two(), "an LBA has a power of two of bytes");
    if unit.is_multiple_of(lba) {
        return Ok(());
    }
    let of_one = unit / u64::from(shape.batch);
    // The smallest batch with the factors of two that the LBA has and a token of one sequence lacks.
    let step = lba >> of_one.trailing_zeros().min(lba.trailing_zeros());
    let batches = if step == 2 {
        "an even batch".to_owned()
    } else {
        format!("a batch that is a multiple of {step}")
    };
    let fix = format!(
        "a token of {} then has {unit} bytes in a tensor, which is no multiple of the device's LBA of {lba}: \
         use {batches}, or a device with smaller LBAs",
        shape.model.name
    );
    Err(Error::invalid("the batch", shape.batch, fix))
}

/// A command of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Its first LBA (equation 9).
    pub(crate) slba: u64,
    /// Its zero-based number of LBAs (equation 10).
    pub(crate) nlb_z: u64,
}

impl Chunk {
    /// Returns its bytes.
    pub(crate) fn bytes(&self, lba_bytes: u32) -> u64 {
        (self.nlb_z + 1) * u64::from(lba_bytes)
    }
}

/// The commands of a transfer, all but the last of them equally long (equations 7 and 8). Their data are contiguous in
/// memory (equation 11).
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    slba: u64,
    lbas: u64,
    lbas_max: u64,
    indices: Range<usize>,
}

impl Chunks {
    /// Cuts a transfer into commands of at most `command_bytes_max` (MDTS).
    pub(crate) fn new(span: Span, lba_bytes: u32, command_bytes_max: u64) -> Chunks {
        let lba = u64::from(lba_bytes);
        assert!(command_bytes_max >= lba, "a command moves an LBA at least");
        assert!(span.bytes.is_multiple_of(lba), "a transfer has whole LBAs");
        let (lbas, lbas_max) = (span.bytes / lba, command_bytes_max / lba);
        let count = usize::try_from(lbas.div_ceil(lbas_max)).expect("a transfer fits into memory");
        Chunks { slba: span.slba, lbas, lbas_max, indices: 0..count }
    }

    /// Returns the number of commands left.
    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Returns the first command left, with its number.
    pub(crate) fn first(&self) -> Option<(usize, Chunk)> {
        let index = self.indices.clone().next()?;
        let before = index as u64 * self.lbas_max;
        let nlb_z = self.lbas_max.min(self.lbas - before) - 1;
        Some((index, Chunk { slba: self.slba + before, nlb_z }))
    }

    /// Removes the first command left.
    pub(crate) fn take_first(&mut self) {
        self.indices.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Component, Model};
    use proptest::prelude::*;

    fn tensors(layers: std::ops::Range<u32>) -> Vec<TensorId> {
        let of = |component| layers.clone().map(move |layer| TensorId { layer, component });
        of(Component::K).chain(of(Component::V)).collect()
    }

    fn small(heads: u32, head_elements: u32, batch: u32, tokens: u32) -> Shape {
        let model = Model { name: "small", layers: 5, heads, head_elements };
        Shape::new(model, batch, tokens, 1).expect("a shape")
    }

    proptest! {
        #[test]
        fn algorithm_2_agrees_with_a_walk_over_all_elements(
            heads in 1u32..4, tokens in 1u32..6, batch in 1u32..4, number in 0usize..6, at in 0u32..6
        ) {
            let at = at % tokens;
            let (shape, list) = (small(heads, 256, batch, tokens), tensors(2..5));
            let map = TensorMap::bind(&shape, &list, Area::new(512, 2048, u64::MAX)).expect("a map");
            // A token has this many elements of two bytes each.
            let mut byte = map.byte(list[number], 0).expect("bound");
            for _token in 0..at {
                for _sequence in 0..batch {
                    byte += (0..heads * 256).map(|_element| 2).sum::<u64>();
                }
            }
            prop_assert_eq!(map.byte(list[number], shape.bytes(at)), Some(byte));
            let lbas = shape.tensor_bytes() / 512;
            prop_assert_eq!(byte, (2048 + number as u64 * lbas) * 512 + shape.bytes(at));
            prop_assert!(byte.is_multiple_of(512));
        }

        #[test]
        fn chunks_cover_a_transfer_in_order(lbas in 1u64..3000, max_lbas in 1u64..700, slba in 0u64..1 << 40) {
            let span = Span { slba, bytes: lbas * 4096 };
            // MDTS need not be a multiple of the LBA: it is rounded down.
            let mut left = Chunks::new(span, 4096, max_lbas * 4096 + 4095);
            prop_assert_eq!(left.len() as u64, lbas.div_ceil(max_lbas));
            let (mut next, mut bytes, mut count) = (slba, 0, 0);
            while let Some((index, chunk)) = left.first() {
                prop_assert_eq!((index, chunk.slba), (count, next));
                prop_assert!(chunk.nlb_z < max_lbas);
                next += chunk.nlb_z + 1;
                bytes += chunk.bytes(4096);
                count += 1;
                left.take_first();
            }
            prop_assert_eq!((next, bytes, left.len()), (slba + lbas, span.bytes, 0));
        }

        #[test]
        fn binding_is_contiguous_from_the_first_lba(from in 0u32..5, first in 0u64..10_000) {
            let shape = small(2, 64, 16, 3);
            let list = tensors(from..5);
            let lbas = shape.tensor_bytes() / 4096;
            let end = first + lbas * list.len() as u64;
            let map = TensorMap::bind(&shape, &list, Area::new(4096, first, end)).expect("it just fits");
            let mut next = first;
            for tensor in &list {
                prop_assert_eq!(map.lbas(*tensor), Some(TensorLbas { lba_start: next, lbas }));
                next += lbas;
            }
            prop_assert_eq!(map.extent().lba_start + map.extent().lbas, next);
            prop_assert!(tensors(0..from).iter().all(|tensor| map.lbas(*tensor).is_none()));
            let short = TensorMap::bind(&shape, &list, Area::new(4096, first, end.saturating_sub(1)));
            prop_assert_eq!(short.is_err(), end > 0);
        }
    }

    #[test]
    fn the_papers_example_of_the_precondition() {
        let shape = |batch| Shape::new(Model::OPT_13B, batch, 512, 32).expect("a shape");
        let error =
            check_unit(&shape(1), 4096).expect_err("10 KiB are no multiple of 4 KiB").to_string();
        assert!(error.contains("10240 bytes") && error.contains("use an even batch"), "{error}");
        assert!(check_unit(&shape(2), 4096).is_ok() && check_unit(&shape(1), 512).is_ok());
        let narrow = small(1, 256, 1, 4);
        let error = check_unit(&narrow, 4096).expect_err("512 bytes").to_string();
        assert!(error.contains("a multiple of 8"), "{error}");
    }

    #[test]
    fn places_of_the_page_cache_begin_at_pages() {
        let shape = small(1, 256, 3, 3);
        let area = Area { align_bytes: 4096, ..Area::new(512, 0, 1000) };
        let map = TensorMap::bind(&shape, &tensors(0..5), area).expect("a map");
        let starts: Vec<u64> =
            tensors(0..5).iter().map(|t| map.lbas(*t).expect("bound").lba_start).collect();
        assert!(
            shape.tensor_bytes() == 4608
                && starts.iter().eq((0..10).map(|n| n * 16).collect::<Vec<u64>>().iter())
        );
        assert_eq!(map.byte(TensorId::pair(0)[1], 0), Some(80 * 512));
    }

    #[test]
    fn what_has_no_lbas_has_none_and_no_other_shape_is_bound() {
        let shape = small(2, 256, 1, 4);
        let map = TensorMap::bind(&shape, &tensors(0..2), Area::new(512, 0, 1000)).expect("a map");
        assert_eq!(map.lbas(TensorId::pair(4)[0]), None);
        assert_eq!(map.byte(TensorId::pair(4)[0], 0), None);
        assert_eq!(map.next(TensorId::pair(1)[1]), None, "it is the last one");
        assert_eq!(map.next(TensorId::pair(1)[0]), Some(TensorId::pair(0)[1]));
        let vast = Shape { batch: u32::MAX, prompt_tokens: u32::MAX, ..shape };
        assert!(TensorMap::bind(&vast, &[], Area::new(512, 0, 1000)).is_err(), "no such shape");
    }

    #[test]
    fn an_area_too_small_says_what_it_needs() {
        let shape = small(2, 64, 16, 3);
        let error = TensorMap::bind(&shape, &tensors(0..5), Area::new(4096, 10, 12))
            .expect_err("too small");
        let text = error.to_string();
        assert!(text.contains("8192 bytes") && text.contains("take 122880 bytes"), "{text}");
    }
}
