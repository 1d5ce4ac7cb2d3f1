//! Cuts transfers into contexts, the commands of the rings.
//!
//! A slice of a transfer is checked once, when [`Cut`] splits it: against its region, the namespace, and the limits of
//! commands. This allocates nothing. A device's limits are its [`CutLimits`].

use adit_driver::spec::Lba;
use adit_driver::transfer::{Direction, Slice};

use crate::commands::layout::{Context, LBA_BITS, LBAS_MAX};
use crate::error::Error;

/// Result of one transfer or context. Boxing the error keeps it to one word in a register: there are thousands of these
/// per layer, and no errors.
pub type Filled = Result<(), Box<Error>>;

/// A slice of a transfer with its first LBA.
#[derive(Clone, Copy, Debug)]
pub struct LbaSlice {
    pub direction: Direction,
    pub lba: Lba,
    pub slice: Slice,
}

/// A region of the pool as the commands of one device address it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Address of its first byte: the device's, or 0 for the staged engine, which counts from the region's start.
    pub address: u64,
    pub bytes: u64,
}

/// Limits that transfers to a device are checked against and split by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutLimits {
    pub lba_shift: u32,
    pub lba_count: u64,
    /// The most bytes of a command: whole LBAs.
    pub max_bytes: u64,
    /// Commands do not cross multiples of this many LBAs; 0 for no boundary.
    pub boundary_lbas: u32,
    /// Bits that a data address must not have: 0, or 3 to require multiples of 4.
    pub address_mask: u64,
}

impl CutLimits {
    /// Limits `shape` to commands that a context can hold.
    pub fn new(shape: CutLimits) -> CutLimits {
        assert!((9..=16).contains(&shape.lba_shift), "LBAs of 512 bytes to 64 KiB");
        assert!(shape.max_bytes >> shape.lba_shift >= 1, "a command holds an LBA");
        let max_bytes = shape.max_bytes.min(LBAS_MAX << shape.lba_shift);
        CutLimits { max_bytes: max_bytes >> shape.lba_shift << shape.lba_shift, ..shape }
    }
}

/// Splits runs on one device into contexts.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    shape: CutLimits,
    spans: &'a [Span],
    lba_mask: u64,
}

