//! Tables of each form, and commands' data pointers from them.
//!
//! A table covers one region, at fixed device addresses without memory behind them: it depends on addresses alone.

use adit_driver::spec::{Iova, SglDescriptor};
use adit_driver::transfer::prebuilt::PrebuiltPrps;
use adit_driver::transfer::{
    LIST_PAGES_PER_COMMAND, ListMemory, PAGE_BYTES, PRPS_PER_PAGE, Position, Segment, prp,
};

use super::{Form, LBA_BYTES, RUN_BYTES, TRANSFER_BYTES_MAX};

/// Device address of the region.
pub(super) const REGION: u64 = 1 << 40;
/// Device address of the table.
pub(super) const LISTS: u64 = 1 << 50;
const RUN_PAGES: u64 = RUN_BYTES / PAGE_BYTES;

/// A command's data pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// PRP1 and PRP2, or an SGL descriptor.
    pub words: [u64; 2],
    /// Whether it is a descriptor.
    pub is_sgl: bool,
}

/// A table of one form, over one region.
#[derive(Clone, Debug)]
pub struct Table {
    form: Form,
    transfer_bytes_max: u64,
    words: Vec<u64>,
    prebuilt: Option<PrebuiltPrps>,
}

impl Table {
    /// Builds the table of a region of `bytes`, a multiple of 64 KiB, for a controller with commands of up to
    /// `transfer_bytes_max`: whole LBAs, up to 1 MiB.
    ///
    /// # Panics
    /// For any other size.
    pub fn build(form: Form, bytes: u64, transfer_bytes_max: u64) -> Table {
        assert!(bytes.is_multiple_of(RUN_BYTES), "a region is whole runs");
        assert!(
            (LBA_BYTES..=TRANSFER_BYTES_MAX).contains(&transfer_bytes_max)
                && transfer_bytes_max.is_multiple_of(LBA_BYTES),
            "a command is whole LBAs, up to 1 MiB"
        );
        let (pages, runs) = (bytes / PAGE_BYTES, bytes / RUN_BYTES);
        let mut table = Table { form, transfer_bytes_max, words: Vec::new(), prebuilt: None };
        match form {
            Form::PageCommands => {
                table.words = (0..pages).map(|page| REGION + page * PAGE_BYTES).collect();
            }
            Form::ListPages => table.words = list_pages(runs),
            Form::BuiltLists => {
                table.words = vec![0; LIST_PAGES_PER_COMMAND * PRPS_PER_PAGE as usize];
            }
            Form::PrebuiltLists => table.prebuild(pages),
            Form::SglRuns => {
                let run = |run| descriptor(REGION + run * RUN_BYTES, RUN_BYTES);
                table.words = (0..runs).flat_map(run).collect();
            }
            Form::SglRegions => table.words = descriptor(REGION, bytes).to_vec(),
        }
        table
    }

