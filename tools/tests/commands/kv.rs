//! Tests `adit kv` as users see it: every command on files, refusals, and exit codes.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::kv::{
    Scratch, adit, damage, fail, filled, json, noise, put, succeed, text, wait_until_open,
};

#[test]
fn what_is_put_is_got_listed_and_removed() {
    let scratch = Scratch::new("round");
    for target in
        [scratch.target("a.img"), format!("soft:file={},size=64m", scratch.path("b.img").display())]
    {
        succeed(&["kv", "format", &target, "--size", "64m", "--label", "of a test"]);
        put(&target, "greeting", b"hello\n");
        put(&target, "0x00ff", &noise(300_000));
        assert_eq!(succeed(&["kv", "get", &target, "greeting"]), b"hello\n");
        assert_eq!(succeed(&["kv", "get", &target, "hex:00ff"]), noise(300_000));
        let range = succeed(&["kv", "get", &target, "0x00ff", "--range", "131000-262143"]);
        assert_eq!(range, noise(300_000)[131_000..262_144]);
        let mut listed: Vec<String> = text(&succeed(&["kv", "ls", &target]))
            .lines()
            .map(|line| line.trim().to_owned())
            .collect();
        listed.sort();
        assert_eq!(listed, ["300000  \\x00\\xff", "6  greeting"]);
        let listed = json(&["kv", "ls", &target, "--prefix", "gree"]);
        assert_eq!(listed.as_array().map(Vec::len), Some(1));
        assert_eq!((&listed[0]["key"], &listed[0]["bytes"]), (&"greeting".into(), &6.into()));
        succeed(&["kv", "rm", &target, "greeting"]);
        fail(&["kv", "get", &target, "greeting"], 1, "there is no object 'greeting'");
        fail(&["kv", "rm", &target, "0x00ff", "greeting"], 1, "there is no object 'greeting'");
        assert_eq!(json(&["kv", "ls", &target]), Value::Array(Vec::new()));
        succeed(&["kv", "check", &target]);
    }
}

/// More shards than 8 MiB of locked memory suffice for.
#[test]
fn a_plain_user_puts_and_gets_and_sees_once_what_the_limit_costs() {
    let scratch = Scratch::new("plain");
    let (target, image) = (scratch.target("a.img"), scratch.path("a.img"));
    succeed(&["kv", "format", &target, "--size", "256m", "--shards", "4"]);
    fs::set_permissions(&image, fs::Permissions::from_mode(0o666)).expect("its owner may");
    // The user may not be allowed to see the build's folder.
    let program = scratch.path("adit");
    fs::copy(env!("CARGO_BIN_EXE_adit"), &program).expect("there is room");
    let source = scratch.path("source");
    fs::write(&source, noise(300_000)).expect("there is room");
    let as_user = |words: &[&str]| {
        let mut child = Command::new("prlimit");
        child.arg("--memlock=8388608").arg(&program).args(words).current_dir("/");
        if nix::unistd::Uid::effective().is_root() {
            child.uid(65534).gid(65534);
        }
        let output = child.output().expect("prlimit is there");
        let told = text(&output.stderr);
        assert!(output.status.success(), "{words:?}: {told}");
        assert_eq!(told.matches("not registered with io_uring").count(), 1, "{told}");
        output.stdout
    };
    as_user(&["kv", "put", &target, "key", &source.display().to_string()]);
    assert_eq!(as_user(&["kv", "get", &target, "key"]), noise(300_000));
}

#[test]
fn an_object_longer_than_a_part_goes_and_comes_in_parts() {
    let scratch = Scratch::new("long");
    let target = scratch.store("a.img");
    let (source, copy) = (scratch.path("source"), scratch.path("copy"));
    let data = noise(20_000_001);
    fs::write(&source, &data).expect("there is room");
    succeed(&["kv", "put", &target, "long", &source.display().to_string()]);
    let told = json(&["kv", "get", &target, "long", "-o", &copy.display().to_string()]);
    assert_eq!(told["bytes"], 20_000_001);
    assert!(fs::read(&copy).expect("it was made") == data, "the same bytes");
    let tail = succeed(&["kv", "get", &target, "long", "--range", "16777000-"]);
    assert!(tail == data[16_777_000..], "the same bytes");
    assert_eq!(
        fs::read_dir(&scratch.0).expect("listed").count(),
        3,
        "nothing half-written is left"
    );
}

