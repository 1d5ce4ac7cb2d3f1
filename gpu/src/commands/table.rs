//! The mapping table: how the commands of one device address the pool.
//!
//! With SGLs a region is one descriptor: its address, from which any part follows by addition. Without them a region
//! has PRP lists of all its pages, built once when it is mapped (adit_driver::transfer::prebuilt), and commands point
//! into these. No list is built per command. The table owns no memory that a device reads.

use adit_driver::transfer::prebuilt::PrebuiltPrps;

use crate::commands::cut::{Cut, CutLimits, Span};
use crate::commands::layout::{Form, PAGE_BYTES, REGIONS_MAX, Region};
use crate::error::{Error, Result};

/// Bytes of an SGL data block descriptor (NVMe Base 2.0 figure 96).
const DESCRIPTOR_BYTES: u64 = 16;
/// PRP entries are Dword aligned (NVMe Base 2.0 section 4.1.1).
const PRP_MASK: u64 = 3;

#[derive(Debug)]
pub struct MappingTable {
    shape: CutLimits,
    spans: Vec<Span>,
    form: Form,
    regions: Vec<Region>,
}

impl MappingTable {
    /// Creates a table of regions addressed by SGL, or by their own offsets.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more regions than a context can name.
    pub fn sgl(shape: CutLimits, spans: Vec<Span>) -> Result<MappingTable> {
        check(&spans)?;
        Ok(MappingTable {
            shape: CutLimits::new(shape),
            spans,
            form: Form::Sgl,
            regions: Vec::new(),
        })
    }

    /// Creates a table of regions with prebuilt PRP lists. `lists` returns the addresses of a region's two lists, or
    /// `None` for a region of at most two pages, which needs none.
    ///
    /// # Errors
    /// As [`MappingTable::sgl`], and for a region without lists or one that begins inside a page.
    pub fn prp(
        shape: CutLimits,
        spans: Vec<Span>,
        lists: impl Fn(usize) -> Option<[u64; 2]>,
    ) -> Result<MappingTable> {
        check(&spans)?;
        let shape =
            CutLimits::new(CutLimits { address_mask: shape.address_mask | PRP_MASK, ..shape });
        let region = |(index, span): (usize, &Span)| region(index, *span, lists(index));
        let regions = spans.iter().enumerate().map(region).collect::<Result<_>>()?;
        Ok(MappingTable { shape, spans, form: Form::Prp, regions })
    }

    /// Creates a table of regions whose commands need no lists: by SGL, or by PRPs with at most a page of data each.
    ///
    /// # Errors
    /// As [`MappingTable::sgl`].
    #[cfg(feature = "internals")]
    pub fn without_lists(shape: CutLimits, spans: Vec<Span>, form: Form) -> Result<MappingTable> {
        let shape = match form {
            Form::Sgl => shape,
            Form::Prp => CutLimits {
                max_bytes: shape.max_bytes.min(PAGE_BYTES),
                address_mask: shape.address_mask | 3,
                ..shape
            },
        };
        Ok(MappingTable { form, ..MappingTable::sgl(shape, spans)? })
    }

    /// Returns the splitter of transfers for this device; `lba_count` is the namespace's current size.
    pub fn cut(&self, lba_count: u64) -> Cut<'_> {
        Cut::new(CutLimits { lba_count, ..self.shape }, &self.spans)
    }

    pub fn form(&self) -> Form {
        self.form
    }

    /// Returns what device code needs to find the lists: an entry per region with [`Form::Prp`], else none.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Bytes of memory for addressing the pool: descriptors or lists.
    pub fn bytes(&self) -> u64 {
        match self.form {
            Form::Sgl => self.spans.len() as u64 * DESCRIPTOR_BYTES,
            Form::Prp => self.spans.iter().map(|span| PrebuiltPrps::bytes_for(pages(*span))).sum(),
        }
    }
}

fn pages(span: Span) -> u64 {
    span.bytes.div_ceil(PAGE_BYTES)
}

fn check(spans: &[Span]) -> Result<()> {
    if spans.len() <= REGIONS_MAX {
        return Ok(());
    }
    let why = format!("the rings take up to {REGIONS_MAX}; register larger runs of memory");
    Err(Error::invalid(format!("a pool of {} regions", spans.len()), why))
}

