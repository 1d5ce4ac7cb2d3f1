//! `sync` of `adit bench` on a file: each write requests durability.
//!
//! strace shows the flags of pwritev2(2). It does not see io_uring's; there the kernel shows the effect: after durable
//! writes, no page of the file waits to be written back.
//!
//! Without strace, or where tracing is forbidden, the first test says so and is skipped; in CI (`CI` is set) it must run.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use memmap2::MmapOptions;

/// The flags of each write of a run with `sync`, as strace writes them; none where there is no strace.
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

/// KiB of a file in the page cache that are not yet on its disk, as a mapping of it shows them.
fn unwritten_kib(path: &Path) -> u64 {
    let file = File::open(path).expect("the file");
    // All its pages: those that are not mapped are not counted.
    let map = MmapOptions::new().populate().map_raw_read_only(&file).expect("a mapping");
    let mapped = fs::read_to_string("/proc/self/smaps").expect("Linux");
    drop(map);
    let name = path.display().to_string();
    let of_file = mapped.lines().skip_while(|line| !line.ends_with(&name));
    let of_file = of_file.take_while(|line| !line.starts_with("VmFlags"));
    let dirty = |line: &str| {
        let kib = line.strip_prefix("Shared_Dirty:").or(line.strip_prefix("Private_Dirty:"))?;
        kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    of_file.filter_map(dirty).sum()
}

/// What 64 KiB written through the page cache with these options leave to be written back.
fn left_unwritten(engine: &str, options: &str) -> u64 {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("unwritten-{engine}"));
    drop(fs::remove_file(&file));
    let ended = Command::new(env!("CARGO_BIN_EXE_adit"))
        .args([
            "bench",
            "--name=j",
            "--rw=write",
            "--size=64k",
            "--bs=4k",
            "--iodepth=4",
            "--direct=0",
        ])
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--filename={}", file.display()))
        .args(options.split_whitespace())
        .output()
        .expect("adit runs");
    assert!(ended.status.success(), "{engine} {options}: {ended:?}");
    let unwritten = unwritten_kib(&file);
    drop(fs::remove_file(&file));
    unwritten
}

#[test]
fn writes_over_io_uring_are_durable_as_asked() {
    let seen = [left_unwritten("psync", "--sync=none"), left_unwritten("psync", "--sync=dsync")];
    if seen != [64, 0] {
        // A file system in memory, or one that writes at once.
        return eprintln!("this file system does not tell what is durable ({seen:?}): left out");
    }
    for memory in ["--fixedbufs=0", "--fixedbufs=1"] {
        for (sync, expected) in [("none", 64), ("0", 64), ("dsync", 0), ("sync", 0), ("1", 0)] {
            let options = format!("{memory} --sync={sync}");
            assert_eq!(left_unwritten("io_uring", &options), expected, "{options}");
        }
    }
}
