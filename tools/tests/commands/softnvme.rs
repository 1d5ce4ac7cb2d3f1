//! Tests `adit softnvme` as users see it: output, refusals, exit codes, and survival of misbehaving clients.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::kv::{Scratch, run, text};
use crate::support::softnvme::{Softnvme, kill};

/// Returns the exit code and the one-line message of a server that cannot start.
fn refusal(words: &[&str]) -> (Option<i32>, String) {
    let ended = run(&[&["softnvme"], words].concat());
    assert_eq!(text(&ended.stdout), "", "nothing is served");
    let said = text(&ended.stderr);
    assert!(said.starts_with("adit: ") && said.lines().count() == 1, "{said}");
    (ended.status.code(), said)
}

fn refused(words: &[&str], code: i32, parts: &[&str]) {
    let (ended, said) = refusal(words);
    assert_eq!(ended, Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "'{part}' is missing: {said}");
    }
}

fn identify(server: &Softnvme) {
    let ended = run(&["identify", &server.target()]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
}

/// Runs `adit bench` for a minute, unless it is ended earlier.
fn load(server: &Softnvme) -> Child {
    let filename = format!("--filename={}", server.target());
    let words = ["--rw=randrw", "--bs=4k", "--iodepth=32", "--time_based", "--runtime=60"];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_adit"));
    bench.arg("bench").arg(filename).args(words);
    bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("adit runs")
}

#[test]
fn a_client_hands_over_no_more_memory_than_the_server_takes() {
    let scratch = Scratch::new("softnvme");
    let folder = scratch.path("drive");
    let server = Softnvme::start(&folder, &["--media", "mem=8M", "--memory", "4k"]);
    let ended = run(&["identify", &server.target()]);
    let said = text(&ended.stderr);
    assert!(!ended.status.success() && said.contains("DMA"), "{said}");
    let (code, _, complaints) = server.end("TERM");
    assert_eq!(code, Some(0));
    assert!(complaints.contains("set --memory"), "{complaints}");
}

#[test]
fn it_says_when_it_is_ready_and_who_comes_and_goes() {
    let scratch = Scratch::new("softnvme");
    let folder = scratch.path("drive");
    let mut server = Softnvme::start(&folder, &["--media", "mem=8M"]);
    let expected = format!(
        "serving soft:mem=8M at {0}/cntrl; attach with: adit identify vfio-user:{0}/cntrl\n",
        folder.display()
    );
    assert_eq!(server.ready, expected);
    identify(&server);
    assert_eq!(server.line(), "a client came\n");
    assert!(server.line().starts_with("the client is gone: it closed the connection"));
    let (code, out, complaints) = server.end("TERM");
    assert_eq!((code, out.as_str(), complaints.as_str()), (Some(0), "", ""));
    assert!(!folder.exists(), "the socket and the folder that it made are gone");
}

#[test]
fn programs_read_json() {
    let scratch = Scratch::new("softnvme");
    let mut server = Softnvme::start(&scratch.path("drive"), &["--media", "null", "--json"]);
    let ready: serde_json::Value = serde_json::from_str(&server.ready).expect("JSON");
    assert_eq!((&ready["event"], &ready["media"]), (&"ready".into(), &"null".into()));
    assert_eq!(ready["target"].as_str(), Some(server.target().as_str()));
    identify(&server);
    for event in ["client_came", "client_gone"] {
        let line: serde_json::Value = serde_json::from_str(&server.line()).expect("JSON");
        assert_eq!(line["event"], event);
    }
}

#[test]
fn it_tells_how_long_the_device_waited_for_a_client() {
    let scratch = Scratch::new("softnvme");
    let words = ["--media", "mem=8M", "--idle-gaps", "--json"];
    let mut server = Softnvme::start(&scratch.path("drive"), &words);
    let filename = format!("--filename={}", server.target());
    // Eight bursts of four writes, each after the last burst is done.
    let paced = ["--rw=write", "--bs=4k", "--iodepth=4", "--size=128k"];
    let batches = ["--iodepth_batch=4", "--iodepth_batch_complete_min=4", "--thinktime=2ms"];
    let bench =
        run(&[&["bench", &filename], &paced[..], &batches[..], &["--thinktime_blocks=4"]].concat());
    assert!(bench.status.success(), "{}", text(&bench.stderr));
    let event = |line: String| serde_json::from_str::<serde_json::Value>(&line).expect("JSON");
    assert_eq!(event(server.line())["event"], "client_came");
    let idled = event(server.line());
    assert_eq!(idled["event"], "idle_gaps");
    let figure = |name: &str| idled[name].as_u64().expect("a number");
    assert!(figure("commands") >= 32, "{idled}");
    let pauses = 7 * 2_000_000;
    assert!(figure("gaps") >= 7 && figure("idle_ns") >= pauses, "{idled}");
    assert!(figure("longest_ns") >= 2_000_000 && figure("p50_ns") <= figure("p99_ns"), "{idled}");
    assert!(figure("span_ns") >= figure("idle_ns"), "{idled}");
    assert_eq!(event(server.line())["event"], "client_gone");
}

#[test]
fn an_interrupt_leaves_the_client_and_keeps_the_files_data() {
    let scratch = Scratch::new("softnvme");
    let (folder, file) = (scratch.path("drive"), scratch.path("disk.img"));
    fs::create_dir(&folder).expect("folder");
    let media = format!("file={}", file.display());
    let words = ["--media", &media, "--size", "8M", "--lba", "4096"];
    let server = Softnvme::start(&folder, &words);
    let filename = format!("--filename={}", server.target());
    let write =
        run(&["bench", &filename, "--rw=write", "--bs=64k", "--size=4M", "--verify=crc32c"]);
    assert!(write.status.success(), "{}", text(&write.stderr));
    let mut busy = load(&server);
    thread::sleep(Duration::from_millis(300));
    let (code, out, complaints) = server.end("INT");
    assert_eq!((code, complaints.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("the server ends"), "{out}");
    assert!(folder.is_dir() && !folder.join("cntrl").exists(), "the folder was there before");
    assert_eq!(fs::metadata(&file).expect("the file").len(), 8 << 20);
    busy.kill().expect("killed");
    busy.wait().expect("a child");
    // The next server finds the file unchanged, including its size.
    let again = Softnvme::start(&folder, &["--media", &media, "--lba", "4096"]);
    identify(&again);
}

#[test]
fn a_killed_client_under_load_makes_room_for_the_next() {
    let scratch = Scratch::new("softnvme");
    let mut server = Softnvme::start(&scratch.path("drive"), &["--media", "mem=64M"]);
    for _ in 0..5 {
        let mut bench = load(&server);
        assert_eq!(server.line(), "a client came\n");
        thread::sleep(Duration::from_millis(200));
        kill("KILL", bench.id());
        bench.wait().expect("a child");
        assert!(server.line().contains("gone"));
    }
    let filename = format!("--filename={}", server.target());
    let verified = run(&[
        "bench",
        &filename,
        "--rw=randrw",
        "--bs=4k",
        "--iodepth=16",
        "--size=4M",
        "--verify=crc32c",
    ]);
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let (code, _, complaints) = server.end("TERM");
    assert_eq!((code, complaints.as_str()), (Some(0), ""));
}

#[test]
fn a_second_client_is_told_why_it_cannot_have_the_device() {
    let scratch = Scratch::new("softnvme");
    let mut server = Softnvme::start(&scratch.path("drive"), &["--media", "mem=64M"]);
    let mut first = load(&server);
    assert_eq!(server.line(), "a client came\n");
    let second = run(&["identify", &server.target()]);
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains("busy") && said.contains("no other client"), "{said}");
    assert!(server.line().contains("one at a time"));
    first.kill().expect("killed");
    first.wait().expect("a child");
    assert!(server.line().contains("gone"));
    identify(&server);
}

#[test]
fn nonsense_at_the_socket_is_logged_and_survived() {
    let scratch = Scratch::new("softnvme");
    let folder = scratch.path("drive");
    let server = Softnvme::start(&folder, &["--media", "mem=8M"]);
    let mut stream = UnixStream::connect(folder.join("cntrl")).expect("connected");
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    assert_eq!(reply.len(), 16, "an error and the end");
    // Get Info before the version.
    let mut stream = UnixStream::connect(folder.join("cntrl")).expect("connected");
    let message = [1u32 | 4 << 16, 32, 0, 0, 16, 0, 0, 0].map(u32::to_le_bytes).concat();
    std::io::Write::write_all(&mut stream, &message).expect("sent");
    let _ = stream.read_to_end(&mut reply);
    identify(&server);
    let (code, _, complaints) = server.end("TERM");
    assert_eq!(code, Some(0));
    assert!(complaints.contains("rejected a client: its message has"), "{complaints}");
    assert!(
        complaints.contains("refused DeviceGetInfo: the first request must be the version"),
        "{complaints}"
    );
}

#[test]
fn a_socket_in_use_is_refused_and_a_dead_ones_is_replaced() {
    let scratch = Scratch::new("softnvme");
    let folder = scratch.path("drive");
    let socket = folder.to_str().expect("UTF-8").to_owned();
    let server = Softnvme::start(&folder, &["--media", "null"]);
    refused(&["--socket", &socket, "--media", "null"], 1, &["another server serves here"]);
    identify(&server);
    kill("KILL", server.id());
    drop(server);
    assert!(folder.join("cntrl").exists(), "killed servers leave their socket");
    identify(&Softnvme::start(&folder, &["--media", "null"]));
}

#[test]
fn sockets_that_cannot_be_made_are_refused_with_a_way_out() {
    let scratch = Scratch::new("softnvme");
    let path = |name: &str| scratch.path(name).to_str().expect("UTF-8").to_owned();
    let at = |socket: &str, code, parts: &[&str]| {
        refused(&["--socket", socket, "--media", "null"], code, parts);
    };
    fs::create_dir(path("taken")).expect("folder");
    fs::write(path("taken/cntrl"), "precious").expect("file");
    at(&path("taken"), 1, &["not a socket has this name", "name another folder"]);
    assert_eq!(fs::read(path("taken/cntrl")).expect("still there"), b"precious");
    fs::write(path("file"), "").expect("file");
    at(&path("file"), 1, &["no folder"]);
    at(&path("not/there/yet"), 1, &["No such file", "name a folder"]);
    let long = path(&"x".repeat(108));
    at(&long, 2, &["at most 107", "shorter"]);
    assert!(!fs::exists(&long).expect("looked"), "nothing is left of it");
    // A listener of another kind that never answers counts as a server too.
    fs::create_dir(path("other")).expect("folder");
    let _other = UnixListener::bind(path("other/cntrl")).expect("socket");
    at(&path("other"), 1, &["another server serves here"]);
}

#[test]
fn media_that_cannot_be_is_refused_with_a_way_out() {
    let scratch = Scratch::new("softnvme");
    let drive = scratch.path("drive");
    let socket = drive.to_str().expect("UTF-8");
    let with = |words: &[&str], code, parts: &[&str]| {
        refused(&[&["--socket", socket], words].concat(), code, parts);
        assert!(!drive.exists(), "nothing is left of it");
    };
    with(&["--media", "mem=2k"], 2, &["too few", "namespaces of 4096 or more"]);
    with(&["--media", "memm=1G"], 2, &["did you mean 'mem'"]);
    with(&["--media", "mem=1M", "--mdts", "99"], 2, &["mdts", "outside 0 to 15"]);
    with(&["--media", "mem=1M", "--lba", "520"], 2, &["neither 512 nor 4096"]);
    with(&["--media", "mem=1M", "--set", "mtds=5"], 2, &["did you mean 'mdts'"]);
    with(&["--media", "mem=1M", "--set", "mdts"], 2, &["NAME=VALUE"]);
    with(&["--media", "mem=1M", "--doorbells", "loud"], 2, &["mapped", "messages"]);
    with(&["--media", "mem=1M", "--core", "9999"], 2, &["--core 9999", "the cores are"]);
    let absent = format!("file={}", scratch.path("absent.img").display());
    with(&["--media", &absent], 1, &["No such file", "check the path"]);
    let folder = format!("file={}", std::env::temp_dir().display());
    with(&["--media", &folder, "--size", "1M"], 1, &["Is a directory"]);
    let file = scratch.path("empty.img");
    fs::write(&file, "").expect("file");
    let empty = format!("file={}", file.display());
    with(&["--media", &empty], 2, &["empty", "size=4G"]);
    with(&["--media", &empty, "--size", "8000000T"], 1, &["make it longer"]);
}

#[test]
fn media_that_all_may_read_are_closed_to_others() {
    let scratch = Scratch::new("softnvme");
    let file = scratch.path("disk.img");
    fs::write(&file, [0; 1 << 16]).expect("file");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("rights");
    let media = format!("file={}", file.display());
    let server = Softnvme::start(&scratch.path("drive"), &["--media", &media]);
    assert_eq!(fs::metadata(&file).expect("it is there").mode() & 0o777, 0o640);
    let (code, _, complaints) = server.end("TERM");
    assert_eq!(code, Some(0));
    assert!(complaints.contains("any user could read it, and lock it"), "{complaints}");
}

#[test]
fn media_that_may_outgrow_its_file_system_is_served_with_a_warning() {
    let scratch = Scratch::new("softnvme");
    let media = format!("file={}", scratch.path("disk.img").display());
    let server = Softnvme::start(&scratch.path("drive"), &["--media", &media, "--size", "4T"]);
    let (code, _, complaints) = server.end("TERM");
    assert_eq!(code, Some(0));
    assert!(
        complaints.contains("may grow by") && complaints.contains("Write Fault"),
        "{complaints}"
    );
}

#[test]
fn one_file_is_one_servers() {
    let scratch = Scratch::new("softnvme");
    let media = format!("file={}", scratch.path("disk.img").display());
    let _server = Softnvme::start(&scratch.path("first"), &["--media", &media, "--size", "8M"]);
    let second = scratch.path("second");
    let words = ["--socket", second.to_str().expect("UTF-8"), "--media", &media];
    refused(&words, 1, &["another server has it"]);
}

#[test]
fn a_server_without_a_client_costs_nothing() {
    let scratch = Scratch::new("softnvme");
    let mut server = Softnvme::start(&scratch.path("drive"), &["--media", "mem=8M"]);
    identify(&server);
    server.line();
    server.line();
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", server.id())).expect("a process");
        let after_name = stat.rsplit(')').next().expect("fields").to_owned();
        let fields: Vec<u64> =
            after_name.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        // utime and stime, see proc(5); the state before them is no number.
        fields[10] + fields[11]
    };
    let (before, started) = (ticks(), Instant::now());
    thread::sleep(Duration::from_secs(1));
    // Out of a hundred ticks a second if it were spinning.
    let used = ticks() - before;
    assert!(used <= started.elapsed().as_secs() * 20, "{used} ticks in {:?}", started.elapsed());
}
