//! Fills buffers with noise, zeroes, patterns, and mixes of a given compressibility.

use crate::options::{JobOptions, Pattern};
use crate::workload::random::{GOLDEN, mix};

/// Scrambling changes a word or two in each unit of this size, as deduplication uses no smaller units.
const SCRAMBLED_BYTES: usize = 512;
/// Bytes of an offset in a pattern.
const OFFSET_BYTES: usize = 8;

/// The contents of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// Zeroes.
    Zeroes,
    /// A repeated pattern.
    Pattern(Pattern),
    /// Incompressible data.
    Noise,
    /// Noise followed by compressible data in each chunk.
    Mixed(Mixed),
}

/// The parameters of [`Contents::Mixed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mixed {
    /// Bytes of a chunk; zero for the whole block.
    chunk: usize,
    /// Percentage of compressible data.
    percent: usize,
    /// The compressible data; zeroes if `None`.
    pattern: Option<Pattern>,
}

impl Contents {
    /// Returns the contents `job` requests. As in fio, `buffer_compress_percentage` takes precedence over
    /// `buffer_pattern`, and that over `zero_buffers`.
    ///
    /// # Errors
    /// The request is impossible; says what to do.
    pub(super) fn new(job: &JobOptions) -> Result<Contents, String> {
        let pattern = job.buffers.buffer_pattern.clone();
        let percent = usize::from(job.buffers.buffer_compress_percentage);
        if percent > 100 {
            return Err(format!(
                "buffer_compress_percentage={percent} is not a share: use one from 0 to 100"
            ));
        }
        if let Some(pattern) = &pattern {
            checked(pattern, "buffer_pattern")?;
        }
        let chunk = usize::try_from(job.buffers.buffer_compress_chunk).unwrap_or(0);
        Ok(match (percent, pattern) {
            (1.., pattern) => Contents::Mixed(Mixed { chunk, percent, pattern }),
            (0, Some(pattern)) => Contents::Pattern(pattern),
            (0, None) if job.buffers.zero_buffers => Contents::Zeroes,
            (0, None) => Contents::Noise,
        })
    }

    /// Fills `bytes` to be written at `offset`; `seed` determines the noise.
    pub(super) fn fill(&self, bytes: &mut [u8], offset: u64, seed: u64) {
        match self {
            Contents::Zeroes => bytes.fill(0),
            Contents::Pattern(pattern) => repeat(pattern, bytes, offset),
            Contents::Noise => noise(bytes, seed),
            Contents::Mixed(mixed) => mixed.fill(bytes, offset, seed),
        }
    }

    /// Returns whether there is noise.
    pub(super) fn is_noisy(&self) -> bool {
        match self {
            Contents::Noise => true,
            Contents::Mixed(mixed) => mixed.percent < 100,
            Contents::Zeroes | Contents::Pattern(_) => false,
        }
    }

    /// Returns whether the contents depend on a block's offset.
    pub(super) fn has_offsets(&self) -> bool {
        match self {
            Contents::Pattern(pattern) | Contents::Mixed(Mixed { pattern: Some(pattern), .. }) => {
                !pattern.offsets_at.is_empty()
            }
            _ => false,
        }
    }
}

impl Mixed {
    fn fill(&self, bytes: &mut [u8], offset: u64, seed: u64) {
        let chunk = if self.chunk == 0 { bytes.len() } else { self.chunk };
        for (index, bytes) in bytes.chunks_mut(chunk.max(1)).enumerate() {
            let noisy = bytes.len() - bytes.len() * self.percent / 100;
            let (random, rest) = bytes.split_at_mut(noisy);
            noise(random, mix(seed.wrapping_add(index as u64)));
            match &self.pattern {
                Some(pattern) => repeat(pattern, rest, offset),
                None => rest.fill(0),
            }
        }
    }
}

/// Checks that `pattern` can be repeated.
///
/// # Errors
/// It is empty, or an offset in it is truncated; says what to do.
pub(super) fn checked(pattern: &Pattern, option: &str) -> Result<(), String> {
    if pattern.bytes.is_empty() {
        return Err(format!("{option} is empty: give it at least a byte"));
    }
    match pattern.offsets_at.iter().all(|at| at + OFFSET_BYTES <= pattern.bytes.len()) {
        true => Ok(()),
        false => Err(format!("{option} has no room for an offset: %o takes {OFFSET_BYTES} bytes")),
    }
}

