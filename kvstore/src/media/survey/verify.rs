//! Verifies an object's bytes on the device.

use super::{ShardSurvey, SurveyedObject};
use crate::error::Result;
use crate::media::checksum;
use crate::media::recovery::Media;
use crate::model::object::{LayoutId, piece_bytes};
use crate::model::place::{UNIT_BYTES, units};

/// A piece of an object: its offset from the object's place in units, and its length in bytes.
type Piece = (u64, u64);

impl ShardSurvey {
    /// Reads an object and compares it with its checksums. Returns false for an object that has a fault of its own.
    ///
    /// # Errors
    /// If the device does not answer.
    pub fn verify<M: Media>(&self, media: &mut M, found: &SurveyedObject) -> Result<bool> {
        let Some(pieces) = self.pieces(found) else { return Ok(false) };
        let place = found.object.place;
        let mut room = Vec::new();
        for ((offset, bytes), checksum) in pieces.into_iter().zip(&found.checksums) {
            room.resize((units(bytes) * UNIT_BYTES) as usize, 0);
            media.read(place.device, place.unit + offset, &mut room)?;
            if checksum::of(&room[..bytes as usize]) != *checksum {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the pieces of an object; `None` if their number differs from that of its checksums, or some lie
    /// outside the data area.
    fn pieces(&self, found: &SurveyedObject) -> Option<Vec<Piece>> {
        let object = &found.object;
        let pieces: Vec<Piece> = if object.layout == LayoutId::PLAIN {
            let piece = piece_bytes(object.bytes);
            let each = 0..object.bytes.div_ceil(piece);
            each.map(|n| (n * piece / UNIT_BYTES, piece.min(object.bytes - n * piece))).collect()
        } else {
            let layout = self.layouts.get(&object.layout.0)?;
            let each = 0..layout.tensors();
            each.map(|tensor| (layout.offset_units(tensor), layout.tensor_bytes())).collect()
        };
        let data = self.data.get(usize::from(object.place.device))?;
        let is_inside = |&(offset, bytes): &Piece| {
            let start = object.place.unit + offset;
            data.start <= start && start + units(bytes) <= data.end
        };
        let is_whole = pieces.len() == found.checksums.len() && pieces.iter().all(is_inside);
        is_whole.then_some(pieces)
    }
}
