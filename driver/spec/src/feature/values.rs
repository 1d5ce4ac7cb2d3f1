//! Typed values of one-dword features (Base 5.27.1).

/// Number of Queues (FID 07h, Base 5.27.1.5): the request; in the completion, the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberOfQueues(pub u32);

impl NumberOfQueues {
    /// Largest number of queues of each kind in a request.
    pub const MAX: u32 = 65535;

    /// Requests I/O submission and completion queues; `None` for 0 and above [`NumberOfQueues::MAX`].
    pub const fn new(submission: u32, completion: u32) -> Option<NumberOfQueues> {
        match (submission, completion) {
            (1..=NumberOfQueues::MAX, 1..=NumberOfQueues::MAX) => {
                Some(NumberOfQueues((completion - 1) << 16 | (submission - 1)))
            }
            _ => None,
        }
    }

    /// Number of I/O submission queues: 1 to 65536.
    pub const fn submission(self) -> u32 {
        (self.0 & 0xffff) + 1
    }

    /// Number of I/O completion queues: 1 to 65536.
    pub const fn completion(self) -> u32 {
        (self.0 >> 16) + 1
    }

    /// Number of queue pairs they allow, at most [`NumberOfQueues::MAX`].
    pub const fn pairs(self) -> u16 {
        let (sq_z, cq_z) = (self.0 as u16, (self.0 >> 16) as u16);
        let pairs_z = if sq_z < cq_z { sq_z } else { cq_z };
        pairs_z.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_queues_is_zero_based() {
        assert_eq!(NumberOfQueues::new(8, 4), Some(NumberOfQueues(0x0003_0007)));
        assert_eq!((NumberOfQueues::new(0, 1), NumberOfQueues::new(1, 65536)), (None, None));
        let queues = NumberOfQueues(0x0003_0007);
        assert_eq!((queues.submission(), queues.completion(), queues.pairs()), (8, 4, 4));
        let lie = NumberOfQueues(u32::MAX);
        assert_eq!((lie.submission(), lie.pairs()), (65536, 65535));
    }
}
