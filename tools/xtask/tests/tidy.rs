//! Properties of this repository that readers can rely on, checked on every run.
//!
//! Files and functions are short, unsafe code is listed and justified, nothing is left for later, the library
//! panics only on bugs, and links work. Each rule is a function from a file's text to offences, and each has a
//! test that it detects some. The rules read text, not syntax, which is sufficient for code formatted by
//! rustfmt.
#![forbid(unsafe_code)]

#[path = "../src/tidy/lines.rs"]
mod lines;

use lines::{Lines, assertions, code, function_name, lines_before_tests};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 70;
/// Maximum lines between unsafe code and its reason.
const REASON_LINES_MAX: usize = 4;

/// The least assertions per function, in hundredths, where invariants matter most. Raise a figure when a file
/// exceeds it.
const ASSERTIONS_MIN: [(&str, usize); 17] = [
    ("driver/src/queue_pair/command.rs", 109),
    ("driver/src/queue_pair/core.rs", 100),
    ("driver/src/queue_pair/lists.rs", 123),
    ("driver/src/queue_pair/ring.rs", 90),
    ("driver/src/queue_pair/slots.rs", 108),
    ("driver/src/queue_pair/slow.rs", 100),
    ("gpu/src/rings/iocb.rs", 104),
    ("gpu/src/rings/iocb/filling.rs", 100),
    ("gpu/src/rings/iocb/handle.rs", 100),
    ("gpu/src/rings/ring_set.rs", 100),
    ("gpu/src/rings/uring.rs", 100),
    ("kvstore/src/io/lane.rs", 142),
    ("kvstore/src/media/checkpoint.rs", 105),
    ("kvstore/src/media/journal.rs", 133),
    ("kvstore/src/media/recovery.rs", 134),
    ("kvstore/src/media/recovery/replay.rs", 100),
    ("kvstore/src/space/extent.rs", 110),
];

/// Markers of unfinished work, split so that this file does not contain them.
const LEFT_FOR_LATER: [&str; 4] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
];

/// A line that breaks a rule: its number from 1, and the error.
type Offence = (usize, String);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("two directories below the root")
}