/// Fills `bytes` with repetitions of `pattern`, inserting `offset`.
pub(super) fn repeat(pattern: &Pattern, bytes: &mut [u8], offset: u64) {
    let offset = offset.to_le_bytes();
    for part in bytes.chunks_mut(pattern.bytes.len()) {
        part.copy_from_slice(&pattern.bytes[..part.len()]);
        for at in &pattern.offsets_at {
            // The last repetition may be truncated.
            let end = part.len().min(at + OFFSET_BYTES);
            if let Some(place) = part.get_mut(*at..end) {
                place.copy_from_slice(&offset[..end - at]);
            }
        }
    }
}

/// Returns the index of the first byte that differs from what [`repeat`] writes, and the expected byte.
pub(super) fn first_difference(
    pattern: &Pattern,
    bytes: &[u8],
    offset: u64,
) -> Option<(usize, u8)> {
    let offset = offset.to_le_bytes();
    let expected = |i: usize| {
        let covers = |at: &&usize| (**at..**at + OFFSET_BYTES).contains(&i);
        pattern.offsets_at.iter().rfind(covers).map_or(pattern.bytes[i], |at| offset[i - at])
    };
    let len = pattern.bytes.len();
    let differs = |part: &[u8]| match pattern.offsets_at[..] {
        [] => *part != pattern.bytes[..part.len()],
        _ => part.iter().enumerate().any(|(i, byte)| *byte != expected(i)),
    };
    let start = bytes.chunks(len).position(differs)? * len;
    let within = bytes[start..].iter().enumerate().position(|(i, byte)| *byte != expected(i))?;
    Some((start + within, expected(within)))
}

/// Fills `bytes` with pseudo-random words. Each follows from its own index, so the processor can compute
/// several at once; filling must not limit the measurement.
pub fn noise(bytes: &mut [u8], seed: u64) {
    let word = |index: u64| mix(seed.wrapping_add(index.wrapping_mul(GOLDEN))).to_le_bytes();
    let mut index = 0;
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word(index));
        index += 1;
    }
    let rest = chunks.into_remainder();
    rest.copy_from_slice(&word(index)[..rest.len()]);
}

