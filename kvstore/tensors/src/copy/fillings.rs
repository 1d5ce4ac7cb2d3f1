//! Queues the bytes that an idle copy thread reads into the page cache.

use std::collections::VecDeque;

use crate::copy::route::Route;
use crate::shape::TensorId;

/// The beginning of a tensor that should be in the page cache.
#[derive(Debug)]
struct Filling {
    tensor: TensorId,
    route: Route,
    bytes: u64,
}

/// Bytes that a thread reads through the page cache while idle.
#[derive(Debug, Default)]
pub(crate) struct Fillings(VecDeque<Filling>);

impl Fillings {
    /// Returns whether nothing is left to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the first `bytes` of a tensor, replacing its earlier entry.
    pub(crate) fn add(&mut self, tensor: TensorId, route: Route, bytes: u64) {
        self.forget(tensor);
        self.0.push_back(Filling { tensor, route, bytes });
    }

    /// Removes a tensor that is in the page cache now or no longer belongs there.
    pub(crate) fn forget(&mut self, tensor: TensorId) {
        self.0.retain(|filling| filling.tensor != tensor);
    }

    /// Removes and returns the next piece, at most `most` bytes: its route and length.
    pub(crate) fn next(&mut self, most: u64) -> Option<(Route, u64)> {
        let Filling { route, bytes, .. } = self.0.front_mut()?;
        let piece = (*route, most.min(*bytes));
        *bytes -= piece.1;
        *route = route.further(piece.1);
        if *bytes == 0 {
            self.0.pop_front();
        }
        Some(piece)
    }
}