#[test]
fn objects_expire_when_they_are_to() {
    let scratch = Scratch::new("ttl");
    let target = scratch.store("a.img");
    let file = scratch.path("x");
    fs::write(&file, b"x").expect("there is room");
    succeed(&["kv", "put", &target, "short", &file.display().to_string(), "--ttl", "1"]);
    succeed(&["kv", "put", &target, "long", &file.display().to_string(), "--ttl", "1000"]);
    let expires = json(&["kv", "info", &target, "long"])["expires_unix_s"].as_u64();
    assert!(expires.is_some_and(|at| at > 1_000_000_000), "{expires:?}");
    thread::sleep(Duration::from_millis(2200));
    fail(&["kv", "get", &target, "short"], 1, "there is no object 'short'");
    assert_eq!(succeed(&["kv", "get", &target, "long"]), b"x");
}

#[test]
fn a_tenants_quota_is_set_and_lifted_and_its_objects_are_removed() {
    let scratch = Scratch::new("tenant");
    let target = scratch.target("a.img");
    succeed(&["kv", "format", &target, "--size", "64m", "--shards", "2"]);
    let file = scratch.path("data");
    fs::write(&file, noise(60_000)).expect("there is room");
    let file = file.display().to_string();
    let of = |name: &str| {
        let told = json(&["kv", "tenant", &target, name]);
        assert_eq!((told.as_array().map(Vec::len), &told[0]["tenant"]), (Some(1), &name.into()));
        told[0].clone()
    };
    fail(&["kv", "tenant", &target, "team"], 1, "there is no tenant 'team'");
    fail(&["kv", "tenant", &target, "--quota", "1m"], 2, "NAME");
    succeed(&["kv", "tenant", &target, "team", "--quota", "64k"]);
    succeed(&["kv", "put", &target, "a/1", &file, "--tenant", "team"]);
    succeed(&["kv", "put", &target, "a/1", &file, "--tenant", "team"]);
    let refused = ["kv", "put", &target, "a/2", &file, "--tenant", "team"];
    fail(&refused, 1, "exceed its quota of 65536 bytes");
    let told = of("team");
    assert_eq!((&told["objects"], &told["used_bytes"]), (&1.into(), &61440.into()));
    assert_eq!((&told["quota_bytes"], &told["evicts_own"]), (&65536.into(), &false.into()));
    succeed(&["kv", "tenant", &target, "team", "--quota", "64k", "--evict-own"]);
    succeed(&["kv", "put", &target, "a/2", &file, "--tenant", "team"]);
    fail(&["kv", "get", &target, "a/1"], 1, "there is no object 'a/1'");
    succeed(&["kv", "tenant", &target, "team", "--no-quota"]);
    succeed(&["kv", "put", &target, "a/1", &file, "--tenant", "team"]);
    succeed(&["kv", "put", &target, "b/1", &file]);
    assert_eq!(of("team")["quota_bytes"], Value::Null);
    let listed = text(&succeed(&["kv", "tenant", &target]));
    assert_eq!(listed, "(default): 1 object, 60KiB\nteam: 2 objects, 120KiB\n");
    fail(&["kv", "rm", &target, "--tenant", "other"], 1, "there is no tenant 'other'");
    fail(&["kv", "rm", &target, "--prefix", ""], 2, "every key has it");
    fail(&["kv", "rm", &target], 2, "KEY");
    assert_eq!(json(&["kv", "rm", &target, "--prefix", "a/2"])["removed_objects"], 1);
    assert_eq!(text(&succeed(&["kv", "rm", &target, "--tenant", "team"])), "1 object removed\n");
    assert_eq!(json(&["kv", "ls", &target])[0]["key"], "b/1");
    succeed(&["kv", "check", &target]);
}

