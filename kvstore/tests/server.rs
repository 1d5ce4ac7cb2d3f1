//! The example server, run as a process and queried by a real client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use ureq::Agent;

/// A file for a store, removed with the test.
struct Image(PathBuf);

impl Image {
    fn new() -> Image {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("adit-server-{}-{number}.img", std::process::id());
        Image(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Builds the examples and returns this one: `cargo test --test server` alone would run a stale one.
fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("this test");
        let profile = test.parent().and_then(Path::parent).expect("deps/ is in a profile's folder");
        // Not set if the tests were built elsewhere and run by hand.
        if let Some(cargo) = std::env::var_os("CARGO") {
            build(Path::new(&cargo), profile);
        }
        profile.join("examples")
    });
    built.join(name)
}

fn build(cargo: &Path, profile: &Path) {
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "adit-kvstore", "--examples"]);
    build.arg("--target-dir").arg(profile.parent().expect("it is in a target folder"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let built = build.output().expect("cargo runs");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "the examples do not build: {said}");
    // The workspace's checks build all crates with all that any of them asks of another; who embeds the store does not.
    assert!(!said.contains("warning"), "alone the crate has warnings: {said}");
}

struct Server {
    child: Child,
    url: String,
    agent: Agent,
    rest: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(image: &Image, arguments: &[&str]) -> Server {
        let mut command = Command::new(example("server"));
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        Server::running(command.arg(format!("uring:{}", image.0.display())))
    }

    fn running(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the example runs");
        let mut rest = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        rest.read_line(&mut line).expect("a line");
        let url = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        let config = Agent::config_builder().http_status_as_error(false).build();
        Server { child, url, agent: config.into(), rest }
    }

    /// Starts it with a configuration file only.
    fn configured(config: &Path) -> Server {
        let mut command = Command::new(example("server"));
        Server::running(command.arg("--format").arg("--config").arg(config))
    }

