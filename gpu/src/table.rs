//! The mapping table: how the commands of one device address the pool.
//!
//! With SGLs a region is one descriptor: its address, from which any run of it follows by addition. Without them a
//! region has PRP lists of all its pages, built once (adit_driver::transfer::prebuilt), into which commands point. No
//! list is ever built for a command. The table knows nothing of what goes on in the rings.

use std::time::{Duration, Instant};

use adit_driver::spec::Iova;
use adit_driver::transfer::prebuilt::PrebuiltPrps;
use adit_driver::{Buffer, Controller};

use crate::error::{Error, Result};
use crate::layout::{Form, PAGE_BYTES, REGIONS_MAX, Region};
use crate::transfer::{Cut, Shape, Span};

/// Bytes of an SGL data block descriptor (NVMe Base 2.0 figure 96).
const DESCRIPTOR_BYTES: u64 = 16;

/// A device's view of the pool.
#[derive(Debug)]
pub(crate) struct MappingTable {
    shape: Shape,
    spans: Vec<Span>,
    form: Form,
    regions: Vec<Region>,
    lists: Vec<Buffer>,
    took: Duration,
}

impl MappingTable {
    /// A table of regions that are addressed by SGL, or by their own offsets.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more regions than a context can name.
    pub(crate) fn sgl(shape: Shape, spans: Vec<Span>) -> Result<MappingTable> {
        let started = Instant::now();
        check(&spans)?;
        let shape = Shape::new(shape);
        Ok(MappingTable {
            shape,
            spans,
            form: Form::Sgl,
            regions: Vec::new(),
            lists: Vec::new(),
            took: started.elapsed(),
        })
    }

    /// A table of regions with prebuilt PRP lists, in memory that `controller` reads.
    ///
    /// # Errors
    /// As [`MappingTable::sgl`]; what refuses memory for the lists.
    pub(crate) fn prp(
        shape: Shape,
        spans: Vec<Span>,
        controller: &Controller,
    ) -> Result<MappingTable> {
        let started = Instant::now();
        check(&spans)?;
        // PRP entries are Dword aligned (NVMe Base 2.0 section 4.1.1).
        let shape = Shape::new(Shape { address_mask: shape.address_mask | 3, ..shape });
        let (mut regions, mut lists) = (Vec::new(), Vec::new());
        for span in &spans {
            let (region, buffer) = build_lists(*span, controller)?;
            regions.push(region);
            lists.push(buffer);
        }
        Ok(MappingTable { shape, spans, form: Form::Prp, regions, lists, took: started.elapsed() })
    }

    /// Cuts transfers to this device; `lba_count` is the namespace's size now.
    pub(crate) fn cut(&self, lba_count: u64) -> Cut<'_> {
        Cut::new(Shape { lba_count, ..self.shape }, &self.spans)
    }

    /// How commands point at data.
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// What device code needs to find the lists: one for each region with [`Form::Prp`], else none.
    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// What the table is made of.
    pub(crate) fn report(&self) -> TableReport {
        let bytes = match self.form {
            Form::Sgl => self.spans.len() as u64 * DESCRIPTOR_BYTES,
            Form::Prp => self.lists.iter().map(|list| list.len() as u64).sum(),
        };
        TableReport { form: self.form, regions: self.spans.len(), bytes, took: self.took }
    }
}

/// What a mapping table is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableReport {
    /// How commands point at data.
    pub(crate) form: Form,
    /// Regions of the pool.
    pub(crate) regions: usize,
    /// Memory for the descriptors or lists, in bytes.
    pub(crate) bytes: u64,
    /// How long it took to build.
    pub(crate) took: Duration,
}

fn check(spans: &[Span]) -> Result<()> {
    if spans.len() <= REGIONS_MAX {
        return Ok(());
    }
    let why = format!("the rings take up to {REGIONS_MAX}; register larger runs of memory");
    Err(Error::invalid(format!("a pool of {} regions", spans.len()), why))
}

