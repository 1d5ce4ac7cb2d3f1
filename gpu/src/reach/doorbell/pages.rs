//! Pages of registers that GPUs can access, each shared by all its users.
//!
//! CUDA registers a page once per process, and queues of several rings, also of several GPUs, have doorbells in the same
//! page. So one table holds the pages by address, each for as long as a queue uses it, registered for every GPU
//! (`PORTABLE`); each GPU has its own address of it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use adit_driver::bus::Doorbell;
use adit_driver::sys::{Register32, Window};

use super::{PAGE_BYTES, WHAT};
use crate::cuda::library::code;
use crate::cuda::{Gpu, Registration};
use crate::error::{Error, Result};

/// How long CUDA may take to unregister a page whose last user is gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// The registered pages by their addresses in this process, and those that CUDA is about to unregister.
static PAGES: Mutex<BTreeMap<usize, Weak<Page>>> = Mutex::new(BTreeMap::new());

/// Makes pages of registers accessible to a GPU.
#[derive(Debug)]
pub struct MappedPages {
    gpu: Arc<Gpu>,
    /// Whether pages are a device's registers, or memory shared with a software controller.
    is_device: bool,
}

#[derive(Debug)]
pub(super) struct Page {
    at: usize,
    /// None while being dropped.
    registration: Option<Registration>,
}

impl MappedPages {
    pub(super) fn new(gpu: &Arc<Gpu>, is_device: bool) -> MappedPages {
        MappedPages { gpu: Arc::clone(gpu), is_device }
    }

    /// Returns the GPU address of a register, and the page that keeps it.
    pub(super) fn map(&self, doorbell: &Doorbell) -> Result<(u64, Arc<Page>)> {
        let Doorbell::Mapped(register) = doorbell else {
            let why = "this controller's doorbells are rung by messages to another process, not by stores";
            return Err(Error::unavailable(WHAT, why, "let the proxy ring them"));
        };
        let at = register.as_ptr().addr();
        let page = self.page(at & !(PAGE_BYTES - 1), register)?;
        Ok((page.address_for(&self.gpu)? + (at - page.at) as u64, page))
    }

    fn page(&self, at: usize, register: &Register32) -> Result<Arc<Page>> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut pages = pages();
            match pages.get(&at).map(Weak::upgrade) {
                Some(Some(page)) => return Ok(page),
                // Its last user is unregistering it, and then removes it from the table.
                Some(None) if Instant::now() < end => {}
                _ => {
                    let registration = Some(self.register(at, register.window())?);
                    let page = Arc::new(Page { at, registration });
                    pages.insert(at, Arc::downgrade(&page));
                    return Ok(page);
                }
            }
            drop(pages);
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Registers the page at `at`, which contains a register of `window`.
    fn register(&self, at: usize, window: &Window) -> Result<Registration> {
        let inside = at.checked_sub(window.as_ptr().addr());
        let Some(page) = inside.and_then(|inside| window.slice(inside, PAGE_BYTES)) else {
            let why = "the device's registers are not mapped by whole pages";
            return Err(Error::unavailable(WHAT, why, "let the proxy ring them"));
        };
        let first = NonNull::new(page.as_ptr()).expect("a mapping is not at address zero");
        let owner = Box::new(page);
        let registered = if self.is_device {
            // SAFETY: `owner` keeps the mapping; reading a doorbell has no effect (NVMe Base 2.0 section 3.1.3).
            unsafe { Registration::io(&self.gpu, first, PAGE_BYTES, owner) }
        } else {
            // SAFETY: `owner` keeps the mapping: memory that is shared with the process or thread that serves the
            // controller.
            unsafe { Registration::memory(&self.gpu, first, PAGE_BYTES, owner) }
        };
        registered.map_err(taken)
    }
}

impl Page {
    fn address_for(&self, gpu: &Arc<Gpu>) -> Result<u64> {
        self.registration.as_ref().expect("there until it is dropped").address_for(gpu)
    }
}

impl Drop for Page {
    /// It stays in the table until CUDA has unregistered it, so that it is not registered again before.
    fn drop(&mut self) {
        drop(self.registration.take());
        let mut pages = pages();
        // A user that ran out of patience may have put another there.
        if pages.get(&self.at).is_some_and(|page| page.strong_count() == 0) {
            pages.remove(&self.at);
        }
    }
}

fn pages() -> MutexGuard<'static, BTreeMap<usize, Weak<Page>>> {
    PAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Explains a page that CUDA already has, though not from the table: neither rights nor the machine are at fault.
fn taken(error: Error) -> Error {
    match error {
        Error::Cuda { code: code::HOST_MEMORY_ALREADY_REGISTERED, .. } => {
            let why = "CUDA has their page already: for other code of this process, or for queues that were left behind \
                       because a kernel may still ring them";
            let fix = "let the proxy ring them, or use the controller in a process of its own";
            Error::unavailable(WHAT, why, fix)
        }
        other => other,
    }
}
