//! A job's idle buffers.

use adit_driver::Buffer;

/// Buffers by slot. Controllers cannot access each other's memory, so a job on several has `depth` buffers for
/// each, of which at most `depth` are in flight in total.
#[derive(Debug)]
pub(super) struct Pool {
    /// By slot; those of domain `d` are `d * depth` to `(d + 1) * depth`. `None` while in flight.
    buffers: Vec<Option<Buffer>>,
    /// Idle slots, by domain.
    idle: Vec<Vec<u32>>,
    depth: usize,
    in_flight: usize,
}

impl Pool {
    /// Creates a pool from the buffers by domain, the same number for each.
    pub(super) fn new(buffers: Vec<Vec<Buffer>>) -> Pool {
        let depth = buffers[0].len();
        assert!(buffers.iter().all(|domain| domain.len() == depth), "as many of each domain");
        let mut slots = 0..;
        let idle = buffers.iter().map(|_| slots.by_ref().take(depth).collect()).collect();
        let buffers = buffers.into_iter().flatten().map(Some).collect();
        Pool { buffers, idle, depth, in_flight: 0 }
    }

    /// Returns how many may be in flight at once.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn slots(&self) -> usize {
        self.buffers.len()
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns whether no more may be in flight.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight == self.depth
    }

    /// Takes a buffer of a domain; `None` if `depth` are in flight.
    #[inline]
    pub(super) fn take(&mut self, domain: usize) -> Option<(u32, Buffer)> {
        if self.is_empty() {
            return None;
        }
        let slot = self.idle[domain].pop()?;
        let buffer = self.buffers[slot as usize].take().expect("an idle slot has its buffer");
        self.in_flight += 1;
        Some((slot, buffer))
    }

    /// Puts back a buffer taken with [`Pool::take`].
    #[inline]
    pub(super) fn put(&mut self, slot: u32, buffer: Buffer) {
        let domain = if self.idle.len() == 1 { 0 } else { slot as usize / self.depth };
        let place = &mut self.buffers[slot as usize];
        assert!(place.is_none(), "a buffer comes back once");
        *place = Some(buffer);
        self.idle[domain].push(slot);
        self.in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::{Device, DeviceOptions, Target};

    #[test]
    fn at_most_depth_are_out_and_each_goes_back_to_its_domain() {
        let target: Target = "null:".parse().expect("a target");
        let device = Device::open(&target, &DeviceOptions::default()).expect("a device");
        let buffers = || (0..3).map(|_| device.allocate(512).expect("memory")).collect();
        let mut pool = Pool::new(vec![buffers(), buffers()]);
        assert_eq!((pool.depth(), pool.slots()), (3, 6));
        let taken: Vec<_> = [0, 1, 1].map(|domain| pool.take(domain).expect("idle")).into();
        assert_eq!(taken.iter().map(|(slot, _)| slot / 3).collect::<Vec<_>>(), [0, 1, 1]);
        assert!(pool.is_empty() && pool.take(0).is_none());
        for (slot, buffer) in taken {
            pool.put(slot, buffer);
        }
        assert_eq!((pool.in_flight(), pool.idle[0].len(), pool.idle[1].len()), (0, 3, 3));
    }
}