/// Returns the repository's files that end in `suffix`, including new ones, by path from the root. Leaves out
/// links, which only repeat a file for a crate's package.
fn files(suffix: &str) -> Vec<String> {
    let output = Command::new("git")
        // The checkout may belong to another user, as in a container.
        .args(["-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files of the repository");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let is_file = |path: &&str| root().join(path).symlink_metadata().is_ok_and(|it| it.is_file());
    let files = list.lines().filter(|path| path.ends_with(suffix)).filter(is_file);
    files.map(str::to_owned).collect()
}

/// The device code, its tests and the emulated driver.
fn cpp_files() -> Vec<String> {
    [".h", ".cu", ".cpp"].into_iter().flat_map(files).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// Applies a rule to files and fails with every offence by file and line.
fn hold(files: Vec<String>, rule: impl Fn(&str, &str) -> Vec<Offence>) {
    assert!(!files.is_empty(), "no file was looked at");
    let mut offences = Vec::new();
    for path in files {
        let found = rule(&path, &read(&path)).into_iter();
        offences.extend(found.map(|(line, what)| format!("{path}:{line}: {what}")));
    }
    assert!(offences.is_empty(), "\n{}", offences.join("\n"));
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn long_file(text: &str) -> Vec<Offence> {
    let lines = text.lines().count();
    let what = format!("{lines} lines; {FILE_LINES_MAX} at most: make two files of it");
    if lines > FILE_LINES_MAX { vec![(lines, what)] } else { vec![] }
}

/// Counts the lines of the function that starts at `lines[0]`, up to the brace at its indentation.
fn function_lines(lines: &[&str]) -> usize {
    let indent = lines[0].len() - lines[0].trim_start().len();
    let is_level = |line: &str| line.len() - line.trim_start().len() == indent;
    for (index, line) in lines.iter().enumerate() {
        let is_end = is_level(line) && (line.ends_with('}') || line.ends_with(';'));
        if is_end && (index == 0 || line.trim_start().starts_with(['}', ')'])) {
            return index + 1;
        }
    }
    lines.len()
}

fn long_functions(text: &str) -> Vec<Offence> {
    let lines: Vec<&str> = text.lines().collect();
    let starts = (0..lines.len()).filter_map(|at| Some((at, function_name(lines[at])?)));
    let measured = starts.map(|(at, name)| (at, name, function_lines(&lines[at..])));
    let long = measured.filter(|(_, _, lines)| *lines > FUNCTION_LINES_MAX);
    long.map(|(at, name, lines)| {
        (at + 1, format!("fn {name} has {lines} lines; {FUNCTION_LINES_MAX} at most"))
    })
    .collect()
}

/// Returns C++ functions that are too long, assuming this repository's layout: a function's first line begins
/// with a word at the indentation of its closing brace, and its opening brace ends a line.
fn long_cpp_functions(text: &str) -> Vec<Offence> {
    let lines: Vec<&str> = text.lines().collect();
    let begins = |at: usize| at == 0 || !continues(lines[at - 1].trim());
    let starts = (0..lines.len()).filter(|&at| begins(at) && starts_cpp_function(&lines[at..]));
    let measured = starts.map(|at| (at, function_lines(&lines[at..])));
    let long = measured.filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
    long.map(|(at, lines)| {
        (at + 1, format!("a function of {lines} lines; {FUNCTION_LINES_MAX} at most"))
    })
    .collect()
}

/// Returns whether the next line of C++ continues the same statement.
fn continues(line: &str) -> bool {
    let is_whole = line.is_empty() || line.starts_with("//") || line.starts_with('#');
    !is_whole && !line.ends_with(['{', '}', ';', ':', '>'])
}

fn starts_cpp_function(lines: &[&str]) -> bool {
    const OTHERS: [&str; 10] =
        ["if", "for", "while", "switch", "else", "do", "return", "struct", "class", "namespace"];
    let first = lines[0].trim_start();
    let word = first.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    if word.is_empty() || OTHERS.contains(&word) || !first.contains('(') {
        return false;
    }
    let end = lines.iter().find(|line| line.ends_with(['{', ';', '}']));
    end.is_some_and(|line| line.ends_with('{'))
}

/// Counts the blocks, functions, implementations and the like that a line marks unsafe.
fn unsafe_places(line: &str) -> usize {
    let code = code(line);
    let follows = |at: usize| code[at + "unsafe".len()..].trim_start();
    let is_marked = |at: &usize| {
        let what = ["{", "fn ", "impl", "trait ", "extern", "("];
        !code[..*at].ends_with('_') && what.iter().any(|what| follows(*at).starts_with(what))
    };
    code.match_indices("unsafe").map(|(at, _)| at).filter(is_marked).count()
}

/// Returns offences if a file's unsafe code, its allowance and the list in docs/SAFETY.md disagree.
fn unlisted_unsafe(path: &str, text: &str, listed: &BTreeSet<String>) -> Vec<Offence> {
    let places: usize = text.lines().map(unsafe_places).sum();
    let allowed = text.lines().position(|line| code(line).contains("allow(unsafe_code)"));
    let line = allowed.map_or(1, |at| at + 1);
    let offence = match (places, allowed, listed.contains(path)) {
        (0, Some(_), _) => {
            "allows unsafe code, contains none, and so allows it to its child modules"
        }
        (0, None, true) => "docs/SAFETY.md lists it, and it contains no unsafe code",
        (1.., None, _) => "contains unsafe code that only a module above allows: allow it here",
        (1.., _, false) => "contains unsafe code: list it in docs/SAFETY.md with the reason",
        _ => return vec![],
    };
    vec![(line, format!("{offence} ({places} places)"))]
}

fn unreasoned_unsafe(text: &str) -> Vec<Offence> {
    let lines: Vec<&str> = text.lines().collect();
    let is_unsafe =
        |line: &str| ["unsafe {", "unsafe impl"].iter().any(|word| code(line).contains(word));
    let is_reasoned = |at: usize| {
        lines[at.saturating_sub(REASON_LINES_MAX)..=at].iter().any(|line| line.contains("SAFETY:"))
    };
    let offends = (0..lines.len()).filter(|&at| is_unsafe(lines[at]) && !is_reasoned(at));
    offends.map(|at| (at + 1, "no SAFETY: reason in the 4 lines above".to_owned())).collect()
}

fn left_for_later(text: &str) -> Vec<Offence> {
    let is_word = |line: &str, word: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            !joins(before) && (word.ends_with('(') || !joins(after))
        })
    };
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(at, line)| {
            let word = LEFT_FOR_LATER.iter().find(|word| is_word(line, word))?;
            Some((at + 1, format!("{word} is for issues, not for code")))
        })
        .collect()
}

/// `.unwrap()` before the tests of a file begin.
fn unwraps(text: &str) -> Vec<Offence> {
    let code = lines_before_tests(text);
    let unwraps = |line: &str| !is_comment(line) && line.contains(".unwrap()");
    let what = "unwrap(): handle it, or say with expect() why it cannot be";
    (0..code.len()).filter(|&at| unwraps(code[at])).map(|at| (at + 1, what.to_owned())).collect()
}

