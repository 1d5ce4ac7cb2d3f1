//! Checksums of bytes in GPU memory, compared by the GPU: known ones, and runs that begin and end anywhere.

use adit_gpu::internals::layout::Segment;
use adit_gpu::internals::{DeviceMemory, Verifier};
use adit_gpu::{Error, Priority};

use super::check::{Seen, expect};
use super::machine::Machine;
use super::rings::LONG;

const BYTES: u64 = 256 << 10;
/// Around the widths that the kernel works by: words, 16 bytes of a lane, rows of 512, four rows.
const LENGTHS: [u64; 14] = [0, 1, 3, 4, 5, 15, 16, 17, 511, 512, 513, 2047, 4099, 33_333];
const ALIGNMENTS: u64 = 17;
/// RFC 3720, appendix B.4: the sums of 32 bytes of zero, of ones, counting up and counting down.
const KNOWN: [(ByteAt, u32); 4] = [
    (|_| 0, 0x8a91_36aa),
    (|_| 0xff, 0x62a8_ab43),
    (|at| at, 0x46dd_794e),
    (|at| 31 - at, 0x113f_db5c),
];

type ByteAt = fn(u8) -> u8;

/// Computes a CRC-32C bit by bit.
pub(crate) fn slow_sum(bytes: &[u8]) -> u32 {
    let divide = |crc: u32| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| divide(crc));
    !bytes.iter().fold(!0, byte)
}

/// Returns the known runs of bytes, one behind the other, and then others.
fn contents() -> Vec<u8> {
    let known = KNOWN.iter().flat_map(|(byte, _)| (0..32).map(byte));
    known.chain((0..).map(|at: u64| (at * 37 + at / 251) as u8)).take(BYTES as usize).collect()
}

/// Runs of offsets, and the sum of each.
fn runs(contents: &[u8]) -> Vec<(u64, u64, u32)> {
    let known = KNOWN.iter().zip(0u64..).map(|((_, sum), at)| (at * 32, 32, *sum));
    let begins = (0..ALIGNMENTS).map(|alignment| 4096 + alignment);
    let odd = begins.flat_map(|begin| LENGTHS.map(|bytes| (begin, bytes))).map(|(begin, bytes)| {
        (begin, bytes, slow_sum(&contents[begin as usize..(begin + bytes) as usize]))
    });
    known.chain(odd).collect()
}

pub(super) fn compared(machine: &Machine) -> Seen {
    let contents = contents();
    let memory = DeviceMemory::allocate(&machine.gpu, BYTES)?;
    memory.write(0, &contents)?;
    let stream = machine.partitions.compute.stream(Priority::Normal)?;
    let verifier = Verifier::new(&machine.gpu, &machine.program, 1)?;
    let runs = runs(&contents);
    let segment = |at: u64, bytes| Segment { address: memory.address() + at, bytes };
    // Each run whole, then in two parts, then with a wrong sum.
    let checks = runs.iter().flat_map(|&(at, bytes, sum)| {
        let first = bytes / 3;
        let parts = vec![segment(at, first), segment(at + first, bytes - first)];
        let whole = vec![segment(at, bytes)];
        let wrong = sum ^ 1 << (at % 32);
        [(whole.clone(), sum), (parts, sum), (whole, wrong)].map(Ok::<_, Error>)
    });
    let verdicts = verifier.start(checks, &stream)?.wait(LONG)?;
    let expected = (0..runs.len()).map(|run| 3 * run + 2).collect::<Vec<_>>();
    expect(verdicts.corrupt == expected, || {
        format!("checks {:?} failed, not every third", verdicts.corrupt)
    })?;
    Ok(format!("{} checks, of which {} had wrong sums", verdicts.checks, expected.len()))
}
