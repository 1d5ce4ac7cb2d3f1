//! Tests `adit kv top` against a server that says what a test wants.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::kv::{Scratch, adit, fail, run, succeed, text};

/// Serves these bodies one after another, then the last one again; `None` hangs up.
fn serve(bodies: Vec<Option<String>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    thread::spawn(move || {
        for turn in 0.. {
            let (mut stream, _) = listener.accept().expect("a client");
            let Some(body) = &bodies[usize::min(turn, bodies.len() - 1)] else { continue };
            let mut head = BufReader::new(stream.try_clone().expect("a stream")).lines();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            // A client that is gone is no failure of the server.
            let _ = stream.write_all((head + body).as_bytes());
        }
    });
    url
}

fn metrics(gets: u32, hits: u32) -> Option<String> {
    Some(format!(
        "# TYPE adit_kv_gets_total counter\nadit_kv_gets_total {gets}\nadit_kv_get_hits_total {hits}\n\
         adit_kv_objects 5\nadit_kv_device_in_flight{{device=\"uring:kv.img\"}} 3\n"
    ))
}

#[test]
fn one_interval_is_shown_as_text_and_as_json() {
    let url = serve(vec![metrics(0, 0), metrics(100, 75)]);
    let shown = text(&succeed(&["kv", "top", &url, "--once", "--interval", "0.2"]));
    assert!(shown.contains("75.0 % of gets now") && shown.contains("uring:kv.img"), "{shown}");
    assert!(!shown.contains('\x1b'), "no terminal");
    let url = serve(vec![metrics(0, 0), metrics(100, 75)]);
    let shown = text(&succeed(&["kv", "top", &url, "--once", "--json", "--interval", "0.2"]));
    assert_eq!(shown.lines().count(), 1, "{shown}");
    let report: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(report["hit_share"], 0.75);
    let rate = report["gets_per_s"].as_f64().expect("a rate");
    assert!(rate > 0.0 && rate <= 500.0, "100 gets in 0.2 s or somewhat more: {rate}");
    assert_eq!(report["devices"][0]["in_flight"], 3.0);
}

#[test]
fn a_file_that_is_rewritten_is_a_source() {
    let scratch = Scratch::new("top");
    let path = scratch.path("adit.prom");
    fs::write(&path, metrics(10, 5).expect("a text")).expect("written");
    let path = path.to_str().expect("UTF-8");
    let shown = text(&succeed(&["kv", "top", path, "--once", "--interval", "0.1"]));
    assert!(shown.contains("5 objects") && shown.contains("50.0 % since the start"), "{shown}");
}

#[test]
fn what_cannot_be_shown_is_refused_with_a_reason() {
    let scratch = Scratch::new("top-bad");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    fail(&["kv", "top", &format!("http://{free}")], 1, "give the address of the server's metrics");
    fail(&["kv", "top", "localhost:8080"], 1, "or a URL such as http://localhost:8080/metrics");
    let url = serve(vec![Some("go_threads 7\n".to_owned())]);
    fail(&["kv", "top", &url], 1, "no metrics of a store");
    let other = scratch.path("other");
    fs::write(&other, "nothing of the kind\n").expect("written");
    fail(&["kv", "top", other.to_str().expect("UTF-8")], 1, "no metrics of a store");
    for (words, part) in [
        (["kv", "top", "https://localhost"], "use http://"),
        (["kv", "top", "-"], "give a URL or a file"),
    ] {
        let output = run(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
    let output = run(&["kv", "top", "x", "--interval", "0"]);
    assert!(text(&output.stderr).contains("0.1 to 3600 seconds"), "{}", text(&output.stderr));
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
}

#[test]
fn a_server_that_restarts_is_waited_for_and_counts_from_zero() {
    let url = serve(vec![metrics(1000, 900), None, metrics(40, 20), metrics(80, 50)]);
    let mut child = adit(&["kv", "top", &url, "--json", "--interval", "0.2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("adit runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut report = || -> Value {
        serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON")
    };
    let (first, second) = (report(), report());
    assert_eq!((&first["restarted"], &first["hit_share"]), (&Value::Bool(true), &0.5.into()));
    assert_eq!((&second["restarted"], &second["hit_share"]), (&Value::Bool(false), &0.75.into()));
    interrupt(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let mut told = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut told).expect("text");
    assert!(told.contains("trying again"), "{told}");
}

/// On a terminal, which `script` provides: the picture is redrawn in place, and Ctrl-C gives the terminal back.
#[test]
fn ctrl_c_gives_the_terminal_back() {
    let url = serve(vec![metrics(0, 0), metrics(100, 75)]);
    let command = format!(
        "stty cols 60 rows 5; exec {} kv top {url} --interval 0.1",
        env!("CARGO_BIN_EXE_adit")
    );
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs: it is part of util-linux");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = child.stdout.take().expect("piped");
    let (mut shown, mut room) = (String::new(), [0; 4096]);
    let until = Instant::now() + Duration::from_secs(60);
    while !shown.contains("75.0 %") {
        assert!(Instant::now() < until, "{shown:?}");
        let count = stdout.read(&mut room).expect("text");
        shown.push_str(&text(&room[..count]));
    }
    stdin.write_all(b"\x03").expect("Ctrl-C is typed");
    stdout.read_to_string(&mut shown).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{shown:?}");
    assert!(shown.contains("\x1b[?1049h\x1b[?25l"), "{shown:?}");
    assert!(shown.trim_end().ends_with("\x1b[?25h\x1b[?1049l"), "{shown:?}");
    assert!(!shown.contains("DEVICE"), "five rows hold no more: {shown:?}");
}
