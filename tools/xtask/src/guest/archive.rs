//! The guest's first file system: directories and regular files of root's, in the cpio archive that the kernel
//! unpacks. The archive is not compressed, because it only goes to the guest's memory.

use cpio::newc::{self, Builder, ModeFileType};
use std::collections::BTreeSet;
use std::io::Write;

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
                self.entry(directory, ModeFileType::Directory, 0o755, &[]);
            }
        }
    }

    /// Adds a regular file with these permission bits.
    pub(crate) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        self.entry(path.trim_matches('/'), ModeFileType::Regular, permissions, content);
    }

    /// Returns the finished archive.
    pub(crate) fn finish(self) -> Vec<u8> {
        newc::trailer(self.bytes).expect("memory takes everything")
    }

    fn entry(&mut self, name: &str, kind: ModeFileType, permissions: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("no file of a guest is 4 GiB long");
        let entry = Builder::new(name).ino(self.entries).mode(permissions).set_mode_file_type(kind);
        let mut writer = entry.write(&mut self.bytes, size);
        let written = writer.write_all(content).and_then(|()| writer.finish());
        written.expect("memory takes everything");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// Reads names, modes and contents back.
    fn read(archive: Archive) -> Vec<(String, u32, Vec<u8>)> {
        let bytes = archive.finish();
        let (mut rest, mut entries) = (bytes.as_slice(), Vec::new());
        loop {
            let mut reader = newc::Reader::new(rest).unwrap();
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            let entry = reader.entry().clone();
            if entry.is_trailer() {
                return entries;
            }
            entries.push((entry.name().to_owned(), entry.mode(), content));
            rest = reader.finish().unwrap();
        }
    }

    #[test]
    fn files_have_their_parents_once() {
        let mut archive = Archive::default();
        archive.directory("/a/");
        archive.file("/a/b/odd", 0o644, b"12345");
        archive.file("/a/b/init", 0o755, b"#!/bin/sh\n");
        let expected: [(&str, u32, &[u8]); 4] = [
            ("a", 0o040_755, b""),
            ("a/b", 0o040_755, b""),
            ("a/b/odd", 0o100_644, b"12345"),
            ("a/b/init", 0o100_755, b"#!/bin/sh\n"),
        ];
        let expected = expected.map(|(name, mode, content)| (name.into(), mode, content.into()));
        assert_eq!(read(archive), expected);
    }
}
