//! `cargo xtask tidy`: the text rules that the tests hold, and the figures by which the size of the house is judged.
//!
//! The rules are `tools/xtask/tests/tidy.rs`. The figures are counted from the text of the files that git knows: what
//! rustfmt lays out can be read line by line, without a parser.

mod graph;
mod imports;
mod lines;
mod names;
mod structs;

use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::workspace;
use graph::Graph;
use imports::Imports;
use lines::Lines;
use names::Names;
use serde_json::json;
use std::fs;
use std::process::Command;

const EXAMPLES: &str = "\
Examples:
  cargo xtask tidy                     check the text rules
  cargo xtask tidy --figures           print size, circles, upward imports, large structs and assertions of each crate
  cargo xtask tidy --figures --json    the same for a program";

/// `cargo xtask tidy`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TidyArgs {
    /// Print figures instead of checking rules
    #[arg(long)]
    figures: bool,

    /// Print the figures as JSON
    #[arg(long, requires = "figures")]
    json: bool,
}

impl TidyArgs {
    /// Arguments to check the rules.
    pub(crate) fn rules() -> TidyArgs {
        TidyArgs { figures: false, json: false }
    }
}

/// A part of the product, the limits that it keeps, and its modules from the lowest layer up where they have an order.
struct Part {
    path: &'static str,
    /// The most lines of code. Raising it takes an ADR.
    lines_max: usize,
    layers: &'static [&'static str],
}

impl Part {
    const fn new(path: &'static str, lines_max: usize) -> Part {
        Part { path, lines_max, layers: &[] }
    }

    const fn with_layers(self, layers: &'static [&'static str]) -> Part {
        Part { layers, ..self }
    }
}

const PARTS: [Part; 22] = [
    Part::new("driver/spec/src/", 2300),
    Part::new("driver/shared/src/", 340),
    Part::new("driver/soft/src/", 5900),
    Part::new("driver/src/", 18000).with_layers(&[
        "refused",
        "error",
        "lock",
        "target",
        "sys",
        "bus",
        "locality",
        "runtime",
        "transfer",
        "memory",
        "file_mapping",
        "protection",
        "namespace",
        "queue_pair",
        "controller",
        "reactor",
        "paths",
        "serve",
    ]),
    Part::new("kvstore/src/", 27300).with_layers(&[
        "version",
        "error",
        "memory",
        "model",
        "space",
        "catalog",
        "policy",
        "io",
        "media",
        "stream",
        "shard",
        "store",
        "vocabulary",
    ]),
    Part::new("kvstore/tensors/src/", 2900).with_layers(&[
        "error", "shape", "place", "plan", "stats", "overlap", "cached", "direct", "options",
        "governor", "copy", "run",
    ]),
    Part::new("kvstore/shared/src/", 4550).with_layers(&[
        "wire", "pieces", "ring", "mapping", "memory", "socket", "server", "client",
    ]),
    Part::new("kvstore/python/src/", 4200),
    Part::new("kvstore/python/wheel/", 2750),
    Part::new("gpu/src/", 8600).with_layers(&[
        "error",
        "options",
        "cuda",
        "reach",
        "commands",
        "staged",
        "rings",
        "internals",
    ]),
    Part::new("gpu/device/", 1800),
    Part::new("gpu/emulated/", 2600),
    Part::new("tools/common/src/", 900),
    Part::new("tools/load/src/", 940),
    Part::new("tools/demo/src/", 510),
    Part::new("tools/guard/src/", 1600),
    Part::new("tools/setup/src/", 4650),
    Part::new("tools/bench/src/", 12550),
    Part::new("tools/kv/src/", 6000),
    Part::new("tools/gpu/src/", 4550),
    Part::new("tools/src/", 1300),
    Part::new("tools/xtask/src/", 6250),
];

/// The most lines of code of all parts together.
const TOTAL_LINES_MAX: usize = 120_100;

/// The most files that may import each other.
const CIRCLE_FILES_MAX: usize = 3;

/// Type names that more than this many files declare are listed.
const FILES_PER_NAME: usize = 4;

