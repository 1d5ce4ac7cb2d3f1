//! Generates the contents of written blocks and checks blocks that are read.
//!
//! A verifying job fills each block before each write with data that follows from its offset, run and step.
//! Other jobs fill their buffers once and change a small part for each write.

mod fio_header;
mod mismatch;
mod payload;
mod stamp;
pub(crate) mod state;

use std::path::PathBuf;

pub(crate) use mismatch::{Identity, Mismatch, Writer};

use payload::payload_of;
use stamp::HEADER_BYTES;

use adit_load::{Payload, mix, scramble};

use super::options::{BlockSizes, JobOptions, VerifyKind};
use super::way::Way;
use super::workload::{gcd, unit_bytes};

/// The contents of a job's blocks, separate for each thread.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    name: String,
    seed: u64,
    payload: Payload,
    verify: Option<Verify>,
    change: Change,
    /// How many times buffers were filled or changed.
    count: u64,
}

/// How blocks are identified.
#[derive(Clone, Copy, Debug)]
struct Verify {
    kind: VerifyKind,
    /// Bytes per header, or per offset in a pattern; `None` for the whole block.
    interval: Option<usize>,
}

/// The change to a buffer before each write of a job that does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    Refill,
    Scramble,
}

impl Data {
    /// Returns the contents `job` requests; `seed` determines the noise.
    ///
    /// # Errors
    /// The request contradicts itself; says what to do.
    pub(crate) fn new(job: &JobOptions, seed: u64) -> Result<Data, String> {
        let plain = payload_of(job);
        let change = match &plain {
            plain if plain.has_offsets() => Change::Refill,
            plain if !plain.is_noisy() => Change::Nothing,
            Payload::Mixed(_) => Change::Refill,
            _ if job.buffers.refill_buffers => Change::Refill,
            _ if job.buffers.scramble_buffers => Change::Scramble,
            _ => Change::Nothing,
        };
        let (payload, verify) = match verify_of(job)? {
            Some((verify, Some(pattern))) => (pattern, Some(verify)),
            Some((verify, None)) => (plain, Some(verify)),
            None => (plain, None),
        };
        Ok(Data { name: job.name.clone(), seed, payload, verify, change, count: 0 })
    }

    /// Fills a writing job's buffer, once for each.
    pub(crate) fn initial(&mut self, buffer: &mut [u8]) {
        let seed = self.next_seed();
        self.payload.fill(buffer, 0, seed);
    }

    /// Returns whether [`before_write`](Data::before_write) must be called.
    pub(crate) fn touches_writes(&self) -> bool {
        self.verify.is_some() || self.change != Change::Nothing
    }

    /// Fills `block` with what `writer` writes at `offset`.
    #[inline]
    pub(crate) fn before_write(&mut self, block: &mut [u8], offset: u64, writer: Writer) {
        match (self.verify, self.change) {
            (Some(verify), _) => self.mark(verify, block, offset, writer),
            (None, Change::Nothing) => {}
            (None, Change::Refill) => {
                let seed = self.next_seed();
                self.payload.fill(block, offset, seed);
            }
            (None, Change::Scramble) => scramble(block, self.next_seed()),
        }
    }