#[test]
fn info_and_stat_tell_what_a_store_is() {
    let scratch = Scratch::new("info");
    let target = scratch.target("a.img");
    succeed(&[
        "kv",
        "format",
        &target,
        "--size",
        "64m",
        "--shards",
        "2",
        "--objects",
        "10000",
        "--key-bytes",
        "100",
        "--label",
        "mine",
    ]);
    put(&target, "k", &noise(5000));
    let store = json(&["kv", "info", &target]);
    assert_eq!((&store["label"], &store["shards"]), (&"mine".into(), &2.into()));
    let (objects, key_bytes) = (store["objects_max"].as_u64(), store["key_bytes"].as_u64());
    assert!((10_000..11_000).contains(&objects.expect("a number")), "{store}");
    assert!((100..120).contains(&key_bytes.expect("a number")), "{store}");
    let lines = text(&succeed(&["kv", "info", &target]));
    assert!(lines.contains("objects max") && lines.contains("key bytes"), "{lines}");
    assert_eq!(store["in_use"], false);
    assert_eq!(store["devices"][0]["bytes"], 64 << 20);
    let object = json(&["kv", "info", &target, "k"]);
    assert_eq!((&object["bytes"], &object["checksums"]), (&5000.into(), &1.into()));
    fail(&["kv", "info", &target, "other"], 1, "there is no object 'other'");
    let stat = json(&["kv", "stat", &target]);
    assert_eq!((&stat["objects"], &stat["used_bytes"]), (&1.into(), &8192.into()));
    let metrics = scratch.path("metrics");
    fs::write(&metrics, "adit_kv_gets_total 4\nadit_kv_get_hits_total 3\n").expect("room");
    let stat = json(&["kv", "stat", &target, "--metrics", &metrics.display().to_string()]);
    assert_eq!(stat["server"]["hit_share"], 0.75);
    fail(&["kv", "stat", &target, "--metrics", "/dev/null"], 1, "no metrics of a store");
    let table = text(&succeed(&["kv", "info", &target]));
    assert!(table.contains("label               mine"), "{table}");
}

#[test]
fn a_store_on_several_devices_takes_them_in_their_order_only() {
    let scratch = Scratch::new("several");
    let [a, b] = [scratch.target("a.img"), scratch.target("b.img")];
    succeed(&["kv", "format", &a, &b, "--size", "64m", "--shards", "2"]);
    let file = scratch.path("x");
    fs::write(&file, noise(100_000)).expect("there is room");
    for key in ["one", "two", "three", "four"] {
        succeed(&["kv", "put", &a, key, &file.display().to_string(), "--with", &b]);
    }
    assert_eq!(succeed(&["kv", "get", &a, "three", "--with", &b]), noise(100_000));
    succeed(&["kv", "check", &a, &b]);
    assert_eq!(json(&["kv", "scrub", &a, &b])["objects"], 4);
    fail(&["kv", "ls", &b, &a], 1, "order");
    fail(&["kv", "ls", &a], 1, "missing");
    fail(&["kv", "check", &a, &a], 2, "a.img is given twice");
    let other = scratch.store("c.img");
    fail(&["kv", "ls", &a, &other], 1, "c.img");
}

/// Leaves a file to its owner, as a store's is: `adit` would say that it does so.
fn close(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its owner may");
}

#[test]
fn what_is_no_store_is_refused_and_named() {
    let scratch = Scratch::new("foreign");
    let target = scratch.target("a.img");
    fail(&["kv", "ls", &target], 1, "a.img");
    let file = fs::File::create(scratch.path("a.img")).expect("a file");
    close(&scratch.path("a.img"));
    file.set_len(64 << 20).expect("sparse");
    for command in ["ls", "check", "stat", "info", "scrub"] {
        fail(&["kv", command, &target], 1, "adit kv format");
    }
    // ext4's magic number.
    file.write_all_at(&[0x53, 0xef], 1080).expect("written");
    fail(&["kv", "ls", &target], 1, "ext");
    fail(&["kv", "format", &target], 1, "ext");
    assert_eq!(fs::metadata(scratch.path("a.img")).expect("there").len(), 64 << 20);
    succeed(&["kv", "format", &target, "--force"]);
    succeed(&["kv", "ls", &target]);
    fail(&["kv", "format", &target], 1, "store");
    let tiny = scratch.target("tiny.img");
    fail(&["kv", "format", &tiny, "--size", "64k"], 2, "bytes or more");
}

#[test]
fn a_device_of_another_size_is_refused_with_both_sizes() {
    let scratch = Scratch::new("size");
    let target = scratch.store("a.img");
    let path = scratch.path("a.img");
    put(&target, "k", b"x");
    let file = fs::File::options().write(true).open(&path).expect("there");
    file.set_len(65 << 20).expect("longer");
    fail(&["kv", "ls", &target], 1, "a.img");
    file.set_len(60 << 20).expect("shorter");
    fail(&["kv", "ls", &target], 1, "a.img");
}