/// Returns an offence if a file has fewer assertions per function, in hundredths, than `least`.
fn too_few_assertions(text: &str, least: usize) -> Vec<Offence> {
    let mut lines = Lines::default();
    lines.add(text);
    let Lines { functions, assertions, .. } = lines;
    let has = assertions * 100 / functions.max(1);
    let what = format!(
        "{assertions} assertions in {functions} functions, {has} per hundred; {least} at least"
    );
    if has < least { vec![(1, what)] } else { vec![] }
}

/// Returns whether a file of the library is compiled only for tests.
fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("_tests.rs")
}

/// Returns the targets of a line's Markdown links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Converts a heading to GitHub's anchor.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn has_anchor(file: &Path, wanted: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings.map(|heading| anchor(heading.trim_start_matches('#'))).any(|anchor| anchor == wanted)
}

fn leads_somewhere(from: &Path, link: &str) -> bool {
    if link.contains("://") || link.starts_with("mailto:") {
        return true;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = from.parent().expect("a file lies in a folder");
    let file: PathBuf = if path.is_empty() { from.to_path_buf() } else { folder.join(path) };
    file.exists() && (anchor.is_empty() || has_anchor(&file, anchor))
}

fn dead_links(path: &str, text: &str) -> Vec<Offence> {
    let from = root().join(path);
    let mut offences = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let dead = links(line).filter(|link| !leads_somewhere(&from, link));
        offences.extend(dead.map(|link| (at + 1, format!("the link to '{link}' leads nowhere"))));
    }
    offences
}

/// Returns the tests named in a line of the table of faults: `file::name` in its last column.
fn tests_named(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let last = line.strip_suffix('|').and_then(|cells| cells.rsplit('|').next());
    let last = last.unwrap_or_default();
    let spans = last.split('`').skip(1).step_by(2);
    spans.filter_map(|span| span.rsplit_once("::"))
}

/// Returns the table's lines that name no test, or one that is not in its file.
fn missing_tests(table: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (index, line) in table.lines().enumerate().filter(|(_, line)| line.starts_with("| ")) {
        let mut named = 0;
        for (file, test) in tests_named(line) {
            named += 1;
            let there = read(file).is_some_and(|text| text.contains(&format!("fn {test}(")));
            if !there {
                offences.push((index + 1, format!("there is no test {file}::{test}")));
            }
        }
        if named == 0 && !line.ends_with("| test |") {
            offences.push((index + 1, "names no test".to_owned()));
        }
    }
    offences
}

/// Returns the part of a page below a heading, up to the next heading of its level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, after) = page.split_once(heading).expect("the heading is there");
    after.split("\n## ").next().unwrap_or(after)
}

/// Returns the files in the first column of the table in docs/SAFETY.md.
fn listed_as_unsafe(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    rows.filter(|path| path.ends_with(".rs")).map(str::to_owned).collect()
}

#[test]
fn files_are_short() {
    hold(files(".rs"), |_, text| long_file(text));
    hold(cpp_files(), |_, text| long_file(text));
    assert_eq!(long_file(&"x\n".repeat(701)).len(), 1);
}

#[test]
fn functions_are_short() {
    hold(files(".rs"), |_, text| long_functions(text));
    let body = |lines: usize| {
        format!(
            "impl X {{\n    pub fn y(\n    ) {{\n{}    }}\n}}\n",
            "        z();\n".repeat(lines)
        )
    };
    assert_eq!(long_functions(&body(67)), []);
    assert_eq!(long_functions(&body(68)).len(), 1);
    assert_eq!(long_functions(&format!("trait T {{\n    fn y();\n}}\n{}", "\n".repeat(99))), []);
}

#[test]
fn functions_of_the_device_code_are_short() {
    hold(cpp_files(), |_, text| long_cpp_functions(text));
    let function = |lines: usize| {
        let body = "    for (;;) {\n    }\n".repeat(lines / 2);
        format!(
            "namespace x {{\ninline u32 y(\n    u32 z) {{\n{body}}}\n{}}}\n",
            "u32 w();\n".repeat(99)
        )
    };
    assert_eq!(long_cpp_functions(&function(66)), []);
    assert_eq!(long_cpp_functions(&function(68)).len(), 1);
    assert_eq!(
        long_cpp_functions(&format!("struct X {{\n{}}};\n", "    u32 y();\n".repeat(99))),
        []
    );
}

