//! The store's part of the demo: a killed process, and a prefix of KV blocks that survives.
//!
//! A second process puts the blocks of a model and is killed while it puts more. This one opens the store, restores
//! the committed prefix layer by layer, and compares every byte.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use adit_driver::{Buffer, Target};
use adit_kvstore::layout::Layout;
use adit_kvstore::store::{DefinedLayout, Payload, PutWith, Unfinished};
use adit_kvstore::{AnyBuffer, Error, FormatStore, Key, OpenOptions, Store, UNIT_BYTES};
use adit_tools_common::failure::{Failure, Result};
use adit_tools_common::human;
use adit_tools_common::interrupt::Interrupt;

use crate::contents;
use crate::drive::percentile;

const MODEL: &str = "llama-3-8b";
/// Tokens of a KV block, as in vLLM.
const TOKENS: u32 = 16;
/// Size of the store's file: room for the prefix and later blocks.
const FILE_SIZE: &str = "1G";
/// Blocks of 16 tokens: a prefix of 1024 tokens.
const PREFIX_BLOCKS: u64 = 64;
/// Blocks that are put together.
const PUT_BLOCKS: usize = 8;
/// Time between the second process's commit and its kill.
const UNTIL_KILLED: Duration = Duration::from_millis(300);
/// Sequences to put after the prefix: more than there is time for.
const SEQUENCES_MORE: u64 = 6;
/// Objects listed at once.
const PAGE: usize = 1024;
/// Seed of the noise in all tensors.
const SEED: u64 = 0xad17;

/// Runs this part and describes the result.
///
/// # Errors
/// When a byte differs from what was put, which is a bug of ours; when there is no room for the file.
pub(crate) fn run(interrupt: &Interrupt) -> Result<String> {
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
pub fn put_into(target: &Target) -> Result<()> {
    let blocks = Blocks::open(target)?;
    let mut memory = Vec::new();
    for _ in 0..PUT_BLOCKS {
        let mut block = blocks.store.allocate(blocks.layout.layout().block_bytes() as usize)?;
        block.chunks_mut(blocks.tensor_room()).for_each(|tensor| contents::fill(tensor, SEED));
        memory.push(block);
    }
    let begun = Instant::now();
    blocks.put(0, &mut memory)?;
    answered(blocks.store.commit().wait())?;
    let bytes = PREFIX_BLOCKS * blocks.layout.layout().block_bytes();
    let rate = human::bytes(bytes as f64 / begun.elapsed().as_secs_f64());
    let size = human::capacity(bytes);
    let said =
        format!("{PREFIX_BLOCKS} KV blocks of {MODEL}, {size}, put at {rate}/s and committed\n");
    let written = std::io::stdout().write_all(said.as_bytes());
    written.map_err(|why| Failure::failed(format!("standard output: {why}")))?;
    (1..=SEQUENCES_MORE).try_for_each(|sequence| blocks.put(sequence, &mut memory))
}

/// Opens the store and restores the prefix.
fn restore(target: Target, said: &str, interrupt: &Interrupt) -> Result<String> {
    let begun = Instant::now();
    let blocks = Blocks::open(&target)?;
    let opened = begun.elapsed();
    let objects = blocks.count()?;
    let layers = blocks.layout.layout().block().layers;
    let layer_bytes = PREFIX_BLOCKS * blocks.layout.layout().run_units() * UNIT_BYTES;
    let mut memory = Vec::new();
    for _ in 0..PREFIX_BLOCKS {
        let room = blocks.layout.layout().run_units() * UNIT_BYTES;
        memory.push(blocks.store.allocate(room as usize)?);
    }
    let mut took_ns = Vec::new();
    for layer in 0..layers {
        if interrupt.requested() {
            return Err(Failure::interrupted());
        }
        took_ns.push(blocks.restore(layer, &mut memory)?.as_nanos() as u64);
    }
    let stats = answered(blocks.store.stats().wait())?;
    answered(blocks.store.close().wait())?;
    let (bytes, seconds) =
        (u64::from(layers) * layer_bytes, took_ns.iter().sum::<u64>() as f64 / 1e9);
    took_ns.sort_unstable();
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
                "{layers} layers of the prefix, {} at {}/s, every byte as it was put",
                human::capacity(bytes),
                human::bytes(bytes as f64 / seconds)
            ),
        ),
        (
            "a layer",
            format!(
                "p50 {}, p99 {}, {:.1} commands",
                human::latency(percentile(&took_ns, 50.0)),
                human::latency(percentile(&took_ns, 99.0)),
                stats.commands_read as f64 / f64::from(layers)
            ),
        ),
    ];
    Ok(rows.iter().map(|(name, value)| format!("{name:<22} {value}\n")).collect())
}

