//! Where each tensor of group 2 lies: Dual-Blade's binding (equations 3 to 6), its translation of an index into an LBA
//! (algorithm 2), and the commands of a transfer (equations 7 to 11).
//!
//! Tensors are bound one behind another, from a first LBA on. Three things hold for every map, and are asserted:
//! tensors begin and end at LBAs (alignment), no LBA belongs to two (disjointness), and each begins where the one bound
//! before it ends (contiguity).

use crate::error::{Error, Result};
use crate::tensors::shape::{Shape, TensorId};

/// A run of LBAs that holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first LBA.
    pub lba_start: u64,
    /// The LBAs that the tensor takes at its final size.
    pub lbas: u64,
}

impl Place {
    /// Returns the LBA behind the last one.
    pub fn end(&self) -> u64 {
        self.lba_start + self.lbas
    }
}

/// A run of a device that a transfer covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first LBA.
    pub slba: u64,
    /// The length in bytes, a multiple of the LBA.
    pub bytes: u64,
}

/// A part of a tensor by row-major indices: algorithm 2's `shape_tgt`, offset indices and `shape_src`. All reads and
/// writes of a run find their LBAs by such parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    /// The dimensions of the whole tensor, in elements: tokens, batch x heads, elements of a head.
    pub of: [u64; 3],
    /// The indices of the part's first element.
    pub at: [u64; 3],
    /// The dimensions of the part, whose elements are consecutive in the tensor.
    pub dimensions: [u64; 3],
}

/// The part of a device that tensors are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Bytes of an LBA, a power of two.
    pub lba_bytes: u32,
    /// The multiple of bytes at which each tensor begins: the LBA, or a page where the page cache holds them.
    pub align_bytes: u32,
    /// The first LBA.
    pub first: u64,
    /// The LBA behind the last one.
    pub limit: u64,
}

impl Area {
    /// The LBAs from `first` to `limit`, which is excluded.
    pub fn new(lba_bytes: u32, first: u64, limit: u64) -> Area {
        Area { lba_bytes, align_bytes: lba_bytes, first, limit }
    }
}

/// The map from tensors to their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceMap {
    lba_bytes: u64,
    /// Bytes of an element, and the dimensions of a tensor in elements.
    element_bytes: u64,
    dimensions: [u64; 3],
    layers: u32,
    /// By the number of the tensor.
    places: Vec<Option<Place>>,
    /// The tensors in the order of their places, and the index there of each, by its number.
    order: Vec<TensorId>,
    ranks: Vec<usize>,
    first: u64,
    end: u64,
}

impl PlaceMap {
    /// Binds `tensors` of `shape`, in this order, to an area.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an impossible shape, if a token's bytes are no multiple of the LBA (the precondition of table
    /// II), or if the LBAs do not suffice.
    pub fn bind(shape: &Shape, tensors: &[TensorId], area: Area) -> Result<PlaceMap> {
        shape.check()?;
        check_unit(shape, area.lba_bytes)?;
        let Area { first, limit, .. } = area;
        assert!(area.align_bytes.is_multiple_of(area.lba_bytes), "places begin at LBAs");
        let lba_bytes = u64::from(area.lba_bytes);
        let lbas = shape.tensor_bytes().next_multiple_of(area.align_bytes.into()) / lba_bytes;
        let needs = lbas.saturating_mul(tensors.len() as u64);
        if first.checked_add(needs).is_none_or(|end| end > limit) {
            let has = limit.saturating_sub(first).saturating_mul(lba_bytes);
            let fix = format!(
                "its {} tensors take {} bytes: give it as many, or more memory to group 1",
                tensors.len(),
                needs.saturating_mul(lba_bytes)
            );
            return Err(Error::invalid("the area of group 2", format!("{has} bytes"), fix));
        }
        let layers = shape.model.layers;
        let mut map = PlaceMap {
            lba_bytes,
            element_bytes: shape.element_bytes.into(),
            dimensions: shape.dimensions(),
            layers,
            places: vec![None; 2 * layers as usize],
            order: tensors.to_vec(),
            ranks: vec![usize::MAX; 2 * layers as usize],
            first,
            end: first,
        };
        for (rank, tensor) in tensors.iter().enumerate() {
            map.append(*tensor, lbas);
            map.ranks[tensor.number(layers) as usize] = rank;
        }
        map.assert_invariants();
        Ok(map)
    }

