//! The store's part of the demo: a killed process, and a prefix of KV blocks that survives.
//!
//! A second adit process puts the blocks of a model and is killed while it puts more. This one opens the store,
//! restores the committed prefix layer by layer, and compares every byte.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use adit_driver::Target;
use adit_kvstore::{FormatStore, Store};

use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use adit_kv::{Blocks, Session};
use adit_load::Latency;

const MODEL: &str = "llama-3-8b";
/// Size of the store's file: room for the prefix and later blocks.
const FILE_SIZE: &str = "1G";
/// Blocks of 16 tokens: a prefix of 1024 tokens.
const PREFIX_BLOCKS: u64 = 64;
/// Time between the second process's commit and its kill.
const UNTIL_KILLED: Duration = Duration::from_millis(300);
/// Sequences to put after the prefix: more than there is time for.
const SEQUENCES_MORE: u64 = 6;

/// Runs this part and describes the result.
///
/// # Errors
/// When a byte differs from what was put, which is a bug of ours; when there is no room for the file.
pub(super) fn run(interrupt: &Interrupt) -> Result<String> {
    let file = Scratch::new();
    let text = format!("soft:file={},size={FILE_SIZE},lba=4096", file.0.display());
    let target: Target = text.parse()?;
    Store::format(&FormatStore {
        label: "adit demo".to_owned(),
        overwrite: true,
        ..FormatStore::new([target.clone()])
    })?;
    let said = put_and_kill(&text)?;
    if interrupt.requested() {
        return Err(Failure::interrupted());
    }
    restore(target, &said, interrupt)
}

/// A file that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(std::env::temp_dir().join(format!("adit-demo-{}.img", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been created.
        let _ = fs::remove_file(&self.0);
    }
}

/// A process that is killed on drop.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a second process put blocks, kills it with SIGKILL, and returns its output.
fn put_and_kill(target: &str) -> Result<String> {
    let failed = |why: std::io::Error| Failure::failed(format!("the second process: {why}"));
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["demo", "--put-into", target]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut victim = Victim(command.spawn().map_err(failed)?);
    let mut said = String::new();
    let output = victim.0.stdout.take().expect("it is a pipe");
    BufReader::new(output).read_line(&mut said).map_err(failed)?;
    if said.is_empty() {
        return Err(Failure::failed("the second process ended before it had put the prefix"));
    }
    std::thread::sleep(UNTIL_KILLED);
    drop(victim);
    Ok(said)
}

/// Acts as the second process: puts the prefix, commits, reports that, and puts more until it is killed.
///
/// # Errors
/// When it fails.
pub(super) fn put_into(target: &Target) -> Result<()> {
    let mut session = Session::open(vec![target.clone()])?;
    let mut blocks = Blocks::define(&mut session, Blocks::layout(MODEL)?)?;
    let mut bytes = 0;
    let begun = Instant::now();
    blocks.put(&mut session, 0, PREFIX_BLOCKS, &mut |moved| {
        bytes += moved.bytes;
        Ok(())
    })?;
    session.commit()?;
    let rate = human::bytes(bytes as f64 / begun.elapsed().as_secs_f64());
    let size = human::capacity(bytes);
    let said =
        format!("{PREFIX_BLOCKS} KV blocks of {MODEL}, {size}, put at {rate}/s and committed\n");
    let written = std::io::stdout().write_all(said.as_bytes());
    written.map_err(|why| Failure::failed(format!("standard output: {why}")))?;
    for sequence in 1..=SEQUENCES_MORE {
        blocks.put(&mut session, sequence, PREFIX_BLOCKS, &mut |_| Ok(()))?;
    }
    Ok(())
}

/// Opens the store and restores the prefix.
fn restore(target: Target, said: &str, interrupt: &Interrupt) -> Result<String> {
    let begun = Instant::now();
    let mut session = Session::open(vec![target])?;
    let opened = begun.elapsed();
    let mut objects = 0u64;
    session.scan(&[], &mut |_| {
        objects += 1;
        Ok(())
    })?;
    let mut blocks = Blocks::define(&mut session, Blocks::layout(MODEL)?)?;
    let (mut latency, mut bytes) = (Latency::new(), 0);
    for layer in 0..blocks.layers() {
        if interrupt.requested() {
            return Err(Failure::interrupted());
        }
        let moved = blocks.restore(&mut session, 0, PREFIX_BLOCKS, layer)?;
        latency.record(moved.took.as_nanos() as u64);
        bytes += moved.bytes;
    }
    let stats = session.local().stats();
    session.close()?;
    let rate = bytes as f64 * 1e9 / (latency.mean_ns() * latency.count() as f64);
    let rows = [
        ("put", said.trim_end().to_owned()),
        ("killed", "with SIGKILL, while it was putting more".to_owned()),
        (
            "reopened",
            format!("in {}, with {objects} blocks", human::latency(opened.as_nanos() as u64)),
        ),
        (
            "restored",
            format!(
                "{} layers of the prefix, {} at {}/s, every byte as it was put",
                latency.count(),
                human::capacity(bytes),
                human::bytes(rate)
            ),
        ),
        (
            "a layer",
            format!(
                "p50 {}, p99 {}, {:.1} commands",
                human::latency(latency.percentile_ns(50.0)),
                human::latency(latency.percentile_ns(99.0)),
                stats.commands_read as f64 / latency.count() as f64
            ),
        ),
    ];
    Ok(rows.iter().map(|(name, value)| format!("{name:<22} {value}\n")).collect())
}
