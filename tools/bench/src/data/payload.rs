//! Chooses what fills the blocks of a job.

use adit_load::{Mixed, Payload};

use crate::options::JobOptions;

/// Returns the payload that `job` requests. As in fio, `buffer_compress_percentage` takes precedence over
/// `buffer_pattern`, and that over `zero_buffers`.
pub(super) fn payload_of(job: &JobOptions) -> Payload {
    let buffers = &job.buffers;
    let chunk = buffers.buffer_compress_chunk as usize;
    match (buffers.buffer_compress_percentage.into(), buffers.buffer_pattern.clone()) {
        (percent @ 1.., pattern) => Payload::Mixed(Mixed { chunk, percent, pattern }),
        (0, Some(pattern)) => Payload::Pattern(pattern),
        (0, None) if buffers.zero_buffers => Payload::Zeroes,
        (0, None) => Payload::Noise,
    }
}

#[cfg(test)]
mod tests {
    use adit_load::Pattern;

    use super::*;
    use crate::options::BufferOptions;
    use crate::workload::tests::sample::job;

    fn filled(job: &JobOptions, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0xa5; bytes];
        payload_of(job).fill(&mut buffer, 0x1122, 9);
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
}