/// Checks the rules, or prints the figures; returns the exit code.
pub(crate) fn run(arguments: &TidyArgs) -> Result<u8> {
    if !arguments.figures {
        let mut are_kept = true;
        for rules in [["--test", "tidy"], ["--bin", "xtask"]] {
            let mut check = workspace::cargo();
            check.args(["test", "--quiet", "--package", "xtask"]).args(rules);
            check.args((rules[0] == "--bin").then_some("tidy::"));
            are_kept &= check.status().context("cannot run cargo")?.success();
        }
        return Ok(u8::from(!are_kept));
    }
    let house = House::read()?;
    if arguments.json {
        println!("{:#}", house.to_json()?);
        return Ok(0);
    }
    println!(
        "{:<22} {:>7} {:>7} {:>6} {:>6} {:>8}",
        "part", "lines", "at most", "words", "files", "asserts"
    );
    house.figures.iter().for_each(|figures| println!("{figures}"));
    println!("{:<22} {:>7} {:>7}", "all", house.lines(), TOTAL_LINES_MAX);
    let names = house.names.repeated(FILES_PER_NAME);
    let names: Vec<_> = names.iter().map(|(name, files)| format!("{name} {files}")).collect();
    println!("type names in more than {FILES_PER_NAME} files: {}", names.join(", "));
    println!("words of README and docs: {}", document_words()?);
    Ok(0)
}

/// What is counted of all parts.
struct House {
    figures: Vec<Figures>,
    names: Names,
}

impl House {
    fn read() -> Result<House> {
        let mut names = Names::default();
        let figures =
            PARTS.iter().map(|part| Figures::of(part, &mut names)).collect::<Result<_>>()?;
        Ok(House { figures, names })
    }

    fn lines(&self) -> usize {
        self.figures.iter().map(|figures| figures.lines.code).sum()
    }

    fn to_json(&self) -> Result<serde_json::Value> {
        let parts: Vec<_> = self.figures.iter().map(Figures::to_json).collect();
        Ok(json!({
            "parts": parts, "code_lines": self.lines(), "repeated_names": self.names.repeated(FILES_PER_NAME),
            "documents_words": document_words()?,
        }))
    }
}

/// What is counted of a part.
struct Figures {
    part: &'static Part,
    files: usize,
    lines: Lines,
    /// Files that import each other, where they are more than a few.
    circles: Vec<Vec<String>>,
    upward: Vec<String>,
    structs: Vec<String>,
}

impl Figures {
    fn of(part: &'static Part, names: &mut Names) -> Result<Figures> {
        let (mut imports, mut graph) = (Imports::default(), Graph::default());
        let (mut counted, mut structs) = (Lines::default(), Vec::new());
        let files = product_files(part)?;
        for (path, text) in &files {
            let (path, lines) = (&path[part.path.len()..], lines::lines_before_tests(text));
            if path.ends_with(".py") {
                counted.add_python(text);
                continue;
            }
            counted.add(text);
            if path.ends_with(".rs") {
                names.add(&lines);
                imports.add(path, &lines);
                graph.add(path, &lines);
                let large = structs::large(&lines);
                structs.extend(large.map(|(name, fields)| format!("{name} {fields} ({path})")));
            }
        }
        Ok(Figures {
            part,
            files: files.len(),
            lines: counted,
            circles: graph.circles(CIRCLE_FILES_MAX),
            upward: imports.upward(part.layers),
            structs,
        })
    }

    fn to_json(&self) -> serde_json::Value {
        let Lines { code, comment_words, functions, assertions } = self.lines;
        json!({
            "part": self.part.path, "files": self.files, "code_lines": code, "code_lines_max": self.part.lines_max,
            "comment_words": comment_words, "functions": functions, "assertions": assertions,
            "circles": self.circles, "upward": self.upward, "large_structs": self.structs,
        })
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lines { code, comment_words, functions, assertions } = self.lines;
        let rate = assertions as f64 / functions.max(1) as f64;
        let (Part { path, lines_max, .. }, files) = (self.part, self.files);
        write!(f, "{path:<22} {code:>7} {lines_max:>7} {comment_words:>6} {files:>6} {rate:>8.2}")?;
        self.circles.iter().try_for_each(|files| {
            write!(f, "\n  circle of {}: {}", files.len(), files.join(" "))
        })?;
        self.upward.iter().try_for_each(|arrow| write!(f, "\n  upward {arrow}"))?;
        self.structs.iter().try_for_each(|large| write!(f, "\n  fields {large}"))
    }
}

