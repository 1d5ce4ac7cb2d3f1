//! A small complete run of the command, as a user starts it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn folder(name: &str) -> PathBuf {
    // Not below /tmp, which may be memory without direct I/O.
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compare-{name}-{}", std::process::id()))
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adit-compare"));
    command.arg("--dir").arg(folder).args(arguments);
    command
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_small_comparison_finds_every_object_and_leaves_nothing() {
    let folder = folder("small");
    let size = ["--quick", "--data", "64M", "--seconds", "1", "--phases", "uniform,zipf,mixed"];
    let output = command(&folder, &[&size[..], &["--json"]].concat()).output().expect("it starts");
    let (out, err) = text(&output);
    assert!(output.status.success(), "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let turns = report["turns"].as_array().expect("turns");
    let engines: Vec<_> = turns.iter().filter_map(|turn| turn["engine"].as_str()).collect();
    let tiers = ["adit-tier", "foyer-tier", "files"];
    assert!(engines.starts_with(&["raw", "raw-4k", "adit", "foyer"]), "{engines:?}");
    assert!(tiers.iter().all(|tier| engines.contains(tier)), "{engines:?}");
    for turn in turns {
        let engine = turn["engine"].as_str().expect("a name");
        if ["raw", "raw-4k", "adit", "foyer", "adit-tier", "foyer-tier"].contains(&engine) {
            assert_ne!(turn["ended"]["open_files"]["direct"], 0, "{turn}");
        }
        let phases = turn["phases"].as_array().expect("phases");
        let names: Vec<_> = phases.iter().filter_map(|phase| phase["phase"].as_str()).collect();
        assert_eq!(names, ["fill", "uniform", "zipf", "mixed"]);
        assert_eq!(phases[0]["puts"], 512, "{turn}");
        for phase in phases {
            assert_eq!(
                (phase["misses"].as_u64(), phase["wrong"].as_u64()),
                (Some(0), Some(0)),
                "{turn}"
            );
        }
        // Zipf asks for some objects again and again.
        let hits = phases[2]["memory_hits"].as_u64();
        assert!(hits.is_none_or(|hits| (hits > 0) == engine.ends_with("-tier")), "{turn}");
    }
    assert!(!folder.exists(), "what was made is removed");
}

#[test]
fn an_interrupted_comparison_leaves_nothing_and_says_so() {
    let folder = folder("interrupted");
    let arguments = ["--data", "64M", "--memory", "256M", "--seconds", "600", "--engines", "files"];
    let mut command = command(&folder, &arguments);
    let child = command.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    let until = Instant::now() + Duration::from_secs(60);
    while !folder.join("adit-compare/ff").exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let (_, err) = text(&output);
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.contains("what was made is removed"), "{err}");
    assert!(!folder.exists(), "what was made is removed");
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let folder = folder("refused");
    for (arguments, said) in [
        (&["--engines", "leveldb"][..], "foyer"),
        (&["--engines", "files,files"], "twice"),
        (&["--data", "1M"], "--data"),
        (&["--data", "800000T", "--cache", "64M"], "free"),
        (&["--data", "8G"], "--memory"),
        (&["--object-bytes", "1000"], "128k"),
    ] {
        let output = command(&folder, arguments).output().expect("it starts");
        let (_, err) = text(&output);
        assert!(!output.status.success() && err.contains(said), "{arguments:?}: {err}");
    }
    assert!(!folder.exists(), "nothing was made");
}