#[test]
fn keys_and_options_that_cannot_be_are_usage_errors() {
    let scratch = Scratch::new("usage");
    let target = scratch.store("a.img");
    let long = "k".repeat(513);
    fail(&["kv", "get", &target, &long], 2, "513 bytes");
    fail(&["kv", "get", &target, ""], 2, "0 bytes");
    fail(&["kv", "get", &target, "0x123"], 2, "two digits");
    fail(&["kv", "get", &target, "k", "--range", "9-1"], 2, "no range");
    fail(&["kv", "format", &target, "--label", &long], 2, "at most 32");
    fail(&["kv", "format", &target, "--force", "--shards", "0"], 2, "shards");
    for key_bytes in ["0", "513"] {
        let format = ["kv", "format", &target, "--force", "--key-bytes", key_bytes];
        fail(&format, 2, "use 1 to 512 bytes: as many as your longest keys have");
    }
    fail(&["kv", "bench", "--store", &target, "--workload", "walk"], 2, "ycsb-a to ycsb-f");
    fail(&["kv", "get", "uring:/nonexistent/x", "k"], 1, "/nonexistent/x");
    fail(&["kv", "put", &target, "k", "/nonexistent/x"], 1, "/nonexistent/x");
    fail(&["kv", "put", &target, "k", "/dev/null"], 1, "not a regular file");
    let large = scratch.path("large");
    fs::File::create(&large).and_then(|file| file.set_len(65 << 20)).expect("sparse");
    fail(&["kv", "put", &target, "k", &large.display().to_string()], 1, "larger store");
    for command in
        ["format", "put", "get", "ls", "rm", "tenant", "info", "stat", "check", "scrub", "bench"]
    {
        let help = text(&succeed(&["kv", command, "--help"]));
        assert!(help.contains("Example"), "{command}: {help}");
    }
}

#[test]
fn a_file_that_is_refused_stays_as_long_as_it_was() {
    let scratch = Scratch::new("refused");
    let target = scratch.target("a.img");
    fs::write(scratch.path("a.img"), noise(300_000)).expect("there is room");
    close(&scratch.path("a.img"));
    fail(&["kv", "format", &target, "--size", "64m"], 1, "--force");
    assert_eq!(fs::metadata(scratch.path("a.img")).expect("there").len(), 300_000);
    succeed(&["kv", "format", &target, "--size", "64m", "--force"]);
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let scratch = Scratch::new("whole");
    let target = scratch.store("a.img");
    put(&target, "k", &noise(300_000));
    let copy = scratch.path("copy");
    fs::write(&copy, b"what was there").expect("there is room");
    let copy = copy.display().to_string();
    fail(&["kv", "get", &target, "k", "-o", "/nonexistent/copy"], 1, "/nonexistent/copy");
    damage(&scratch.path("a.img"), &noise(300_000)[200_000..200_100]);
    fail(&["kv", "get", &target, "k", "-o", &copy], 1, "differ from what was put");
    assert_eq!(fs::read(&copy).expect("there"), b"what was there");
    fail(&["kv", "get", &target, "k", "-o", &copy], 1, "there is no object 'k'");
    let full = scratch.store("b.img");
    put(&full, "k", b"x");
    let mut to_full = adit(&["kv", "get", &full, "k"]);
    to_full.stdout(fs::File::options().write(true).open("/dev/full").expect("there"));
    let ended = to_full.output().expect("adit runs");
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("No space left"), "{}", text(&ended.stderr));
}

#[test]
fn a_get_follows_links_and_writes_to_what_is_no_file() {
    let scratch = Scratch::new("links");
    let (target, wanted) = (scratch.store("a.img"), noise(300_000));
    put(&target, "k", &wanted);
    let get = |to: &Path| {
        let to = to.display().to_string();
        let ended = adit(&["kv", "get", &target, "k", "-o", &to]).output().expect("adit runs");
        assert!(ended.status.success(), "{}", text(&ended.stderr));
    };
    let (real, link, pipe) = (scratch.path("real"), scratch.path("link"), scratch.path("pipe"));
    fs::write(&real, "old").expect("there is room");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o604)).expect("changed");
    symlink(&real, &link).expect("a link");
    get(&link);
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert!(fs::read(&real).expect("there") == wanted);
    assert_eq!(fs::metadata(&real).expect("there").permissions().mode() & 0o777, 0o604);

    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    let reader = thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).expect("read")
    });
    get(&pipe);
    assert!(reader.join().expect("it ends") == wanted);
    assert!(!fs::metadata(&pipe).expect("there").is_file());
}

