//! A fake sysfs for tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder with PCI functions, removed when dropped.
pub(super) struct Tree(pub(super) PathBuf);

impl Tree {
    pub(super) fn new() -> Tree {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::temp_dir().join(format!("adit-gpu-sysfs-{}-{next}", std::process::id()));
        fs::create_dir_all(root.join("bus/pci/devices")).expect("a directory");
        Tree(root)
    }

    /// Adds a function at the end of a path such as `pci0000:00/0000:00:01.0/0000:01:00.0`.
    pub(super) fn function(&self, path: &str, attributes: &[(&str, &str)]) {
        let directory = self.0.join("devices").join(path);
        fs::create_dir_all(&directory).expect("a directory");
        let name = directory.file_name().expect("a function's name");
        symlink(&directory, self.0.join("bus/pci/devices").join(name)).expect("a link");
        for (name, text) in attributes {
            fs::write(directory.join(name), text).expect("an attribute");
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
