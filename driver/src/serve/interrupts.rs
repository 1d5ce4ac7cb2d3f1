//! The client's eventfds, one per MSI-X vector.
//!
//! Signalling must not wait for the client: only eventfds are accepted, and `signaller.rs` signals them.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use vfio_bindings::bindings::vfio::VFIO_PCI_MSIX_IRQ_INDEX;

use super::refusal::{Refusal, ServeResult};
use super::signaller::Signaller;
use super::system::is_eventfd;
use crate::bus::vfio_user::wire::{IRQ_ACTION_TRIGGER, IRQ_DATA_EVENTFD, IRQ_DATA_NONE, SetIrqs};
use crate::soft::Controller;

/// Kinds of interrupts of a PCI function: INTx, MSI, MSI-X, errors, requests.
pub(super) const KINDS: u32 = 5;

/// The eventfd of each vector.
#[derive(Debug)]
pub(super) struct Interrupts {
    vectors: Vec<Option<Arc<Vector>>>,
    /// Present from the first eventfd on; a polling client needs none.
    signaller: Option<Arc<Signaller>>,
}

#[derive(Debug)]
struct Vector {
    eventfd: File,
    signaller: Arc<Signaller>,
}

impl Interrupts {
    pub(super) fn new(vector_count: u16) -> Interrupts {
        Interrupts { vectors: vec![None; usize::from(vector_count)], signaller: None }
    }

    pub(super) fn count(&self, index: u32) -> u32 {
        if index == VFIO_PCI_MSIX_IRQ_INDEX { self.vectors.len() as u32 } else { 0 }
    }

    /// Executes the client's request: sets eventfds, removes them, or sends a test signal.
    pub(super) fn set(&mut self, ask: &SetIrqs, files: Vec<File>) -> ServeResult {
        let (start, count) = (ask.start as usize, ask.count as usize);
        let end = start.checked_add(count).filter(|end| *end <= self.count(ask.index) as usize);
        let Some(end) = end else {
            let (have, index) = (self.count(ask.index), ask.index);
            let why = format!("interrupts {start}+{count} of kind {index}, which has {have}");
            return Err(Refusal::invalid(why));
        };
        if ask.index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        let vectors = start..end;
        match ask.flags {
            DISABLE_OR_TEST if count == 0 && files.is_empty() => self.clear(),
            DISABLE_OR_TEST if files.is_empty() => self.vectors[vectors].iter().for_each(signal),
            SIGNAL_BY_EVENTFD if files.is_empty() => self.vectors[vectors].fill(None),
            SIGNAL_BY_EVENTFD if files.len() == count => self.take(vectors, files)?,
            SIGNAL_BY_EVENTFD => {
                let why = format!("{} files for {count} interrupts", files.len());
                return Err(Refusal::invalid(why));
            }
            flags => return Err(Refusal::unsupported(format!("interrupt flags {flags:#x}"))),
        }
        Ok(())
    }

    fn take(&mut self, vectors: Range<usize>, files: Vec<File>) -> ServeResult {
        files.iter().try_for_each(check)?;
        let signaller = self.signaller()?;
        for (vector, eventfd) in self.vectors[vectors].iter_mut().zip(files) {
            *vector = Some(Arc::new(Vector { eventfd, signaller: Arc::clone(&signaller) }));
        }
        Ok(())
    }

    fn signaller(&mut self) -> ServeResult<Arc<Signaller>> {
        if let Some(signaller) = &self.signaller {
            return Ok(Arc::clone(signaller));
        }
        let what = "cannot set up asynchronous I/O to signal interrupts (raise fs.aio-max-nr)";
        let signaller = Signaller::new().map_err(|why| Refusal::system(what, &why))?;
        Ok(Arc::clone(self.signaller.insert(Arc::new(signaller))))
    }

    pub(super) fn clear(&mut self) {
        self.vectors.fill(None);
    }