#[test]
fn a_bench_overwrites_a_store_only_when_told_to_and_never_an_open_one() {
    let scratch = Scratch::new("bench");
    let target = scratch.store("a.img");
    put(&target, "k", b"value");
    let soft = format!("soft:file={}", scratch.path("a.img").display());
    for name in [&target, &soft] {
        let bench = ["bench", "--rw=randwrite", "--bs=4k", "--number_ios=8", "--filename", name];
        let refused = adit(&bench).output().expect("adit runs");
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        let reason = "\n  it is a device of a store of Adit; adit kv info ";
        assert!(told.contains(reason) && told.contains("add --allow-destroy"), "{told}");
        let read = [&bench[..1], &["--rw=randread"], &bench[2..]].concat();
        assert!(adit(&read).status().expect("adit runs").success(), "{name} may be read");
    }
    let length = || fs::metadata(scratch.path("a.img")).expect("it is there").len();
    let before = length();
    let longer = format!("--size={}", before + (1 << 20));
    for rw in ["--rw=write", "--rw=read"] {
        let bench = ["bench", rw, "--bs=4k", &longer, "--filename", &target];
        let refused = adit(&bench).output().expect("adit runs");
        let told = text(&refused.stderr);
        assert!(told.contains("it is a device of a store of Adit"), "{told}");
        assert_eq!((refused.status.code(), length()), (Some(2), before), "{rw}");
    }
    let allowed =
        ["bench", "--rw=randwrite", "--bs=4k", "--number_ios=8", "--allow-destroy", "--filename"];
    let socket = scratch.path("kv.sock").display().to_string();
    let mut server = adit(&["kv", "serve", "--store", &target, "--socket", &socket, "--json"]);
    let mut server = server.stdout(Stdio::piped()).spawn().expect("adit runs");
    let mut ready = [0; 1];
    server.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("it is ready");
    for name in [&target, &soft] {
        fail(&[&allowed[..], &[name]].concat(), 1, "another process has it for itself");
    }
    for layout in ["--fallocate=none", "--fallocate=native"] {
        let longer = [&allowed[..], &[&target, &longer, layout]].concat();
        fail(&longer, 1, "another process has it for itself");
    }
    fail(
        &["kv", "format", "--force", "--size=1G", &target],
        1,
        "another process or handle has it open",
    );
    assert_eq!(length(), before, "what an open store has is as long as before");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    assert!(adit(&["kv", "get", &target, "k"]).status().expect("adit runs").success());
    assert!(adit(&[&allowed[..], &[&target]].concat()).status().expect("adit runs").success());
}

/// What Identify says of ordinary drives and odd ones, down to queues of one command.
#[test]
fn every_command_works_within_the_limits_of_a_drive() {
    let scratch = Scratch::new("limits");
    let wanted = noise(3_000_000);
    for (number, limits) in [
        "lba=4096,mdts=5,noiob=32",
        "mdts=5,noiob=256",
        "mdts=4",
        "mdts=1,sgl=off,noiob=3",
        "noiob=1",
        "noiob=7",
        "noiob=255",
        "lba=4096,noiob=1",
        "lba=4096,noiob=3",
        "lba=4096,mdts=2,noiob=33,mqes=2",
        "mqes=2,noiob=1",
        "mdts=0,sgl=off,mqes=2",
    ]
    .into_iter()
    .enumerate()
    {
        let path = scratch.path(&format!("{number}.img"));
        let target = format!("soft:file={},size=64M,{limits}", path.display());
        succeed(&["kv", "format", &target]);
        put(&target, "k", &wanted);
        assert!(succeed(&["kv", "get", &target, "k"]) == wanted, "{target}");
        for command in ["check", "scrub", "stat", "tenant", "info", "ls"] {
            succeed(&["kv", command, &target]);
        }
        let bench = ["kv", "bench", "--store", &target, "--workload", "fill", "--force"];
        succeed(&[&bench[..], &["--objects", "9", "--object-bytes", "1M"]].concat());
    }
}

