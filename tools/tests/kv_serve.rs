//! Tests `adit kv serve`: several processes use one store, through shared memory.

#[path = "support/kv.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use adit_kvshare::{Client, ClientOptions, KvStore, PendingAnswer};
use adit_kvstore::Key;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::{Scratch, adit, fail, succeed};

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
