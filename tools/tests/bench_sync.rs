//! Tests `sync` of `adit bench` on a file with strace: each write requests durability.
//!
//! Without strace, or if tracing is forbidden, the test says so and is skipped; in CI (`CI` is set) it must
//! run.

use std::process::Command;

/// Returns the flags of each write of a run with `sync`, as printed by strace; `None` without strace.
fn flags(sync: &str) -> Option<Vec<String>> {
    let file = std::env::temp_dir().join(format!("adit-sync-{}-{sync}", std::process::id()));
    let ended = Command::new("strace")
        .args(["-f", "-e", "trace=pwritev2", env!("CARGO_BIN_EXE_adit"), "bench", "--rw=write"])
        .args(["--size=16k", "--bs=4k", &format!("--sync={sync}")])
        .arg(format!("--filename=psync:{}", file.display()))
        .output();
    let _ = std::fs::remove_file(&file);
    let trace = ended.ok().filter(|ended| ended.status.success())?.stderr;
    let trace = String::from_utf8_lossy(&trace).into_owned();
    let writes = trace.lines().filter(|line| line.contains("pwritev2("));
    // "pwritev2(3, [{iov_base="..., iov_len=4096}], 1, 0, RWF_DSYNC) = 4096"
    let flags = |line: &str| Some(line.rsplit_once(')')?.0.rsplit_once(", ")?.1.to_owned());
    writes.map(flags).collect()
}

#[test]
fn each_write_of_a_file_is_durable_as_asked() {
    let Some(durable) = flags("dsync") else {
        assert!(std::env::var_os("CI").is_none(), "strace must run in CI");
        return eprintln!("strace does not run here: left out");
    };
    assert_eq!(durable, ["RWF_DSYNC"; 4]);
    assert_eq!(flags("sync").expect("strace runs"), ["RWF_SYNC"; 4]);
    assert_eq!(flags("none").expect("strace runs"), [""; 0]);
}
