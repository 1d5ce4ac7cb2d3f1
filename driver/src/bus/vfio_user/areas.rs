//! Maps parts of the server's regions into this process.
//!
//! The server names a file and areas in it; both are checked against the region and the file before anything
//! is mapped. Only memory files are mapped: a store to any other could wait without a deadline for the
//! process or disk behind its file system.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use super::describe::ServerRegion;
use crate::sys::{Window, memory_file};

const PAGE: u64 = 4096;
/// Doorbells start here (NVMe over PCIe Transport 1.0, section 3.1.2).
const DOORBELLS: u64 = 0x1000;

/// Returns the mappable whole pages of BAR0 that hold doorbells; none unless their file is a memory file.
pub(super) fn doorbell_areas(bar0: &ServerRegion) -> Vec<Range<u64>> {
    let clipped = bar0.areas.iter().filter_map(|area| {
        let start = area.start.max(DOORBELLS).checked_next_multiple_of(PAGE)?;
        let end = area.end.min(bar0.len) / PAGE * PAGE;
        (start < end).then_some(start..end)
    });
    let file = bar0.file.as_ref().filter(|(file, _)| memory_file::page_bytes(file).is_some());
    if file.is_some() { clipped.collect() } else { Vec::new() }
}

/// Maps a part of a region from the server's file.
pub(super) fn map_area(region: &ServerRegion, area: Range<u64>) -> io::Result<Window> {
    let (file, at, len) = locate(region, area)?;
    Window::map(file.as_fd(), at, len)
}

/// Replaces `window`'s mapping by the part of a region that starts at `start`.
pub(super) fn map_again(region: &ServerRegion, start: u64, window: &Window) -> io::Result<()> {
    let end = start.saturating_add(window.len() as u64);
    let (file, at, _) = locate(region, start..end)?;
    window.replace(file, at)
}

/// Locates an area in the server's file: whole pages that the file has.
fn locate(region: &ServerRegion, area: Range<u64>) -> io::Result<(&File, u64, usize)> {
    let missing = || io::Error::other("the server sent no file for it");
    let (file, start) = region.file.as_ref().ok_or_else(missing)?;
    let at = start.checked_add(area.start).ok_or_else(missing)?;
    if !at.is_multiple_of(PAGE) {
        return Err(io::Error::other(format!(
            "the server puts it at {at:#x} of its file, inside a page"
        )));
    }
    let len = area.end - area.start;
    check_file(file, at, len)?;
    Ok((file, at, usize::try_from(len).map_err(io::Error::other)?))
}

/// Checks the file's kind and length: a page beyond its end could be mapped but not accessed.
fn check_file(file: &File, at: u64, len: u64) -> io::Result<()> {
    if memory_file::page_bytes(file).is_none() {
        return Err(io::Error::other("the server's file for it is not a memory file"));
    }
    let file_len = file.metadata()?.len();
    match at.checked_add(len) {
        Some(end) if end <= file_len => Ok(()),
        _ => Err(io::Error::other(format!("the server's file has only {file_len} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(len: u64, areas: &[(u64, u64)], file: Option<(File, u64)>) -> ServerRegion {
        ServerRegion { len, areas: areas.iter().map(|&(start, end)| start..end).collect(), file }
    }

    fn file(len: usize) -> File {
        let pages = crate::sys::SharedPages::allocate(len).expect("memory");
        File::from(pages.file().as_fd().try_clone_to_owned().expect("descriptor"))
    }

    #[test]
    fn only_whole_doorbell_pages_of_the_region_are_mapped() {
        let areas = [(0, 0x1800), (0x2800, 0x9000), (u64::MAX - 1, u64::MAX)];
        let offered = region(0x4000, &areas, Some((file(0x4000), 0)));
        let expected: Vec<Range<u64>> = std::iter::once(0x3000..0x4000).collect();
        assert_eq!(doorbell_areas(&offered), expected);
        assert!(doorbell_areas(&region(0x4000, &areas, None)).is_empty());
    }

    #[test]
    fn files_that_are_no_memory_are_not_mapped() {
        let other = File::open("/proc/self/status").expect("a file");
        let offered = region(0x4000, &[(0x1000, 0x4000)], Some((other, 0)));
        assert!(doorbell_areas(&offered).is_empty());
        let error = map_area(&offered, 0x1000..0x2000).expect_err("no memory").to_string();
        assert!(error.contains("not a memory file"), "{error}");
    }

    #[test]
    fn a_file_that_ends_before_the_area_is_not_mapped() {
        let short = region(0x4000, &[(0x1000, 0x2000)], Some((file(0x1000), 0)));
        let error = map_area(&short, 0x1000..0x2000).expect_err("too short").to_string();
        assert!(error.contains("only 4096 bytes"), "{error}");
        let far = region(0x4000, &[], Some((file(0x4000), u64::MAX)));
        assert!(map_area(&far, 0x1000..0x2000).is_err());
        let odd = region(0x4000, &[], Some((file(0x4000), 1)));
        let error = map_area(&odd, 0x1000..0x2000).expect_err("inside a page").to_string();
        assert!(error.contains("inside a page"), "{error}");
        let right = region(0x4000, &[], Some((file(0x4000), 0x1000)));
        assert_eq!(map_area(&right, 0x1000..0x2000).expect("mapped").len(), 0x1000);
    }
}
