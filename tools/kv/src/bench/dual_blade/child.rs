//! One run of one configuration, in a process of its own: a decode loop over the tensors.
//!
//! The process begins once its parent says so, which by then has put it into its memory cgroup, and reports lines of
//! JSON: each iteration, and the outcome.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use adit_kvstore::tensors::{ModelGpu, RunOptions, Tensors};

use super::outcome::{Line, Outcome};
use crate::failure::{Failure, Result};

/// Runs `options` on a model of a GPU that copies `h2d` bytes per second, and reports to standard output.
///
/// # Errors
/// A failure if there is no parent any more; what fails in the run is reported.
pub(super) fn run(options: RunOptions, h2d: u64, stamps: bool) -> Result<()> {
    let mut go = String::new();
    let read = io::stdin().read_line(&mut go).map_err(Failure::failed)?;
    if read == 0 {
        return Err(Failure::usage("--child is for 'adit kv bench' itself"));
    }
    let line = match measure(options, h2d, stamps) {
        Ok(outcome) => Line::Ended(Box::new(outcome)),
        Err(why) => Line::Failed(why.to_string()),
    };
    tell(&line)
}

fn measure(options: RunOptions, h2d: u64, stamps: bool) -> Result<Outcome> {
    let shape = options.shape;
    let mut tensors = Tensors::open(options, ModelGpu::new(h2d, stamps))?;
    let start = Instant::now();
    for layer in 0..shape.model.layers {
        tensors.write_layer(layer, 0..shape.prompt_tokens)?;
    }
    tensors.next_iteration()?;
    let prefill = start.elapsed();
    tell(&Line::Iteration(0))?;
    let mut iterations: Vec<(Duration, u32)> = Vec::new();
    for step in 1..=shape.decode_steps() {
        let start = Instant::now();
        decode(&mut tensors, shape.prompt_tokens + step - 1)?;
        iterations.push((start.elapsed(), tensors.plan().cached()));
        tell(&Line::Iteration(step))?;
    }
    let stats = tensors.close()?;
    Ok(Outcome::of(&stats, prefill, &iterations))
}

/// Reads the first `tokens` of every layer and appends one; the next layer is read while this one is computed.
fn decode(tensors: &mut Tensors<ModelGpu>, tokens: u32) -> Result<()> {
    let layers = tensors.shape().model.layers;
    let mut reading = tensors.begin_read(0, tokens)?;
    for layer in 0..layers {
        let next = (layer + 1 < layers).then(|| tensors.begin_read(layer + 1, tokens));
        tensors.finish_read(reading)?;
        tensors.write_layer(layer, tokens..tokens + 1)?;
        match next {
            Some(next) => reading = next?,
            None => break,
        }
    }
    Ok(tensors.next_iteration()?)
}

fn tell(line: &Line) -> Result<()> {
    let text = serde_json::to_string(line).map_err(Failure::failed)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::failed)
}