#[test]
fn scrub_finds_what_was_damaged_and_removes_it_when_told_to() {
    let scratch = Scratch::new("scrub");
    let target = scratch.store("a.img");
    put(&target, "good", &noise(5000));
    put(&target, "bad", &noise(9000)[5000..]);
    damage(&scratch.path("a.img"), &noise(9000)[6000..6100]);
    succeed(&["kv", "check", &target]);
    let out = fail(&["kv", "scrub", &target], 1, "--repair");
    assert!(out.contains("2 objects") && out.contains("bad: bad"), "{out}");
    let repaired = json(&["kv", "scrub", &target, "--repair"]);
    assert_eq!((&repaired["bad"], &repaired["removed"]), (&1.into(), &1.into()));
    assert_eq!(json(&["kv", "scrub", &target])["objects"], 1);
}

#[test]
fn check_names_what_is_wrong_and_stops_where_both_superblocks_are_gone() {
    let scratch = Scratch::new("check");
    let target = scratch.store("a.img");
    put(&target, "k", b"x");
    let file =
        fs::File::options().read(true).write(true).open(scratch.path("a.img")).expect("there");
    let checked = json(&["kv", "check", &target]);
    assert_eq!(
        (&checked["faults"], &checked["shards"][0]["objects"]),
        (&Value::Array(Vec::new()), &1.into())
    );
    let mut first = vec![0; 4096];
    file.read_exact_at(&mut first, 0).expect("read");
    file.write_all_at(&[!first[100]], 100).expect("written");
    let out = fail(&["kv", "check", &target], 1, "1 fault");
    assert!(out.contains("first unit") && out.contains("No object is known to be lost"), "{out}");
    let last = (64 << 20) - 4096;
    file.write_all_at(&[!first[100]], last + 100).expect("written");
    fail(&["kv", "check", &target], 1, "both copies");
    fail(&["kv", "get", &target, "k"], 1, "both copies");
}

#[test]
fn a_store_that_is_open_elsewhere_is_only_looked_at() {
    let scratch = Scratch::new("open");
    let target = filled(&scratch);
    let words = ["kv", "bench", "--store", &target, "--workload", "get", "--object-bytes", "64k"];
    let mut child = adit(&[&words[..], &["--runtime", "60"]].concat());
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("adit runs");
    wait_until_open(child.id(), &scratch.path("a.img"));
    assert_eq!(json(&["kv", "info", &target])["in_use"], true);
    for words in [
        vec!["kv", "ls", &target],
        vec!["kv", "check", &target],
        vec!["kv", "get", &target, "k"],
        vec!["kv", "format", &target, "--force"],
    ] {
        fail(&words, 1, "has it open");
    }
    let stat = text(&succeed(&["kv", "stat", &target]));
    assert!(stat.contains("this report shows it at one moment"), "{stat}");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    succeed(&["kv", "check", &target]);
}

