//! One run of one configuration, in a process of its own: a decode loop over the tensors.
//!
//! The process begins once its parent says so, which by then has put it into its memory cgroup, and reports lines of
//! JSON: each iteration, and the outcome.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use adit_tensors::{Gpu, ModelGpu, RunOptions, Tensors};

use super::baseline;
use super::configuration::Configuration;
use super::gpu::RealGpu;
use super::outcome::{Line, Outcome};
use crate::failure::{Failure, Result};

/// How a run goes about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop {
    pub(super) configuration: Configuration,
    /// Bytes per second of copies to and from the model of a GPU; 0 for copies that take no time.
    pub(super) h2d: u64,
    /// The GPU that takes the place of the model.
    pub(super) gpu: Option<u32>,
    /// Whether the bytes are verified.
    pub(super) stamps: bool,
    /// Layers whose reads begin before their turn.
    pub(super) ahead: u32,
}

/// Runs `options`, and reports to standard output.
///
/// # Errors
/// A failure if there is no parent any more; what fails in the run is reported.
pub(super) fn run(options: RunOptions, loops: &Loop) -> Result<()> {
    let mut go = String::new();
    let read = io::stdin().read_line(&mut go).map_err(Failure::failed)?;
    if read == 0 {
        return Err(Failure::usage("--child is for 'adit kv bench' itself"));
    }
    let line = match measure_on_gpu(options, loops) {
        Ok(outcome) => Line::Ended(Box::new(outcome)),
        Err(why) => Line::Failed(why.to_string()),
    };
    tell(&line)
}

fn measure_on_gpu(options: RunOptions, loops: &Loop) -> Result<Outcome> {
    match loops.gpu {
        None => measure(options, ModelGpu::new(loops.h2d, loops.stamps), loops),
        Some(number) => {
            let gpu = RealGpu::open(number, &options, loops.stamps)?;
            measure(options, gpu, loops)
        }
    }
}

fn measure(options: RunOptions, gpu: impl Gpu, loops: &Loop) -> Result<Outcome> {
    let shape = options.shape;
    let mut tensors = baseline::open(options, gpu, loops.configuration)?;
    let start = Instant::now();
    for layer in 0..shape.model.layers {
        tensors.write_layer(layer, 0..shape.prompt_tokens).map_err(Failure::failed)?;
    }
    tensors.next_iteration().map_err(Failure::failed)?;
    let prefill = start.elapsed();
    tell(&Line::Iteration(0))?;
    let mut iterations: Vec<(Duration, u32)> = Vec::new();
    for step in 1..=shape.decode_steps() {
        let start = Instant::now();
        decode(&mut tensors, shape.prompt_tokens + step - 1, loops.ahead)
            .map_err(Failure::failed)?;
        let cached = match loops.configuration {
            // The kernel caches what it likes of any of them.
            Configuration::Mmap => shape.model.layers,
            _ => tensors.plan().cached(),
        };
        iterations.push((start.elapsed(), cached));
        tell(&Line::Iteration(step))?;
    }
    let stats = tensors.close().map_err(Failure::failed)?;
    Ok(Outcome::of(&stats, loops.configuration.is_direct(), prefill, &iterations))
}

/// Reads the first `tokens` of every layer and appends one; `ahead` layers are on their way when one is computed.
fn decode(tensors: &mut Tensors<impl Gpu>, tokens: u32, ahead: u32) -> adit_tensors::Result<()> {
    let mut unread = 0..tensors.shape().model.layers;
    let mut readings = VecDeque::new();
    loop {
        while readings.len() <= ahead as usize
            && let Some(layer) = unread.next()
        {
            readings.push_back(tensors.begin_read(layer, tokens)?);
        }
        let Some(reading) = readings.pop_front() else { break };
        let layer = reading.layer();
        tensors.finish_read(reading)?;
        tensors.write_layer(layer, tokens..tokens + 1)?;
    }
    tensors.next_iteration()
}

fn tell(line: &Line) -> Result<()> {
    let text = serde_json::to_string(line).map_err(Failure::failed)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::failed)
}
