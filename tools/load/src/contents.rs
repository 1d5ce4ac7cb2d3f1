//! The contents of objects, which identify every byte read.
//!
//! All objects hold the same noise; each unit of 4 KiB begins with a stamp of the object, its generation (how
//! often it was put before) and the unit. A used buffer contains the noise already, so a put only rewrites the
//! stamps.

use crate::payload::noise;

/// Bytes between stamps: a store's unit.
const UNIT_BYTES: usize = 4096;
const STAMP_BYTES: usize = 24;
/// Seed of the noise, equal in all runs, so that one can read another's objects.
const NOISE_SEED: u64 = 0xad17;

/// The expected contents of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The object's number.
    pub object: u64,
    /// The smallest and the greatest valid generation.
    pub generations: (u64, u64),
}

/// Generates and checks contents.
#[derive(Clone, Debug)]
pub struct Contents {
    template: Vec<u8>,
    is_thorough: bool,
}

impl Contents {
    /// Creates the contents of objects of `bytes`; with `is_thorough`, checks compare every byte instead of
    /// only the stamps.
    pub fn new(bytes: usize, is_thorough: bool) -> Contents {
        let mut template = vec![0; bytes];
        noise(&mut template, NOISE_SEED);
        Contents { template, is_thorough }
    }

    /// Fills a new buffer; zeroes the part after the object's end.
    pub fn initial(&self, buffer: &mut [u8]) {
        let (object, padding) = buffer.split_at_mut(self.template.len());
        object.copy_from_slice(&self.template);
        padding.fill(0);
    }

    /// Stamps a filled buffer with an object and its generation.
    pub fn stamp(&self, buffer: &mut [u8], object: u64, generation: u64) {
        let units = buffer[..self.template.len()].chunks_mut(UNIT_BYTES);
        for (unit, bytes) in (0..).zip(units) {
            let len = bytes.len().min(STAMP_BYTES);
            bytes[..len].copy_from_slice(&stamp(object, generation, unit)[..len]);
        }
    }

    /// Checks a buffer that was read.
    ///
    /// # Errors
    /// A description of the first difference.
    pub fn check(&self, buffer: &[u8], expected: Expected) -> Result<(), String> {
        let data = &buffer[..self.template.len()];
        let Some(generation) = generation_of(data) else {
            // Too short for a generation, so only the object can be checked.
            let len = data.len().min(size_of::<u64>());
            return same(&data[..len], &stamp(expected.object, 0, 0)[..len], expected.object, 0);
        };
        let (from, to) = expected.generations;
        if !(from..=to).contains(&generation) {
            return Err(format!(
                "object {} is of generation {generation}, not one of {from} to {to}",
                expected.object
            ));
        }
        let units = data.chunks(UNIT_BYTES).zip(self.template.chunks(UNIT_BYTES));
        for (unit, (bytes, template)) in (0..).zip(units) {
            let len = bytes.len().min(STAMP_BYTES);
            let stamp = stamp(expected.object, generation, unit);
            let offset = unit as usize * UNIT_BYTES;
            same(&bytes[..len], &stamp[..len], expected.object, offset)?;
            if self.is_thorough {
                same(&bytes[len..], &template[len..], expected.object, offset + len)?;
            }
        }
        Ok(())
    }
}

fn stamp(object: u64, generation: u64, unit: u64) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    stamp[..8].copy_from_slice(&object.to_le_bytes());
    stamp[8..16].copy_from_slice(&generation.to_le_bytes());
    stamp[16..].copy_from_slice(&unit.to_le_bytes());
    stamp
}

/// Returns the generation in an object's first unit.
fn generation_of(data: &[u8]) -> Option<u64> {
    let bytes = data.get(8..16)?;
    Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

fn same(found: &[u8], expected: &[u8], object: u64, offset: usize) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
    Err(format!(
        "object {object} has {:#04x} at byte {}, not {:#04x} as was put",
        found[at],
        offset + at,
        expected[at]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 10_000;

    fn made(object: u64, generation: u64) -> Vec<u8> {
        let contents = Contents::new(BYTES, true);
        let mut buffer = vec![0xee; 3 * UNIT_BYTES];
        contents.initial(&mut buffer);
        contents.stamp(&mut buffer, object, generation);
        buffer
    }

    fn expected(object: u64, from: u64, to: u64) -> Expected {
        Expected { object, generations: (from, to) }
    }

    #[test]
    fn what_was_made_is_right_and_stays_so_when_it_is_stamped_again() {
        let contents = Contents::new(BYTES, true);
        let mut buffer = made(7, 3);
        assert_eq!(contents.check(&buffer, expected(7, 3, 3)), Ok(()));
        contents.stamp(&mut buffer, 8, 0);
        assert_eq!(buffer, made(8, 0));
        assert!(buffer[BYTES..].iter().all(|byte| *byte == 0), "padding is zero");
    }

    #[test]
    fn any_wrong_byte_is_found_by_the_thorough_and_any_wrong_unit_by_all() {
        let (thorough, quick) = (Contents::new(BYTES, true), Contents::new(BYTES, false));
        for at in (0..BYTES).step_by(97) {
            let mut buffer = made(7, 3);
            buffer[at] ^= 0x10;
            let why = thorough.check(&buffer, expected(7, 3, 3)).expect_err("a wrong byte");
            assert!(why.contains("object 7"), "{why}");
        }
        let mut torn = made(7, 3);
        torn[UNIT_BYTES..2 * UNIT_BYTES].copy_from_slice(&made(7, 2)[UNIT_BYTES..2 * UNIT_BYTES]);
        assert!(quick.check(&torn, expected(7, 2, 3)).is_err(), "generations do not mix");
        let mut moved = made(7, 3);
        moved.swap(0, UNIT_BYTES);
        moved.copy_within(UNIT_BYTES..2 * UNIT_BYTES, 0);
        assert!(quick.check(&moved, expected(7, 3, 3)).is_err(), "units stay in place");
    }

    #[test]
    fn another_object_and_a_stale_generation_are_wrong() {
        let contents = Contents::new(BYTES, false);
        assert!(contents.check(&made(6, 3), expected(7, 3, 3)).is_err());
        let why = contents.check(&made(7, 2), expected(7, 3, 5)).expect_err("stale");
        assert!(why.contains("generation 2"), "{why}");
        assert_eq!(contents.check(&made(7, 4), expected(7, 3, 5)), Ok(()));
    }

    #[test]
    fn objects_shorter_than_a_stamp_are_told_by_what_they_have() {
        for bytes in 1..STAMP_BYTES {
            let contents = Contents::new(bytes, true);
            let mut buffer = vec![0; UNIT_BYTES];
            contents.initial(&mut buffer);
            contents.stamp(&mut buffer, 0x0102_0304_0506_0708, 1);
            assert_eq!(contents.check(&buffer, expected(0x0102_0304_0506_0708, 1, 1)), Ok(()));
            assert!(contents.check(&buffer, expected(9, 0, 0)).is_err(), "{bytes}");
        }
    }
}
