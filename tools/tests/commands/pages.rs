//! Tests the output of `adit completions` and `adit man`.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

fn adit(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_adit")).args(words).output().expect("adit runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn each_shell_gets_completions_of_all_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = adit(&["completions", shell]);
        for word in ["hugepages", "force-erase-signature", "softnvme", "iodepth"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn bash_can_read_its_completions() {
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("bash");
    let mut input = bash.stdin.take().expect("piped");
    input.write_all(adit(&["completions", "bash"]).as_bytes()).expect("written");
    drop(input);
    assert!(bash.wait().expect("ends").success());
}

#[test]
fn every_command_has_a_page_with_an_example() {
    let directory = std::env::temp_dir().join(format!("adit-man-{}", std::process::id()));
    let path = directory.to_str().expect("UTF-8");
    assert_eq!(adit(&["man", "--output", path]), "");
    let pages: Vec<_> =
        fs::read_dir(&directory).expect("pages").map(|page| page.expect("page").path()).collect();
    for name in
        ["adit.1", "adit-bench.1", "adit-setup.1", "adit-setup-bind.1", "adit-setup-doctor.1"]
    {
        assert!(pages.iter().any(|page| page.ends_with(name)), "{name} in {pages:?}");
    }
    for page in &pages {
        let text = fs::read_to_string(page).expect("page");
        assert!(
            text.contains(".SH NAME") && text.contains("  adit") || text.contains("  sudo adit"),
            "{}",
            page.display()
        );
        assert!(text.contains(".SH EXAMPLES"), "{}", page.display());
    }
    assert_eq!(adit(&["man"]), fs::read_to_string(directory.join("adit.1")).expect("page"));
    fs::remove_dir_all(&directory).expect("removed");
}