/// Returns the source files of a part by path, without build scripts and what is compiled only for tests.
fn product_files(part: &Part) -> Result<Vec<(String, String)>> {
    const LANGUAGES: [&str; 6] = [".rs", ".h", ".cu", ".cpp", ".py", ".pyi"];
    let is_source = |path: &String| {
        let is_apart = path.ends_with("/build.rs") || path.contains("/tests/");
        !is_apart && LANGUAGES.iter().any(|ending| path.ends_with(ending))
    };
    let read = |path: String| Ok((path.clone(), read(&path)?));
    let paths = tracked(part.path)?.into_iter().filter(is_source);
    let mut files = paths.map(read).collect::<Result<Vec<_>>>()?;
    let tests: Vec<String> =
        files.iter().flat_map(|(path, text)| lines::test_modules(path, text)).collect();
    let is_test = |path: &str| {
        let rest = tests.iter().find_map(|module| path.strip_prefix(&**module));
        rest.is_some_and(|rest| rest.starts_with(['.', '/']))
    };
    files.retain(|(path, _)| !is_test(path));
    Ok(files)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(workspace::root().join(path)).context(format_args!("cannot read {path}"))
}

/// The files that match a pattern; links only repeat one.
fn tracked(pattern: &str) -> Result<Vec<String>> {
    let mut list = Command::new("git");
    list.args(["-c", "safe.directory=*", "ls-files", "--", pattern]);
    let output = process::run_quietly(list.current_dir(workspace::root()))?;
    let text = String::from_utf8(output.stdout)
        .map_err(|_| Failure::new("a path of the repository is not UTF-8"))?;
    let is_file = |path: &&str| {
        workspace::root().join(path).symlink_metadata().is_ok_and(|found| found.is_file())
    };
    Ok(text.lines().filter(is_file).map(str::to_owned).collect())
}

fn document_words() -> Result<usize> {
    let mut words = 0;
    for path in tracked("*.md")? {
        words += read(&path)?.split_whitespace().count();
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::LazyLock;

    /// Declarations of types whose name more than [`FILES_PER_NAME`] files declare. Lower it when they become fewer.
    const REPEATED_NAMES: usize = 204;

    static HOUSE: LazyLock<House> = LazyLock::new(|| House::read().expect("its files can be read"));

    #[test]
    fn no_module_imports_one_above_it() {
        for figures in HOUSE.figures.iter().filter(|figures| !figures.part.layers.is_empty()) {
            assert!(figures.files > 10 && figures.lines.functions > 100, "{}", figures.part.path);
            assert_eq!(figures.upward, Vec::<String>::new(), "{}", figures.part.path);
        }
    }

    #[test]
    fn circles_of_files_are_small() {
        for Figures { part, circles, .. } in &HOUSE.figures {
            assert!(circles.is_empty(), "{}: {circles:#?}", part.path);
        }
    }

    #[test]
    fn each_part_keeps_to_its_size() {
        for Figures { part: Part { path, lines_max, .. }, lines, .. } in &HOUSE.figures {
            let code = lines.code;
            assert!(code > 0 && code <= *lines_max, "{path} has {code} lines; {lines_max} at most");
        }
        assert!(
            HOUSE.lines() <= TOTAL_LINES_MAX,
            "{} lines; {TOTAL_LINES_MAX} at most",
            HOUSE.lines()
        );
    }

    #[test]
    fn type_names_are_repeated_no_more_than_before() {
        let names = HOUSE.names.repeated(FILES_PER_NAME);
        let declared: usize = names.iter().map(|(_, files)| files).sum();
        assert!(declared <= REPEATED_NAMES, "{declared} declarations of {names:?}");
        assert!(declared == REPEATED_NAMES, "lower the figure to {declared}");
    }

    #[test]
    fn every_module_of_a_part_with_layers_is_in_one() {
        for part in PARTS.iter().filter(|part| !part.layers.is_empty()) {
            let files = product_files(part).expect("its files can be read");
            let modules: BTreeSet<_> =
                files.iter().map(|(path, _)| imports::module(&path[part.path.len()..])).collect();
            let layers = part.layers.iter().copied().chain(["lib"]).collect::<BTreeSet<_>>();
            assert_eq!(modules, layers, "{}", part.path);
        }
    }
}
