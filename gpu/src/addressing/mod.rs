//! Compares ways to tell a controller where the objects of a KV pool lie.
//!
//! A pool consists of regions, each a run of device addresses. An object is a run inside a region. Each [`Form`] has
//! the memory of its table ([`Question::table_bytes`]), the table itself ([`Table`]), and what a controller fetches to
//! locate an object ([`Question::fetched`]), counted on the software controller.
//!
//! | file | holds |
//! |---|---|
//! | `table` | tables of each form, and commands' data pointers from them |
//! | `host` | a host that counts what its controller reads |
//!
//! Only the form of addressing differs between the rows: no data are kept, and no queue is shared with the rings.

mod host;
mod table;

use adit_driver::transfer::prebuilt::PrebuiltPrps;
use adit_driver::transfer::{PAGE_BYTES, prp};

pub use host::Fetched;
pub use table::{Pointer, Table};

use crate::error::{Error, Result};

/// The run of memory that a list page or descriptor of the naive forms covers.
pub const RUN_BYTES: u64 = 64 << 10;
/// The LBA size of the comparison, in bytes.
pub const LBA_BYTES: u64 = 512;
/// Largest part of a region for which tables are built and objects counted, in bytes.
pub const COUNTED_BYTES_MAX: u64 = 4 << 30;
const TRANSFER_BYTES_MAX: u64 = 1 << 20;
/// Bytes of an SGL descriptor (NVMe Base 2.0 figure 96).
const DESCRIPTOR_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 8;

/// A way to point to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A command for each 4 KiB page, which needs no list, from a table of page addresses.
    PageCommands,
    /// A PRP list page for each 64 KiB, which uses 16 of its 512 entries.
    ListPages,
    /// A PRP list built for each command when sent.
    BuiltLists,
    /// Two PRP lists of all pages of a region, built once, into which commands point.
    PrebuiltLists,
    /// An SGL descriptor for each 64 KiB.
    SglRuns,
    /// An SGL descriptor for each region, from which a command's follows by addition.
    SglRegions,
}

impl Form {
    /// All forms, the naive ones first.
    pub const ALL: [Form; 6] = [
        Form::PageCommands,
        Form::ListPages,
        Form::BuiltLists,
        Form::PrebuiltLists,
        Form::SglRuns,
        Form::SglRegions,
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Form::PageCommands => "PRP, 4 KiB commands",
            Form::ListPages => "PRP, a list page per 64 KiB",
            Form::BuiltLists => "PRP, a list built per command",
            Form::PrebuiltLists => "PRP, prebuilt lists",
            Form::SglRuns => "SGL, a descriptor per 64 KiB",
            Form::SglRegions => "SGL, a descriptor per region",
        }
    }

    /// Most bytes of a command that begins at `offset` of a region, apart from the controller's own limit.
    fn room(self, offset: u64) -> u64 {
        match self {
            Form::PageCommands => PAGE_BYTES - offset % PAGE_BYTES,
            Form::ListPages | Form::SglRuns => RUN_BYTES - offset % RUN_BYTES,
            Form::BuiltLists | Form::PrebuiltLists | Form::SglRegions => u64::MAX,
        }
    }
}

/// The setting of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The pool's size in bytes: whole regions.
    pub pool_bytes: u64,
    /// A region's size in bytes: whole 64 KiB.
    pub region_bytes: u64,
    /// An object's size in bytes, up to [`COUNTED_BYTES_MAX`]; objects are consecutive, each at the start of an LBA.
    pub object_bytes: u64,
    /// Most bytes of a command (MDTS): 4 KiB times a power of two, up to 1 MiB.
    pub transfer_bytes_max: u64,
    /// Commands in flight at a time, which determines the memory for lists built per command.
    pub in_flight: u64,
}

impl Question {
    /// Checks the setting.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the exceeded limit.
    pub fn check(&self) -> Result<()> {
        let Question { pool_bytes, region_bytes, object_bytes, transfer_bytes_max, .. } = *self;
        let invalid = |option: &str, bytes: u64, why: String| {
            Err(Error::invalid(format!("{option} of the comparison"), format!("{bytes} {why}")))
        };
        if region_bytes == 0 || !region_bytes.is_multiple_of(RUN_BYTES) {
            let why = "is no size of a region: take a multiple of 64 KiB".to_owned();
            return invalid("region", region_bytes, why);
        }
        if pool_bytes == 0 || !pool_bytes.is_multiple_of(region_bytes) {
            let why =
                format!("is no size of a pool: take a multiple of the region's {region_bytes}");
            return invalid("pool", pool_bytes, why);
        }
        let most = region_bytes.min(COUNTED_BYTES_MAX);
        if !(1..=most).contains(&object_bytes) {
            return invalid("object", object_bytes, format!("is outside 1 to {most}"));
        }
        let pages = transfer_bytes_max / PAGE_BYTES;
        let is_mdts = pages.is_power_of_two() && pages * PAGE_BYTES == transfer_bytes_max;
        if !is_mdts || transfer_bytes_max > TRANSFER_BYTES_MAX {
            let why = "is no power of two from 4 KiB to 1 MiB".to_owned();
            return invalid("mdts", transfer_bytes_max, why);
        }
        Ok(())
    }