    fn formatted(image: &Image) -> Server {
        Server::start(image, &["--format", "--size-bytes", "134217728"])
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn put(&self, key: &str, body: &[u8]) -> u16 {
        let answer = self.agent.put(self.url(&format!("/objects/{key}"))).send(body);
        answer.expect("an answer").status().as_u16()
    }

    /// Returns the status, the range sent, and the body.
    fn get(&self, path: &str, range: Option<&str>) -> (u16, Option<String>, Vec<u8>) {
        let mut request = self.agent.get(self.url(path));
        if let Some(range) = range {
            request = request.header("Range", range);
        }
        let mut answer = request.call().expect("an answer");
        let sent = answer.headers().get("Content-Range");
        let sent = sent.map(|range| range.to_str().expect("text").to_owned());
        let body = answer.body_mut().with_config().limit(128 << 20).read_to_vec();
        (answer.status().as_u16(), sent, body.expect("a body"))
    }

    fn commit(&self) -> u16 {
        let answer = self.agent.post(self.url("/commit")).send_empty();
        answer.expect("an answer").status().as_u16()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill");
        assert!(sent.success());
    }

    /// Ends the server; returns its exit code and the rest of its output.
    fn end(mut self, signal: &str) -> (Option<i32>, String) {
        self.signal(signal);
        let status = self.child.wait().expect("it ends");
        let mut said = String::new();
        self.rest.read_to_string(&mut said).expect("text");
        (status.code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the contents of version `version` of an object.
fn body(key: u32, version: u32, len: usize) -> Vec<u8> {
    let stamp = u64::from(key) << 32 | u64::from(version);
    let word = |index: u64| (stamp ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
    (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
}

#[test]
fn requests_may_depend_on_the_version_that_is_there() {
    let image = Image::new();
    let server = Server::formatted(&image);
    let url = server.url("/objects/k");
    let put = |header: (&str, &str), body: &[u8]| {
        let answer = server.agent.put(&url).header(header.0, header.1).send(body);
        let answer = answer.expect("an answer");
        let tag = answer.headers().get("ETag").map(|tag| tag.to_str().expect("text").to_owned());
        (answer.status().as_u16(), tag)
    };
    let get = |headers: &[(&str, &str)]| {
        let request = server.agent.get(&url);
        let request =
            headers.iter().fold(request, |request, header| request.header(header.0, header.1));
        let mut answer = request.call().expect("an answer");
        (answer.status().as_u16(), answer.body_mut().read_to_vec().expect("a body"))
    };
    let (status, first) = put(("If-None-Match", "*"), b"the first");
    let first = first.expect("an ETag");
    assert_eq!((status, put(("If-None-Match", "*"), b"no")), (201, (412, None)));
    let (status, second) = put(("If-Match", &first), b"a second");
    let second = second.expect("an ETag");
    assert!(status == 201 && second != first, "{second}");
    assert_eq!(put(("If-Match", &first), b"no").0, 412);
    assert_eq!(put(("If-Match", "none"), b"no").0, 400);
    let head = server.agent.head(&url).call().expect("an answer");
    assert_eq!(head.headers()["ETag"].to_str().expect("text"), second);
    let range = ("Range", "bytes=2-3");
    assert_eq!(get(&[range, ("If-Range", &second)]), (206, b"se".to_vec()));
    assert_eq!(get(&[range, ("If-Range", &first)]), (200, b"a second".to_vec()), "all of it");
    assert_eq!(get(&[range, ("If-Match", &first)]).0, 412);
    assert_eq!(get(&[("If-Match", &second)]), (200, b"a second".to_vec()));
    let delete = |tag: &str| {
        let answer = server.agent.delete(&url).header("If-Match", tag).call();
        answer.expect("an answer").status().as_u16()
    };
    assert_eq!((delete(&first), delete(&second), delete(&second)), (412, 204, 412));
    assert_eq!((server.put("empty", b""), server.get("/objects/empty", None).2), (201, vec![]));
}

#[test]
fn objects_are_stored_given_back_measured_and_removed() {
    let image = Image::new();
    let server = Server::formatted(&image);
    let object = body(1, 1, 300_000);
    assert_eq!(server.put("a%2Fkey", &object), 201);
    let got = server.get("/objects/a%2Fkey", None);
    assert!(got == (200, None, object.clone()), "status {}", got.0);
    for (range, start, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=150000-160000", 150_000, 160_001),
        ("bytes=299999-", 299_999, 300_000),
        ("bytes=-5", 299_995, 300_000),
        ("bytes=7-999999", 7, 300_000),
    ] {
        let sent = Some(format!("bytes {start}-{}/300000", end - 1));
        let got = server.get("/objects/a%2Fkey", Some(range));
        assert_eq!((got.0, got.1), (206, sent), "{range}");
        assert!(got.2 == object[start..end], "{range}");
    }
    let behind = server.get("/objects/a%2Fkey", Some("bytes=300000-"));
    assert_eq!((behind.0, behind.1.as_deref()), (416, Some("bytes */300000")));
    let head = server.agent.head(server.url("/objects/a%2Fkey")).call().expect("an answer");
    assert_eq!(head.headers()["Content-Length"], "300000");
    let delete = || {
        let answer = server.agent.delete(server.url("/objects/a%2Fkey")).call();
        answer.expect("an answer").status().as_u16()
    };
    assert_eq!((delete(), delete()), (204, 404));
    assert_eq!(server.get("/objects/a%2Fkey", None).0, 404);
    let metrics = String::from_utf8(server.get("/metrics", None).2).expect("text");
    assert!(metrics.contains("\nadit_kv_puts_total 1\n"), "{metrics}");
    assert!(metrics.contains("\nadit_kv_copied_bytes_total 0\n"), "{metrics}");
    assert_eq!(server.get("/healthz", None), (200, None, b"ok\n".to_vec()));
}

#[test]
fn an_object_longer_than_the_pool_goes_through_it_in_pieces() {
    let image = Image::new();
    let server = Server::formatted(&image);
    let long = body(1, 1, (70 << 20) + 5);
    assert_eq!(server.put("long", &long), 201);
    let (status, _, read) = server.get("/objects/long", None);
    assert!(status == 200 && read == long, "{status}, {} bytes", read.len());
    let (from, to) = (1 << 20, 69 << 20);
    let (status, sent, read) =
        server.get("/objects/long", Some(&format!("bytes={from}-{}", to - 1)));
    assert_eq!((status, sent), (206, Some(format!("bytes {from}-{}/{}", to - 1, long.len()))));
    assert!(read == long[from..to], "the bytes of the range");
}

#[test]
fn what_cannot_be_is_refused_with_a_status() {
    let image = Image::new();
    let server = Server::formatted(&image);
    assert_eq!(server.get("/objects/", None).0, 400, "no key");
    assert_eq!(server.get(&format!("/objects/{}", "k".repeat(513)), None).0, 400, "too long");
    assert_eq!(server.get("/objects/a%zz", None).0, 400, "no hexadecimal");
    assert_eq!(server.get("/nothing", None).0, 404);
    let posted = server.agent.post(server.url("/objects/a")).send(&[1][..]).expect("an answer");
    assert_eq!(posted.status().as_u16(), 405);
    let other = Command::new(example("server"))
        .args(["--listen", "127.0.0.1:0"])
        .arg(format!("uring:{}", image.0.display()))
        .output()
        .expect("the example runs");
    let said = String::from_utf8(other.stderr).expect("text");
    assert!(said.contains("another process or handle has it open"), "{said}");
    let help = Command::new(example("server")).arg("--help").output().expect("the example runs");
    assert!(String::from_utf8(help.stdout).expect("text").contains("Examples:"));
}

/// Connects a client that sends this and then nothing.
fn stalled(server: &Server, words: &str) -> TcpStream {
    let address = server.url.strip_prefix("http://").expect("a URL");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(words.as_bytes()).expect("it reads");
    stream
}

#[test]
fn an_ambiguous_length_is_refused_and_ends_the_connection() {
    let image = Image::new();
    let server = Server::formatted(&image);
    let answers = |method: &str, lengths: &[&str]| {
        let lengths: String =
            lengths.iter().map(|length| format!("Content-Length: {length}\r\n")).collect();
        let last = "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";
        let words = format!("{method} HTTP/1.1\r\n{lengths}\r\n{last}");
        let mut told = String::new();
        stalled(&server, &words).read_to_string(&mut told).expect("it is closed");
        let lines = told.split("HTTP/1.1 ").skip(1);
        lines.map(|answer| answer[..3].to_owned()).collect::<Vec<_>>()
    };
    for method in ["GET /healthz", "PUT /objects/k", "GET /nothing"] {
        let none: [&[&str]; 6] =
            [&["abc"], &["+0"], &[""], &["0, 0"], &["18446744073709551616"], &["0", "7"]];
        for lengths in none {
            assert_eq!(answers(method, lengths), ["400"], "{method} {lengths:?}");
        }
    }
    assert_eq!(answers("GET /healthz", &["0", "0"]), ["200", "200"], "both say the same");
    assert_eq!(answers("PUT /objects/k", &[]), ["411", "200"]);
}

#[test]
fn clients_that_stall_hold_up_no_others_and_are_let_go() {
    let image = Image::new();
    let arguments = ["--format", "--size-bytes", "134217728", "--timeout-s", "10"];
    let server = Server::start(&image, &[&arguments[..], &["--connections", "13"]].concat());
    // Half a head, half a body, and an answer left unread: together they hold 48 of the store's 64 MiB of memory.
    let (large, length) = (body(9, 1, 6 << 20), 6 << 20);
    assert_eq!(server.put("large", &large), 201);
    let half = format!("PUT /objects/x HTTP/1.1\r\nContent-Length: {length}\r\n\r\nhalf");
    let get = "GET /objects/large HTTP/1.1\r\n\r\n";
    let mut clients: Vec<TcpStream> = Vec::new();
    for words in ["PUT /objects/x HT", &half, get] {
        clients.extend((0..4).map(|_| stalled(&server, words)));
    }
    for key in 0..10 {
        assert_eq!(server.put(&key.to_string(), &body(key, 1, 20_000)), 201);
        let got = server.get(&format!("/objects/{key}"), None);
        assert!(got.2 == body(key, 1, 20_000), "object {key}");
    }
    for client in &mut clients[..8] {
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("it is closed");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    assert_eq!(server.get("/objects/x", None).0, 404, "half a body is no object");
    drop(clients);
    assert_eq!(server.end("TERM").0, Some(0));
}

#[test]
fn ctrl_c_closes_it_and_all_comes_back() {
    let image = Image::new();
    let server = Server::formatted(&image);
    for key in 0..40 {
        assert_eq!(server.put(&key.to_string(), &body(key, 1, 20_000)), 201);
    }
    let (code, said) = server.end("INT");
    assert_eq!((code, said.as_str()), (Some(0), "closed with 40 objects\n"));
    let server = Server::start(&image, &[]);
    for key in 0..40 {
        let got = server.get(&format!("/objects/{key}"), None);
        assert_eq!((got.0, got.2 == body(key, 1, 20_000)), (200, true), "object {key}");
    }
    assert_eq!(server.end("TERM").0, Some(0));
}

/// Writes a configuration for a test.
fn written(image: &Image, text: &str) -> PathBuf {
    let path = image.0.with_extension("toml");
    std::fs::write(&path, text).expect("written");
    path
}

#[test]
fn a_configuration_sets_what_flags_do_not() {
    let image = Image::new();
    let config = written(
        &image,
        &format!(
            "listen = '127.0.0.1:0'\n[store]\ntargets = ['uring:{}']\npool_bytes = 33_554_432\n\
             [store.format]\nfile_bytes = 134_217_728\nshards = 2\n\
             [layouts.tiny]\nlayers = 2\ntensors_per_layer = 2\nkv_heads = 1\nhead_dim = 64\n\
             dtype = 'bf16'\ntokens = 32\nslots = 4\n",
            image.0.display()
        ),
    );
    let server = Server::configured(&config);
    let metrics = String::from_utf8(server.get("/metrics", None).2).expect("text");
    assert!(metrics.contains("\nadit_kv_pool_bytes{pool=\"0\"} 33554432\n"), "{metrics}");
    assert!(metrics.contains("\nadit_kv_mailbox_capacity{thread=\"0\"} 1024\n"), "{metrics}");
    let block = body(3, 1, 4 * 4096);
    let put = |layout: &str| {
        let put = server.agent.put(server.url("/objects/block")).header("X-Layout", layout);
        put.send(&block[..]).expect("an answer").status().as_u16()
    };
    assert_eq!((put("tiny"), put("large")), (201, 400));
    let short =
        server.agent.put(server.url("/objects/short")).header("X-Layout", "tiny").send(&block[1..]);
    assert_eq!(
        short.expect("an answer").status().as_u16(),
        416,
        "a block has the bytes of all its tensors"
    );
    assert_eq!(server.get("/objects/block", None), (200, None, block));
    drop(server);
    let server = Server::start(
        &image,
        &["--config", config.to_str().expect("UTF-8"), "--durability", "volatile"],
    );
    assert_eq!(server.get("/objects/block", None).0, 404, "a flag overrides the file");
    std::fs::remove_file(config).expect("it was written");
}

/// Each setting of the sample, also those commented out, is one that the server knows.
#[test]
fn the_sample_configuration_is_one() {
    let image = Image::new();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/server/server.toml");
    let server = Server::start(
        &image,
        &["--config", sample.to_str().expect("UTF-8"), "--format", "--size-bytes", "134217728"],
    );
    assert_eq!(server.put("key", b"value"), 201);
    drop(server);
    let text = std::fs::read_to_string(sample).expect("the sample");
    let setting = |line: &str| {
        let bare = line.strip_prefix("# ").filter(|rest| {
            rest.split_once(" = ")
                .is_some_and(|(name, _)| name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()))
        });
        bare.unwrap_or(line).to_owned()
    };
    let lines: Vec<String> = text.lines().map(setting).collect();
    let settings = lines.iter().filter(|line| line.contains(" = ")).count();
    assert!(settings > 30, "{settings} settings");
    let here = format!("uring:{}", image.0.display());
    let config = written(&image, &lines.join("\n").replace("uring:/var/lib/adit/kv.img", &here));
    let told = refused(&config);
    assert!(told.contains("a store with a lifetime"), "only a drive of vfio: has one: {told}");
}

/// Returns why the server does not start with this configuration.
fn refused(config: &Path) -> String {
    let output = Command::new(example("server"))
        .arg("--config")
        .arg(config)
        .output()
        .expect("the example runs");
    assert_eq!(output.status.code(), Some(1));
    std::fs::remove_file(config).expect("it was written");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_wrong_configuration_is_refused_with_its_line() {
    let image = Image::new();
    for (text, part) in [
        ("listen = '127.0.0.1:0'\nport = 80\n", "line 2, column 1"),
        ("port = 80\n", "expected one of `listen`"),
        ("listen = 'here'\n", "line 1, column"),
        ("[store]\n\ndurability = 'fast'\n", "line 3, column"),
        ("[layouts.a]\nlayers = 'many'\n", "line 2, column"),
        ("[store]\n", "set targets in [store]"),
        ("[store]\ntargets = ['null:']\npool_bytes = 4096\n", "give at least 1048576 bytes"),
    ] {
        let told = refused(&written(&image, text));
        assert!(told.contains(part), "{text}: {told}");
    }
    let output = Command::new(example("server"))
        .args(["--config", "/no/such/file"])
        .output()
        .expect("it runs");
    assert!(String::from_utf8(output.stderr).expect("text").contains("/no/such/file: "));
}

/// Killed while clients write: committed objects are there, and every object is a version that was put.
#[test]
fn after_kill_9_nothing_is_wrong_and_what_was_committed_is_there() {
    let image = Image::new();
    for life in 0..3u32 {
        let server = if life == 0 { Server::formatted(&image) } else { Server::start(&image, &[]) };
        let (first, last) = (life * 10 + 1, life * 10 + 9);
        for key in 0..30 {
            assert_eq!(server.put(&key.to_string(), &body(key, first, 30_000)), 201);
        }
        assert_eq!(server.commit(), 204);
        let agent = server.agent.clone();
        let url = server.url("/objects/");
        let writer = std::thread::spawn(move || {
            let versions =
                (first + 1..=last).flat_map(|version| (0..30).map(move |k| (k, version)));
            let mut sent = 0;
            for (key, version) in versions {
                let put = agent.put(format!("{url}{key}")).send(&body(key, version, 30_000)[..]);
                match put {
                    Ok(_) => sent += 1,
                    // The server was killed.
                    Err(_) => break,
                }
            }
            sent
        });
        while !writer.is_finished() && server.get("/metrics", None).2.is_empty() {}
        let (code, _) = server.end("KILL");
        let sent = writer.join().expect("no panic");
        assert_eq!(code, None, "killed after {sent} more puts");
        let server = Server::start(&image, &[]);
        for key in 0..30 {
            let (status, _, got) = server.get(&format!("/objects/{key}"), None);
            assert_eq!(status, 200, "object {key} was committed in life {life}");
            let is_version = |version| got == body(key, version, 30_000);
            assert!((first..=last).any(is_version), "object {key} is none that was put");
        }
        assert_eq!(server.end("TERM").0, Some(0));
    }
}

#[test]
fn an_async_server_on_one_thread_serves_more_clients_than_it_has_memory_for() {
    let image = Image::new();
    let output = Command::new(example("tokio"))
        .arg(format!("uring:{}", image.0.display()))
        .output()
        .expect("the example runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said, "served 1000 of 1000 clients\nclosed with 1000 objects\n");
}
