//! Compares the output of `adit setup status` for recorded machines: `trees/X.tree` with `X.txt` and `X.json`.
//!
//! `ADIT_BLESS=1 cargo test -p adit --test commands setup_trees` updates the expected output; review the difference
//! before committing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn trees() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees");
    let files =
        fs::read_dir(directory).expect("tests/trees").map(|entry| entry.expect("entry").path());
    let mut trees: Vec<PathBuf> = files
        .filter(|file| file.extension().is_some_and(|extension| extension == "tree"))
        .collect();
    trees.sort();
    assert!(trees.len() >= 2, "only {trees:?}");
    trees
}

fn status(tree: &Path, more: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_adit"))
        .args(["setup", "status", "--sysroot"])
        .arg(tree)
        .args(more)
        .output()
        .expect("adit runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", tree.display());
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Describes the first line in which two texts differ.
fn difference(golden: &str, said: &str) -> Option<String> {
    let (golden, said): (Vec<&str>, Vec<&str>) = (golden.lines().collect(), said.lines().collect());
    let at = (0..golden.len().max(said.len())).find(|&at| golden.get(at) != said.get(at))?;
    let show = |lines: &[&str]| lines.get(at).map_or("(its end)".to_owned(), ToString::to_string);
    Some(format!("line {}:\n  was  {}\n  is   {}", at + 1, show(&golden), show(&said)))
}

#[test]
fn every_tree_reads_as_it_did() {
    let bless = std::env::var_os("ADIT_BLESS").is_some();
    for tree in trees() {
        for (extension, more) in [("txt", &[][..]), ("json", &["--json"])] {
            let file = tree.with_extension(extension);
            let said = status(&tree, more);
            if bless {
                fs::write(&file, said).expect("writable");
                continue;
            }
            let golden = fs::read_to_string(&file).unwrap_or_default();
            if let Some(difference) = difference(&golden, &said) {
                panic!("{}, {difference}\nADIT_BLESS=1 takes it over", file.display());
            }
        }
    }
}

#[test]
fn a_recording_of_a_tree_reads_like_the_tree() {
    for tree in trees() {
        let name = format!(
            "adit-tree-{}-{}",
            std::process::id(),
            tree.file_stem().expect("name").display()
        );
        let copy = std::env::temp_dir().join(name);
        status(&tree, &["--record", copy.to_str().expect("UTF-8")]);
        let (first, second) = (status(&tree, &["--json"]), status(&copy, &["--json"]));
        let _ = fs::remove_file(&copy);
        assert_eq!(difference(&first, &second), None, "{}", tree.display());
    }
}

#[test]
fn a_difference_is_seen() {
    assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    assert!(difference("a\nb\n", "a\n").expect("shorter").contains("(its end)"));
    assert!(difference("a\nb\n", "a\nc\n").expect("other").contains("line 2"));
}

/// An unused path, cleaned up on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("adit-trees-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the exit code and the message of a failing `status`.
fn refused(arguments: &[&Path]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
    let output = command.args(["setup", "status"]).args(arguments).output().expect("adit runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
}

#[test]
fn a_recording_takes_no_other_files_place() {
    let file = Scratch::new("there");
    fs::write(&file.0, "precious").expect("writable");
    let (code, said) = refused(&["--sysroot".as_ref(), &trees()[0], "--record".as_ref(), &file.0]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is there already; choose another name"), "{said}");
    assert_eq!(fs::read_to_string(&file.0).expect("still there"), "precious");
    let (code, said) = refused(&[
        "--sysroot".as_ref(),
        &trees()[0],
        "--record".as_ref(),
        "/nonexistent/host.tree".as_ref(),
    ]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("/nonexistent/host.tree: No such file or directory"), "{said}");
}

#[test]
fn what_is_no_machine_is_refused_in_a_sentence() {
    let file = Scratch::new("odd");
    fs::write(&file.0, "\u{0}\u{1}hello").expect("writable");
    for odd in [&file.0, Path::new("/nonexistent"), Path::new("/dev/null/x")] {
        let (code, said) = refused(&["--sysroot".as_ref(), odd]);
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
        assert!(
            said.contains("give a directory, or a file by 'adit setup status --record'"),
            "{said}"
        );
    }
}

#[test]
fn nothing_at_all_is_a_machine_too() {
    let empty = Scratch::new("empty");
    fs::write(&empty.0, "# nothing\n").expect("writable");
    let said = status(&empty.0, &[]);
    assert!(said.contains("  none\n") && said.contains("no PCI device can be seen"), "{said}");
}

#[test]
fn every_verdict_stands_in_its_column() {
    for tree in trees() {
        let said = status(&tree, &[]);
        let mut rows = said.lines().skip_while(|line| !line.starts_with("  BDF"));
        let heading = rows.next().expect("a table");
        let verdict = heading.find("can be taken").expect("the last column");
        let of_controllers = rows.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        for row in of_controllers.take_while(|row| row.contains(':')) {
            let cell = row.get(verdict..).unwrap_or_default();
            assert!(
                cell.starts_with("yes") || cell.starts_with("no") || cell.starts_with("is taken"),
                "{row}"
            );
        }
    }
}
