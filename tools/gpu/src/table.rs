//! `adit gpu table`: compares ways to tell a controller where the objects of a KV pool are.
//!
//! Memory is computed for the whole pool by the functions that lay out tables. Tables are built for one region
//! of at most 4 GiB, and the time is scaled to the pool. The controller's fetches are counted on the software
//! controller. Uses no GPU and no device.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use adit_gpu::addressing::{COUNTED_BYTES_MAX, Fetched, Form, Question, Table};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Result;
use crate::output::Output;
use crate::{human, units};

const EXAMPLES: &str = "\
Examples:
  A pool of 60 GiB, objects of 100 KiB, commands of up to 1 MiB:
    adit gpu table
  Objects of 36 KiB on a controller that takes 128 KiB in a command, for a program to read:
    adit gpu table --object 36K --mdts 128K --json

Exit codes: 0 compared, 2 an option cannot be.";

/// How many times each table is built; the shortest time counts.
const BUILDS: usize = 5;

/// Compares ways to address a KV pool: memory, time to build, commands and what a controller fetches
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableArgs {
    /// The pool's size: whole regions
    #[arg(long, value_name = "BYTES", default_value = "60G", value_parser = units::bytes)]
    pool: u64,

    /// A region's size, one run of addresses: a multiple of 64 KiB
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = units::bytes)]
    region: u64,

    /// An object's size, at most a region's and 4 GiB
    #[arg(long, value_name = "BYTES", default_value = "100K", value_parser = units::bytes)]
    object: u64,

    /// Most bytes of a command: 4 KiB times a power of two, up to 1 MiB
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = units::bytes)]
    mdts: u64,

    /// Commands in flight, from 1, for forms that keep a list for each
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: u32,

    /// Objects to count, at most as many as 4 GiB of a region hold
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    objects: u32,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// The line of one form.
struct Row {
    form: Form,
    table_bytes: u64,
    /// Scaled to the whole pool.
    build: Duration,
    fetched: Fetched,
}

/// Runs the command.
///
/// # Errors
/// For sizes that make no pool.
pub(crate) fn run(args: &TableArgs) -> Result<()> {
    let question = Question {
        pool_bytes: args.pool,
        region_bytes: args.region,
        object_bytes: args.object,
        transfer_bytes_max: args.mdts,
        in_flight: args.in_flight.into(),
    };
    question.check()?;
    let row = |form| {
        Ok(Row {
            form,
            table_bytes: question.table_bytes(form),
            build: build(&question, form),
            fetched: question.fetched(form, args.objects.into())?,
        })
    };
    let rows = Form::ALL.into_iter().map(row).collect::<Result<Vec<_>>>()?;
    Output::Standard.write(&match args.json {
        true => format!("{:#}\n", json_of(&question, &rows)),
        false => text_of(&question, &rows),
    })
}

/// Returns the time to build the tables of the whole pool, from the shortest build for one region.
fn build(question: &Question, form: Form) -> Duration {
    let bytes = question.region_bytes.min(COUNTED_BYTES_MAX);
    let one = || {
        let begun = Instant::now();
        black_box(Table::build(form, black_box(bytes), question.transfer_bytes_max));
        begun.elapsed()
    };
    let least = (0..BUILDS).map(|_| one()).min().expect("at least one");
    let times = match form {
        // One per region, regardless of its size.
        Form::SglRegions => question.pool_bytes / question.region_bytes,
        Form::BuiltLists => 1,
        _ => question.pool_bytes / bytes,
    };
    least * u32::try_from(times).unwrap_or(u32::MAX)
}

impl Row {
    /// Returns a count per object.
    fn each(&self, count: u64) -> f64 {
        count as f64 / self.fetched.objects as f64
    }
}

fn text_of(question: &Question, rows: &[Row]) -> String {
    let mut text = format!(
        "a pool of {}, regions of {}, objects of {}, commands of up to {}\n\n",
        human::capacity(question.pool_bytes),
        human::capacity(question.region_bytes),
        human::capacity(question.object_bytes),
        human::capacity(question.transfer_bytes_max),
    );
    let head = ["addressing", "table", "build", "commands", "entries", "lists", "list reads"];
    line(&mut text, head.map(str::to_owned));
    for row in rows {
        line(
            &mut text,
            [
                row.form.name().to_owned(),
                human::capacity(row.table_bytes),
                human::latency(row.build.as_nanos() as u64),
                format!("{:.2}", row.each(row.fetched.commands)),
                format!("{:.0} B", row.each(row.fetched.command_bytes)),
                format!("{:.0} B", row.each(row.fetched.list_bytes)),
                format!("{:.2}", row.each(row.fetched.list_reads)),
            ],
        );
    }
    text.push_str(
        "\nFrom 'commands' on: for an object. 'entries' and 'lists' are what the controller fetches to find it.\n\
         'build' is scaled to the pool from the tables of one region.\n",
    );
    text
}

fn line(text: &mut String, cells: [String; 7]) {
    let [name, rest @ ..] = cells;
    let mut row = format!("{name:<30}");
    for cell in rest {
        write!(row, "{cell:>11}").expect("a string takes everything");
    }
    text.push_str(&row);
    text.push('\n');
}

fn json_of(question: &Question, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "addressing": row.form.name(),
            "table_bytes": row.table_bytes,
            "build_ns": row.build.as_nanos() as u64,
            "commands_per_object": row.each(row.fetched.commands),
            "entry_bytes_per_object": row.each(row.fetched.command_bytes),
            "list_bytes_per_object": row.each(row.fetched.list_bytes),
            "list_reads_per_object": row.each(row.fetched.list_reads),
        })
    };
    json!({
        "pool_bytes": question.pool_bytes,
        "region_bytes": question.region_bytes,
        "object_bytes": question.object_bytes,
        "transfer_bytes_max": question.transfer_bytes_max,
        "in_flight": question.in_flight,
        "forms": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question = Question {
        pool_bytes: 1 << 30,
        region_bytes: 64 << 20,
        object_bytes: 100 << 10,
        transfer_bytes_max: 1 << 20,
        in_flight: 64,
    };

    fn rows() -> Vec<Row> {
        let row = |form| Row {
            form,
            table_bytes: QUESTION.table_bytes(form),
            build: build(&QUESTION, form),
            fetched: QUESTION.fetched(form, 10).expect("an answer"),
        };
        Form::ALL.into_iter().map(row).collect()
    }

    #[test]
    fn the_table_has_a_line_for_each_form_and_columns_that_line_up() {
        let text = text_of(&QUESTION, &rows());
        let lines: Vec<&str> = text.lines().skip(2).take(1 + Form::ALL.len()).collect();
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
        for (line, form) in lines[1..].iter().zip(Form::ALL) {
            assert!(line.starts_with(form.name()), "{line}");
        }
        assert!(lines[6].contains("64 B") && lines[6].contains("256B"), "{}", lines[6]);
    }

    #[test]
    fn the_json_has_the_same_figures() {
        let json = json_of(&QUESTION, &rows());
        assert_eq!(json["forms"].as_array().map(Vec::len), Some(6));
        assert_eq!(json["forms"][0]["commands_per_object"], 25.0);
        assert_eq!(json["forms"][5]["table_bytes"], 256);
        assert_eq!(json["forms"][5]["list_bytes_per_object"], 0.0);
    }
}
