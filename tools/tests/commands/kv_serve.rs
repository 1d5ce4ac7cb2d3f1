//! Tests `adit kv serve`: several processes use one store, through shared memory.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use adit_kvshare::{Client, ClientOptions, KvStore, PendingAnswer};
use adit_kvstore::Key;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::kv::{Scratch, adit, fail, succeed};

/// A server, killed on drop.
struct Served {
    child: Child,
    output: BufReader<ChildStdout>,
    socket: PathBuf,
}

impl Served {
    fn start(target: &str, socket: PathBuf) -> Served {
        Served::start_with(target, socket, &[])
    }

    fn start_with(target: &str, socket: PathBuf, options: &[&str]) -> Served {
        let path = socket.to_str().expect("text").to_owned();
        let words = ["kv", "serve", "--store", target, "--socket", &path, "--json"];
        let mut child =
            adit(&[&words, options].concat()).stdout(Stdio::piped()).spawn().expect("adit runs");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut served = Served { child, output, socket };
        assert_eq!(served.event(), "ready");
        served
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|why| panic!("{line}: {why}"))
    }

    fn event(&mut self) -> Value {
        self.line()["event"].clone()
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket, &ClientOptions::default()).expect("connected")
    }

    /// Ends it with a signal; returns its exit code.
    fn end(&mut self, signal: Signal) -> Option<i32> {
        let process = Pid::from_raw(i32::try_from(self.child.id()).expect("a process number"));
        kill(process, signal).expect("it runs");
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a key")
}

fn is_socket(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[test]
fn what_clients_put_is_there_after_an_orderly_end() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let scratch = Scratch::new(&format!("serve-{signal}"));
        let target = scratch.store("a.img");
        let mut served = Served::start(&target, scratch.path("kv.sock"));
        let mode = served.socket.metadata().expect("a socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (one, other) = (served.client(), served.client());
        one.put(key("greeting"), b"hello").wait().expect("put");
        let value = other.get(key("greeting")).wait().expect("got").expect("a hit");
        assert_eq!(value.to_vec(), b"hello");
        drop(one);
        let events: Vec<Value> = (0..3).map(|_| served.event()).collect();
        assert_eq!(events, ["client_came", "client_came", "client_gone"]);
        assert_eq!(served.end(signal), Some(0));
        let lost = other.put(key("late"), b"x").wait().expect_err("no server").to_string();
        assert!(lost.contains("adit kv serve"), "{lost}");
        assert!(!is_socket(&served.socket));
        assert_eq!(served.event(), "client_gone");
        let ended = served.line();
        assert_eq!((&ended["event"], &ended["puts"]), (&"ended".into(), &1.into()));
        assert_eq!(succeed(&["kv", "get", &target, "greeting"]), b"hello");
    }
}

#[test]
fn the_socket_of_a_killed_server_is_replaced_and_nothing_else_is() {
    let scratch = Scratch::new("stale");
    let target = scratch.store("a.img");
    let mut served = Served::start(&target, scratch.path("kv.sock"));
    let path = served.socket.to_str().expect("text").to_owned();
    let other = scratch.store("b.img");
    fail(&["kv", "serve", "--store", &other, "--socket", &path], 1, "kv.sock");
    fail(&["kv", "serve", "--store", &target, "--socket", "/nowhere/kv.sock"], 1, "");
    assert_eq!(served.end(Signal::SIGKILL), None);
    assert!(is_socket(&served.socket), "it could not remove it");
    let mut again = Served::start(&target, scratch.path("kv.sock"));
    again.client().put(key("a"), b"b").wait().expect("put");
    assert_eq!(again.end(Signal::SIGTERM), Some(0));
    let file = scratch.path("file");
    std::fs::write(&file, "mine").expect("written");
    let file = file.to_str().expect("text").to_owned();
    fail(&["kv", "serve", "--store", &target, "--socket", &file], 1, "not a socket");
    assert_eq!(std::fs::read(&file).expect("still there"), b"mine");
    let missing = scratch.target("none.img");
    fail(&["kv", "serve", "--store", &missing, "--socket", &path], 1, "no such file");
}

