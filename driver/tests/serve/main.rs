//! The server against all kinds of clients: other implementations, invalid ones, ones that vanish.
#![allow(missing_docs)]

mod clients;
mod fuzz;
mod hostile;
mod messages;
mod neighbours;
mod other_make;
mod raw;
#[path = "../support/served.rs"]
mod served;
mod spdk;

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use adit_driver::bus::Bus;
use adit_driver::bus::vfio_user::VfioUser;
use adit_driver::serve::DoorbellAccess;
use adit_driver::soft;
use adit_driver::sys::SharedPages;
use served::Served;

const PATIENCE: Duration = Duration::from_secs(10);

fn small() -> soft::Options {
    soft::Options::memory(1 << 20)
}

fn served() -> Served {
    Served::start(small(), DoorbellAccess::Mapped)
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited for {what}");
        thread::sleep(Duration::from_micros(100));
    }
}

fn works(socket: &Path) {
    let bus = VfioUser::open(socket).expect("a good client is served");
    assert_eq!(bus.read32(8), 0x0002_0000, "VS");
    drop(bus);
}

/// Returns a second descriptor of the pages' file.
fn file_of(pages: &SharedPages) -> File {
    File::from(pages.file().try_clone_to_owned().expect("descriptor"))
}