    /// Checks `block` against `expected`.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check(&self, block: &[u8], expected: Identity) -> Result<(), Mismatch> {
        let Some(verify) = self.verify else { return Ok(()) };
        let mut offset = expected.offset;
        for part in block.chunks(verify.interval.unwrap_or(block.len())) {
            let expected = Identity { offset, ..expected };
            match &self.payload {
                Payload::Pattern(pattern) if verify.kind == VerifyKind::Pattern => {
                    stamp::check_pattern(part, pattern, offset)?;
                }
                _ => stamp::check(part, verify.kind, expected)?,
            }
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Returns the files of `verify_dump` for a mismatching block, by name: the received contents and, if the
    /// writer is known, the `expected` ones.
    pub(crate) fn dump(&self, block: &[u8], expected: Identity) -> Vec<(PathBuf, Vec<u8>)> {
        let file = |suffix| {
            PathBuf::from(format!("{}.{}.{suffix}", self.name.replace('/', "_"), expected.offset))
        };
        let mut files = vec![(file("received"), block.to_vec())];
        let Some(verify) = self.verify else { return files };
        let is_known = verify.kind == VerifyKind::Pattern || expected.writer.is_some();
        if is_known {
            let mut whole = vec![0; block.len()];
            let writer = expected.writer.unwrap_or(Writer { seed: 0, generation: 0 });
            self.mark(verify, &mut whole, expected.offset, writer);
            files.push((file("expected"), whole));
        }
        files
    }

    /// Fills `block` and writes its headers.
    fn mark(&self, verify: Verify, block: &mut [u8], mut offset: u64, writer: Writer) {
        let interval = verify.interval.unwrap_or(block.len());
        for part in block.chunks_mut(interval) {
            let seed = writer.data_seed(offset);
            if verify.kind == VerifyKind::Pattern {
                self.payload.fill(part, offset, seed);
            } else {
                self.payload.fill(&mut part[HEADER_BYTES..], offset, seed);
                stamp::stamp(part, verify.kind, offset, writer);
            }
            offset += part.len() as u64;
        }
    }

    fn next_seed(&mut self) -> u64 {
        self.count += 1;
        mix(self.seed ^ mix(self.count))
    }
}

/// Returns how `job` verifies, and the contents of its blocks if verification changes them.
fn verify_of(job: &JobOptions) -> Result<Option<(Verify, Option<Payload>)>, String> {
    let Some(options) = &job.verify else { return Ok(None) };
    let way = if job.rw.writes { Way::Write } else { Way::Read };
    let interval = options.interval.map(|bytes| interval(bytes, &job.bs[way]));
    // Parts of a block shorter than the interval have headers too.
    let shortest = gcd(unit_bytes(job), interval.unwrap_or(0));
    if options.kind != VerifyKind::Pattern && shortest < HEADER_BYTES as u64 {
        return Err(format!(
            "blocks of {shortest} bytes have no room for a header: use bs=64 or more, or verify=pattern"
        ));
    }
    let pattern = options.pattern.clone().map(Payload::Pattern);
    let interval = interval.map(|bytes| bytes as usize);
    Ok(Some((Verify { kind: options.kind, interval }, pattern)))
}

/// Returns the bytes per header for a requested interval: as in fio, the greatest common divisor of all blocks
/// if it does not divide them.
fn interval(bytes: u64, sizes: &BlockSizes) -> u64 {
    let all = sizes.listed();
    match all.iter().all(|size| size.is_multiple_of(bytes)) {
        true => bytes,
        false => all.into_iter().fold(0, gcd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{BufferOptions, VerifyOptions};
    use crate::way::PerWay;
    use crate::workload::tests::sample::{job, verify};
    use adit_load::Pattern;

    const WRITER: Writer = Writer { seed: 7, generation: 3 };
    const HERE: Identity = Identity { offset: 8192, writer: Some(WRITER) };

    fn verifying(options: VerifyOptions) -> JobOptions {
        JobOptions { verify: Some(options), ..job() }
    }

    fn data(job: &JobOptions) -> Data {
        Data::new(job, 5).expect("contents")
    }

    fn written(data: &mut Data) -> Vec<u8> {
        let mut block = vec![0; 4096];
        data.before_write(&mut block, HERE.offset, WRITER);
        block
    }

    fn pattern() -> Option<Pattern> {
        Some(Pattern { bytes: b"01234567ab".to_vec(), offsets_at: vec![0] })
    }

    fn all_kinds() -> Vec<VerifyOptions> {
        use VerifyKind::{Crc32c, Crc64, Md5, Meta, Xxhash};
        let mut all: Vec<VerifyOptions> = [Crc32c, Crc64, Md5, Meta, Xxhash].map(verify).to_vec();
        all.push(VerifyOptions { pattern: pattern(), ..verify(VerifyKind::Pattern) });
        all.push(VerifyOptions { pattern: pattern(), ..verify(VerifyKind::Crc32c) });
        all.extend(
            all.clone().into_iter().map(|options| VerifyOptions { interval: Some(512), ..options }),
        );
        all
    }

    #[test]
    fn what_is_written_is_what_is_expected_by_all_kinds() {
        for options in all_kinds() {
            let mut data = data(&verifying(options.clone()));
            let mut block = written(&mut data);
            assert_eq!(data.check(&block, HERE), Ok(()), "{options:?}");
            assert_eq!(data.check(&block, Identity { writer: None, ..HERE }), Ok(()));
            block[1024] ^= 1;
            assert!(data.check(&block, HERE).is_err() || options.kind == VerifyKind::Meta);
        }
    }

    #[test]
    fn with_an_interval_parts_can_be_checked_by_themselves() {
        let mut data =
            data(&verifying(VerifyOptions { interval: Some(512), ..verify(VerifyKind::Md5) }));
        let block = written(&mut data);
        let there = Identity { offset: HERE.offset + 1024, ..HERE };
        assert_eq!(data.check(&block[1024..2048], there), Ok(()));
        assert!(
            data.check(&block[1024..2048], HERE)
                .expect_err("elsewhere")
                .to_string()
                .contains("another one")
        );
    }

    #[test]
    fn an_interval_that_does_not_divide_the_blocks_is_what_does() {
        let range = BlockSizes::Range(4096, 65536);
        let split = BlockSizes::Split(vec![(4096, 50), (6144, 50)]);
        for (bytes, sizes, expected) in [
            (512, &range, 512),
            (3072, &range, 4096),
            (1 << 20, &BlockSizes::Fixed(8192), 8192),
            (1000, &split, 2048),
        ] {
            assert_eq!(interval(bytes, sizes), expected, "{bytes}");
        }
        let mut data =
            data(&verifying(VerifyOptions { interval: Some(3000), ..verify(VerifyKind::Md5) }));
        let block = written(&mut data);
        assert_eq!(data.check(&block, HERE), Ok(()));
    }

    #[test]
    fn a_dump_has_what_came_and_what_should_have() {
        for options in all_kinds() {
            let mut data = data(&verifying(options));
            let block = written(&mut data);
            let files = data.dump(&[9; 4096], HERE);
            let names: Vec<_> =
                files.iter().map(|(path, _)| path.to_str().expect("plain")).collect();
            assert_eq!(names, ["sample.8192.received", "sample.8192.expected"]);
            assert_eq!((&files[0].1, &files[1].1), (&vec![9; 4096], &block));
        }
        let data = data(&verifying(verify(VerifyKind::Md5)));
        assert_eq!(
            data.dump(&[9; 512], Identity { writer: None, ..HERE }).len(),
            1,
            "its writer is unknown"
        );
    }

    #[test]
    fn noise_is_scrambled_or_refilled_before_each_write_and_all_else_is_left() {
        let changes = |job: JobOptions| {
            let mut data = data(&job);
            let (mut block, mut other) = (vec![0; 4096], vec![0; 4096]);
            data.initial(&mut block);
            data.initial(&mut other);
            assert_eq!(
                block != other,
                !job.buffers.zero_buffers && job.buffers.buffer_pattern.is_none(),
                "buffers differ"
            );
            let before = block.clone();
            data.before_write(&mut block, 0, WRITER);
            let changed = block.chunks(8).zip(before.chunks(8)).filter(|(a, b)| a != b).count();
            assert_eq!(data.touches_writes(), changed > 0);
            changed
        };
        let plain = JobOptions {
            buffers: BufferOptions { scramble_buffers: false, ..job().buffers },
            ..job()
        };
        assert_eq!(changes(plain.clone()), 0);
        assert_eq!(changes(job()), 8);
        assert_eq!(
            changes(JobOptions {
                buffers: BufferOptions { refill_buffers: true, ..job().buffers },
                ..job()
            }),
            512
        );
        assert_eq!(
            changes(JobOptions {
                buffers: BufferOptions { buffer_compress_percentage: 50, ..plain.clone().buffers },
                ..plain.clone()
            }),
            256
        );
        assert_eq!(
            changes(JobOptions {
                buffers: BufferOptions { zero_buffers: true, ..job().buffers },
                ..job()
            }),
            0
        );
        let abcd = Some(Pattern { bytes: b"abcd".to_vec(), offsets_at: Vec::new() });
        assert_eq!(
            changes(JobOptions {
                buffers: BufferOptions { buffer_pattern: abcd, ..job().buffers },
                ..job()
            }),
            0
        );
    }

    #[test]
    fn a_buffer_pattern_has_the_offset_of_each_write() {
        let mut data = data(&JobOptions {
            buffers: BufferOptions { buffer_pattern: pattern(), ..job().buffers },
            ..job()
        });
        let block = written(&mut data);
        assert_eq!(block[..20], *b"\0\x20\0\0\0\0\0\0ab\0\x20\0\0\0\0\0\0ab");
    }

    #[test]
    fn a_verified_block_compresses_as_asked() {
        let job = JobOptions {
            buffers: BufferOptions {
                buffer_compress_percentage: 50,
                ..verifying(verify(VerifyKind::Crc32c)).buffers
            },
            ..verifying(verify(VerifyKind::Crc32c))
        };
        let mut data = data(&job);
        let block = written(&mut data);
        let zeroes = block.iter().filter(|byte| **byte == 0).count();
        assert!((1950..2150).contains(&zeroes), "{zeroes}");
        assert_eq!(data.check(&block, HERE), Ok(()));
    }

    #[test]
    fn contradictions_are_refused_with_what_to_do() {
        let refused = |options| Data::new(&verifying(options), 1).expect_err("refused");
        let every = |bytes| VerifyOptions { interval: Some(bytes), ..verify(VerifyKind::Md5) };
        assert!(refused(every(32)).contains("bs=64 or more"));
        let short = JobOptions {
            bs: PerWay::all(BlockSizes::Fixed(32)),
            ..verifying(verify(VerifyKind::Md5))
        };
        assert!(Data::new(&short, 1).expect_err("refused").contains("bs=64 or more"));
    }
}
