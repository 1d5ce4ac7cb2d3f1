//! Fields of the data structures that the controller builds.

/// Writes little-endian bytes at `offset`.
pub(crate) fn put<const N: usize>(page: &mut [u8], offset: usize, bytes: [u8; N]) {
    page[offset..offset + N].copy_from_slice(&bytes);
}

/// Writes ASCII text, padded with spaces (Base 2.0 section 1.4.2).
pub(crate) fn put_text(page: &mut [u8], offset: usize, len: usize, text: &str) {
    let field = &mut page[offset..offset + len];
    field.fill(b' ');
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
}
