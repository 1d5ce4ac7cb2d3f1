//! The place of a store: an in-memory software controller, or a file through the kernel.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use adit_driver::{Device, DeviceOptions, Target};
use adit_kvstore::store::{FormatStore, OpenOptions};
use adit_kvstore::{Key, Store};

const BYTES: u64 = 256 << 20;

/// The place of a store.
pub(crate) enum Rig {
    /// Persists while a store on it is closed and opened again.
    Soft(Box<Device>),
    File(PathBuf),
}

impl Rig {
    pub(crate) fn soft() -> Rig {
        Rig::soft_of(256)
    }

    /// Creates a controller with this many MiB.
    pub(crate) fn soft_of(mebibytes: u64) -> Rig {
        let target = format!("soft:mem={mebibytes}M,queues=host").parse().expect("a target");
        let options = DeviceOptions { queue_count: 8, ..DeviceOptions::default() };
        Rig::Soft(Box::new(Device::open(&target, &options).expect("a controller")))
    }

    pub(crate) fn file() -> Rig {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("adit-handle-{}-{number}.img", std::process::id());
        Rig::File(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    /// Returns the path of a store's file.
    pub(crate) fn path(&self) -> &std::path::Path {
        match self {
            Rig::Soft(_) => panic!("it has no file"),
            Rig::File(path) => path,
        }
    }

    /// Copies a store's file as it is now.
    pub(crate) fn copy(&self) -> Rig {
        let copy = Rig::file();
        std::fs::copy(self.path(), copy.path()).expect("copied");
        copy
    }

    pub(crate) fn target(&self) -> Option<Target> {
        match self {
            Rig::Soft(_) => None,
            Rig::File(path) => Some(format!("uring:{}", path.display()).parse().expect("a target")),
        }
    }

    fn devices(&self) -> Vec<Device> {
        match self {
            Rig::Soft(device) => vec![Device::clone(device)],
            Rig::File(_) => Vec::new(),
        }
    }

    /// Returns options for opening a store on it: small, with short timeouts.
    pub(crate) fn options(&self) -> OpenOptions {
        OpenOptions {
            targets: self.target().into_iter().collect(),
            devices: self.devices(),
            pool_bytes: 8 << 20,
            timeout: Duration::from_secs(20),
            ..OpenOptions::default()
        }
    }

    pub(crate) fn format(&self, shards: u16) -> &Rig {
        let options = FormatStore {
            targets: self.target().into_iter().collect(),
            devices: self.devices(),
            shards,
            overwrite: true,
            file_bytes: Some(BYTES),
            ..FormatStore::default()
        };
        Store::format(&options).expect("formatted");
        self
    }

    pub(crate) fn open(&self) -> Store {
        Store::open(&self.options()).expect("a store")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Rig::File(path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

pub(crate) fn key(number: u64) -> Key {
    Key::from(number)
}

/// Returns the contents of object `number`, different for each.
pub(crate) fn data(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(len);
    bytes
}
