//! Tests `adit kv` with conditions, versions, other expiries and empty objects.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::kv::{Scratch, fail, json, succeed, text};

#[test]
fn a_put_a_read_and_a_removal_may_depend_on_what_is_there() {
    let scratch = Scratch::new("conditions");
    let target = scratch.store("a.img");
    let file = scratch.path("x");
    fs::write(&file, b"first").expect("there is room");
    let file = file.display().to_string();
    let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let put = json(&["kv", "put", &target, "k", &file, "--if-absent"]);
    let first = put["version"].as_u64().expect("a version");
    let refused = ["kv", "put", &target, "k", &file, "--if-absent"];
    fail(&refused, 1, &format!("the object is there in version {first}"));
    let told = json(&["kv", "info", &target, "k"]);
    assert_eq!(told["version"], first);
    let stored = told["stored_unix_s"].as_u64().expect("a time");
    assert!(stored.abs_diff(before) < 60, "{stored} {before}");
    for read_only in [&["--read-only"][..], &[]] {
        let listed = json(&[&["kv", "ls", &target][..], read_only].concat());
        assert_eq!(
            (&listed[0]["version"], &listed[0]["stored_unix_s"]),
            (&first.into(), &stored.into())
        );
    }
    let first = first.to_string();
    let second = json(&["kv", "put", &target, "k", &file, "--if-version", &first])["version"]
        .as_u64()
        .expect("a version")
        .to_string();
    fail(&["kv", "put", &target, "k", &file, "--if-version", &first], 1, &second);
    fail(&["kv", "put", &target, "other", &file, "--if-version", &first], 1, "no object");
    fail(&["kv", "put", &target, "k", &file, "--if-version", "x"], 2, "a version is a number");
    fail(
        &["kv", "put", &target, "k", &file, "--if-version", "1", "--if-absent"],
        2,
        "cannot be used",
    );
    let range = ["kv", "get", &target, "k", "--range", "1-2", "--if-version"];
    assert_eq!(succeed(&[&range[..], &[&second]].concat()), b"ir");
    fail(&[&range[..], &[&first]].concat(), 1, "read it from its beginning");
    fail(&["kv", "rm", &target, "k", "--if-version", &first], 1, &second);
    fail(&["kv", "rm", &target, "k", "l", "--if-version", &first], 2, "give one key");
    succeed(&["kv", "rm", &target, "k", "--if-version", &second]);
    fail(&["kv", "get", &target, "k"], 1, "there is no object 'k'");
    succeed(&["kv", "put", &target, "k", &file, "--if-absent"]);
}

#[test]
fn touch_sets_and_lifts_expiries() {
    let scratch = Scratch::new("touch");
    let target = scratch.store("a.img");
    let file = scratch.path("x");
    fs::write(&file, b"x").expect("there is room");
    let file = file.display().to_string();
    for key in ["a", "b"] {
        succeed(&["kv", "put", &target, key, &file, "--ttl", "1000"]);
    }
    let version = |key| json(&["kv", "info", &target, key])["version"].as_u64();
    let expires = |key| json(&["kv", "info", &target, key])["expires_unix_s"].as_u64();
    let (before, was) = (expires("a").expect("it expires"), version("a"));
    let touched = json(&["kv", "touch", &target, "a", "b", "--ttl", "5000"]);
    assert_eq!(touched["touched"], serde_json::json!(["a", "b"]));
    assert!(expires("a").expect("it expires") > before + 3000 && version("a") == was);
    succeed(&["kv", "touch", &target, "a", "--persist"]);
    assert_eq!((expires("a"), expires("b").is_some()), (None, true));
    fail(&["kv", "touch", &target, "a", "c", "--ttl", "5"], 1, "there is no object 'c'");
    for wrong in [&["--ttl", "0"][..], &["--ttl", "5", "--persist"], &[]] {
        fail(&[&["kv", "touch", &target, "a"][..], wrong].concat(), 2, "--");
    }
    assert!(text(&succeed(&["kv", "touch", "--help"])).contains("Example"));
}

#[test]
fn a_file_without_bytes_is_an_object() {
    let scratch = Scratch::new("empty");
    let target = scratch.store("a.img");
    let (file, back) = (scratch.path("empty"), scratch.path("back"));
    fs::write(&file, b"").expect("there is room");
    let put = json(&["kv", "put", &target, "nothing", &file.display().to_string()]);
    assert_eq!(put["bytes"], 0);
    assert_eq!(succeed(&["kv", "get", &target, "nothing"]), b"");
    succeed(&["kv", "get", &target, "nothing", "-o", &back.display().to_string()]);
    assert_eq!(fs::read(&back).expect("there"), b"");
    fail(&["kv", "get", &target, "nothing", "--range", "0-4"], 1, "after its end");
    assert_eq!(json(&["kv", "info", &target, "nothing"])["bytes"], 0);
    assert_eq!(json(&["kv", "ls", &target, "--prefix", "not"])[0]["bytes"], 0);
    succeed(&["kv", "check", &target]);
    succeed(&["kv", "scrub", &target]);
    let listed = text(&succeed(&["kv", "tenant", &target]));
    assert_eq!(listed, "(default): 1 object, 4.0KiB\n", "it takes a unit");
}