#[test]
fn one_client_too_many_is_told_so_and_so_is_the_operator() {
    let scratch = Scratch::new("many");
    let target = scratch.store("a.img");
    let mut served = Served::start_with(&target, scratch.path("kv.sock"), &["--clients", "1"]);
    let client = served.client();
    let refused =
        Client::connect(&served.socket, &ClientOptions::default()).expect_err("one is there");
    assert!(refused.to_string().contains("too many clients"), "{refused}");
    assert_eq!(served.event(), "client_came");
    let told = served.line();
    assert_eq!((&told["event"], &told["connections"]), (&"turned_away".into(), &1.into()));
    drop(client);
    assert_eq!(served.event(), "client_gone");
    assert_eq!(served.end(Signal::SIGTERM), Some(0));
    let ended = served.line();
    assert_eq!((&ended["clients"], &ended["clients_turned_away"]), (&1.into(), &1.into()));
}

/// The server of such a store maps clients' files, too.
#[test]
fn clients_memory_reaches_a_store_on_vfio_user() {
    let scratch = Scratch::new("remote");
    let folder = scratch.path("drive");
    let words = ["softnvme", "--media", "mem=128M", "--json", "--socket"];
    let path = folder.to_str().expect("text").to_owned();
    let mut child =
        adit(&[&words[..], &[&path]].concat()).stdout(Stdio::piped()).spawn().expect("runs");
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("a line");
    let drive = Drive(child);
    let target = format!("vfio-user:{path}/cntrl");
    succeed(&["kv", "format", &target]);
    let mut served = Served::start(&target, scratch.path("kv.sock"));
    let client = served.client();
    let mut span = client.allocate(8192).expect("memory");
    span.write(0, &[7; 8192]);
    let put = client.put(key("a"), span).wait().expect("put");
    let mut span = put.memory.expect("what was lent");
    span.write(0, &[0; 8192]);
    let read = client.get_into(key("a"), adit_kvstore::shard::Part::All, span).wait().expect("got");
    let there = read.memory.as_ref().map(|memory| memory.to_vec());
    assert_eq!((read.bytes, there), (Some(8192), Some(vec![7; 8192])));
    let (stats, _) = client.stats().expect("counted");
    assert_eq!(stats.copied_bytes, 0, "the device has it");
    drop((read, client));
    assert_eq!(served.end(Signal::SIGTERM), Some(0));
    drop(drive);
}

/// A server of a drive, killed on drop.
struct Drive(Child);

