//! Copies between registered host memory and the GPU: the rate by size and direction, and of both directions at once.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use adit_gpu::{Gpu, HostCopies, Result};
use serde_json::{Value, json};

use super::figures::{sized, timed};
use crate::failure;
use crate::rig::pattern::pattern;

const WITHIN: Duration = Duration::from_secs(60);
const LARGEST_BYTES: u64 = 256 << 20;
const LARGEST_BYTES_EMULATED: u64 = 4 << 20;
const SIZES: usize = 4;
/// Each size is a sixteenth of the next.
const STEP: u64 = 16;
/// Bytes of each measurement, in copies of the largest size.
const ROUNDS: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyDirection {
    ToGpu,
    FromGpu,
}

pub(super) fn measure(gpu: &Arc<Gpu>) -> failure::Result<Value> {
    let largest = sized(gpu, LARGEST_BYTES, LARGEST_BYTES_EMULATED);
    let mut lane = Lane::new(gpu, largest)?;
    let wrong_bytes = lane.wrong_bytes()?;
    let mut best = [0f64; 2];
    let mut sizes = Vec::new();
    for exponent in (0..SIZES as u32).rev() {
        let bytes = largest / STEP.pow(exponent);
        let mut rates = [0f64; 2];
        for (direction, rate) in
            [CopyDirection::ToGpu, CopyDirection::FromGpu].into_iter().zip(&mut rates)
        {
            *rate = lane.rate(direction, bytes)?;
        }
        best = [0, 1].map(|direction: usize| best[direction].max(rates[direction]));
        let [to_gpu, from_gpu] = rates.map(|rate| timed(gpu, rate));
        sizes.push(json!({ "bytes": bytes, "to_gpu": to_gpu, "from_gpu": from_gpu }));
    }
    let [both_to, both_from] = both(gpu, largest, lane)?.map(|rate| timed(gpu, rate));
    let [to_gpu, from_gpu] = best.map(|rate| timed(gpu, rate));
    Ok(json!({
        "unit": "GB/s",
        "wrong_bytes": wrong_bytes,
        "best": { "to_gpu": to_gpu, "from_gpu": from_gpu },
        "both_at_once": { "to_gpu": both_to, "from_gpu": both_from },
        "sizes": sizes,
    }))
}

/// Host memory, and memory of the GPU to copy it to.
struct Lane {
    copies: HostCopies,
    host: Vec<u8>,
}

impl Lane {
    fn new(gpu: &Arc<Gpu>, bytes: u64) -> Result<Lane> {
        Ok(Lane { copies: HostCopies::new(gpu, bytes, WITHIN)?, host: pattern(bytes) })
    }

    /// Copies everything there and back, which registers the memory; returns the bytes that came back wrong.
    fn wrong_bytes(&mut self) -> Result<usize> {
        let before = self.host.clone();
        self.copies.write(0, &self.host)?;
        self.host.fill(0);
        self.copies.read(0, &mut self.host)?;
        Ok(before.iter().zip(&self.host).filter(|(one, other)| one != other).count())
    }

    /// Returns the rate of copies of `bytes`, in GB/s.
    fn rate(&mut self, direction: CopyDirection, bytes: u64) -> Result<f64> {
        let whole = self.host.len() as u64;
        let begun = Instant::now();
        for at in (0..ROUNDS * whole).step_by(bytes as usize).map(|at| at % whole) {
            let host = &mut self.host[at as usize..(at + bytes) as usize];
            match direction {
                CopyDirection::ToGpu => self.copies.write(at, host)?,
                CopyDirection::FromGpu => self.copies.read(at, host)?,
            }
        }
        Ok((ROUNDS * whole) as f64 / begun.elapsed().as_secs_f64().max(1e-9) / 1e9)
    }
}

/// Returns the rates to the GPU and from it, at once, by a thread each.
fn both(gpu: &Arc<Gpu>, bytes: u64, mut one: Lane) -> Result<[f64; 2]> {
    let mut other = Lane::new(gpu, bytes)?;
    other.wrong_bytes()?;
    let together = Barrier::new(2);
    let run = |lane: &mut Lane, direction| {
        together.wait();
        lane.rate(direction, bytes)
    };
    thread::scope(|scope| {
        let to_gpu = scope.spawn(|| run(&mut one, CopyDirection::ToGpu));
        let from_gpu = run(&mut other, CopyDirection::FromGpu)?;
        let to_gpu = to_gpu.join().expect("it does not panic")?;
        Ok([to_gpu, from_gpu])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong_bytes(settings: &str, test: &str, check: fn(&Value)) {
        let test = format!("{}::{test}", module_path!());
        adit_gpu_emulated::alone(settings, &test, || {
            let gpu = Gpu::open(0).expect("an emulated GPU");
            let figures = measure(&gpu).expect("measured");
            assert_eq!(figures["sizes"].as_array().map(Vec::len), Some(SIZES));
            assert_eq!(figures["best"]["to_gpu"], Value::Null, "times of no GPU");
            check(&figures["wrong_bytes"]);
        });
    }

    #[test]
    fn what_is_copied_comes_back() {
        wrong_bytes("", "what_is_copied_comes_back", |wrong| assert_eq!(*wrong, 0));
    }

    #[test]
    fn copies_that_move_nothing_are_found() {
        let name = "copies_that_move_nothing_are_found";
        wrong_bytes("copies=dropped", name, |wrong| assert!(wrong.as_u64() > Some(1 << 20)));
    }
}