/// The lists of all pages that a region touches.
fn build_lists(span: Span, controller: &Controller) -> Result<(Region, Buffer)> {
    let first = span.address / PAGE_BYTES * PAGE_BYTES;
    let pages = (span.address + span.bytes).div_ceil(PAGE_BYTES) - first / PAGE_BYTES;
    let mut buffer = controller.allocate(PrebuiltPrps::bytes_for(pages) as usize)?;
    let prps = PrebuiltPrps::build(Iova(first), pages, buffer.iova(), |word, value| {
        buffer[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
    });
    Ok((Region { address: first, lists: starts(&prps, first), bytes: pages * PAGE_BYTES }, buffer))
}

/// Where both lists of a region start, by two lists from its first page on: of one entry, which lies in the first, and
/// of a full page's, which lies in the second behind the 256 entries that it is shifted by.
fn starts(prps: &PrebuiltPrps, first: u64) -> [u64; 2] {
    [prps.list(Iova(first), 1).0, prps.list(Iova(first), 512).0 - 256 * 8]
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::ControllerOptions;

    fn shape() -> Shape {
        Shape {
            lba_shift: 12,
            lba_count: 1 << 20,
            max_bytes: 128 << 10,
            boundary_lbas: 0,
            address_mask: 0,
        }
    }

    fn controller() -> Controller {
        let target = "soft:null,sgl=off,dbbuf=off".parse().expect("a target");
        Controller::open(&target, &ControllerOptions::default()).expect("a controller")
    }

    #[test]
    fn sgl_costs_16_bytes_a_region_and_prp_16_bytes_a_page() {
        let spans = vec![Span { address: 1 << 32, bytes: 511 * 64 * 4096 }; 3];
        let sgl = MappingTable::sgl(shape(), spans.clone()).expect("table").report();
        assert_eq!((sgl.form, sgl.regions, sgl.bytes), (Form::Sgl, 3, 48));
        let prp = MappingTable::prp(shape(), spans, &controller()).expect("table").report();
        // 64 pages for each list of a region, and one for its shift.
        assert_eq!((prp.form, prp.bytes), (Form::Prp, 3 * (64 + 65) * 4096));
    }

    /// Device code finds a list by the sum that ring.h has (`second_prp`).
    fn list_of(region: &Region, second: u64, entries: u64) -> u64 {
        let page = (second - region.address) / PAGE_BYTES;
        let word = page + page / 511;
        let available = 512 - word % 512;
        if entries < available || !(entries - available).is_multiple_of(511) {
            return region.lists[0] + word * 8;
        }
        let shifted = page + 256;
        region.lists[1] + (shifted + shifted / 511) * 8
    }

    #[test]
    fn device_code_finds_the_lists_where_the_driver_does() {
        let controller = controller();
        let span = Span { address: (1 << 32) + 512, bytes: 1500 * 4096 };
        let table = MappingTable::prp(shape(), vec![span], &controller).expect("table");
        let region = table.regions()[0];
        assert_eq!((region.address, region.bytes), (1 << 32, 1501 * 4096));
        let lists = table.lists[0].iova();
        let prps = PrebuiltPrps::build(Iova(region.address), 1501, lists, |_, _| ());
        for page in [0, 1, 254, 255, 256, 257, 510, 511, 512, 1000] {
            for entries in [2, 255, 256, 257, 500] {
                let second = region.address + page * PAGE_BYTES;
                let expected = prps.list(Iova(second), entries).0;
                assert_eq!(
                    list_of(&region, second, entries),
                    expected,
                    "{entries} pages from {page}"
                );
            }
        }
    }

    #[test]
    fn more_regions_than_a_context_can_name_are_refused() {
        let spans = vec![Span { address: 0, bytes: 4096 }; REGIONS_MAX + 1];
        let error = MappingTable::sgl(shape(), spans).expect_err("too many").to_string();
        assert!(error.contains("2049") && error.contains("up to 2048"), "{error}");
    }
}
