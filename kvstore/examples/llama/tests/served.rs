//! The server as its clients see it: llama.cpp computes a prompt once, and never again, whatever ends the server.
//!
//! `cargo test --release -- --nocapture` prints the times.

mod tiny;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// A folder with a model, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("adit-llama-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        tiny::write(&path.join("tiny.gguf"), 1).expect("a model");
        Folder(path)
    }

    fn store(&self) -> PathBuf {
        self.0.join("kv.img")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("it was made");
    }
}

/// A running server; killed when dropped.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(folder: &Folder, model: &Path, more: &[&str]) -> Server {
        let mut process = Command::new(env!("CARGO_BIN_EXE_adit-llama"))
            // llama.cpp's threads spin: more of them than free cores wait for each other.
            .args([
                "--threads",
                "1",
                "--listen",
                "127.0.0.1:0",
                "--store",
                &format!("uring:{}", folder.store().display()),
            ])
            .arg("--model")
            .arg(model)
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let out = process.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on http://").expect("an address");
        Server { address: address.to_owned(), process }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status =
            head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, serde_json::from_str(body).expect("JSON"))
    }

    fn complete(&self, prompt: &[i32]) -> Value {
        let body = json!({ "prompt": prompt, "max_tokens": 24 }).to_string();
        let (status, answer) = self.send("POST", "/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Sends a signal that ends it, and waits.
    fn end(mut self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
        self.process.wait().expect("it ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn prompt(tokens: i32, seed: i32) -> Vec<i32> {
    (0..tokens).map(|at| 3 + (at * 7919 + seed * 104_729) % 300).collect()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

fn tokens(answer: &Value) -> &Value {
    let tokens = &answer["choices"][0]["tokens"];
    assert_eq!(tokens.as_array().map(Vec::len), Some(24), "{answer}");
    tokens
}

#[test]
fn a_prompt_is_computed_once_and_restored_after_a_restart() {
    let folder = Folder::new("restart");
    let model = folder.0.join("tiny.gguf");
    let server = Server::start(&folder, &model, &["--format", "256M"]);
    let prompt = prompt(1000, 1);
    let computed = server.complete(&prompt);
    assert_eq!(cached(&computed), 0);
    let again = server.complete(&prompt);
    assert_eq!((cached(&again), tokens(&again)), (999, tokens(&computed)));
    server.end("-INT");
    let server = Server::start(&folder, &model, &[]);
    let restored = server.complete(&prompt);
    assert_eq!((cached(&restored), tokens(&restored)), (999, tokens(&computed)));
    println!("computed: {}\nrestored: {}", computed["timings"], restored["timings"]);
    // The next turn of the conversation, and a prompt that only begins alike.
    let answer: Vec<i32> = serde_json::from_value(tokens(&computed).clone()).expect("tokens");
    let next = [prompt.clone(), answer, self::prompt(100, 2)].concat();
    assert_eq!(cached(&server.complete(&next)), 1008);
    let other = [&prompt[..300], &self::prompt(100, 3)[..]].concat();
    assert_eq!(cached(&server.complete(&other)), 256);
}

#[test]
fn a_killed_server_loses_prompts_and_never_tokens() {
    let folder = Folder::new("killed");
    let model = folder.0.join("tiny.gguf");
    let server = Server::start(&folder, &model, &["--format", "256M"]);
    let prompts: Vec<_> = (0..5).map(|seed| prompt(200 + 50 * seed, seed)).collect();
    let computed: Vec<_> = prompts.iter().map(|prompt| server.complete(prompt)).collect();
    server.end("-KILL");
    let server = Server::start(&folder, &model, &[]);
    for (prompt, computed) in prompts.iter().zip(&computed) {
        assert_eq!(tokens(&server.complete(prompt)), tokens(computed));
    }
}

#[test]
fn damage_is_a_miss_and_another_model_shares_nothing() {
    let folder = Folder::new("damage");
    let model = folder.0.join("tiny.gguf");
    let server = Server::start(&folder, &model, &["--format", "256M"]);
    let prompt = prompt(200, 4);
    let computed = server.complete(&prompt);
    server.end("-TERM");
    let other = folder.0.join("other.gguf");
    tiny::write(&other, 2).expect("a model");
    let server = Server::start(&folder, &other, &[]);
    let differs = server.complete(&prompt);
    assert_eq!(cached(&differs), 0);
    assert_ne!(differs["choices"][0]["tokens"], computed["choices"][0]["tokens"]);
    server.end("-TERM");
    let mut bytes = std::fs::read(folder.store()).expect("the store");
    let damaged = damage(&mut bytes);
    assert!(damaged > 100, "{damaged} pages have data");
    std::fs::write(folder.store(), bytes).expect("written");
    let server = Server::start(&folder, &model, &[]);
    let recomputed = server.complete(&prompt);
    assert_eq!((cached(&recomputed), tokens(&recomputed)), (0, tokens(&computed)));
}

/// Flips a bit in the middle of pages that are full of numbers, unlike those of the journal; returns how many.
fn damage(bytes: &mut [u8]) -> usize {
    let mut damaged = 0;
    for page in bytes.chunks_exact_mut(4096) {
        let differing = page.iter().collect::<HashSet<_>>().len();
        if differing > 200 {
            page[2000] ^= 1;
            damaged += 1;
        }
    }
    damaged
}

#[test]
fn wrong_requests_are_told_what_to_do() {
    let folder = Folder::new("wrong");
    let server = Server::start(&folder, &folder.0.join("tiny.gguf"), &["--format", "64M"]);
    let message = |body: &str| {
        let (status, answer) = server.send("POST", "/v1/completions", body);
        (status, answer["error"]["message"].as_str().expect("a message").to_owned())
    };
    for (body, says) in [
        (r#"{"prompt": []}"#, "at least one token"),
        (r#"{"prompt": [1, 320]}"#, "0 to 319"),
        (r#"{"prompt": "a", "max_tokens": 5000}"#, "--context"),
        (r#"{"prompt": "a", "temperature": -1}"#, "give 0 to 2"),
        (r#"{"prompt": "a", "stream": true}"#, "stream"),
        ("{", "EOF"),
    ] {
        let (status, message) = message(body);
        assert!(status == 400 && message.contains(says), "{body}: {status} {message}");
    }
    assert_eq!(server.send("GET", "/v1/models", "").1["data"][0]["id"], "tiny");
    assert_eq!(server.send("GET", "/", "").0, 404);
}
