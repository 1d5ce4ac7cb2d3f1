//! Tests `adit kv serve`: several processes use one store, through shared memory.

#[path = "support/kv.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use adit_kvshare::{Client, ClientOptions};
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
        let path = socket.to_str().expect("text").to_owned();
        let words = ["kv", "serve", "--store", target, "--socket", &path, "--json"];
        let mut child = adit(&words).stdout(Stdio::piped()).spawn().expect("adit runs");
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