#[test]
fn ctrl_c_ends_a_bench_with_its_report() {
    let scratch = Scratch::new("ctrl-c");
    let target = filled(&scratch);
    let words = [
        "kv",
        "bench",
        "--store",
        &target,
        "--workload",
        "get",
        "--object-bytes",
        "64k",
        "--runtime",
        "60",
        "--json",
    ];
    let child = adit(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("adit runs");
    thread::sleep(Duration::from_secs(2));
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    let begun = Instant::now();
    let status = child.wait().expect("it ends");
    assert!(begun.elapsed() < Duration::from_secs(10), "it ends at once");
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("UTF-8");
    child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("UTF-8");
    assert_eq!((status.code(), err.lines().count()), (Some(130), 1), "{err}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["interrupted"], true);
    assert!(report["get"]["ops"].as_u64().is_some_and(|ops| ops > 0), "{report}");
}

#[test]
fn what_a_fill_left_is_read_again_and_every_byte_is_right() {
    let scratch = Scratch::new("bench");
    let target = filled(&scratch);
    let base =
        ["kv", "bench", "--store", &target, "--object-bytes", "64k", "--runtime", "1", "--verify"];
    for workload in ["get", "mixed", "ycsb-a", "ycsb-d", "ycsb-e", "ycsb-f", "get"] {
        let told = json(&[&base[..], &["--workload", workload]].concat());
        // A fast run's puts fill the store, which then evicts.
        let evicts = told["evictions"].as_u64().is_some_and(|objects| objects > 0);
        assert!(told["get"]["misses"] == 0 || evicts, "{workload}: {told}");
        let (get, put) = (&told["get"], &told["put"]);
        assert!(get["ops"].as_u64().is_some_and(|ops| ops > 0), "{workload}: {told}");
        for name in ["iops", "bw_bytes", "bytes"] {
            assert!(get[name].is_number() && put[name].is_number(), "{name}: {told}");
        }
        assert!(get["lat_ns"]["percentile"]["99.000000"].is_number(), "{told}");
    }
    fail(
        &["kv", "bench", "--store", &target, "--workload", "get", "--runtime", "1"],
        1,
        "--object-bytes",
    );
    let other = scratch.store("b.img");
    fail(&["kv", "bench", "--store", &other, "--workload", "get"], 1, "--workload fill");
}

#[test]
fn with_a_memory_tier_every_byte_is_right_and_hits_are_counted() {
    let scratch = Scratch::new("tier");
    let target = filled(&scratch);
    let base =
        ["kv", "bench", "--store", &target, "--object-bytes", "64k", "--runtime", "1", "--verify"];
    for workload in ["get", "ycsb-a"] {
        let told = json(&[&base[..], &["--workload", workload, "--tier", "8M"]].concat());
        assert_eq!(
            (&told["get"]["misses"], &told["tier"]["bytes"]),
            (&Value::from(0), &Value::from(8 << 20))
        );
        assert!(told["tier"]["hits"].as_u64().is_some_and(|hits| hits > 0), "{told}");
    }
    let without = json(&[&base[..], &["--workload", "get"]].concat());
    assert!(without["tier"].is_null(), "{without}");
    fail(&[&base[..], &["--workload", "get", "--tier", "4k"]].concat(), 2, "tier_bytes");
}

#[test]
fn a_replay_hits_as_an_exact_lru_does() {
    let trace =
        concat!("trace:", env!("CARGO_MANIFEST_DIR"), "/../benches/traces/conversations.jsonl");
    for durability in ["volatile", "restart", "durable"] {
        for (capacity, hits, evictions) in [(50, 1305, 1846), (200, 2168, 833), (2000, 2168, 0)] {
            let capacity = capacity.to_string();
            let told = json(&[
                "kv",
                "bench",
                "--store",
                "soft:mem=64M",
                "--workload",
                trace,
                "--object-bytes",
                "4k",
                "--policy",
                "lru",
                // A put in flight cannot be evicted, so that with others the victim depends on the order of their ends.
                "--iodepth",
                "1",
                "--capacity-blocks",
                &capacity,
                "--durability",
                durability,
                "--verify",
            ]);
            assert_eq!(told["references"], 3201);
            assert_eq!(told["prefix_hits"], hits, "{capacity} blocks, {durability}");
            assert_eq!(told["evictions"], evictions, "{capacity} blocks, {durability}");
            assert_eq!(told["get"]["ops"], hits);
        }
    }
    fail(
        &["kv", "bench", "--store", "soft:mem=64M", "--workload", "trace:/dev/null"],
        1,
        "no KV block",
    );
}

#[test]
fn layers_of_a_model_come_back_in_few_commands() {
    let words =
        ["kv", "bench", "--store", "soft:mem=512M", "--workload", "layers", "--objects", "64"];
    let told = json(&words);
    assert_eq!(
        (&told["layers"]["model"], &told["layers"]["restored"]),
        (&"llama-3-8b".into(), &32.into())
    );
    let commands = told["layers"]["commands_per_layer"].as_f64().expect("a number");
    // 4 MiB by 512 KiB a command.
    assert!((8.0..9.6).contains(&commands), "{commands}");
    assert_eq!(told["get"]["bytes"], 128 << 20);
    fail(&[&words[..], &["--model", "x"]].concat(), 2, "llama-3-70b");
    fail(
        &["kv", "bench", "--store", "soft:mem=64M", "--workload", "layers", "--objects", "64"],
        1,
        "larger store",
    );
}

#[test]
fn the_demo_kills_a_process_and_restores_what_it_had_committed() {
    let out = text(&succeed(&["demo"]));
    for part in ["64 KV blocks of llama-3-8b", "SIGKILL", "32 layers", "every byte as it was put"] {
        assert!(out.contains(part), "{part} is missing:\n{out}");
    }
}