    /// Binds the next tensor where the last one ends.
    fn append(&mut self, tensor: TensorId, lbas: u64) {
        let slot = &mut self.places[tensor.number(self.layers) as usize];
        assert!(slot.is_none(), "{tensor} is bound once");
        *slot = Some(Place { lba_start: self.end, lbas });
        self.end += lbas;
    }

    /// Asserts alignment, disjointness and contiguity.
    fn assert_invariants(&self) {
        let mut places: Vec<Place> = self.places.iter().flatten().copied().collect();
        places.sort_unstable_by_key(|place| place.lba_start);
        let (mut next, tensor_bytes) = (self.first, self.tensor_bytes());
        for place in places {
            assert_eq!(place.lba_start, next, "each tensor begins where the one before it ends");
            let bytes = place.lbas * self.lba_bytes;
            assert!(bytes >= tensor_bytes, "a place holds its tensor at its final size");
            next = place.end();
        }
        assert_eq!(next, self.end, "the places are the whole extent");
    }

    /// Returns the place of a tensor, if it has one.
    pub fn place(&self, tensor: TensorId) -> Option<Place> {
        self.places[tensor.number(self.layers) as usize]
    }

    /// Returns the byte of the device at which a tensor begins, if it has a place.
    pub fn byte(&self, tensor: TensorId) -> Option<u64> {
        self.place(tensor).map(|place| place.lba_start * self.lba_bytes)
    }

    /// Returns the whole extent.
    pub fn extent(&self) -> Place {
        Place { lba_start: self.first, lbas: self.end - self.first }
    }

    /// Returns the tensor whose place is behind that of another, if there is one.
    pub(super) fn next(&self, tensor: TensorId) -> Option<TensorId> {
        let rank = self.ranks[tensor.number(self.layers) as usize];
        self.order.get(rank.checked_add(1)?).copied()
    }

    /// Returns the bytes of an LBA.
    pub(super) fn lba_bytes(&self) -> u64 {
        self.lba_bytes
    }

    /// Returns the final bytes of a tensor. A shape that was checked has at most 2^60 in all.
    fn tensor_bytes(&self) -> u64 {
        self.dimensions.iter().product::<u64>() * self.element_bytes
    }

    /// Translates a part of a tensor into a run of LBAs: algorithm 2.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the tensor has no place or other dimensions, or the part is not a run of whole LBAs inside it.
    pub fn locate(&self, tensor: TensorId, slab: &Slab) -> Result<Span> {
        let refused =
            |fix: String| Err(Error::invalid("a part of a tensor", format!("{slab:?}"), fix));
        let Some(place) = self.place(tensor) else {
            return refused(format!("{tensor} is not in group 2: it has no LBAs"));
        };
        if slab.of != self.dimensions {
            return refused(format!("the dimensions of {tensor} are {:?}", self.dimensions));
        }
        let ([_, d1, d2], [i, j, k], [f0, f1, f2]) = (slab.of, slab.at, slab.dimensions);
        let inside = (0..3).all(|axis| {
            let (at, len, of) = (slab.at[axis], slab.dimensions[axis], slab.of[axis]);
            len > 0 && at.checked_add(len).is_some_and(|end| end <= of)
        });
        let rows_whole = f0 == 1 || (j, f1) == (0, d1);
        let heads_whole = (f0 == 1 && f1 == 1) || (k, f2) == (0, d2);
        if !(inside && rows_whole && heads_whole) {
            return refused("give a run of consecutive elements inside it".to_owned());
        }
        // No product exceeds the bytes of the tensor, inside which the part lies.
        let offset = ((i * d1 + j) * d2 + k) * self.element_bytes;
        let bytes = f0 * f1 * f2 * self.element_bytes;
        if !(offset.is_multiple_of(self.lba_bytes) && bytes.is_multiple_of(self.lba_bytes)) {
            return refused(format!("begin and end it at multiples of {} bytes", self.lba_bytes));
        }
        assert!(offset + bytes <= self.tensor_bytes(), "a run stays inside its tensor");
        Ok(Span { slba: place.lba_start + offset / self.lba_bytes, bytes })
    }
}