#[test]
fn unsafe_code_is_listed() {
    let listed = listed_as_unsafe(&read("docs/SAFETY.md"));
    assert!(listed.len() > 10, "only {listed:?} were found");
    let sources: BTreeSet<String> = files(".rs").into_iter().collect();
    let gone: Vec<_> = listed.difference(&sources).collect();
    assert!(gone.is_empty(), "docs/SAFETY.md lists files that are not there: {gone:?}");
    hold(files(".rs"), |path, text| unlisted_unsafe(path, text, &listed));

    let offends = |path: &str, text: &str| !unlisted_unsafe(path, text, &listed).is_empty();
    let (known, allowed) = ("driver/src/memory.rs", "#![allow(unsafe_code)]\n");
    let block = "// SAFETY: y\nunsafe { x() }\n";
    assert!(!offends(known, &format!("{allowed}{block}")));
    assert!(offends(known, block), "what a module above allows");
    assert!(offends(known, "") && offends("new.rs", &format!("{allowed}{block}")));
    assert!(offends("driver/src/bus/mod.rs", &format!("{allowed}mod child;")));
    assert_eq!(unsafe_places("unsafe extern \"C\" { unsafe fn x(); } // unsafe { }"), 2);
    assert_eq!(unsafe_places("let unsafe_fn = \"unsafe { }\" + is_unsafe(x);"), 0);
}

#[test]
fn unsafe_code_has_reasons() {
    hold(files(".rs"), |_, text| unreasoned_unsafe(text));
    let bare = "fn x() {\n    unsafe { y() }\n}\n";
    assert_eq!(unreasoned_unsafe(bare).len(), 1);
    assert_eq!(unreasoned_unsafe(&bare.replace("    u", "    // SAFETY: z\n    u")), []);
}

#[test]
fn nothing_is_left_for_later() {
    hold(files(".rs"), |_, text| left_for_later(text));
    hold(cpp_files(), |_, text| left_for_later(text));
    for word in LEFT_FOR_LATER {
        assert_eq!(left_for_later(&format!("x(); // {word}: y")).len(), 1, "{word}");
        assert_eq!(left_for_later(&format!("x{word}")), [], "{word}");
    }
}

#[test]
fn the_library_does_not_unwrap() {
    let folders = ["driver/src/", "driver/shared/src/", "driver/soft/src/", "driver/spec/src/"];
    let is_library = |path: &String| folders.iter().any(|folder| path.starts_with(folder));
    let library = files(".rs").into_iter().filter(|path| is_library(path) && !is_test_file(path));
    hold(library.collect(), |_, text| unwraps(text));
    assert_eq!(unwraps("x.unwrap();\n#[cfg(test)]\nmod tests {\n    x.unwrap();\n}\n").len(), 1);
}

#[test]
fn assertions_do_not_become_fewer() {
    for (path, least) in ASSERTIONS_MIN {
        hold(vec![path.to_owned()], |_, text| too_few_assertions(text, least));
    }
    for (line, count) in [
        ("    assert!(x); debug_assert_eq!(y, z);", 2),
        ("const _: () = assert!(SIZE == 8);", 1),
        ("    self.assert_in_order();", 1),
        ("    fn assert_in_order(&self) {", 0),
        ("    // assert!(x);", 0),
        ("    prop_assert!(x, \"assert!(y)\");", 0),
        ("    assert(x);", 0),
    ] {
        assert_eq!(assertions(line), count, "{line}");
    }
    let text = "fn x() {\n    assert!(y);\n}\nfn z() {\n}\n#[cfg(test)]\nmod tests {\n    assert!(y);\n}\n";
    assert_eq!(too_few_assertions(text, 50), []);
    assert_eq!(too_few_assertions(text, 51).len(), 1);
}

#[test]
fn links_lead_somewhere() {
    hold(files(".md"), dead_links);
    assert_eq!(dead_links("docs/x.md", "[a](../README.md) [b](gone.md) [c](https://x.y)").len(), 1);
    assert_eq!(dead_links("docs/SAFETY.md", "[a](#threat-model) [b](#gone)").len(), 1);
}

#[test]
fn every_fault_in_the_table_is_a_test() {
    let page = read("docs/design/testing.md");
    let table = section(&page, "## Faults, and what a caller sees");
    let sources = files(".rs");
    let source = |file: &str| {
        let ending = format!("/{file}.rs");
        let texts = sources.iter().filter(|path| path.ends_with(&ending)).map(|path| read(path));
        Some(texts.collect::<String>())
    };
    assert!(table.lines().filter(|line| line.starts_with("| ")).count() > 30, "the table is there");
    let offences = missing_tests(table, &source);
    assert!(offences.is_empty(), "{offences:?}");
    let known = |file: &str| (file == "a").then(|| "fn there() {}".to_owned());
    let wrong = "| x | y | z | `a::there`, `a::gone` |\n| x | `a::there` | |\n| f | w | s | test |";
    let lines: Vec<usize> = missing_tests(wrong, &known).iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [1, 2]);
}
