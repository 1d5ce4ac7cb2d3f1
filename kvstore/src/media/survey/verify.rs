//! Verifies an object's bytes on the device.

use super::{ShardSurvey, SurveyedObject};
use crate::error::Result;
use crate::media::recovery::{Media, is_intact};
use crate::model::layout::pieces;
use crate::model::object::LayoutId;

impl ShardSurvey {
    /// Reads an object and compares it with its checksums. Returns false for an object with a fault.
    ///
    /// # Errors
    /// If the device does not answer.
    pub fn verify<M: Media>(&self, media: &mut M, found: &SurveyedObject) -> Result<bool> {
        let layout = self.layout_of(found);
        if layout.is_none() && found.object.layout != LayoutId::PLAIN {
            return Ok(false);
        }
        let pieces = pieces(&found.object, layout);
        let put = found.put();
        if pieces.len() != put.checksums.len() || !put.is_inside(&pieces, &self.data) {
            return Ok(false);
        }
        is_intact(media, &put, &pieces)
    }
}
