//! Writes archives in the "newc" cpio format, which the kernel unpacks as its first file system.
//!
//! Follows the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`. Supports only what a
//! guest needs: directories and regular files owned by root. The archive is not compressed, because it only
//! goes to the guest's memory.

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;

/// An archive being written. Missing parent directories are added.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// Adds a directory and its parents. Paths are absolute; adding one twice is fine.
    pub(crate) fn directory(&mut self, path: &str) {
        let path = path.trim_matches('/');
        for end in path.match_indices('/').map(|(at, _)| at).chain([path.len()]) {
            let directory = &path[..end];
            if !directory.is_empty() && self.directories.insert(directory.to_owned()) {
                self.entry(directory, DIRECTORY, &[]);
            }
        }
    }

    /// Adds a regular file with these permission bits.
    pub(crate) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.parent(path);
        self.entry(path.trim_matches('/'), FILE | permissions, content);
    }

    /// Returns the finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn parent(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("no file of a guest is 4 GiB long");
        let name_size = u32::try_from(name.len() + 1).expect("paths are short");
        let links = if mode == DIRECTORY { 2 } else { 1 };
        // inode, mode, uid, gid, links, time, size, device (2), special device (2), name size, checksum
        let fields = [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads names, modes and contents back, checking the alignment of each part.
    fn read(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let text =
                |n: usize| std::str::from_utf8(&bytes[at + 6 + 8 * n..at + 14 + 8 * n]).unwrap();
            let field = |n: usize| u32::from_str_radix(text(n), 16).unwrap();
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name =
                std::str::from_utf8(&bytes[at + 110..at + 110 + name_size - 1]).unwrap().to_owned();
            let content = (at + 110 + name_size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return entries;
            }
            entries.push((name, mode, bytes[content..content + size].to_vec()));
            at = (content + size).next_multiple_of(4);
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut archive = Archive::default();
        archive.file("/init", 0o755, b"#!/bin/sh\n");
        archive.file("/a/b/odd", 0o644, b"12345");
        let entries = read(&archive.finish());
        let expected: [(&str, u32, &[u8]); 4] = [
            ("init", 0o100_755, b"#!/bin/sh\n"),
            ("a", DIRECTORY, b""),
            ("a/b", DIRECTORY, b""),
            ("a/b/odd", 0o100_644, b"12345"),
        ];
        assert_eq!(entries.len(), expected.len());
        for (entry, (name, mode, content)) in entries.iter().zip(expected) {
            assert_eq!((entry.0.as_str(), entry.1, entry.2.as_slice()), (name, mode, content));
        }
    }

    #[test]
    fn a_directory_is_written_once() {
        let mut archive = Archive::default();
        archive.directory("/dev/shm");
        archive.directory("/dev");
        archive.directory("/dev/shm/");
        assert_eq!(read(&archive.finish()).len(), 2);
    }
}