    fn prebuild(&mut self, pages: u64) {
        let mut words = vec![0; PrebuiltPrps::bytes_for(pages) as usize / 8];
        let prps = PrebuiltPrps::build(Iova(REGION), pages, Iova(LISTS), |word, value| {
            words[word] = value;
        });
        (self.words, self.prebuilt) = (words, Some(prps));
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Returns the word at a device address, as the controller reads it.
    pub(super) fn word(&self, at: u64) -> Option<u64> {
        let index = at.checked_sub(LISTS)? / 8;
        self.words.get(index as usize).copied()
    }

    /// Calls `command` with the first LBA, the bytes and the data pointer of each command for an object at `offset` of
    /// the region. A list built for a command stays until the next.
    ///
    /// # Panics
    /// As [`Table::point`].
    pub fn commands(
        &mut self,
        mut offset: u64,
        bytes: u64,
        mut command: impl FnMut(&Table, u64, u64, Pointer),
    ) {
        let end = offset + bytes.next_multiple_of(LBA_BYTES);
        while offset < end {
            let bytes = (end - offset).min(self.transfer_bytes_max).min(self.form.room(offset));
            let pointer = self.point(offset, bytes);
            command(self, offset / LBA_BYTES, bytes, pointer);
            offset += bytes;
        }
    }

    /// Returns the data pointer of a command for `bytes` at `offset` of the region; inside one run, if the form has
    /// runs.
    ///
    /// # Panics
    /// If the range lies outside the region, or exceeds a command.
    #[inline]
    pub fn point(&mut self, offset: u64, bytes: u64) -> Pointer {
        let words = match self.form {
            Form::PageCommands => {
                [self.words[(offset / PAGE_BYTES) as usize] + offset % PAGE_BYTES, 0]
            }
            Form::ListPages => self.point_into_list_page(offset, bytes),
            Form::BuiltLists => self.build_list(offset, bytes),
            Form::PrebuiltLists => self.point_into_prebuilt(offset, bytes),
            Form::SglRuns => {
                let base = self.words[(offset / RUN_BYTES) as usize * 2];
                descriptor(base + offset % RUN_BYTES, bytes)
            }
            Form::SglRegions => descriptor(self.words[0] + offset, bytes),
        };
        Pointer { words, is_sgl: matches!(self.form, Form::SglRuns | Form::SglRegions) }
    }

    fn point_into_list_page(&self, offset: u64, bytes: u64) -> [u64; 2] {
        let page = offset % RUN_BYTES / PAGE_BYTES;
        let word = offset / RUN_BYTES * PRPS_PER_PAGE + page;
        let first = self.words[word as usize] + offset % PAGE_BYTES;
        let second = match pages_of(offset, bytes) {
            1 => 0,
            2 => self.words[word as usize + 1],
            _ => LISTS + (word + 1) * 8,
        };
        [first, second]
    }

    fn point_into_prebuilt(&self, offset: u64, bytes: u64) -> [u64; 2] {
        let first = REGION + offset;
        let next = (first / PAGE_BYTES + 1) * PAGE_BYTES;
        let second = match pages_of(offset, bytes) {
            1 => 0,
            2 => next,
            pages => {
                let prps = self.prebuilt.as_ref().expect("this form has them");
                prps.list(Iova(next), pages - 1).0
            }
        };
        [first, second]
    }

    fn build_list(&mut self, offset: u64, bytes: u64) -> [u64; 2] {
        let segment = [Segment { iova: Iova(REGION + offset), len: bytes }];
        let lists = &mut Lists(&mut self.words);
        let (first, second) = prp::build(&segment[..], Position::default(), bytes, lists);
        [first.0, second.0]
    }
}

fn pages_of(offset: u64, bytes: u64) -> u64 {
    (offset % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES)
}

fn descriptor(at: u64, bytes: u64) -> [u64; 2] {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    SglDescriptor::data_block(Iova(at), bytes).to_words().map(|word| word.get())
}

/// Builds a list page for each run, which uses the first 16 entries.
fn list_pages(runs: u64) -> Vec<u64> {
    let mut words = vec![0; (runs * PRPS_PER_PAGE) as usize];
    for (run, list) in words.chunks_exact_mut(PRPS_PER_PAGE as usize).enumerate() {
        for (page, entry) in list[..RUN_PAGES as usize].iter_mut().enumerate() {
            *entry = REGION + run as u64 * RUN_BYTES + page as u64 * PAGE_BYTES;
        }
    }
    words
}

/// Consecutive list pages.
struct Lists<'a>(&'a mut [u64]);

impl ListMemory for Lists<'_> {
    fn page_iova(&self, page: usize) -> Iova {
        Iova(LISTS + page as u64 * PAGE_BYTES)
    }

    fn write(&mut self, page: usize, index: usize, value: u64) {
        self.0[page * PRPS_PER_PAGE as usize + index] = value;
    }
}
