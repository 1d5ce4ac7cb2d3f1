//! Everything a seed decides before the first command: the controller and its queues.

use std::path::PathBuf;

use adit_driver::soft::{Options, SglSupport, Storage};
use adit_driver::{ControllerOptions, Placement, QueuePairOptions};

use crate::random::Random;

/// A controller, its queues, and the amount of work for them.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) soft: Options,
    pub(crate) controller: ControllerOptions,
    /// Whether the controller polls shadow doorbells.
    pub(crate) polls_shadow: bool,
    pub(crate) queues: Vec<QueueShape>,
    /// Whether buffers have several pieces.
    pub(crate) scattered: bool,
    pub(crate) operations: usize,
    /// The most bytes of an ordinary request.
    pub(crate) bytes_max: u64,
    /// The media file, if any, removed at the end.
    pub(crate) file: Option<TemporaryFile>,
}

/// Shape of one queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueShape {
    pub(crate) depth: u32,
    pub(crate) list_pages: usize,
    pub(crate) bounce_pages: usize,
    pub(crate) in_cmb: bool,
}

impl QueueShape {
    pub(crate) fn options(self) -> QueuePairOptions {
        QueuePairOptions {
            depth: self.depth,
            placement: if self.in_cmb { Placement::Cmb } else { Placement::Host },
            list_pages: self.list_pages,
            bounce_pages: self.bounce_pages,
            ..Default::default()
        }
    }
}

/// A file that is removed with its owner.
#[derive(Debug)]
pub(crate) struct TemporaryFile(pub(crate) PathBuf);

impl TemporaryFile {
    fn new(seed: u64) -> TemporaryFile {
        // Two tests of one process may run the same seed.
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("adit-model-{}-{seed}-{count}.img", std::process::id());
        TemporaryFile(std::env::temp_dir().join(name))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // It does not exist if the controller could not be made.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Scenario {
    pub(crate) fn new(seed: u64, random: &mut Random) -> Scenario {
        let file = random.chance(30).then(|| TemporaryFile::new(seed));
        let soft = controller(random, file.as_ref());
        let cmb = soft.cmb_bytes > 0 && random.chance(75);
        let controller = ControllerOptions {
            io_queues: random.between(1, 4) as u16,
            sgl: random.chance(90),
            shadow_doorbells: random.chance(90),
            cmb,
            ..Default::default()
        };
        let granted = soft.io_queue_count.min(controller.io_queues);
        let queues = (0..random.between(1, u64::from(granted.min(3))))
            .map(|_| queue(random, soft.queue_entries_max, cmb))
            .collect();
        Scenario {
            soft,
            controller,
            polls_shadow: random.chance(50),
            queues,
            scattered: random.chance(70),
            operations: random.between(40, 120) as usize,
            bytes_max: random.pick(&[16 << 10, 64 << 10, 300 << 10, 900 << 10]),
            file,
        }
    }
}

fn controller(random: &mut Random, file: Option<&TemporaryFile>) -> Options {
    let lba_bytes: Vec<u32> =
        (0..random.between(1, 3)).map(|_| random.pick(&[512, 4096])).collect();
    let share = random.between(64, 300) << 12;
    let bytes = share * lba_bytes.len() as u64;
    let storage = match file {
        Some(file) => Storage::File { path: file.0.clone(), bytes: Some(bytes) },
        None => Storage::Memory { bytes },
    };
    Options {
        namespace_count: lba_bytes.len() as u32,
        lba_bytes,
        mdts: random.pick(&[1, 2, 5, 7, 0]),
        sgl: random.pick(&[SglSupport::Off, SglSupport::Byte, SglSupport::Dword]),
        cmb_bytes: random.pick(&[0, 0, 256 << 10]),
        dbbuf: random.chance(70),
        io_queue_count: random.between(1, 4) as u16,
        queue_entries_max: random.pick(&[16, 64, 4096]),
        noiob_lbas: random.pick(&[0, 0, 5, 8, 32]),
        dstrd: random.pick(&[0, 0, 1, 4]),
        // A file is read without the controller; its namespaces have tuples between them, and a cache would hold the
        // newest data.
        protection: if file.is_some() { 0 } else { random.pick(&[0, 0, 1, 2, 3]) },
        vwc_bytes: if file.is_some() { 0 } else { random.pick(&[0, 0, 16 << 10, 1 << 20]) },
        ..Options::over(storage)
    }
}

fn queue(random: &mut Random, entries_max: u32, cmb: bool) -> QueueShape {
    QueueShape {
        depth: random.pick(&[2, 3, 7, 16, 33, 64, 128]).min(entries_max),
        list_pages: random.between(8, 14) as usize,
        bounce_pages: random.between(1, 6) as usize,
        in_cmb: cmb && random.chance(70),
    }
}
