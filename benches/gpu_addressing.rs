//! The cost of addressing an object for a controller, in instructions counted by callgrind.
//!
//! `hot_point` builds the data pointers of all commands of some objects from an existing table; it is never inlined.
//! The count includes the loop over commands.
//!
//! ```text
//! cargo build --release -p adit-benches --bin gpu_addressing
//! valgrind --tool=callgrind --toggle-collect='*hot_point*' \
//!     target/release/gpu_addressing --form sgl-regions
//! ```
//!
//! Divide the total by the commands or objects that it prints. Without valgrind it also prints how long building the
//! table takes. `adit gpu table` compares the forms for any pool.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use adit_gpu::addressing::{Fetched, Form, Question, Table};
use clap::{Parser, ValueEnum};

const REGION_BYTES: u64 = 1 << 30;
/// Maximum bytes of a command.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;
/// How often the table is built; the shortest time counts.
const BUILDS: usize = 5;

/// Makes the data pointers of adjacent objects.
#[derive(Parser)]
struct Args {
    /// How objects are addressed.
    #[arg(long, value_enum)]
    form: FormArg,
    /// Bytes of an object.
    #[arg(long, default_value_t = 100 << 10)]
    object: u64,
    /// Objects.
    #[arg(long, default_value_t = 1000)]
    objects: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum FormArg {
    PageCommands,
    ListPages,
    BuiltLists,
    PrebuiltLists,
    SglRuns,
    SglRegions,
}

impl FormArg {
    fn form(self) -> Form {
        match self {
            FormArg::PageCommands => Form::PageCommands,
            FormArg::ListPages => Form::ListPages,
            FormArg::BuiltLists => Form::BuiltLists,
            FormArg::PrebuiltLists => Form::PrebuiltLists,
            FormArg::SglRuns => Form::SglRuns,
            FormArg::SglRegions => Form::SglRegions,
        }
    }
}

/// Returns the number of commands.
#[inline(never)]
fn hot_point(table: &mut Table, object_bytes: u64, objects: u64) -> u64 {
    let mut commands = 0;
    for object in 0..objects {
        table.commands(object * object_bytes, object_bytes, |_, lba, bytes, pointer| {
            black_box((lba, bytes, pointer));
            commands += 1;
        });
    }
    commands
}

/// Returns the nanoseconds to build the table.
fn build_ns(form: Form) -> u128 {
    let one = || {
        let begun = Instant::now();
        black_box(Table::build(form, black_box(REGION_BYTES), TRANSFER_BYTES_MAX));
        begun.elapsed().as_nanos()
    };
    (0..BUILDS).map(|_| one()).min().expect("at least one")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let form = args.form.form();
    let question = Question {
        pool_bytes: REGION_BYTES,
        region_bytes: REGION_BYTES,
        object_bytes: args.object,
        transfer_bytes_max: TRANSFER_BYTES_MAX,
        in_flight: 2048,
    };
    let Fetched { objects, command_bytes, list_bytes, list_reads, .. } =
        question.fetched(form, args.objects)?;
    let mut table = Table::build(form, REGION_BYTES, TRANSFER_BYTES_MAX);
    let stride = args.object.next_multiple_of(512);
    let commands = hot_point(&mut table, stride, objects);
    let report = serde_json::json!({
        "form": form.name(),
        "objects": objects,
        "commands": commands,
        "command_bytes": command_bytes,
        "list_bytes": list_bytes,
        "list_reads": list_reads,
        "table_bytes_of_60_gib": Question { pool_bytes: 60 << 30, ..question }.table_bytes(form),
        "build_ns_of_1_gib": build_ns(form) as u64,
    });
    println!("{report}");
    Ok(())
}
