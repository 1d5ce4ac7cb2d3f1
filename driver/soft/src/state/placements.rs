//! The reclaim unit handles of data placement.

use crate::options::Options;

/// The LBAs written through each handle; none without placement.
#[derive(Debug)]
pub(crate) struct Placements(pub(crate) Vec<u64>);

impl Placements {
    pub(crate) fn new(options: &Options) -> Placements {
        Placements(vec![0; options.placement_handles.into()])
    }

    /// Counts LBAs written through a handle.
    #[inline]
    pub(crate) fn written(&mut self, handle: usize, lbas: u64) {
        if let Some(written) = self.0.get_mut(handle) {
            *written += lbas;
        }
    }
}
