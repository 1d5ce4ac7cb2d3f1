//! Recorded machines and what `adit setup status` says of them: `trees/X.tree` beside `X.txt` and `X.json`.
//!
//! `ADIT_BLESS=1 cargo test -p adit --test setup_trees` writes what is said now; read the difference before it is committed.

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

/// The first line in which two texts differ.
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
