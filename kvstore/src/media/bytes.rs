//! Reads and writes little-endian numbers in byte slices.
//!
//! A [`Reader`] never panics: it returns `None` if bytes are missing. A [`Writer`] panics if the slice is too short,
//! which is a bug of the caller.

/// Takes numbers from the front of untrusted bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes the next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes the next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u40(&mut self) -> Option<u64> {
        let [a, b, c, d, e] = self.array()?;
        Some(u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]))
    }

    pub(crate) fn u48(&mut self) -> Option<u64> {
        let [a, b, c, d, e, f] = self.array()?;
        Some(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }
}

/// Writes numbers one after another.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        Writer { bytes, at: 0 }
    }

    /// Returns the number of bytes written.
    pub(crate) fn len(&self) -> usize {
        self.at
    }

    /// Writes bytes unchanged.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    /// Writes a 40-bit number.
    ///
    /// # Panics
    /// If the number is larger, or there is no room.
    pub(crate) fn u40(&mut self, number: u64) -> &mut Self {
        assert!(number < 1 << 40, "{number} has more than 40 bits");
        self.put(&number.to_le_bytes()[..5])
    }

    /// Writes a 48-bit number.
    ///
    /// # Panics
    /// If the number is larger, or there is no room.
    pub(crate) fn u48(&mut self, number: u64) -> &mut Self {
        assert!(number < 1 << 48, "{number} has more than 48 bits");
        self.put(&number.to_le_bytes()[..6])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_end_where_the_bytes_do() {
        let mut bytes = [0; 11];
        Writer::new(&mut bytes).u40((1 << 40) - 2).u48((1 << 48) - 3);
        let mut reader = Reader(&bytes);
        assert_eq!((reader.u40(), reader.u48()), (Some((1 << 40) - 2), Some((1 << 48) - 3)));
        assert_eq!((reader.u8(), reader.u64(), reader.take(1)), (None, None, None));
    }
}