    /// Connects the controller to the current eventfds.
    pub(super) fn install(&self, controller: &mut Controller) {
        if self.vectors.iter().all(Option::is_none) {
            return controller.set_interrupt(None);
        }
        let vectors = self.vectors.clone();
        controller.set_interrupt(Some(Box::new(move |vector| {
            if let Some(vector) = vectors.get(usize::from(vector)) {
                signal(vector);
            }
        })));
    }
}

const DISABLE_OR_TEST: u32 = IRQ_DATA_NONE | IRQ_ACTION_TRIGGER;
const SIGNAL_BY_EVENTFD: u32 = IRQ_DATA_EVENTFD | IRQ_ACTION_TRIGGER;

fn signal(vector: &Option<Arc<Vector>>) {
    if let Some(vector) = vector {
        // The file is an eventfd, so that only a system out of memory refuses.
        let _ = vector.signaller.signal(&vector.eventfd);
    }
}

fn check(file: &File) -> ServeResult {
    match is_eventfd(file) {
        true => Ok(()),
        false => Err(Refusal::invalid("the file for an interrupt is not an eventfd")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::system::eventfd;

    fn ask(flags: u32, start: u32, count: u32) -> SetIrqs {
        SetIrqs { argsz: 20, flags, index: VFIO_PCI_MSIX_IRQ_INDEX, start, count }
    }

    #[test]
    fn vectors_are_set_tested_and_taken_away() {
        let mut interrupts = Interrupts::new(3);
        let (ours, theirs) = eventfd();
        interrupts.set(&ask(SIGNAL_BY_EVENTFD, 1, 1), vec![theirs]).expect("set");
        interrupts.set(&ask(DISABLE_OR_TEST, 0, 3), vec![]).expect("tested");
        assert_eq!(ours.read().expect("signalled"), 1);
        interrupts.set(&ask(DISABLE_OR_TEST, 0, 0), vec![]).expect("disabled");
        assert!(interrupts.vectors.iter().all(Option::is_none));
    }

    /// Makes a FIFO with a name like an eventfd's, which blocks its writers when full.
    fn fifo() -> File {
        let path = std::env::temp_dir().join(format!("adit-{}-[eventfd]", std::process::id()));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        let file = File::options().read(true).write(true).open(&path).expect("both ends");
        std::fs::remove_file(&path).expect("removed");
        file
    }

    #[test]
    fn wrong_requests_are_refused_and_change_nothing() {
        let mut interrupts = Interrupts::new(3);
        let errno = |outcome: ServeResult| outcome.expect_err("must be refused").errno;
        let file = || File::open("/proc/self/status").expect("a file");
        let mut set = |ask, files| errno(interrupts.set(&ask, files));
        assert_eq!(set(ask(SIGNAL_BY_EVENTFD, 0, 4), vec![]), libc::EINVAL);
        assert_eq!(set(ask(SIGNAL_BY_EVENTFD, u32::MAX, 1), vec![]), libc::EINVAL);
        assert_eq!(set(ask(SIGNAL_BY_EVENTFD, 0, 2), vec![eventfd().1]), libc::EINVAL);
        assert_eq!(set(ask(SIGNAL_BY_EVENTFD, 0, 1), vec![file()]), libc::EINVAL);
        assert_eq!(set(ask(SIGNAL_BY_EVENTFD, 0, 1), vec![fifo()]), libc::EINVAL);
        assert_eq!(set(ask(1 << 1 | 1 << 5, 0, 1), vec![]), libc::EOPNOTSUPP);
        assert_eq!(set(SetIrqs { index: 9, ..ask(DISABLE_OR_TEST, 0, 1) }, vec![]), libc::EINVAL);
        assert!(interrupts.vectors.iter().all(Option::is_none));
        let error = SetIrqs { index: 3, ..ask(DISABLE_OR_TEST, 0, 0) };
        interrupts.set(&error, vec![]).expect("there is nothing to disable");
    }
}