impl<'a> Cut<'a> {
    pub fn new(shape: CutLimits, spans: &'a [Span]) -> Cut<'a> {
        Cut { shape, spans, lba_mask: (1 << shape.lba_shift) - 1 }
    }

    /// Passes each context of `run`, of the transfer at `position`, to `put`, in order of LBAs.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the position, the fault and the limit, before any context; the errors of `put`.
    #[inline(always)]
    pub fn cut(
        &self,
        position: usize,
        run: LbaSlice,
        put: impl FnMut(Context) -> Filled,
    ) -> Filled {
        let LbaSlice { lba, slice, .. } = run;
        let Some(address) = self.address_of(lba.0, slice) else {
            // Values, not a reference: one would force every run into memory, and reading it back right after a copy
            // wrote it in other pieces costs a third of the total time.
            let Slice { region, offset, bytes } = slice;
            return Err(self.objection(position, lba.0, region, offset, bytes));
        };
        self.put_pieces(run, address, put)
    }

    /// Returns the LBA after a run that was cut.
    pub fn end(&self, run: LbaSlice) -> Lba {
        Lba(run.lba.0 + (run.slice.bytes >> self.shape.lba_shift))
    }

    /// Returns the address of a slice's first byte; `None` for an invalid slice.
    #[inline(always)]
    fn address_of(&self, first: u64, slice: Slice) -> Option<u64> {
        let span = self.spans.get(slice.region as usize)?;
        let in_region = slice.offset <= span.bytes && slice.bytes <= span.bytes - slice.offset;
        let lbas = slice.bytes >> self.shape.lba_shift;
        let on_device = first <= self.shape.lba_count && lbas <= self.shape.lba_count - first;
        let whole = slice.bytes != 0 && slice.bytes & self.lba_mask == 0;
        if !(in_region && on_device && whole) {
            return None;
        }
        // Neither sum can overflow: both parts lie inside their wholes.
        let address = span.address + slice.offset;
        let valid = address & self.shape.address_mask == 0 && first + lbas <= 1 << LBA_BITS;
        valid.then_some(address)
    }

    /// Splits by the command size and by the boundary.
    #[inline(always)]
    fn put_pieces(
        &self,
        LbaSlice { direction, lba: Lba(mut lba), slice }: LbaSlice,
        mut address: u64,
        mut put: impl FnMut(Context) -> Filled,
    ) -> Filled {
        // The span was found by this number, and tables have at most as many regions as a context can name.
        let (region, is_write) = (slice.region as u16, direction == Direction::Write);
        let CutLimits { lba_shift, max_bytes, boundary_lbas, .. } = self.shape;
        let mut left = slice.bytes >> lba_shift;
        if slice.bytes <= max_bytes && boundary_lbas == 0 {
            return put(Context { address, place: Context::place(lba, left, region, is_write) });
        }
        while left > 0 {
            let lbas = left.min(max_bytes >> lba_shift).min(self.lbas_before_boundary(lba));
            let place = Context::place(lba, lbas, region, is_write);
            put(Context { address, place })?;
            address += lbas << lba_shift;
            lba += lbas;
            left -= lbas;
        }
        Ok(())
    }

    fn lbas_before_boundary(&self, lba: u64) -> u64 {
        match u64::from(self.shape.boundary_lbas) {
            0 => u64::MAX,
            boundary => boundary - lba % boundary,
        }
    }

    /// Explains why a slice has no valid address.
    #[cold]
    #[inline(never)]
    fn objection(
        &self,
        position: usize,
        lba: u64,
        region: u32,
        offset: u64,
        bytes: u64,
    ) -> Box<Error> {
        let what = format!(
            "transfer {position} ({bytes} bytes at LBA {lba}, region {region}, offset {offset})"
        );
        let CutLimits { lba_shift, lba_count, address_mask, .. } = self.shape;
        let lbas = bytes >> lba_shift;
        let why = match self.spans.get(region as usize) {
            None => format!("the pool has {} regions", self.spans.len()),
            _ if bytes == 0 || bytes & self.lba_mask != 0 => {
                let lba_bytes = 1u64 << lba_shift;
                format!("its length has to be whole LBAs of {lba_bytes} bytes, at least one")
            }
            Some(span) if offset > span.bytes || bytes > span.bytes - offset => {
                format!("the region ends at {} bytes", span.bytes)
            }
            _ if lba > lba_count || lbas > lba_count - lba => {
                format!("the namespace ends at LBA {lba_count}")
            }
            _ if lba + lbas > 1 << LBA_BITS => {
                format!("LBAs from 2^{LBA_BITS} on cannot be named in a context")
            }
            Some(span) => format!(
                "its data lie at {:#x}, and the controller takes multiples of {}",
                span.address + offset,
                address_mask + 1
            ),
        };
        Box::new(Error::invalid(what, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use proptest::prelude::*;

    const SPANS: [Span; 2] = [
        Span { address: 0x10_0000_0000, bytes: 1 << 24 },
        Span { address: 0x20_0000_0000, bytes: 4096 },
    ];

    fn shape() -> CutLimits {
        CutLimits {
            lba_shift: 9,
            lba_count: 1 << 20,
            max_bytes: 64 << 10,
            boundary_lbas: 0,
            address_mask: 3,
        }
    }

    fn read(lba: u64, region: u32, offset: u64, bytes: u64) -> LbaSlice {
        let slice = Slice { region, offset, bytes };
        LbaSlice { direction: Direction::Read, lba: Lba(lba), slice }
    }

    fn contexts(shape: CutLimits, run: LbaSlice) -> Result<Vec<Context>> {
        let (mut all, shape) = (Vec::new(), CutLimits::new(shape));
        let cut = Cut::new(shape, &SPANS);
        cut.cut(5, run, |context| {
            all.push(context);
            Ok(())
        })?;
        assert_eq!(cut.end(run).0, run.lba.0 + (run.slice.bytes >> shape.lba_shift));
        Ok(all)
    }

    #[test]
    fn a_transfer_of_one_command_is_one_context() {
        let all = contexts(shape(), read(100, 1, 512, 1024)).expect("valid");
        let place = Context::place(100, 2, 1, false);
        assert_eq!(all, [Context { address: SPANS[1].address + 512, place }]);
    }

    #[test]
    fn each_limit_is_named_with_the_transfers_position() {
        for (run, named) in [
            (read(0, 2, 0, 512), "2 regions"),
            (read(0, 1, 0, 0), "whole LBAs of 512"),
            (read(0, 1, 0, 700), "whole LBAs of 512"),
            (read(0, 1, 4096, 512), "ends at 4096 bytes"),
            (read(0, 1, u64::MAX - 3, 512), "ends at 4096 bytes"),
            (read(0, 1, 0, 8192), "ends at 4096 bytes"),
            (read((1 << 20) - 1, 1, 0, 1024), "ends at LBA 1048576"),
            (read(u64::MAX, 1, 0, 512), "ends at LBA 1048576"),
            (read(0, 1, 2, 512), "multiples of 4"),
        ] {
            let error = contexts(shape(), run).expect_err(named).to_string();
            assert!(error.contains(named) && error.contains("transfer 5"), "{error}");
        }
        let vast = CutLimits { lba_count: u64::MAX, ..shape() };
        let error = contexts(vast, read(1 << 40, 1, 0, 512)).expect_err("too far").to_string();
        assert!(error.contains("2^40"), "{error}");
    }

    #[test]
    fn a_command_never_has_more_lbas_than_a_context_counts() {
        let shape = CutLimits { max_bytes: 1 << 30, ..shape() };
        let all = contexts(shape, read(7, 0, 0, 4 << 20)).expect("valid");
        assert_eq!(all.iter().map(|context| context.lbas()).collect::<Vec<_>>(), [4096, 4096]);
    }

    proptest! {
        #[test]
        fn contexts_are_the_transfer_cut_at_the_limits(
            lba in 0u64..4096, lbas in 1u64..2000, offset in 0u64..100, max_lbas in 1u64..300,
            boundary_lbas in prop_oneof![Just(0u32), Just(8), Just(96), 1u32..500], is_write: bool,
        ) {
            let shape = CutLimits { max_bytes: max_lbas << 9, boundary_lbas, ..shape() };
            let direction = if is_write { Direction::Write } else { Direction::Read };
            let run = LbaSlice { direction, ..read(lba, 0, offset * 4, lbas << 9) };
            let all = contexts(shape, run).expect("valid");
            let (mut next, mut address) = (lba, SPANS[0].address + offset * 4);
            for context in &all {
                prop_assert_eq!((context.lba(), context.address), (next, address));
                prop_assert_eq!((context.region(), context.is_write()), (0, is_write));
                let count = u64::from(context.lbas());
                prop_assert!(count <= max_lbas);
                if boundary_lbas > 0 {
                    let boundary = u64::from(boundary_lbas);
                    prop_assert_eq!(next / boundary, (next + count - 1) / boundary);
                }
                (next, address) = (next + count, address + (count << 9));
            }
            prop_assert_eq!(next, lba + lbas);
            // No more pieces than the limits require.
            let bound = lbas.div_ceil(max_lbas) + if boundary_lbas > 0 { lbas.div_ceil(u64::from(boundary_lbas)) + 1 } else { 0 };
            prop_assert!(all.len() as u64 <= bound);
        }
    }
}
