//! Extracts the kernel proper from its `vmlinuz` once, so that guests need not unpack it.
//!
//! Unpacking eight megabytes takes seconds of an emulated processor and less than one of the host's. The result
//! is an ELF file that QEMU starts directly if it has an entry for that (PVH, in a Xen note). Follows the
//! kernel's `Documentation/x86/boot.rst`. A kernel that cannot be extracted or started like this is booted
//! unchanged; extraction only saves time.

use super::modules::read_unpacked;
use crate::failure::{Context, Result};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The number of 512-byte sectors before the protected-mode code, without the first one; 0 means 4.
const SETUP_SECTORS_AT: usize = 0x1f1;
/// The offset of the compressed kernel in the protected-mode code.
const PAYLOAD_OFFSET_AT: usize = 0x248;
/// Its length.
const PAYLOAD_BYTES_AT: usize = 0x24c;
/// Bytes after the compressed data: its uncompressed size.
const SIZE_BYTES: usize = 4;

/// Magic numbers of compressed kernels, and the file extensions of their formats.
const PACKINGS: [(&[u8], &str); 2] = [(b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zst")];

/// Fields of a 64-bit ELF header about program headers: offset, size and number.
const HEADERS_AT: usize = 0x20;
const HEADER_SIZE_AT: usize = 0x36;
const HEADER_COUNT_AT: usize = 0x38;
/// The type of a program header for notes.
const NOTES: u32 = 4;
/// The type and the owner of the note that contains the entry.
const PVH: &[u8] = b"\x12\0\0\0Xen\0";

/// Returns the kernel next to `image`, extracting it on first use; `image` itself if that fails.
pub(crate) fn beside(image: &Path) -> Result<PathBuf> {
    let name =
        image.file_name().unwrap_or_default().to_string_lossy().replace("vmlinuz", "vmlinux");
    let place = image.with_file_name(name);
    if place.is_file() {
        return Ok(place);
    }
    let packed = fs::read(image).context(format_args!("cannot read {}", image.display()))?;
    match unpack(&packed, &place)? {
        Some(kernel) if has_entry(&kernel) => {
            write_whole(&place, &kernel)?;
            Ok(place)
        }
        _ => Ok(image.to_path_buf()),
    }
}

/// Unpacks the kernel in an image, using temporary files with names derived from `place`.
fn unpack(image: &[u8], place: &Path) -> Result<Option<Vec<u8>>> {
    let Some((payload, packing)) = payload(image) else { return Ok(None) };
    let file = place.with_extension(format!("{}.{packing}", std::process::id()));
    fs::write(&file, payload).context(format_args!("cannot write {}", file.display()))?;
    let kernel = read_unpacked(&file);
    // A leftover only takes a few megabytes and is never read.
    let _ = fs::remove_file(&file);
    kernel.map(Some)
}

/// Returns the compressed kernel in an image, and its format.
fn payload(image: &[u8]) -> Option<(&[u8], &'static str)> {
    let sectors = match *image.get(SETUP_SECTORS_AT)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + number(image, PAYLOAD_OFFSET_AT..PAYLOAD_OFFSET_AT + 4)?;
    let bytes = number(image, PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4)?;
    let payload = image.get(start..start.checked_add(bytes)?.checked_sub(SIZE_BYTES)?)?;
    let packing = PACKINGS.iter().find(|(magic, _)| payload.starts_with(magic))?;
    Some((payload, packing.1))
}

/// Returns whether this ELF file has the entry QEMU needs.
fn has_entry(kernel: &[u8]) -> bool {
    let find = || {
        let start = number(kernel, HEADERS_AT..HEADERS_AT + 8)?;
        let size = number(kernel, HEADER_SIZE_AT..HEADER_SIZE_AT + 2)?;
        let count = number(kernel, HEADER_COUNT_AT..HEADER_COUNT_AT + 2)?;
        let headers = kernel.get(start..start.checked_add(size * count)?)?;
        headers.chunks_exact(size.max(1)).find_map(|header| {
            let is_notes = header.starts_with(&NOTES.to_le_bytes());
            let at = number(header, 0x08..0x10).filter(|_| is_notes)?;
            kernel.get(at..at.checked_add(number(header, 0x20..0x28)?)?)
        })
    };
    let has_pvh = |notes: &[u8]| notes.windows(PVH.len()).any(|window| window == PVH);
    kernel.starts_with(b"\x7fELF") && find().is_some_and(has_pvh)
}

/// Reads a little-endian number.
fn number(bytes: &[u8], at: Range<usize>) -> Option<usize> {
    let digits = bytes.get(at)?.iter().rev();
    let value = digits.fold(0u64, |value, &digit| value << 8 | u64::from(digit));
    usize::try_from(value).ok()
}

/// Writes a file that appears once it is complete.
fn write_whole(place: &Path, content: &[u8]) -> Result<()> {
    let partial = place.with_extension(format!("partial-{}", std::process::id()));
    let written = fs::write(&partial, content).and_then(|()| fs::rename(&partial, place));
    written.context(format_args!("cannot write {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with these bytes as compressed kernel, after one sector of setup and 16 bytes of code.
    fn image(packed: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024 + 16];
        image[SETUP_SECTORS_AT] = 1;
        image[PAYLOAD_OFFSET_AT] = 16;
        let bytes = u32::try_from(packed.len() + SIZE_BYTES).unwrap();
        image[PAYLOAD_BYTES_AT..][..4].copy_from_slice(&bytes.to_le_bytes());
        image.extend_from_slice(packed);
        image.extend_from_slice(&[0; SIZE_BYTES]);
        image
    }

    /// An ELF file whose only program header is for this note.
    fn kernel(note: &[u8]) -> Vec<u8> {
        let mut kernel = vec![0; 0x40 + 0x38];
        kernel[..4].copy_from_slice(b"\x7fELF");
        (kernel[HEADERS_AT], kernel[HEADER_SIZE_AT], kernel[HEADER_COUNT_AT]) = (0x40, 0x38, 1);
        let header = &mut kernel[0x40..];
        (header[0], header[8], header[0x20]) = (4, 0x78, u8::try_from(note.len()).unwrap());
        kernel.extend_from_slice(note);
        kernel
    }

    #[test]
    fn a_packed_kernel_is_found_behind_the_setup() {
        let packed = b"\xfd7zXZ\0and so on";
        assert_eq!(payload(&image(packed)), Some((packed.as_slice(), "xz")));
        assert_eq!(payload(&image(b"unknown")), None);
    }

    #[test]
    fn an_image_that_is_cut_anywhere_has_no_kernel() {
        let whole = image(b"\x28\xb5\x2f\xfdand so on");
        assert!((0..whole.len() - SIZE_BYTES).all(|end| payload(&whole[..end]).is_none()));
        assert_eq!(payload(&whole).map(|(_, packing)| packing), Some("zst"));
    }

    #[test]
    fn only_a_kernel_with_the_note_is_started_directly() {
        let good = kernel(b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0\0\0\0\x01");
        assert!(has_entry(&good));
        assert!(!has_entry(&kernel(b"\x04\0\0\0\x04\0\0\0\x07\0\0\0Xen\0\0\0\0\x01")));
        assert!((0..good.len() - 8).all(|end| !has_entry(&good[..end])));
    }

    #[test]
    fn an_image_without_a_kernel_in_it_is_booted_as_it_is() {
        let directory =
            std::env::temp_dir().join(format!("adit-xtask-vmlinux-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("vmlinuz-1.0");
        fs::write(&file, b"not a kernel").unwrap();
        assert_eq!(beside(&file).ok(), Some(file));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }
}