impl Drop for Drive {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json(words: &[&str]) -> Value {
    serde_json::from_slice(&succeed(words)).expect("JSON")
}

#[test]
fn a_served_store_is_used_from_the_command_line() {
    let scratch = Scratch::new("serve-commands");
    let target = scratch.store("a.img");
    let mut served = Served::start(&target, scratch.path("kv.sock"));
    let store = format!("serve:{}", served.socket.display());
    let (long, back) = (scratch.path("long"), scratch.path("back"));
    // Longer than a step of a reader, and no whole units.
    let bytes: Vec<u8> = (0..9_000_001_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(&long, &bytes).expect("written");
    let (long, back) = (long.to_str().expect("text"), back.to_str().expect("text"));
    let put = json(&["kv", "put", &store, "long", long, "--json"]);
    assert_eq!(put["bytes"], 9_000_001);
    succeed(&["kv", "put", &store, "b/1", long, "--tenant", "team", "--ttl", "900"]);
    succeed(&["kv", "get", &store, "long", "-o", back]);
    assert!(std::fs::read(back).expect("read") == bytes);
    succeed(&["kv", "get", &store, "long", "-o", back, "--range", "4000000-4000009"]);
    assert_eq!(std::fs::read(back).expect("read"), bytes[4_000_000..4_000_010]);
    fail(&["kv", "put", &store, "long", long, "--if-absent"], 1, "the object is there in version");
    let version = put["version"].to_string();
    succeed(&["kv", "put", &store, "long", long, "--if-version", &version]);
    fail(&["kv", "rm", &store, "long", "--if-version", &version], 1, "version");
    let listed = json(&["kv", "ls", &store, "--json", "--prefix", "b/"]);
    let one = &listed.as_array().expect("a list")[..];
    assert_eq!((one.len(), &one[0]["key"], &one[0]["tenant"]), (1, &"b/1".into(), &"team".into()));
    succeed(&["kv", "touch", &store, "b/1", "--persist"]);
    let info = json(&["kv", "info", &store, "b/1", "--json"]);
    assert_eq!((&info["bytes"], &info["ttl_s"]), (&9_000_001.into(), &Value::Null));
    fail(&["kv", "touch", &store, "b/1", "none", "--ttl", "9"], 1, "there is no object 'none'");
    assert_eq!(json(&["kv", "rm", &store, "--prefix", "b/", "--json"])["removed_objects"], 1);
    succeed(&["kv", "rm", &store, "long"]);
    for command in ["get", "rm", "info"] {
        fail(&["kv", command, &store, "long"], 1, "kv.sock: there is no object 'long'");
    }
    assert_eq!(served.end(Signal::SIGTERM), Some(0));
    fail(&["kv", "get", &store, "long"], 1, "start 'adit kv serve --socket");
}

#[test]
fn a_server_tells_its_counters_on_the_command_line() {
    let scratch = Scratch::new("serve-counters");
    let target = scratch.store("a.img");
    let mut served = Served::start(&target, scratch.path("kv.sock"));
    let store = format!("serve:{}", served.socket.display());
    let client = served.client();
    client.put(key("a"), &[7; 8192]).wait().expect("put");
    for name in ["a", "a", "a", "none"] {
        client.get(key(name)).wait().expect("got");
    }
    let stat = json(&["kv", "stat", &store, "--json"]);
    assert_eq!((&stat["objects"], &stat["used_bytes"]), (&1.into(), &8192.into()));
    let told = &stat["server"];
    assert_eq!((&told["hit_share"], &told["puts"]), (&0.75.into(), &1.0.into()));
    assert_eq!(told["clients_now"], 2.0, "the command is one");
    // The media say the same, beside the server.
    let media = json(&["kv", "stat", &target, "--json"]);
    assert_eq!(stat["capacity_bytes"], media["capacity_bytes"]);
    let info = json(&["kv", "info", &store, "--json"]);
    assert_eq!((&info["objects"], &info["data_bytes"]), (&1.into(), &media["capacity_bytes"]));
    let top = json(&["kv", "top", &store, "--once", "--json", "--interval", "0.1"]);
    assert_eq!((&top["objects"], &top["hit_share_since_start"]), (&1.0.into(), &0.75.into()));
    assert_eq!((&top["restarted"], &top["server"]["clients_now"]), (&false.into(), &2.0.into()));
    let shown = succeed(&["kv", "top", &store, "--once", "--interval", "0.1"]);
    let shown = String::from_utf8(shown).expect("text");
    assert!(shown.contains("75.0 % since the start") && shown.contains("2 connected"), "{shown}");
    assert_eq!(served.end(Signal::SIGTERM), Some(0));
}

#[test]
fn what_a_served_store_cannot_do_is_refused_with_what_to_do() {
    let scratch = Scratch::new("serve-refusals");
    let target = scratch.store("a.img");
    let served = Served::start(&target, scratch.path("kv.sock"));
    let store = format!("serve:{}", served.socket.display());
    let refused = |words: &[&str], part: &str| {
        let output = adit(&[&["kv"], words].concat()).output().expect("adit runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && told.contains(part), "{words:?}: {told}");
    };
    for words in [
        &["check", &store][..],
        &["ls", &store, "--read-only"],
        &["scrub", &store],
        &["format", &store],
        &["grow", &store],
        &["add-device", &store, "--new", &target],
        &["tenant", &store],
        &["tenant", &store, "a", "--quota", "1M"],
        &["export", &store, "-"],
        &["import", &store, "-"],
    ] {
        refused(words, "end the server and name them");
    }
    refused(&["rm", &store, "--tenant", "a"], "give keys or --prefix");
    refused(&["get", &store, "a", "--with", &target], "name no other target");
    refused(&["stat", &store, "--metrics", "-"], "leave --metrics out");
    let bench = |words: &[&'static str]| [&["bench", "--store", store.as_str()], words].concat();
    refused(&bench(&["--workload", "layers"]), "end the server and name");
    refused(&bench(&["--workload", "get", "--tier", "1G"]), "--tier is chosen where the store is");
    refused(&bench(&["--workload", "dual-blade"]), "end the server and name them");
    refused(&["ls", "serve:"], "name the server's socket");
}

#[test]
fn a_benchmark_runs_as_a_client_and_evicts_nothing_of_others() {
    let scratch = Scratch::new("serve-bench");
    let target = scratch.store("a.img");
    let mut served = Served::start(&target, scratch.path("kv.sock"));
    let store = format!("serve:{}", served.socket.display());
    let bench = |words: &[&'static str]| {
        let size = ["--object-bytes", "16k", "--iodepth", "7", "--json"];
        [&["kv", "bench", "--store", store.as_str()], words, &size].concat()
    };
    fail(&bench(&["--workload", "get"]), 1, "run --workload fill first");
    let filled = json(&bench(&["--workload", "fill", "--objects", "200"]));
    assert_eq!((&filled["put"]["ops"], &filled["durability"]), (&200.into(), &Value::Null));
    for workload in ["get", "mixed", "ycsb-d", "ycsb-e", "ycsb-f"] {
        let ran = json(&bench(&["--workload", workload, "--runtime", "100ms", "--verify"]));
        assert_eq!(ran["get"]["misses"], 0, "{workload}: {ran}");
        assert!(ran["get"]["ops"].as_u64() > Some(0), "{workload}: {ran}");
    }
    let other_size = ["--workload", "get", "--object-bytes", "8k"];
    let other_size = [&["kv", "bench", "--store", store.as_str()], &other_size[..]].concat();
    fail(&other_size, 1, "as the store was filled with");
    served.client().put(key("mine"), b"kept").wait().expect("put");
    fail(&bench(&["--workload", "fill"]), 2, "add --force");
    let refilled = json(&bench(&["--workload", "fill", "--objects", "9", "--force"]));
    assert_eq!(refilled["put"]["ops"], 9);
    assert_eq!(succeed(&["kv", "get", &store, "mine"]), b"kept");
    assert_eq!(served.end(Signal::SIGTERM), Some(0));
}

#[test]
fn a_benchmark_whose_server_dies_ends_with_the_reason_and_what_it_measured() {
    let scratch = Scratch::new("serve-bench-lost");
    let target = scratch.store("a.img");
    let mut served = Served::start(&target, scratch.path("kv.sock"));
    let store = format!("serve:{}", served.socket.display());
    succeed(&["kv", "bench", "--store", &store, "--workload", "fill", "--objects", "50"]);
    let words = ["kv", "bench", "--store", &store, "--workload", "get", "--runtime", "1h"];
    let running = adit(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let running = running.expect("adit runs");
    let before = served.client().stats().expect("told").0.gets;
    while served.client().stats().expect("told").0.gets < before + 100 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    served.end(Signal::SIGKILL);
    let output = running.wait_with_output().expect("it ends");
    let (told, report) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("connect again once 'adit kv serve' runs"), "{told}");
    assert!(report.contains("50 objects of 128KiB, 32 in flight, served at"), "{report}");
}
