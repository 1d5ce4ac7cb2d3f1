//! One engine in one round, in a process of its own, so that its resource usage is measured alone.
//!
//! The phases are a fill, then those requested. A fill and a mixed phase end when everything is on the device. If no
//! memory group bounds the page cache, it is emptied between phases. After them the kernel says which of the engine's
//! files are open with O_DIRECT.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::engine::{self, Bed, Setup};
use crate::load::Work;
use crate::measured::{Cost, Measured};
use crate::message::{Ended, Message};
use crate::options::{Child, Phase};
use crate::usage::{OpenFiles, Processor, resident_bytes_max};

/// Time between two progress reports.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// Runs the phases and reports the results.
///
/// # Errors
/// Any failure; the parent adds the engine's name.
pub(crate) fn run(child: &Child) -> Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    if let Some(group) = &child.group {
        crate::memory_limit::join(group)?;
    }
    let setup = Setup {
        folder: child.folder.clone(),
        objects: child.load.objects(),
        object_bytes: child.load.object_bytes.0 as usize,
        memory_bytes: child.load.memory.0,
        cache_bytes: if child.engine.has_cache() { child.load.cache_bytes() } else { 0 },
        depth: child.load.depth,
    };
    let (mut bed, about) = engine::open(child.engine, &setup)?;
    let phases = [Phase::Fill].into_iter().chain(child.load.phases.iter().copied());
    for phase in phases {
        if child.group.is_none() {
            drop_page_cache(&child.folder)?;
        }
        Message::Measured(measure(&mut *bed, child, phase)?).tell()?;
    }
    let (resident_bytes_max, open_files) = (resident_bytes_max()?, OpenFiles::of(&child.folder)?);
    let (setup, promise) = (about.setup, about.promise);
    Message::Ended(Ended { resident_bytes_max, open_files, setup, promise }).tell()
}

fn measure(bed: &mut dyn Bed, child: &Child, phase: Phase) -> Result<Measured> {
    let lasts = Duration::from_secs(child.load.seconds);
    let work = Arc::new(Work::new(phase, child.load.objects(), lasts, child.seed));
    let hits_before = bed.memory_hits()?;
    let (before, began) = (Processor::now()?, Instant::now());
    let tally = telling(&work, || -> Result<_> {
        let tally = bed.run(&work)?;
        if matches!(phase, Phase::Fill | Phase::Mixed) {
            bed.settle()?;
        }
        Ok(tally)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let cost = Cost { seconds, processor: Processor::now()?.seconds_since(before) };
    let hits = bed.memory_hits()?.zip(hits_before).map(|(now, before)| now - before);
    Measured::new(phase, &tally, hits, cost, child.load.object_bytes.0)
}

/// Calls `f` while another thread reports its progress.
fn telling<T>(work: &Work, f: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let teller = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // Ignore a missing reader: a signal reports the end of the parent.
                let _ = Message::Far { phase: work.phase, done: work.far() }.tell();
                std::thread::park_timeout(TELL_EVERY);
            }
        });
        let result = f();
        is_over.store(true, Ordering::Relaxed);
        teller.thread().unpark();
        result
    })
}

/// Drops the kernel's page cache of the files in a folder and below.
fn drop_page_cache(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            drop_page_cache(&path)?;
            continue;
        }
        // An engine may have removed the file meanwhile.
        let Ok(file) = std::fs::File::open(&path) else { continue };
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .with_context(|| format!("emptying the page cache of {}", path.display()))?;
    }
    Ok(())
}