/// Changes one word in each 512 bytes, at a varying place, which makes all blocks distinct.
pub(super) fn scramble(bytes: &mut [u8], seed: u64) {
    let mut word = mix(seed);
    for part in bytes.chunks_exact_mut(SCRAMBLED_BYTES) {
        word = word.wrapping_mul(GOLDEN).rotate_left(29);
        let at = (word >> 58) as usize * 8;
        part[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::BufferOptions;
    use crate::workload::tests::sample::job;

    fn filled(job: &JobOptions, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0xa5; bytes];
        Contents::new(job).expect("contents").fill(&mut buffer, 0x1122, 9);
        buffer
    }

    fn pattern(bytes: &[u8], offsets_at: &[usize]) -> Option<Pattern> {
        Some(Pattern { bytes: bytes.to_vec(), offsets_at: offsets_at.to_vec() })
    }

    /// Counts the zeroes at the end of each chunk.
    fn trailing_zeroes(buffer: &[u8], chunk: usize) -> Vec<usize> {
        let zeroes = |chunk: &[u8]| chunk.iter().rev().take_while(|byte| **byte == 0).count();
        buffer.chunks(chunk).map(zeroes).collect()
    }

    #[test]
    fn buffers_compress_by_as_much_as_asked() {
        for percent in [1u8, 25, 50, 90, 100] {
            let job = JobOptions {
                buffers: BufferOptions { buffer_compress_percentage: percent, ..job().buffers },
                ..job()
            };
            let expected = 512 * usize::from(percent) / 100;
            for zeroes in trailing_zeroes(&filled(&job, 65536), 512) {
                // The noise before may end in a zero byte, once in 256 times.
                assert!((expected..=expected + 2).contains(&zeroes), "{zeroes} at {percent} %");
            }
        }
    }

    #[test]
    fn a_chunk_of_zero_is_the_whole_block() {
        let job = JobOptions {
            buffers: BufferOptions {
                buffer_compress_percentage: 50,
                buffer_compress_chunk: 0,
                ..job().buffers
            },
            ..job()
        };
        assert!((2048..2050).contains(&trailing_zeroes(&filled(&job, 4096), 4096)[0]));
    }

    #[test]
    fn the_part_that_compresses_is_the_pattern_where_there_is_one() {
        let compressed = JobOptions {
            buffers: BufferOptions {
                buffer_compress_percentage: 50,
                buffer_pattern: pattern(b"ab", &[]),
                ..job().buffers
            },
            ..job()
        };
        let buffer = filled(&compressed, 1024);
        assert!(buffer[256..512] == *b"ab".repeat(128) && buffer[768..] == *b"ab".repeat(128));
        assert_ne!(buffer[..256], buffer[512..768]);
    }

    #[test]
    fn a_pattern_is_repeated_with_the_offset_in_its_places() {
        let job = JobOptions {
            buffers: BufferOptions {
                buffer_pattern: pattern(b"x01234567y", &[1]),
                ..job().buffers
            },
            ..job()
        };
        assert_eq!(filled(&job, 23), *b"x\x22\x11\0\0\0\0\0\0yx\x22\x11\0\0\0\0\0\0yx\x22\x11");
    }

    #[test]
    fn the_first_byte_that_is_not_the_pattern_is_found() {
        for pattern in [pattern(b"x01234567y", &[1]), pattern(b"abc", &[])].into_iter().flatten() {
            let mut bytes = vec![0; 23];
            repeat(&pattern, &mut bytes, 0x1122);
            assert_eq!(first_difference(&pattern, &bytes, 0x1122), None);
            for at in (0..23).rev() {
                let expected = bytes[at];
                bytes[at] ^= 1;
                assert_eq!(first_difference(&pattern, &bytes, 0x1122), Some((at, expected)));
            }
        }
    }

    #[test]
    fn zeroes_are_all_there_is_where_asked_for() {
        assert_eq!(
            filled(
                &JobOptions {
                    buffers: BufferOptions { zero_buffers: true, ..job().buffers },
                    ..job()
                },
                100
            ),
            [0; 100]
        );
    }

    #[test]
    fn noise_has_all_bytes_equally_often() {
        let mut counts = [0u32; 256];
        filled(&job(), 1 << 20).iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        assert!(counts.iter().all(|count| (3750..4450).contains(count)), "{counts:?}");
    }

    #[test]
    fn scrambling_changes_a_word_of_each_512_bytes() {
        let (mut buffer, original) = (vec![0; 65536], vec![0; 65536]);
        scramble(&mut buffer, 1);
        let first = buffer.clone();
        let changed =
            |a: &[u8], b: &[u8]| a.chunks(8).zip(b.chunks(8)).filter(|(a, b)| a != b).count();
        for (part, before) in buffer.chunks(512).zip(original.chunks(512)) {
            assert_eq!(changed(part, before), 1);
        }
        scramble(&mut buffer, 2);
        assert!(buffer.chunks(512).zip(first.chunks(512)).all(|(a, b)| a != b));
    }

    #[test]
    fn what_cannot_be_filled_in_is_refused() {
        let refused = |job: JobOptions| Contents::new(&job).expect_err("refused");
        assert!(
            refused(JobOptions {
                buffers: BufferOptions { buffer_pattern: pattern(b"", &[]), ..job().buffers },
                ..job()
            })
            .contains("at least a byte")
        );
        assert!(
            refused(JobOptions {
                buffers: BufferOptions {
                    buffer_pattern: pattern(b"12345678", &[1]),
                    ..job().buffers
                },
                ..job()
            })
            .contains("8 bytes")
        );
        assert!(
            refused(JobOptions {
                buffers: BufferOptions { buffer_compress_percentage: 101, ..job().buffers },
                ..job()
            })
            .contains("0 to 100")
        );
    }
}
