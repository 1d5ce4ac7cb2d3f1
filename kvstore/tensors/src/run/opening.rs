//! Opens a run: evaluates the budget, plans, binds tensors, opens devices and starts copy threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use adit_driver::memory::Buffer;
use adit_driver::paths::{Device, DeviceOptions};
use adit_kvstore::memory::{Memory, Probe, budget, dirty_room};

use crate::cached::{CachedFile, check_folder};
use crate::copy::checksums::Checksums;
use crate::copy::fillings::Fillings;
use crate::copy::gpu::Gpu;
use crate::copy::queue::{BlockingOptions, BlockingQueue};
use crate::copy::route::Home;
use crate::copy::threads::{Threads, thread_of};
use crate::copy::{Counts, Worker};
use crate::direct::BEHIND_COUNT;
use crate::error::{Error, Result};
use crate::governor::Governor;
use crate::options::{Extent, RunOptions};
use crate::place::{Area, TensorMap};
use crate::plan::{Plan, Ranker, layers_that_fit};
use crate::run::Tensors;
use crate::shape::TensorId;
use crate::stats::RunStats;

/// Size of a page of the page cache, to which tensors in the files are aligned.
const PAGE_BYTES: u32 = 4096;
pub(super) fn open<G: Gpu>(options: RunOptions, gpu: G, ranker: &dyn Ranker) -> Result<Tensors<G>> {
    options.check()?;
    let shape = options.shape;
    let layers = shape.model.layers;
    let probe = Probe::new()?;
    let memory = probe.memory()?;
    let budget = budget_of(&options, &memory)?;
    let cached = layers_that_fit(options.x(budget), shape.tensor_bytes(), layers);
    let plan = Plan::new(ranker, layers, cached)?;
    let dirty_bytes = options.dirty_bytes.unwrap_or_else(|| dirty_room(&memory));
    let dirty_layers = layers_that_fit(dirty_bytes, shape.tensor_bytes(), plan.cached());
    let homes: Vec<Home> = (0..layers).map(|layer| home(&options, plan.is_cached(layer))).collect();
    if let Some(folder) = &options.folder {
        let layers = homes.iter().filter(|home| **home != Home::Extent).count() as u64;
        check_folder(folder, layers * shape.pair_bytes(), budget)?;
    }
    let laid_out = Devices::open(&options, &plan, &homes)?;
    let gpu = Arc::new(gpu);
    let (files, extent_map) = (laid_out.files.clone(), laid_out.extent_map.clone());
    let is_allocated = homes.iter().map(|home| *home != Home::Extent).collect();
    let threads = start(&options, Arc::clone(&gpu), laid_out)?;
    let governor = options.may_cache().then(|| Governor::new(&options, Instant::now()));
    Ok(Tensors {
        gpu,
        plan,
        homes,
        was_cached: vec![false; layers as usize],
        dirty_layers,
        is_allocated,
        written: vec![0; layers as usize],
        files,
        extent_map,
        threads,
        probe,
        governor,
        choosers: Default::default(),
        purposes: HashMap::new(),
        ended: HashMap::new(),
        failed: None,
        is_stuck: false,
        stats: RunStats::default(),
        is_torn_down: false,
        options,
    })
}

/// Returns the budget of the page cache: the memory less the pinned reserve.
///
/// # Errors
/// [`Error::Invalid`] if memory is smaller than the reserve.
fn budget_of(options: &RunOptions, memory: &Memory) -> Result<u64> {
    let reserve = options.reserve_bytes();
    let all = budget(memory, 0);
    if all < reserve {
        let fix = format!(
            "{} copy threads pin {reserve} bytes: raise the limit, use fewer copy threads, or smaller portions or \
             batches",
            options.threads()
        );
        return Err(Error::invalid("the memory of this process", format!("{all} bytes"), fix));
    }
    Ok(budget(memory, reserve))
}

fn home(options: &RunOptions, is_cached: bool) -> Home {
    match options.extent {
        _ if is_cached => Home::Cached,
        Some(_) => Home::Extent,
        None => Home::Direct,
    }
}

/// Returns the tensors of these layers, grouped by copy thread and in the order of decode, so that a thread reads the
/// drive in one direction, in whatever order the layers entered their group.
fn by_thread(layers: &[u32], threads: u16) -> Vec<TensorId> {
    let mut tensors: Vec<TensorId> = layers.iter().copied().flat_map(TensorId::pair).collect();
    tensors.sort_by_key(|tensor| (thread_of(*tensor, threads.into()), *tensor));
    tensors
}

/// The file of a copy thread, with the places of its tensors.
#[derive(Clone, Debug)]
pub(super) struct ThreadFile {
    pub(super) file: CachedFile,
    pub(super) map: TensorMap,
    /// Its path past the page cache.
    direct: Device,
}

/// Files and devices with the places of tensors in them.
#[derive(Clone)]
struct Devices {
    /// By copy thread.
    files: Vec<ThreadFile>,
    extent: Option<Device>,
    extent_map: Option<TensorMap>,
}

impl Devices {
    fn open(options: &RunOptions, plan: &Plan, homes: &[Home]) -> Result<Devices> {
        let mut devices = Devices { files: Vec::new(), extent: None, extent_map: None };
        if let Some(extent) = &options.extent {
            devices.bind_extent(options, extent, plan)?;
        }
        if options.may_cache() || options.extent.is_none() {
            for thread in 0..options.threads().into() {
                devices.files.push(ThreadFile::bind(options, plan, homes, thread)?);
            }
        }
        Ok(devices)
    }

