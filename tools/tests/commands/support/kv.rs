//! Shared helpers of `adit kv`'s tests: files for stores, the program, and its output.
#![allow(dead_code, reason = "`kv_hostile` uses some of it")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A directory that is removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("adit-{process}-{number}-{name}"));
        fs::create_dir_all(&path).expect("a temporary directory");
        Scratch(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the target of a file in it.
    pub(crate) fn target(&self, name: &str) -> String {
        format!("uring:{}", self.path(name).display())
    }

    /// Creates a store of 64 MiB in a file.
    pub(crate) fn store(&self, name: &str) -> String {
        let target = self.target(name);
        succeed(&["kv", "format", &target, "--size", "64m"]);
        target
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn adit(words: &[&str]) -> Command {
    let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
    adit.args(words);
    adit
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn run(words: &[&str]) -> Output {
    adit(words).output().expect("adit runs")
}

/// Expects success and no error output; returns standard output.
pub(crate) fn succeed(words: &[&str]) -> Vec<u8> {
    let output = run(words);
    let told = (output.status.code(), text(&output.stderr));
    assert_eq!(told, (Some(0), String::new()), "adit {words:?}\n{}", text(&output.stdout));
    output.stdout
}

/// Expects exit code `code` and a one-line error that contains `part`.
pub(crate) fn fail(words: &[&str], code: i32, part: &str) -> String {
    let output = run(words);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "adit {words:?}: {told}");
    // The store's messages about a device come first.
    let last = told.lines().last().unwrap_or_default();
    assert!(last.contains(part) && last.starts_with("adit: "), "adit {words:?}: {told}");
    text(&output.stdout)
}

pub(crate) fn json(words: &[&str]) -> Value {
    let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
    serde_json::from_slice(&succeed(&words)).expect("JSON")
}

/// Puts `data` under `key` through standard input.
pub(crate) fn put(target: &str, key: &str, data: &[u8]) {
    let mut child =
        adit(&["kv", "put", target, key]).stdin(Stdio::piped()).spawn().expect("adit runs");
    child.stdin.take().expect("a pipe").write_all(data).expect("it reads");
    assert!(child.wait().expect("it ends").success());
}

pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Flips a bit of the first occurrence of these bytes in a file.
pub(crate) fn damage(path: &Path, bytes: &[u8]) {
    let image = fs::read(path).expect("there");
    let at = image.windows(bytes.len()).position(|window| window == bytes).expect("it is there");
    let file = fs::File::options().write(true).open(path).expect("there");
    file.write_all_at(&[image[at] ^ 1], at as u64).expect("written");
}

pub(crate) fn filled(scratch: &Scratch) -> String {
    let target = scratch.target("a.img");
    let words = ["kv", "bench", "--store", &target, "--size", "64m", "--workload", "fill"];
    let sized = ["--objects", "100", "--object-bytes", "64k"];
    let told = json(&[&words[..], &sized].concat());
    assert_eq!((&told["put"]["ops"], &told["put"]["bytes"]), (&100.into(), &(100 << 16).into()));
    target
}

/// Waits until a process has the file open twice: to use it, and to lock it.
pub(crate) fn wait_until_open(pid: u32, path: &Path) {
    let begun = Instant::now();
    let count = || {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
        let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        links.filter(|link| link == path).count()
    };
    while count() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it never opened the store");
        thread::sleep(Duration::from_millis(10));
    }
    // The lock follows the open.
    thread::sleep(Duration::from_millis(300));
}