/// Checks the precondition of table II: a token of one tensor is a multiple of the LBA.
///
/// # Errors
/// [`Error::Invalid`] that names the batches that work.
pub(super) fn check_unit(shape: &Shape, lba_bytes: u32) -> Result<()> {
    let (unit, lba) = (shape.unit_bytes(), u64::from(lba_bytes));
    assert!(lba.is_power_of_two(), "an LBA has a power of two of bytes");
    if unit.is_multiple_of(lba) {
        return Ok(());
    }
    let of_one = unit / u64::from(shape.batch);
    // The least batch that makes up for the factors of two that the LBA has and a token of one sequence lacks.
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
pub struct Chunk {
    /// Its first LBA (equation 9).
    pub slba: u64,
    /// Its LBAs less one, as a command counts them (equation 10).
    pub nlb_z: u64,
    /// Where its data begin in the transfer's memory, in bytes (equation 11).
    pub at: u64,
}

impl Chunk {
    /// Returns its bytes.
    pub fn bytes(&self, lba_bytes: u32) -> u64 {
        (self.nlb_z + 1) * u64::from(lba_bytes)
    }
}

/// Cuts a transfer into commands of at most `command_bytes_max` (MDTS), all but the last of them equally long
/// (equations 7 and 8).
pub fn chunks(
    span: Span,
    lba_bytes: u32,
    command_bytes_max: u64,
) -> impl ExactSizeIterator<Item = Chunk> {
    let lba = u64::from(lba_bytes);
    assert!(command_bytes_max >= lba, "a command moves an LBA at least");
    assert!(span.bytes.is_multiple_of(lba), "a transfer has whole LBAs");
    let (lbas, lbas_max) = (span.bytes / lba, command_bytes_max / lba);
    let count = usize::try_from(lbas.div_ceil(lbas_max)).expect("a transfer fits into memory");
    (0..count).map(move |index| {
        let before = index as u64 * lbas_max;
        Chunk { slba: span.slba + before, nlb_z: lbas_max.min(lbas - before) - 1, at: before * lba }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{Component, Model};
    use proptest::prelude::*;

    fn tensors(layers: std::ops::Range<u32>) -> Vec<TensorId> {
        let of = |component| layers.clone().map(move |layer| TensorId { layer, component });
        of(Component::K).chain(of(Component::V)).collect()
    }

    fn small(heads: u32, head_elements: u32, batch: u32, tokens: u32) -> Shape {
        let model = Model { name: "small", layers: 5, heads, head_elements };
        Shape::new(model, batch, tokens, 1).expect("a shape")
    }

    /// Finds the first and the number of elements of a slab by walking all elements in memory order.
    fn walked(slab: &Slab) -> Option<(u64, u64)> {
        let ([d0, d1, d2], mut inside, mut at) = (slab.of, Vec::new(), 0);
        for i in 0..d0 {
            for j in 0..d1 {
                for k in 0..d2 {
                    let index = [i, j, k];
                    let is_in = (0..3).all(|axis| {
                        let from = slab.at[axis];
                        (from..from + slab.dimensions[axis]).contains(&index[axis])
                    });
                    if is_in {
                        inside.push(at);
                    }
                    at += 1;
                }
            }
        }
        let count: u64 = slab.dimensions.iter().product();
        let first = *inside.first()?;
        let is_run = inside.windows(2).all(|two| two[0] + 1 == two[1]);
        (is_run && inside.len() as u64 == count).then_some((first, count))
    }

    proptest! {
        #[test]
        fn algorithm_2_agrees_with_an_index_walker(
            d in prop::array::uniform3(1u64..6),
            at in prop::array::uniform3(0u64..6),
            dimensions in prop::array::uniform3(0u64..7),
            number in 0usize..6,
        ) {
            // 256 elements of 2 bytes are one LBA, so that an index of the last axis is one LBA.
            let shape = small(d[1] as u32, d[2] as u32 * 256, 1, d[0] as u32);
            let list = tensors(2..5);
            let map = PlaceMap::bind(&shape, &list, Area::new(512, 2048, u64::MAX)).expect("a map");
            let scaled = |[a, b, c]: [u64; 3]| [a, b, c * 256];
            let slab = Slab { of: scaled(d), at: scaled(at), dimensions: scaled(dimensions) };
            let found = map.locate(list[number], &slab).ok();
            let expected = walked(&slab).map(|(first, count)| Span {
                slba: 2048 + number as u64 * d.iter().product::<u64>() + first * 2 / 512,
                bytes: count * 2,
            });
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn chunks_cover_a_transfer_in_order(lbas in 1u64..3000, max_lbas in 1u64..700, slba in 0u64..1 << 40) {
            let span = Span { slba, bytes: lbas * 4096 };
            // MDTS need not be a multiple of the LBA: it is rounded down.
            let list: Vec<Chunk> = chunks(span, 4096, max_lbas * 4096 + 4095).collect();
            prop_assert_eq!(list.len() as u64, lbas.div_ceil(max_lbas));
            let (mut next, mut at) = (slba, 0);
            for chunk in &list {
                prop_assert_eq!((chunk.slba, chunk.at), (next, at));
                prop_assert!(chunk.nlb_z < max_lbas);
                next += chunk.nlb_z + 1;
                at += chunk.bytes(4096);
            }
            prop_assert_eq!((next, at), (slba + lbas, span.bytes));
        }

        #[test]
        fn binding_is_contiguous_from_the_first_lba(from in 0u32..5, first in 0u64..10_000) {
            let shape = small(2, 64, 16, 3);
            let list = tensors(from..5);
            let lbas = shape.tensor_bytes() / 4096;
            let end = first + lbas * list.len() as u64;
            let map = PlaceMap::bind(&shape, &list, Area::new(4096, first, end)).expect("it just fits");
            let mut next = first;
            for tensor in &list {
                prop_assert_eq!(map.place(*tensor), Some(Place { lba_start: next, lbas }));
                next += lbas;
            }
            prop_assert_eq!(map.extent().end(), next);
            prop_assert!(tensors(0..from).iter().all(|tensor| map.place(*tensor).is_none()));
            let short = PlaceMap::bind(&shape, &list, Area::new(4096, first, end.saturating_sub(1)));
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
        let map = PlaceMap::bind(&shape, &tensors(0..5), area).expect("a map");
        let starts: Vec<u64> =
            tensors(0..5).iter().map(|t| map.place(*t).expect("bound").lba_start).collect();
        assert!(
            shape.tensor_bytes() == 4608
                && starts.iter().eq((0..10).map(|n| n * 16).collect::<Vec<u64>>().iter())
        );
        let found = map.locate(TensorId::pair(0)[1], &shape.slab(&(0..2))).expect("tokens");
        assert_eq!(found, Span { slba: 80, bytes: 2 * shape.unit_bytes() });
    }

    #[test]
    fn parts_of_a_tensor_with_other_dimensions_are_refused() {
        let shape = small(2, 256, 1, 4);
        let map = PlaceMap::bind(&shape, &tensors(0..2), Area::new(512, 0, 1000)).expect("a map");
        let tensor = TensorId::pair(0)[0];
        let whole = shape.slab(&(0..4));
        assert_eq!(map.locate(tensor, &whole).map(|span| span.bytes).ok(), Some(4 << 10));
        for of in [[5, 2, 256], [u64::MAX; 3], [1 << 32, 2, 256]] {
            let error = map.locate(tensor, &Slab { of, dimensions: of, ..whole });
            let text = error.expect_err("other dimensions").to_string();
            assert!(text.contains("the dimensions of K of layer 0 are [4, 2, 256]"), "{text}");
        }
        let far = Slab { at: [u64::MAX, 0, 0], ..whole };
        assert!(map.locate(tensor, &far).is_err(), "its end exceeds all numbers");
        assert!(map.locate(TensorId::pair(4)[0], &whole).is_err(), "it has no place");
        let vast = Shape { batch: u32::MAX, prompt_tokens: u32::MAX, ..shape };
        assert!(PlaceMap::bind(&vast, &[], Area::new(512, 0, 1000)).is_err(), "no such shape");
    }

    #[test]
    fn an_area_too_small_says_what_it_needs() {
        let shape = small(2, 64, 16, 3);
        let error =
            PlaceMap::bind(&shape, &tensors(0..5), Area::new(4096, 10, 12)).expect_err("too small");
        let text = error.to_string();
        assert!(text.contains("8192 bytes") && text.contains("take 122880 bytes"), "{text}");
    }
}