    /// Opens the drive of the extent and binds the direct layers one behind another.
    fn bind_extent(&mut self, options: &RunOptions, extent: &Extent, plan: &Plan) -> Result<()> {
        let about = DeviceOptions {
            queue_count: options.threads(),
            file_bytes: extent.file_bytes,
            exclusive: true,
            ..DeviceOptions::default()
        };
        let device = Device::open(&extent.target, &about)?;
        let info = device.info();
        if info.queue_count_max < options.threads() {
            let fix = format!("{} has {} queues: use as many", info.device, info.queue_count_max);
            return Err(Error::invalid("copy threads", options.threads(), fix));
        }
        let lba = u64::from(info.lba_bytes);
        let wanted =
            extent.bytes.map_or(u64::MAX, |bytes| extent.first_lba.saturating_add(bytes / lba));
        let area = Area::new(info.lba_bytes, extent.first_lba, wanted.min(info.bytes / lba));
        let tensors = by_thread(plan.direct_layers(), options.threads());
        self.extent_map = Some(TensorMap::bind(&options.shape, &tensors, area)?);
        self.extent = Some(device);
        Ok(())
    }

    /// Allocates memory that all devices of a copy thread can use.
    fn allocate(&self, thread: usize, bytes: u64) -> Result<Buffer> {
        let bytes = usize::try_from(bytes).expect("a tensor fits into the address space");
        let file = || self.files.get(thread).map(|file| &file.direct);
        let device = self.extent.as_ref().or_else(file).expect("tensors lie somewhere");
        Ok(device.allocate(bytes)?)
    }
}

impl ThreadFile {
    /// Creates the file of a copy thread with a place for each of its tensors, and blocks for those that begin in it.
    fn bind(
        options: &RunOptions,
        plan: &Plan,
        homes: &[Home],
        thread: usize,
    ) -> Result<ThreadFile> {
        let folder = options.folder.as_ref().expect("the options were checked");
        let shape = &options.shape;
        // Order by rank: the last cached layer leaves first, so a cached tensor is followed by another one.
        let mut tensors: Vec<TensorId> =
            plan.cached_layers().iter().copied().flat_map(TensorId::pair).collect();
        tensors.extend(by_thread(plan.direct_layers(), options.threads()));
        tensors.retain(|tensor| thread_of(*tensor, options.threads().into()) == thread);
        let place_bytes = shape.tensor_bytes().next_multiple_of(PAGE_BYTES.into());
        let bytes = place_bytes * tensors.len() as u64;
        let file = CachedFile::create(folder, bytes)?;
        let opened = file.open();
        let unlinked = file.unlink();
        let direct = opened?;
        unlinked?;
        let lba_bytes = direct.info().lba_bytes;
        let limit = bytes / u64::from(lba_bytes);
        let align_bytes = PAGE_BYTES.max(lba_bytes);
        let area = Area { align_bytes, ..Area::new(lba_bytes, 0, limit) };
        let map = TensorMap::bind(shape, &tensors, area)?;
        for tensor in tensors.iter().filter(|id| homes[id.layer as usize] != Home::Extent) {
            let offset = map.byte(*tensor, 0).expect("all tensors are bound");
            file.allocate(offset, shape.tensor_bytes())?;
        }
        Ok(ThreadFile { file, map, direct })
    }
}

fn start<G: Gpu>(options: &RunOptions, gpu: Arc<G>, devices: Devices) -> Result<Threads> {
    let shape = options.shape;
    let limits = BlockingOptions {
        command_bytes: options.command_bytes,
        depth: options.queue_depth,
        timeout: options.timeout,
    };
    let (keeps_checksums, portion_bytes) = (options.checksums, options.portion());
    let turns: [Arc<Mutex<()>>; 2] = Default::default();
    let counts = Arc::new(Counts::default());
    let counted = Arc::clone(&counts);
    let make = move |thread| {
        let memory = devices.allocate(thread, portion_bytes)?;
        let open = |device: Option<&Device>| {
            let Some(device) = device else { return Ok(None) };
            let spare = spare(&devices, thread, shape.unit_bytes(), limits.command_bytes)?;
            BlockingQueue::open(device, &limits, &memory, spare).map(Some)
        };
        let file = devices.files.get(thread);
        Ok(Worker {
            gpu: Arc::clone(&gpu),
            file: file.map(|file| file.file.clone()),
            direct: open(file.map(|file| &file.direct))?,
            extent: open(devices.extent.as_ref())?,
            turns: turns.clone(),
            checksums: keeps_checksums.then(|| Checksums::new(shape.unit_bytes())),
            fills: Fillings::default(),
            counts: Arc::clone(&counted),
            memory: Some(memory),
            portion_bytes,
        })
    };
    Threads::start(options.threads(), options.timeout, counts, make)
}

/// Allocates memory for writes left behind, if a single command can write a token.
fn spare(
    devices: &Devices,
    thread: usize,
    unit_bytes: u64,
    command_bytes: u64,
) -> Result<Vec<Buffer>> {
    if unit_bytes > command_bytes {
        return Ok(Vec::new());
    }
    let mut all = devices.allocate(thread, unit_bytes * BEHIND_COUNT)?;
    let cut = |index| all.split_off((index * unit_bytes) as usize);
    let mut list: Vec<Buffer> = (0..BEHIND_COUNT).rev().map(cut).collect();
    // The allocation may be longer than requested.
    drop(list[0].split_off(unit_bytes as usize));
    Ok(list)
}
