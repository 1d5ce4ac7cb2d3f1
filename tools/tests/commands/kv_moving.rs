//! Tests `adit kv export` and `import`, and objects of any length through `get` and `put`.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use crate::support::kv::{Scratch, adit, fail, json, noise, put, run, succeed, text};

/// Longer than the pool of a store.
const LONG: usize = (70 << 20) + 321;

#[test]
fn what_is_exported_is_imported_elsewhere() {
    let scratch = Scratch::new("moving");
    let (from, to) = (scratch.target("a.img"), scratch.target("b.img"));
    succeed(&["kv", "format", &from, "--size", "256m"]);
    succeed(&["kv", "format", &to, "--size", "256m", "--shards", "2"]);
    let (long, data) = (scratch.path("long"), noise(LONG));
    fs::write(&long, &data).expect("there is room");
    let tenant = ["--tenant", "red", "--ttl", "1000"];
    let words = ["kv", "put", &from, "model/long", &long.display().to_string()];
    succeed(&[&words[..], &tenant].concat());
    put(&from, "model/short", b"hello\n");
    put(&from, "other", &noise(300_000));
    put(&from, "empty", b"");
    let stream = scratch.path("backup.kvx").display().to_string();
    let told = json(&["kv", "export", &from, &stream]);
    assert_eq!((&told["objects"], &told["bytes"]), (&4.into(), &(LONG + 300_006).into()));

    let told = json(&["kv", "import", &to, &stream]);
    assert_eq!((&told["objects"], &told["kept"]), (&4.into(), &0.into()));
    let info = json(&["kv", "info", &to, "model/long"]);
    assert_eq!((&info["tenant"], &info["bytes"]), (&"red".into(), &LONG.into()));
    assert!(info["expires_unix_s"].as_u64().is_some());
    assert!(succeed(&["kv", "get", &to, "model/long"]) == data, "the same bytes");
    assert_eq!(succeed(&["kv", "get", &to, "model/short"]), b"hello\n");
    assert_eq!(succeed(&["kv", "get", &to, "empty"]), b"");
    succeed(&["kv", "check", &to]);
    let told = text(&succeed(&["kv", "import", &to, &stream, "--keep"]));
    assert_eq!(told, "stored 0 objects of 0B, 4 kept as they were\n");

    // Cut off: what came before is there, and a second run goes on.
    let whole = fs::read(&stream).expect("there");
    let cut = scratch.path("cut").display().to_string();
    fs::write(&cut, &whole[..whole.len() - 1]).expect("there is room");
    succeed(&["kv", "rm", &to, "model/long", "other"]);
    let told = fail(&["kv", "import", &to, &cut, "--keep"], 1, "cut off");
    assert_eq!(told.trim(), "stored 2 objects of 70MiB, 2 kept as they were");
    assert!(succeed(&["kv", "get", &to, "model/long"]) == data, "the same bytes");
    fs::write(&cut, &whole[..10]).expect("there is room");
    fail(&["kv", "import", &to, &cut], 1, "cut off");
    fail(&["kv", "import", &to, &long.display().to_string()], 1, "no stream of objects");
    fail(&["kv", "import", &to, "/dev/null/x"], 1, "/dev/null/x: ");
    fail(&["kv", "export", &to, "-", "--json"], 2, "name a file");
    let missing = scratch.path("no/such").display().to_string();
    fail(&["kv", "export", &to, &missing], 1, "no/such: ");
}

#[test]
fn a_stream_passes_through_a_pipe_and_is_chosen_by_prefix() {
    let scratch = Scratch::new("piped");
    let (from, to) = (scratch.store("a.img"), scratch.store("b.img"));
    for key in ["a/1", "a/2", "b/1"] {
        put(&from, key, key.as_bytes());
    }
    let piped = run(&["kv", "export", &from, "-", "--prefix", "a/"]);
    assert!(piped.status.success() && piped.stderr.is_empty());
    let mut child = adit(&["kv", "import", &to, "-"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().expect("a pipe").write_all(&piped.stdout).expect("it reads");
    let told = child.wait_with_output().expect("it ends");
    assert!(told.status.success());
    assert_eq!(text(&told.stdout), "stored 2 objects of 6B\n");
    assert_eq!(succeed(&["kv", "get", &to, "a/2"]), b"a/2");
    fail(&["kv", "get", &to, "b/1"], 1, "there is no object 'b/1'");
}

#[test]
fn an_export_that_finds_no_room_says_what_is_left() {
    let scratch = Scratch::new("full");
    let store = scratch.store("a.img");
    put(&store, "key", &noise(300_000));
    let left = "what /dev/full has lacks its end, which an import reports";
    fail(&["kv", "export", &store, "/dev/full"], 1, left);
}

#[test]
fn an_import_into_a_store_that_is_too_small_says_so() {
    let scratch = Scratch::new("small");
    let from = scratch.target("a.img");
    succeed(&["kv", "format", &from, "--size", "128m"]);
    for key in 0..40 {
        put(&from, &key.to_string(), &noise(2 << 20));
    }
    let stream = scratch.path("backup").display().to_string();
    succeed(&["kv", "export", &from, &stream]);
    let to = scratch.store("b.img");
    let output = run(&["kv", "import", &to, &stream, "--json"]);
    assert!(output.status.success());
    let told = text(&output.stderr);
    assert!(told.contains("objects were evicted to make room"), "{told}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["evicted"].as_u64().is_some_and(|evicted| evicted > 0), "{report}");
}

/// Longer than what is kept in memory of an input of unknown length.
#[test]
fn standard_input_of_any_length_is_put_by_way_of_a_folder() {
    let scratch = Scratch::new("stdin");
    let target = scratch.target("a.img");
    succeed(&["kv", "format", &target, "--size", "256m"]);
    let data = noise(LONG);
    let put = |folder: &str| {
        let mut child = adit(&["kv", "put", &target, "long"]);
        child.env("TMPDIR", folder).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().expect("it runs");
        // It may have ended already.
        let _ = child.stdin.take().expect("a pipe").write_all(&data);
        child.wait_with_output().expect("it ends")
    };
    let refused = put("/no/such/folder");
    assert_eq!(refused.status.code(), Some(1));
    let told = text(&refused.stderr);
    assert!(told.contains("/no/such/folder") && told.contains("TMPDIR"), "{told}");
    assert!(put(&scratch.0.display().to_string()).status.success());
    assert_eq!(fs::read_dir(&scratch.0).expect("listed").count(), 1, "nothing is left there");
    assert!(succeed(&["kv", "get", &target, "long"]) == data, "the same bytes");
}

/// The room of an object is on any device, and so is the memory that its parts need.
#[test]
fn long_objects_go_to_whichever_controller_has_the_room() {
    let scratch = Scratch::new("controllers");
    let device = |name: &str| format!("soft:file={},size=64m", scratch.path(name).display());
    let (one, other) = (device("a.img"), device("b.img"));
    succeed(&["kv", "format", &one, &other]);
    let (long, data) = (scratch.path("long"), noise(19 << 20));
    fs::write(&long, &data).expect("there is room");
    let devices: std::collections::BTreeSet<u64> = (0..5)
        .map(|key| {
            let key = key.to_string();
            let put = ["kv", "put", &one, &key, &long.display().to_string(), "--with", &other];
            succeed(&put);
            assert!(succeed(&["kv", "get", &one, &key, "--with", &other]) == data);
            json(&["kv", "info", &one, &key, "--with", &other])["device"].as_u64().expect("known")
        })
        .collect();
    assert_eq!(devices.len(), 2, "each device has some");
}
