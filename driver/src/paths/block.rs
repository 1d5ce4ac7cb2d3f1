//! How the kernel's block layer cuts a transfer into requests to the device.
//!
//! A request takes a limited number of segments: runs of memory that are contiguous for the device. Pages of 4 KiB are a
//! segment each, as a rule, and the pages of huge ones share one. So the same transfer may be one request into huge pages
//! and many into small ones. The driver's own queues are not limited so: their lists name each page of 4 KiB, whatever is
//! beside it.

/// The limits of one request to a block device (sysfs, `queue/`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// The most bytes (`max_sectors_kb`); at least one page.
    pub request_bytes_max: u64,
    /// The most segments (`max_segments`); at least one.
    pub segments_max: u64,
    /// The most bytes of a segment (`max_segment_size`); at least one page.
    pub segment_bytes_max: u64,
}

/// The requests and segments of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockRequests {
    /// Requests to the device.
    pub requests: u64,
    /// Segments of all of them.
    pub segments: u64,
}

impl BlockLimits {
    /// Returns what a transfer of `bytes` becomes, given memory that begins at the address `at` and is contiguous within
    /// each page of `page_bytes`, a power of two.
    pub fn requests(&self, at: u64, bytes: u64, page_bytes: u64) -> BlockRequests {
        let BlockLimits { request_bytes_max, segments_max, segment_bytes_max } = *self;
        let mut made = BlockRequests::default();
        // The room left in the last request.
        let (mut bytes_left, mut segments_left) = (0, 0);
        let (mut next, end) = (at, at + bytes);
        while next < end {
            if bytes_left == 0 || segments_left == 0 {
                made.requests += 1;
                (bytes_left, segments_left) = (request_bytes_max, segments_max);
            }
            let to_page_end = page_bytes - (next & (page_bytes - 1));
            let segment = to_page_end.min(segment_bytes_max).min(bytes_left).min(end - next);
            made.segments += 1;
            next += segment;
            bytes_left -= segment;
            segments_left -= 1;
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A virtio disk.
    const DISK: BlockLimits = BlockLimits {
        request_bytes_max: 4 << 20,
        segments_max: 254,
        segment_bytes_max: u32::MAX as u64,
    };
    const SMALL: u64 = 4 << 10;
    const HUGE: u64 = 2 << 20;

    #[test]
    fn small_pages_are_cut_by_segments_and_huge_ones_by_bytes() {
        let becomes = |bytes, page| DISK.requests(0, bytes, page);
        assert_eq!(becomes(128 << 10, SMALL), BlockRequests { requests: 1, segments: 32 });
        assert_eq!(becomes(128 << 10, HUGE), BlockRequests { requests: 1, segments: 1 });
        assert_eq!(becomes(4 << 20, SMALL), BlockRequests { requests: 5, segments: 1024 });
        assert_eq!(becomes(4 << 20, HUGE), BlockRequests { requests: 1, segments: 2 });
        assert_eq!(becomes(0, HUGE), BlockRequests::default());
    }

    #[test]
    fn memory_that_begins_within_a_page_takes_a_segment_more() {
        assert_eq!(DISK.requests(512, 8 << 10, SMALL).segments, 3);
        assert_eq!(
            DISK.requests(HUGE - 512, HUGE, HUGE),
            BlockRequests { requests: 1, segments: 2 }
        );
    }

    proptest! {
        /// Against a walk from sector to sector.
        #[test]
        fn requests_are_those_of_a_walk_over_each_sector(
            limits in (1u64..64, 1u64..9, 1u64..20),
            at in 0u64..40,
            sectors in 0u64..600,
            shift in 12u32..16,
        ) {
            let (request, segments, segment) = limits;
            let limits = BlockLimits {
                request_bytes_max: request * SMALL,
                segments_max: segments,
                segment_bytes_max: segment * SMALL,
            };
            let page = 1u64 << shift;
            let mut made = BlockRequests::default();
            let (mut of_request, mut segments_of_request, mut of_segment) = (0, 0, 0);
            for place in (at * 512..(at + sectors) * 512).step_by(512) {
                let opens_request = of_request == 0 || of_request == limits.request_bytes_max;
                let opens_segment = opens_request
                    || of_segment == limits.segment_bytes_max
                    || place % page == 0;
                let opens_request =
                    opens_request || (opens_segment && segments_of_request == limits.segments_max);
                if opens_request {
                    made.requests += 1;
                    (of_request, segments_of_request) = (0, 0);
                }
                if opens_segment {
                    made.segments += 1;
                    segments_of_request += 1;
                    of_segment = 0;
                }
                of_request += 512;
                of_segment += 512;
            }
            prop_assert_eq!(limits.requests(at * 512, sectors * 512, page), made);
        }

        #[test]
        fn larger_pages_never_make_more_of_it(
            request in 1u64..64, segments in 1u64..300, pages in 0u64..600, shift in 12u32..21,
        ) {
            let limits = BlockLimits {
                request_bytes_max: request * SMALL,
                segments_max: segments,
                segment_bytes_max: u64::MAX,
            };
            let becomes = |shift: u32| limits.requests(0, pages * SMALL, 1u64 << shift);
            let (small, large) = (becomes(shift), becomes(shift + 1));
            prop_assert!(large.requests <= small.requests && large.segments <= small.segments);
            let bytes = small.requests * limits.request_bytes_max;
            prop_assert!(small.requests <= small.segments && pages * SMALL <= bytes);
        }
    }
}
