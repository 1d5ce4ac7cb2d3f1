//! Tests `adit setup doctor` on machines with one problem, as text and JSON.
//!
//! Each `trees-broken/NAME.tree` begins with the command and the link to be found; the expected output is in
//! `NAME.txt`. `ADIT_BLESS=1 cargo test -p adit --test commands setup_doctor` updates the latter.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TREES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/trees-broken");

/// The command's output and exit code.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

fn doctor(tree: &Path, options: &str) -> Ended {
    let output = Command::new(env!("CARGO_BIN_EXE_adit"))
        .args(["setup", "doctor", "--sysroot"])
        .arg(tree)
        .args(options.split_whitespace())
        .output()
        .expect("adit runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn trees() -> Vec<PathBuf> {
    let files = fs::read_dir(TREES).expect("the directory is there").flatten();
    let mut trees: Vec<PathBuf> = files.map(|file| file.path()).collect();
    trees.retain(|path| path.extension().is_some_and(|end| end == "tree"));
    trees.sort();
    assert!(trees.len() > 10, "{trees:?}");
    trees
}

/// Returns the value of `key` in a tree's header.
fn says(tree: &Path, key: &str) -> String {
    let text = fs::read_to_string(tree).expect("a tree");
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("{}: no line '{key}'", tree.display())).trim().to_owned()
}

#[test]
fn each_broken_machine_is_told_as_it_was() {
    for tree in trees() {
        let ended = doctor(&tree, &says(&tree, "# adit setup doctor"));
        let golden = tree.with_extension("txt");
        if std::env::var_os("ADIT_BLESS").is_some() {
            fs::write(&golden, &ended.out).expect("golden file");
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(ended.out, expected, "{}: if it is right now: ADIT_BLESS=1", tree.display());
    }
}

#[test]
fn programs_are_told_the_same_in_json_and_by_the_exit_code() {
    for name in ["whole", "firmware-off", "behind-vmd", "no-permission", "nothing-free"] {
        let tree = Path::new(TREES).join(name).with_extension("tree");
        let device = says(&tree, "# adit setup doctor");
        let wanted = says(&tree, "# first broken:");
        let ended = doctor(&tree, &format!("{device} --json"));
        let report: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
        let links = report["links"].as_array().expect("links");
        let last = links.last().expect("at least one");
        if wanted == "none" {
            assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
            assert!(report["first_broken"].is_null());
            continue;
        }
        assert_eq!(ended.code, Some(1), "{}", tree.display());
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        assert!(ended.err.contains(&format!("the first broken link is '{wanted}'")));
        assert_eq!(report["first_broken"], wanted.as_str());
        assert_eq!((&last["name"], &last["state"]), (&wanted.as_str().into(), &"broken".into()));
        assert!(last["remedy"]["commands"].is_array(), "{last}");
    }
}

#[test]
fn an_address_that_is_none_is_the_command_lines_fault() {
    let ended = doctor(&trees()[0], "01:00");
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("a PCI address reads"), "{}", ended.err);
}