/// A store with KV blocks of the model.
struct Blocks {
    store: Store,
    layout: DefinedLayout,
}

impl Blocks {
    fn open(target: &Target) -> Result<Blocks> {
        let store = Store::open(&OpenOptions::new([target.clone()]))?;
        let layout = answered(store.layout(Layout::named(MODEL, TOKENS)?).wait())?;
        Ok(Blocks { store, layout })
    }

    /// Puts a sequence of blocks from this memory, each behind the one before it.
    fn put(&self, sequence: u64, memory: &mut Vec<Buffer>) -> Result<()> {
        let mut with = PutWith::default();
        for first in (0..PREFIX_BLOCKS).step_by(PUT_BLOCKS) {
            let group = (first..PREFIX_BLOCKS).zip(memory.drain(..)).map(|(block, mut data)| {
                let tensors = data.chunks_mut(self.tensor_room());
                (self.first_tensor(sequence, block)..)
                    .zip(tensors)
                    .for_each(|(number, tensor)| contents::seal(tensor, number, 0));
                (key(sequence, block), Payload::from(data))
            });
            let batch = self.store.put_blocks(&self.layout, group, &with);
            for put in batch.wait() {
                let put = answered(put)?;
                if !put.is_stored() {
                    return Err(Failure::failed("the store declined a KV block"));
                }
                memory.push(one(put.memory));
            }
            with.after = Some(key(sequence, first + PUT_BLOCKS as u64 - 1));
        }
        Ok(())
    }

    /// Reads a layer of the prefix into this memory and compares every byte; returns how long the store took.
    fn restore(&self, layer: u32, memory: &mut Vec<Buffer>) -> Result<Duration> {
        let runs = (0..PREFIX_BLOCKS).zip(memory.drain(..));
        let begun = Instant::now();
        let runs = runs.map(|(block, into)| (key(0, block), into.into()));
        let answers = self.store.get_layer(layer, runs).wait();
        let took = begun.elapsed();
        let per_layer = u64::from(self.layout.layout().block().tensors_per_layer);
        let mut expected = vec![0; self.tensor_room()];
        contents::fill(&mut expected, SEED);
        for (block, read) in (0..).zip(answers) {
            let read = answered(read)?;
            if read.bytes.is_none() {
                return Err(Failure::failed(format!("block {block} of the prefix is missing")));
            }
            let run = one(read.memory);
            let first = self.first_tensor(0, block) + u64::from(layer) * per_layer;
            for (number, tensor) in (first..).zip(run.chunks(self.tensor_room())) {
                contents::seal(&mut expected, number, 0);
                if tensor != expected {
                    let place = format!("layer {layer} of block {block}");
                    return Err(Failure::failed(format!("{place} differs from what was put")));
                }
            }
            memory.push(run);
        }
        Ok(took)
    }

    /// Returns how many objects the store has.
    fn count(&self) -> Result<usize> {
        let (mut count, mut from) = (0, Some(0));
        while let Some(cursor) = from {
            let (page, next) = answered(self.store.scan(cursor, PAGE).wait())?;
            count += page.len();
            from = next;
        }
        Ok(count)
    }

    fn tensor_room(&self) -> usize {
        (self.layout.layout().tensor_units() * UNIT_BYTES) as usize
    }

    /// Returns the number of a block's first tensor among those of all blocks.
    fn first_tensor(&self, sequence: u64, block: u64) -> u64 {
        (sequence * PREFIX_BLOCKS + block) * u64::from(self.layout.layout().tensors())
    }
}

fn key(sequence: u64, block: u64) -> Key {
    Key::from(sequence * PREFIX_BLOCKS + block)
}

/// Returns the single buffer that was lent with a request.
fn one(memory: AnyBuffer) -> Buffer {
    match memory {
        AnyBuffer::One(buffer) => buffer,
        _ => panic!("an answer gives the memory back"),
    }
}

fn answered<T>(answer: std::result::Result<T, Unfinished>) -> Result<T> {
    Ok(answer.map_err(Error::from)?)
}
