//! Checks the tables of `docs/use/fio-compatibility.md` and the job files of `tests/jobs` against the
//! implementation.
//!
//! `ADIT_BLESS=1 cargo test -p adit-bench documented` rewrites them; review the difference before
//! committing.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;

use super::super::command_line::BenchArgs;
use super::super::others::{self, Treatment};
use super::super::table;

#[derive(Parser)]
struct ParsedLine {
    #[command(flatten)]
    args: BenchArgs,
}

fn from_here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the text between the comments `<!-- NAME -->` and `<!-- end of NAME -->`.
fn part<'a>(document: &'a str, name: &str) -> &'a str {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let from = document.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
    let length = document[from..].find(&end).unwrap_or_else(|| panic!("no {end}"));
    &document[from..from + length]
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn codes<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn supported() -> String {
    let mut rows =
        String::from("| option | fio's other names | value | what it does |\n|---|---|---|---|\n");
    let mut heading = "";
    for spec in table::options() {
        if spec.heading != heading {
            heading = spec.heading;
            writeln!(rows, "| **{heading}** | | | |").expect("memory");
        }
        let (value, help) = (cell(spec.value), cell(spec.help));
        writeln!(rows, "| `{}` | {} | {value} | {help} |", spec.name, codes(&spec.aliases))
            .expect("memory");
    }
    rows
}

fn other(treatment: Treatment) -> String {
    let mut rows = String::from(match treatment {
        Treatment::WithoutEffect => {
            "| options | values | they have no effect because | instead of other values |\n|---|---|---|---|\n"
        }
        Treatment::WithWarning => {
            "| options | values without a warning | they are ignored because |\n|---|---|---|\n"
        }
        Treatment::Absent => "| options | accepted as off | instead |\n|---|---|---|\n",
        Treatment::AbsentForRun => "| options | instead |\n|---|---|\n",
    });
    for other in others::all().filter(|other| other.treatment == treatment) {
        let (names, values, reason) = (codes(&other.names), other.values, cell(other.reason));
        let row = match treatment {
            Treatment::WithoutEffect => {
                format!("| {names} | {values} | {reason} | {} |", other.instead)
            }
            Treatment::WithWarning | Treatment::Absent => {
                format!("| {names} | {values} | {reason} |")
            }
            Treatment::AbsentForRun => format!(
                "| {} | {reason} |",
                names.replace('_', "-").replace("`, `", "`, `--").replacen('`', "`--", 1)
            ),
        };
        writeln!(rows, "{row}").expect("memory");
    }
    rows
}

#[test]
fn the_document_lists_what_is_implemented() {
    let file = from_here("../../docs/use/fio-compatibility.md");
    let mut document = fs::read_to_string(&file).expect("docs/use/fio-compatibility.md");
    let bless = std::env::var_os("ADIT_BLESS").is_some();
    for (name, expected) in [
        ("options", supported()),
        ("without effect", other(Treatment::WithoutEffect)),
        ("with a warning", other(Treatment::WithWarning)),
        ("absent", other(Treatment::Absent)),
        ("absent for the run", other(Treatment::AbsentForRun)),
    ] {
        let written = part(&document, name).to_owned();
        if bless {
            document = document.replace(
                &format!("<!-- {name} -->\n{written}"),
                &format!("<!-- {name} -->\n{expected}"),
            );
            continue;
        }
        let difference = written.lines().zip(expected.lines()).find(|(written, is)| written != is);
        assert_eq!(difference, None, "'{name}' of {}; ADIT_BLESS=1 takes it over", file.display());
        assert_eq!(
            written.lines().count(),
            expected.lines().count(),
            "'{name}'; ADIT_BLESS=1 takes it over"
        );
    }
    if bless {
        fs::write(&file, document).expect("writable");
    }
}

/// Returns the command line a job file is equivalent to, or why it is refused.
fn said(file: &Path) -> String {
    let name = file.to_str().expect("UTF-8");
    let line = ParsedLine::try_parse_from(["bench", name]).expect("a command line");
    let said = line.args.showcmd().unwrap_or_else(|why| format!("refused: {why}\n"));
    // Paths depend on the machine.
    let folder = file.parent().expect("a folder").to_str().expect("UTF-8");
    said.replace(&format!("{folder}/"), "")
}

#[test]
fn each_job_file_comes_to_what_it_did() {
    let entries = fs::read_dir(from_here("../tests/jobs")).expect("tests/jobs");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "fio")).collect();
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let golden = file.with_extension("txt");
        if std::env::var_os("ADIT_BLESS").is_some() {
            fs::write(&golden, said(&file)).expect("writable");
        }
        let before = fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(said(&file), before, "{}; ADIT_BLESS=1 takes it over", file.display());
    }
}

#[test]
fn a_missing_part_is_seen() {
    assert_eq!(part("a\n<!-- x -->\nb\n<!-- end of x -->", "x"), "b\n");
    assert!(std::panic::catch_unwind(|| part("a", "x")).is_err());
}