fn region(index: usize, span: Span, lists: Option<[u64; 2]>) -> Result<Region> {
    let what = || format!("region {index} of {} bytes at {:#x}", span.bytes, span.address);
    if !span.address.is_multiple_of(PAGE_BYTES) {
        return Err(Error::invalid(what(), "with PRPs a region begins at a page"));
    }
    let lists = match lists {
        None if pages(span) > 2 => {
            return Err(Error::invalid(
                what(),
                "it has no PRP lists, and the controller takes no SGLs",
            ));
        }
        lists => lists.unwrap_or_default(),
    };
    Ok(Region { address: span.address, lists, bytes: pages(span) * PAGE_BYTES })
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::spec::Iova;

    const LISTS: u64 = 1 << 40;

    fn shape() -> CutLimits {
        CutLimits {
            lba_shift: 12,
            lba_count: 1 << 20,
            max_bytes: 128 << 10,
            boundary_lbas: 0,
            address_mask: 0,
        }
    }

    #[test]
    fn sgl_costs_16_bytes_a_region_and_prp_16_bytes_a_page() {
        let spans = vec![Span { address: 1 << 32, bytes: 511 * 64 * 4096 }; 3];
        let sgl = MappingTable::sgl(shape(), spans.clone()).expect("table");
        assert_eq!((sgl.form(), sgl.bytes()), (Form::Sgl, 48));
        let prp = MappingTable::prp(shape(), spans, |_| Some([LISTS, LISTS])).expect("table");
        // 64 pages for each list of a region, and one for its shift.
        assert_eq!((prp.form(), prp.bytes()), (Form::Prp, 3 * (64 + 65) * 4096));
    }

    /// Finds a list by the formula of device code (ring.h, `second_prp`).
    fn list_of(region: &Region, second: u64, entries: u64) -> u64 {
        let page = (second - region.address) / PAGE_BYTES;
        let word = page + page / 511;
        if entries <= 256 {
            let phase = word / 256 % 2;
            return region.lists[phase as usize] + (word + phase * 257) * 8;
        }
        let available = 512 - word % 512;
        if entries < available || !(entries - available).is_multiple_of(511) {
            return region.lists[0] + word * 8;
        }
        let shifted = page + 256;
        region.lists[1] + (shifted + shifted / 511) * 8
    }

    #[test]
    fn device_code_finds_the_lists_where_the_driver_does() {
        let span = Span { address: 1 << 32, bytes: 1500 * 4096 };
        let prps = PrebuiltPrps::build(Iova(span.address), 1500, Iova(LISTS), |_, _| ());
        let lists = prps.tables().map(|table| table.0);
        let table = MappingTable::prp(shape(), vec![span], |_| Some(lists)).expect("table");
        let region = table.regions()[0];
        for page in [0, 1, 254, 255, 256, 257, 510, 511, 512, 1000] {
            for entries in [2, 255, 256, 257, 500] {
                let second = region.address + page * PAGE_BYTES;
                let expected = prps.list(Iova(second), entries * PAGE_BYTES).0;
                assert_eq!(
                    list_of(&region, second, entries),
                    expected,
                    "{entries} pages from {page}"
                );
            }
        }
    }

    #[test]
    fn a_region_that_prps_cannot_cover_is_refused() {
        let spans = |address, bytes| vec![Span { address, bytes }];
        let error =
            MappingTable::prp(shape(), spans(512, 4096), |_| None).expect_err("inside a page");
        assert!(error.to_string().contains("begins at a page"), "{error}");
        let error =
            MappingTable::prp(shape(), spans(4096, 3 * 4096), |_| None).expect_err("no lists");
        assert!(error.to_string().contains("no PRP lists"), "{error}");
        MappingTable::prp(shape(), spans(4096, 2 * 4096), |_| None)
            .expect("two pages need no list");
    }

    #[test]
    fn more_regions_than_a_context_can_name_are_refused() {
        let spans = vec![Span { address: 0, bytes: 4096 }; REGIONS_MAX + 1];
        let error = MappingTable::sgl(shape(), spans).expect_err("too many").to_string();
        assert!(error.contains("2049") && error.contains("up to 2048"), "{error}");
    }
}
