//! `cargo xtask tidy`: the text rules that the tests hold, and the figures by which the size of the house is judged.
//!
//! The rules are `tools/xtask/tests/tidy.rs`. The figures are counted from the text of the files that git knows: what
//! rustfmt lays out can be read line by line, without a parser.

mod imports;
mod lines;
mod structs;

use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::workspace;
use imports::Imports;
use lines::Lines;
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

/// A part of the product, and its folders from the lowest layer up where they have an order.
struct Part {
    path: &'static str,
    layers: &'static [&'static str],
}

const PARTS: [Part; 15] = [
    Part { path: "driver/spec/src/", layers: &[] },
    Part { path: "driver/shared/src/", layers: &[] },
    Part { path: "driver/soft/src/", layers: &[] },
    Part {
        path: "driver/src/",
        layers: &[
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
        ],
    },
    Part {
        path: "kvstore/src/",
        layers: &[
            "version", "error", "memory", "model", "space", "catalog", "policy", "io", "media",
            "stream", "shard", "store", "tensors",
        ],
    },
    Part { path: "kvstore/python/src/", layers: &[] },
    Part {
        path: "kvstore/shared/src/",
        layers: &[
            "wire", "pieces", "ring", "mapping", "memory", "error", "socket", "server", "client",
        ],
    },
    Part {
        path: "gpu/src/",
        layers: &["error", "options", "cuda", "reach", "commands", "staged", "rings", "internals"],
    },
    Part { path: "tools/common/src/", layers: &[] },
    Part { path: "tools/setup/src/", layers: &[] },
    Part { path: "tools/bench/src/", layers: &[] },
    Part { path: "tools/kv/src/", layers: &[] },
    Part { path: "tools/gpu/src/", layers: &[] },
    Part { path: "tools/src/", layers: &[] },
    Part { path: "tools/xtask/src/", layers: &[] },
];

/// Checks the rules, or prints the figures; returns the exit code.
pub(crate) fn run(arguments: &TidyArgs) -> Result<u8> {
    if !arguments.figures {
        let mut rules = workspace::cargo();
        rules.args(["test", "--quiet", "--package", "xtask", "--test", "tidy"]);
        let status = rules.status().context("cannot run cargo")?;
        return Ok(u8::from(!status.success()));
    }
    let figures = PARTS.iter().map(Figures::of).collect::<Result<Vec<_>>>()?;
    if arguments.json {
        let parts: Vec<_> = figures.iter().map(Figures::to_json).collect();
        println!("{:#}", json!({ "parts": parts, "documents_words": document_words()? }));
        return Ok(0);
    }
    println!("{:<18} {:>7} {:>6} {:>6} {:>8}", "part", "lines", "words", "files", "asserts");
    figures.iter().for_each(|figures| println!("{figures}"));
    println!("words of README and docs: {}", document_words()?);
    Ok(0)
}

/// What is counted of a part.
struct Figures {
    path: &'static str,
    files: usize,
    lines: Lines,
    circles: Vec<String>,
    upward: Vec<String>,
    structs: Vec<String>,
}

impl Figures {
    fn of(part: &Part) -> Result<Figures> {
        let mut figures = Figures {
            path: part.path,
            files: 0,
            lines: Lines::default(),
            circles: Vec::new(),
            upward: Vec::new(),
            structs: Vec::new(),
        };
        let mut imports = Imports::default();
        for (path, text) in product_files(part)? {
            figures.files += 1;
            figures.lines.add(&text);
            let (path, lines) = (&path[part.path.len()..], lines::lines_before_tests(&text));
            imports.add(path, &lines);
            let large = structs::large(&lines);
            figures.structs.extend(large.map(|(name, fields)| format!("{name} {fields} ({path})")));
        }
        figures.circles = imports.circles();
        figures.upward = imports.upward(part.layers);
        Ok(figures)
    }

    fn to_json(&self) -> serde_json::Value {
        let Lines { code, comment_words, functions, assertions } = self.lines;
        json!({
            "part": self.path, "files": self.files, "code_lines": code, "comment_words": comment_words,
            "functions": functions, "assertions": assertions, "circles": self.circles, "upward": self.upward,
            "large_structs": self.structs,
        })
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lines { code, comment_words, functions, assertions } = self.lines;
        let rate = assertions as f64 / functions.max(1) as f64;
        let (path, files) = (self.path, self.files);
        write!(f, "{path:<18} {code:>7} {comment_words:>6} {files:>6} {rate:>8.2}")?;
        self.circles.iter().try_for_each(|circle| write!(f, "\n  circle {circle}"))?;
        self.upward.iter().try_for_each(|arrow| write!(f, "\n  upward {arrow}"))?;
        self.structs.iter().try_for_each(|large| write!(f, "\n  fields {large}"))
    }
}

/// Returns the Rust files of a part by path, without modules compiled only for tests.
fn product_files(part: &Part) -> Result<Vec<(String, String)>> {
    let paths = tracked(&format!("{}*.rs", part.path))?;
    let read = |path: String| Ok((path.clone(), read(&path)?));
    let mut files = paths.into_iter().map(read).collect::<Result<Vec<_>>>()?;
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

    #[test]
    fn no_module_imports_one_above_it() {
        let layered = PARTS.iter().filter(|part| !part.layers.is_empty());
        let figures: Vec<_> =
            layered.map(|part| Figures::of(part).expect("its files can be read")).collect();
        let paths: Vec<_> = figures.iter().map(|figures| figures.path).collect();
        assert_eq!(paths, ["driver/src/", "kvstore/src/", "kvstore/shared/src/", "gpu/src/"]);
        for figures in &figures {
            assert!(figures.files > 10 && figures.lines.functions > 100, "{}", figures.path);
            assert_eq!(figures.upward, Vec::<String>::new(), "{}", figures.path);
            assert_eq!(figures.circles, Vec::<String>::new(), "{}", figures.path);
        }
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
