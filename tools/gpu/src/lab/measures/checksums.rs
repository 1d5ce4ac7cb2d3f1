//! How fast the GPU compares checksums: on a partition of 8 multiprocessors, and on the whole GPU, where the kernel's 16
//! blocks lie on 16. The bytes are random, because look-ups of equal bytes do not collide.

use std::sync::Arc;
use std::time::Duration;

use adit_gpu::internals::layout::Segment;
use adit_gpu::internals::{self, DeviceMemory, PartitionKind, Program, Verifier};
use adit_gpu::{Gpu, Priority, Result, Stream};
use serde_json::{Value, json};

use super::figures::{sized, timed};
use crate::failure;
use crate::rig::pattern::pattern;
use crate::selftest::sums::slow_sum;

const WITHIN: Duration = Duration::from_secs(30);
/// Bytes of a check: a KV block of a small model, and those that all checks repeat.
const PIECE_BYTES: u64 = 128 << 10;
const BYTES: u64 = 256 << 20;
const BYTES_EMULATED: u64 = 1 << 20;
const ROUNDS: u32 = 20;
const SMS: u32 = 8;
/// Blocks of the kernel (`Verifier`), of which a multiprocessor has one where there are as many.
const BLOCKS: u32 = 16;

pub(super) fn measure(gpu: &Arc<Gpu>) -> failure::Result<Value> {
    let program = Program::load(gpu)?;
    let bytes = sized(gpu, BYTES, BYTES_EMULATED);
    let memory = DeviceMemory::allocate(gpu, bytes)?;
    let piece = pattern(PIECE_BYTES);
    for at in (0..bytes).step_by(PIECE_BYTES as usize) {
        memory.write(at, &piece)?;
    }
    let sums = Sums { verifier: Verifier::new(gpu, &program, 1)?, memory, sum: slow_sum(&piece) };
    let partitions = internals::partition(gpu, SMS);
    let mut wrong_verdicts = 0;
    let mut part = |stream: &Stream, sms: u32| -> Result<Value> {
        let (ms, wrong) = sums.compare(gpu, stream)?;
        wrong_verdicts += wrong;
        let gb_per_s = bytes as f64 / ms.max(1e-6) / 1e6;
        Ok(json!({
            "sms": sms,
            "gb_per_s": timed(gpu, gb_per_s),
            "gb_per_s_of_each": timed(gpu, gb_per_s / f64::from(sms)),
        }))
    };
    let (io, whole) = (&partitions.io, gpu.info().sm_count);
    // Without green contexts the stream is on all multiprocessors.
    let of_8_sms = match partitions.kind {
        PartitionKind::Green => part(&io.stream(Priority::Normal)?, io.sms())?,
        PartitionKind::Priority { .. } => Value::Null,
    };
    let of_whole = part(&Stream::new(gpu, Priority::Normal)?, BLOCKS.min(whole))?;
    Ok(json!({
        "bytes": bytes,
        "bytes_of_a_check": PIECE_BYTES,
        "wrong_verdicts": wrong_verdicts,
        "of_8_sms": of_8_sms,
        "of_the_whole_gpu": of_whole,
    }))
}

struct Sums {
    verifier: Arc<Verifier>,
    memory: DeviceMemory,
    /// The checksum of each piece.
    sum: u32,
}

impl Sums {
    /// Compares all pieces several times, the first with a wrong sum; returns the shortest time in ms, and how many
    /// verdicts were wrong.
    fn compare(&self, gpu: &Arc<Gpu>, stream: &Stream) -> Result<(f64, usize)> {
        let (mut shortest, mut wrong) = (f64::INFINITY, 0);
        for _ in 0..sized(gpu, u64::from(ROUNDS), 1) {
            let pieces = (0..self.memory.bytes()).step_by(PIECE_BYTES as usize);
            let checks = pieces.map(|at| {
                let segment = Segment { address: self.memory.address() + at, bytes: PIECE_BYTES };
                Ok((vec![segment], if at == 0 { !self.sum } else { self.sum }))
            });
            let begin = stream.record()?;
            let verifying = self.verifier.start(checks, stream)?;
            let end = stream.record()?;
            let corrupt = verifying.wait(WITHIN)?.corrupt;
            stream.synchronize(WITHIN)?;
            wrong += corrupt.iter().filter(|check| **check != 0).count()
                + usize::from(!corrupt.contains(&0));
            shortest = shortest.min(f64::from(begin.elapsed_ms(&end)?));
        }
        Ok((shortest, wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(settings: &str, test: &str, check: fn(&Value)) {
        let test = format!("{}::{test}", module_path!());
        adit_gpu_emulated::alone(settings, &test, || {
            let gpu = Gpu::open(0).expect("an emulated GPU");
            let figures = measure(&gpu).expect("measured");
            assert_eq!(figures["wrong_verdicts"], 0, "{figures}");
            check(&figures);
        });
    }

    #[test]
    fn every_verdict_is_right_and_the_emulated_gpu_has_no_rate() {
        let name = "every_verdict_is_right_and_the_emulated_gpu_has_no_rate";
        figures("sms=16", name, |figures| {
            assert_eq!(figures["of_8_sms"]["sms"], 8, "{figures}");
            assert_eq!(figures["of_8_sms"]["gb_per_s"], Value::Null, "{figures}");
        });
    }

    #[test]
    fn without_green_contexts_nothing_is_said_of_8_multiprocessors() {
        let name = "without_green_contexts_nothing_is_said_of_8_multiprocessors";
        figures("sms=16,no-green", name, |figures| {
            assert_eq!(figures["of_8_sms"], Value::Null, "{figures}");
            assert_eq!(figures["of_the_whole_gpu"]["sms"], 16, "{figures}");
        });
    }
}