    /// Returns the memory of a form's table of the whole pool, in bytes.
    ///
    /// # Panics
    /// If regions are empty, which [`Question::check`] refuses.
    pub fn table_bytes(&self, form: Form) -> u64 {
        let regions = self.pool_bytes / self.region_bytes;
        let runs = self.pool_bytes / RUN_BYTES;
        match form {
            Form::PageCommands => self.pool_bytes / PAGE_BYTES * ENTRY_BYTES,
            Form::ListPages => runs * PAGE_BYTES,
            // A command that begins inside a page touches one more page.
            Form::BuiltLists => {
                let most = self.transfer_bytes_max.min(self.object_bytes);
                let entries = most.div_ceil(PAGE_BYTES) + 1;
                self.in_flight.saturating_mul(prp::list_pages(entries) as u64 * PAGE_BYTES)
            }
            Form::PrebuiltLists => {
                regions * PrebuiltPrps::bytes_for(self.region_bytes / PAGE_BYTES)
            }
            Form::SglRuns => runs * DESCRIPTOR_BYTES,
            Form::SglRegions => regions * DESCRIPTOR_BYTES,
        }
    }

    /// Returns what a controller fetches to locate the first `objects` of a region; at least one, at most as many as
    /// lie in the region and in [`COUNTED_BYTES_MAX`] of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] as [`Question::check`]; the driver's if the software controller cannot be created.
    pub fn fetched(&self, form: Form, objects: u64) -> Result<Fetched> {
        self.check()?;
        let stride = self.object_bytes.next_multiple_of(LBA_BYTES);
        let most = self.region_bytes.min(COUNTED_BYTES_MAX) / stride;
        let objects = objects.min(most).max(1);
        let bytes = (objects * stride).next_multiple_of(RUN_BYTES).min(self.region_bytes);
        let mut table = Table::build(form, bytes, self.transfer_bytes_max);
        host::count(&mut table, self.object_bytes, objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question = Question {
        pool_bytes: 60 << 30,
        region_bytes: 1 << 30,
        object_bytes: 100 << 10,
        transfer_bytes_max: 1 << 20,
        in_flight: 2048,
    };

    #[test]
    fn the_papers_250_times_are_a_naive_list_page_against_a_descriptor() {
        let [naive, sgl] = [Form::ListPages, Form::SglRuns].map(|form| QUESTION.table_bytes(form));
        assert_eq!((naive, sgl), (15 << 28, 15 << 20), "3.75 GiB and 15 MiB");
        assert_eq!(naive / sgl, 256);
    }

    #[test]
    fn a_table_that_is_built_takes_what_is_said() {
        let question = Question { pool_bytes: 64 << 20, region_bytes: 64 << 20, ..QUESTION };
        for form in Form::ALL.into_iter().filter(|form| *form != Form::BuiltLists) {
            let table = Table::build(form, question.region_bytes, question.transfer_bytes_max);
            assert_eq!(table.bytes(), question.table_bytes(form), "{form:?}");
        }
    }

    #[test]
    fn every_form_fetches_one_entry_for_a_command_and_lists_only_where_it_has_them() {
        let fetched = |form| QUESTION.fetched(form, 100).expect("an answer");
        for form in Form::ALL {
            let fetched = fetched(form);
            assert_eq!((fetched.objects, fetched.data_bytes), (100, 100 * QUESTION.object_bytes));
            assert_eq!(fetched.command_bytes, fetched.commands * 64, "{form:?}");
        }
        assert_eq!(fetched(Form::PageCommands).commands, 25 * 100);
        assert_eq!(fetched(Form::PageCommands).list_bytes, 0);
        assert_eq!(fetched(Form::SglRegions).commands, 100);
        assert_eq!(fetched(Form::SglRegions).list_bytes, 0);
        // 25 pages: the first is in the command, the others in a list.
        for form in [Form::BuiltLists, Form::PrebuiltLists] {
            assert_eq!(fetched(form).commands, 100, "{form:?}");
        }
        assert_eq!(fetched(Form::BuiltLists).list_bytes, 100 * 24 * 8);
        let chains = fetched(Form::PrebuiltLists).list_bytes - 100 * 24 * 8;
        assert!(chains.is_multiple_of(8) && chains < 100 * 8, "a chain pointer now and then");
    }

    #[test]
    fn objects_of_any_size_are_found_where_they_lie() {
        for (object_bytes, transfer_bytes_max) in
            [(1, 4096), (512, 1 << 20), (5000, 8192), (70_001, 1 << 16), (3 << 20, 1 << 20)]
        {
            let question = Question { object_bytes, transfer_bytes_max, ..QUESTION };
            for form in Form::ALL {
                let fetched = question.fetched(form, 50).expect("an answer");
                let bytes = 50 * object_bytes.next_multiple_of(LBA_BYTES);
                assert_eq!(fetched.data_bytes, bytes, "{form:?} {object_bytes}");
            }
        }
    }

    #[test]
    fn what_cannot_be_answered_is_refused() {
        for question in [
            Question { region_bytes: 0, ..QUESTION },
            Question { region_bytes: 100 << 10, ..QUESTION },
            Question { pool_bytes: (60 << 30) + 1, ..QUESTION },
            Question { object_bytes: 0, ..QUESTION },
            Question { object_bytes: 2 << 30, ..QUESTION },
            Question {
                pool_bytes: 32 << 40,
                region_bytes: 16 << 40,
                object_bytes: 16 << 40,
                ..QUESTION
            },
            Question { transfer_bytes_max: 3 << 12, ..QUESTION },
            Question { transfer_bytes_max: 2 << 20, ..QUESTION },
        ] {
            let refused = question.fetched(Form::SglRegions, 1);
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{question:?}");
        }
    }

    #[test]
    fn objects_are_counted_in_a_part_of_a_region_that_is_too_large_to_build() {
        let question = Question {
            pool_bytes: 32 << 40,
            region_bytes: 16 << 40,
            object_bytes: 1 << 30,
            ..QUESTION
        };
        let fetched = question.fetched(Form::SglRegions, u64::MAX).expect("an answer");
        assert_eq!(fetched.objects, 4);
    }
}
