//! Each path with the emulated GPU and software controllers: real data both ways, each refusal, and nothing left
//! behind.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::{Cid, DataPointer, Iova, Lba, LbaCount, Sqe};
use adit_driver::{ControllerOptions, Namespace};

use super::gdr::GdrMapping;
use super::*;
use crate::cuda::{DeviceMemory, Endless, Runner};
use crate::options::Place;
use crate::options::ProxyOptions;
use crate::reach::doorbell::Doorbells;
use crate::reach::pool::Pool;
use crate::reach::proxy::ProxyThread;
use crate::reach::queue::Queue;

/// The emulated GPU, and software controllers.
pub(crate) struct Rig {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) buses: Vec<Arc<SoftBus>>,
    pub(crate) controllers: Vec<Arc<Controller>>,
    /// The first controller's.
    pub(crate) namespace: Namespace,
}

impl Rig {
    pub(crate) fn new(count: usize) -> Rig {
        Rig::with(&vec!["mem=16M,dbbuf=off"; count])
    }

    pub(crate) fn with(options: &[&str]) -> Rig {
        Rig::patient(options, Duration::from_secs(10))
    }

    /// Creates a rig with `admin_timeout` for the controllers' answers to the driver.
    pub(crate) fn patient(options: &[&str], admin_timeout: Duration) -> Rig {
        let gpu = Gpu::open(0).expect("the emulated GPU");
        let bus =
            |tail: &&str| SoftBus::new(tail.parse().expect("options"), Drive::Thread).expect("bus");
        let buses: Vec<_> = options.iter().map(bus).collect();
        let (shadow_doorbells, cmb) = (false, true);
        let raw = ControllerOptions { shadow_doorbells, cmb, admin_timeout, ..Default::default() };
        let attach = |bus: &Arc<SoftBus>| {
            let with_cmb = Controller::attach(Arc::<SoftBus>::clone(bus), &raw);
            let without = ControllerOptions { cmb: false, ..raw.clone() };
            let opened =
                with_cmb.or_else(|_| Controller::attach(Arc::<SoftBus>::clone(bus), &without));
            Arc::new(opened.expect("attached"))
        };
        let controllers: Vec<_> = buses.iter().map(attach).collect();
        let namespace = controllers[0].namespace(adit_driver::spec::Nsid(1)).expect("namespace");
        Rig { gpu, buses, controllers, namespace }
    }

    pub(crate) fn queue(&self, depth: u32, doorbells: &Doorbells) -> Queue {
        self.queue_in(depth, doorbells, (Place::Host, Place::Host)).expect("a queue")
    }

    pub(crate) fn queue_in(
        &self,
        depth: u32,
        doorbells: &Doorbells,
        places: (Place, Place),
    ) -> Result<Queue> {
        let controller = &self.controllers[0];
        Queue::attach(&self.gpu, controller, &self.namespace, depth, places, doorbells)
    }

    pub(crate) fn proxy(&self) -> Doorbells {
        let proxy = ProxyThread::start(&self.gpu, &ProxyOptions::default());
        Doorbells::Proxy(proxy.expect("a proxy"))
    }

    /// Checks that no unmapped memory was accessed and nothing stays mapped.
    pub(crate) fn finish(self) {
        let Rig { controllers, namespace, buses, .. } = self;
        drop((controllers, namespace));
        for bus in &buses {
            assert_eq!((bus.dma_faults(), bus.mapped_bytes()), (0, 0));
        }
    }
}

/// Moves `bytes` between the first LBA and device address `at`, by a queue that the CPU drives.
fn transfer(rig: &Rig, device: usize, at: Iova, write: bool) {
    let controller = &rig.controllers[device];
    // SAFETY: the one command names memory of the pool's.
    #[allow(unsafe_code)]
    let raw = unsafe { controller.create_raw_queue_pair(4, adit_driver::Placement::Host) };
    let raw = raw.expect("a queue");
    let make = if write { Sqe::write } else { Sqe::read };
    let dptr = DataPointer::Prp { prp1: at, prp2: Iova(0) };
    let sqe = make(rig.namespace.nsid(), Lba(0), LbaCount::new(8).expect("eight"));
    let words = raw.submission().memory().expect("host memory").dwords();
    for (word, value) in words.iter().zip(sqe.with_dptr(dptr).with_cid(Cid(9)).to_dwords()) {
        word.store(value, Ordering::Relaxed);
    }
    raw.doorbells().0.ring(1);
    let status = &raw.completion().memory().expect("host memory").dwords()[3];
    let deadline = Instant::now() + Duration::from_secs(20);
    while status.load(Ordering::Acquire) == 0 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(status.load(Ordering::Acquire), 1 << 16 | 9, "one success");
    assert!(raw.delete());
}

/// Writes from one region through each device and reads back into another.
fn carries_data(rig: &Rig, pool: &Pool) {
    for device in 0..rig.controllers.len() {
        let written: Vec<u8> = (0..4096).map(|at| (at * 7 + device) as u8).collect();
        pool.write(0, 4096, &written).expect("written");
        pool.write(1, 0, &[0xee; 4096]).expect("written");
        let iova = |region| pool.iova(device, region).expect("a way").0;
        transfer(rig, device, Iova(iova(0) + 4096), true);
        transfer(rig, device, Iova(iova(1)), false);
        let mut read = vec![0; 4096];
        pool.read(1, 0, &mut read).expect("read");
        assert!(read == written, "what one region wrote the other reads");
    }
}

/// Creates a pool of two regions in `place`, reached by `path`, moves data through it, and checks that nothing stays.
fn a_pool_by(path: MemoryPath, place: Place) {
    let before = adit_gpu_emulated::report();
    let rig = Rig::new(2);
    let sizes = [3 << 20, 64 << 10];
    let pool = Pool::allocate(&rig.gpu, &rig.controllers, &sizes, Some(place)).expect("a pool");
    assert_eq!(pool.path(), Some(path), "{:?}", pool.reports());
    assert!(pool.is_reached() && pool.prp_lists(1, 0).is_some());
    assert_eq!((pool.region_count(), pool.bytes(0), pool.place()), (2, 3 << 20, place));
    carries_data(&rig, &pool);
    drop(pool);
    rig.finish();
    let after = adit_gpu_emulated::report();
    let alive = |report: adit_gpu_emulated::Report| {
        (report.allocated_bytes, report.registrations, report.physicals, report.pinned_ranges)
    };
    assert_eq!(alive(after), alive(before));
    assert_eq!((after.misuses, after.leaks), (0, 0));
}

/// Tests each path with the settings that make it the first that works.
macro_rules! a_way {
    ($name:ident, $settings:literal, $path:expr, $place:expr) => {
        #[test]
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            adit_gpu_emulated::alone($settings, name, || a_pool_by($path, $place));
        }
    };
}

a_way!(coherent_memory_carries_data, "coherent", MemoryPath::Coherent, Place::Gpu);
a_way!(a_dma_buf_that_the_bus_maps_carries_data, "", MemoryPath::DmaBufIommufd, Place::Gpu);
a_way!(
    a_mapping_of_gdrdrvs_carries_data_where_dma_bufs_cannot_be_mapped,
    "dma-buf-mmap=off",
    MemoryPath::Gdrdrv,
    Place::Gpu
);
a_way!(gdrdrv_serves_a_gpu_without_granules, "no-dma-buf,no-vmm", MemoryPath::Gdrdrv, Place::Gpu);
a_way!(pinned_host_memory_carries_data, "", MemoryPath::PinnedHost, Place::Host);

#[test]
fn a_dma_buf_that_is_mapped_here_carries_data() {
    let name = concat!(module_path!(), "::a_dma_buf_that_is_mapped_here_carries_data");
    adit_gpu_emulated::alone("driver=13030", name, || {
        let rig = Rig::new(1);
        let block =
            block(MemoryPath::DmaBufMmap, &rig.gpu, &rig.controllers, 8192).expect("a block");
        let mapped = block.map(&rig.controllers[0]).expect("mapped");
        let Block::Gpu(exposed) = &block else { panic!("memory of the GPU's") };
        exposed.memory().write(0, &[0xa5; 4096]).expect("written");
        transfer(&rig, 0, mapped.iova(), true);
        transfer(&rig, 0, Iova(mapped.iova().0 + 4096), false);
        let mut read = [0; 4096];
        exposed.memory().read(4096, &mut read).expect("read");
        assert_eq!(read, [0xa5; 4096]);
        drop((mapped, block));
        rig.finish();
        assert_eq!(adit_gpu_emulated::report().physicals, 0);
    });
}

#[test]
fn without_a_way_a_pool_is_the_gpus_alone_and_says_why() {
    let name = concat!(module_path!(), "::without_a_way_a_pool_is_the_gpus_alone_and_says_why");
    adit_gpu_emulated::alone("no-dma-buf,gdr=absent", name, || {
        let rig = Rig::new(1);
        let pool = Pool::allocate(&rig.gpu, &rig.controllers, &[1 << 20], None).expect("a pool");
        assert_eq!((pool.path(), pool.iova(0, 0), pool.is_reached()), (None, None, false));
        let why = no_way(pool.reports()).to_string();
        for reason in ["page tables", "exports none", "/dev/gdrdrv"] {
            assert!(why.contains(reason), "{why}");
        }
        pool.write(0, 7, &[1, 2, 3]).expect("written");
        let mut read = [0; 3];
        pool.read(0, 7, &mut read).expect("read");
        assert_eq!(read, [1, 2, 3]);
        let gpu = (Place::Gpu, Place::Host);
        let error = rig.queue_in(16, &rig.proxy(), gpu).expect_err("no way for a ring").to_string();
        assert!(error.contains("host memory"), "{error}");
    });
}

/// Allocates a pool in GPU memory over one controller; returns its path, and why the paths before do not carry data.
fn a_pool_on(settings: &str, drive: &str) -> (Option<MemoryPath>, Vec<(MemoryPath, String)>) {
    adit_gpu_emulated::set(settings);
    let rig = Rig::with(&[drive]);
    let pool = Pool::allocate(&rig.gpu, &rig.controllers, &[1 << 20], None).expect("a pool");
    let why = |report: &PathReport| Some((report.path, report.outcome.clone().err()?));
    let found = (pool.path(), pool.reports().iter().filter_map(why).collect());
    drop(pool);
    rig.finish();
    found
}

const SOFT: &str = "mem=16M,dbbuf=off";

#[test]
fn a_way_whose_writes_are_dropped_is_passed_over() {
    let name = concat!(module_path!(), "::a_way_whose_writes_are_dropped_is_passed_over");
    adit_gpu_emulated::alone("", name, || {
        // The LBA is all zeros, as the memory was.
        let (path, whys) = a_pool_on("driver=13030,peer=dropped", SOFT);
        assert_eq!(path, Some(MemoryPath::Gdrdrv), "{whys:?}");
        let dropped: Vec<_> =
            whys.iter().filter(|(_, why)| why.contains("is dropped on the way")).collect();
        let paths: Vec<MemoryPath> = dropped.iter().map(|(path, _)| *path).collect();
        assert_eq!(paths, [MemoryPath::DmaBufIommufd, MemoryPath::DmaBufMmap], "{whys:?}");
        let (path, whys) = a_pool_on("gdr=absent,peer=dropped", SOFT);
        assert_eq!((path, whys.len()), (None, 4), "{whys:?}");
    });
}

#[test]
fn a_way_whose_data_come_after_the_completion_is_passed_over() {
    let name =
        concat!(module_path!(), "::a_way_whose_data_come_after_the_completion_is_passed_over");
    adit_gpu_emulated::alone("", name, || {
        let (path, whys) = a_pool_on("peer=late", SOFT);
        assert_eq!(path, Some(MemoryPath::Gdrdrv), "{whys:?}");
        assert!(whys.iter().any(|(_, why)| why.contains("after the completion")), "{whys:?}");
    });
}

#[test]
fn a_way_by_which_the_drive_reads_nothing_is_passed_over() {
    let name = concat!(module_path!(), "::a_way_by_which_the_drive_reads_nothing_is_passed_over");
    adit_gpu_emulated::alone("", name, || {
        // Data Transfer Error, as of a read that PCIe answers with an error; and no end at all.
        let cases = [("status(0:4)", "ended with"), ("lose", "did not answer within 2000 ms")];
        for (fault, said) in cases {
            let drive = format!("{SOFT},faults={fault}@compare:times=2");
            let (path, whys) = a_pool_on("", &drive);
            assert_eq!(path, Some(MemoryPath::Gdrdrv), "{whys:?}");
            let of_it = whys.iter().find(|(path, _)| *path == MemoryPath::DmaBufIommufd);
            let why = &of_it.expect("a reason").1;
            assert!(why.contains(said) && why.contains("ACSCtl"), "{why}");
        }
    });
}

#[test]
fn data_that_the_drive_only_claims_to_have_read_are_not_believed() {
    let name =
        concat!(module_path!(), "::data_that_the_drive_only_claims_to_have_read_are_not_believed");
    adit_gpu_emulated::alone("gdr=absent", name, || {
        let rig = Rig::with(&["mem=16M,dbbuf=off,faults=status(0:0)@read:n=2"]);
        // The first read is the host's.
        let error = carried(&rig).expect_err("nothing was read");
        assert!(error.to_string().contains("memory is as it was"), "{error}");
        assert_eq!(carried(&rig).expect("the fault is over"), Carried::BothWays);
        rig.finish();
    });
}

/// Tries a dma-buf once, without another attempt.
fn carried(rig: &Rig) -> Result<Carried> {
    let path = MemoryPath::DmaBufIommufd;
    let block = block(path, &rig.gpu, &rig.controllers, PROBE_BYTES).expect("a block");
    let controller = &rig.controllers[0];
    carry::once(&rig.gpu, controller, &block, &Arc::new(block.map(controller)?))
}

#[test]
fn what_cannot_be_read_back_is_carried_one_way_and_what_cannot_be_read_is_not_tried() {
    let name = concat!(
        module_path!(),
        "::what_cannot_be_read_back_is_carried_one_way_and_what_cannot_be_read_is_not_tried"
    );
    adit_gpu_emulated::alone("gdr=absent", name, || {
        let drives = [
            ("mem=16M,dbbuf=off,pi=1", Carried::FromDrive),
            ("mem=16M,dbbuf=off,faults=status(2:81)@read", Carried::Nothing),
        ];
        for (drive, expected) in drives {
            let rig = Rig::with(&[drive]);
            let carried = try_path(MemoryPath::DmaBufIommufd, &rig.gpu, &rig.controllers);
            assert_eq!(carried.expect("it maps"), expected, "{drive}");
            rig.finish();
        }
    });
}

#[test]
fn each_way_reports_how_it_fares() {
    let name = concat!(module_path!(), "::each_way_reports_how_it_fares");
    adit_gpu_emulated::alone("dma-buf-mmap=off,gdr=refused", name, || {
        let rig = Rig::new(1);
        let tried = MemoryPath::ALL.map(|path| try_path(path, &rig.gpu, &rig.controllers));
        let works = tried.each_ref().map(Result::is_ok);
        assert_eq!(works, [false, false, false, false, true, true], "{tried:?}");
        let refused = tried[3].as_ref().expect_err("refused").to_string();
        assert!(refused.contains("gdr_pin_buffer"), "{refused}");
        let running = Endless::begin(&rig.gpu, Runner::Rings).expect("no other rings");
        let beside = try_path(MemoryPath::DmaBufIommufd, &rig.gpu, &rig.controllers);
        assert!(matches!(beside, Err(Error::Refused { .. })), "{beside:?}");
        drop(running);
        rig.finish();
    });
}

#[test]
#[allow(unsafe_code)]
fn registered_memory_whose_copies_cannot_be_ordered_is_reached_by_no_way() {
    let name = concat!(
        module_path!(),
        "::registered_memory_whose_copies_cannot_be_ordered_is_reached_by_no_way"
    );
    adit_gpu_emulated::alone("coherent", name, || {
        let rig = Rig::new(1);
        let memory = DeviceMemory::allocate(&rig.gpu, 2 << 20).expect("memory");
        let region = (memory.address(), memory.bytes());
        // The first is set when the path is tried, with memory of its own.
        adit_gpu_emulated::set("coherent,fail=cuPointerSetAttribute:1:2");
        // SAFETY: the memory outlives the pool.
        let pool = unsafe { Pool::register(&rig.gpu, &rig.controllers, &[region]) };
        let pool = pool.expect("a pool");
        let why = pool.reports()[0].outcome.clone().expect_err("not ordered");
        assert!(why.contains("cuPointerSetAttribute"), "{why}");
        drop(pool);
        drop(memory);
        rig.finish();
    });
}

#[test]
fn memory_inside_a_page_of_the_gpu_is_refused_for_its_address() {
    let name =
        concat!(module_path!(), "::memory_inside_a_page_of_the_gpu_is_refused_for_its_address");
    adit_gpu_emulated::alone("no-dma-buf,no-vmm", name, || {
        let gpu = Gpu::open(0).expect("the emulated GPU");
        let memory = DeviceMemory::allocate(&gpu, 1 << 20).expect("there is memory");
        let page = memory.address().next_multiple_of(64 << 10);
        let inside = GdrMapping::new(page + 4096, 64 << 10);
        let why = inside.expect_err("it begins inside a page").to_string();
        assert!(why.contains("65536") && !why.contains("BAR1"), "{why}");
        GdrMapping::new(page, 4096).expect("it begins with a page");
    });
}

#[test]
fn more_memory_than_bar1_shows_is_refused_with_the_remedy() {
    let name = concat!(module_path!(), "::more_memory_than_bar1_shows_is_refused_with_the_remedy");
    adit_gpu_emulated::alone("no-dma-buf,no-vmm,bar1=4194304", name, || {
        let rig = Rig::new(1);
        let small = Pool::allocate(&rig.gpu, &rig.controllers, &[1 << 20], None).expect("a pool");
        assert_eq!(small.path(), Some(MemoryPath::Gdrdrv));
        let large = Pool::allocate(&rig.gpu, &rig.controllers, &[32 << 20], None).expect("a pool");
        assert_eq!(large.path(), None);
        let why = no_way(large.reports()).to_string();
        assert!(why.contains("Resizable BAR"), "{why}");
    });
}

#[test]
fn a_gpu_that_registers_no_host_memory_has_no_pool_there() {
    let name = concat!(module_path!(), "::a_gpu_that_registers_no_host_memory_has_no_pool_there");
    adit_gpu_emulated::alone("host-register=refused", name, || {
        let rig = Rig::new(1);
        let pool = Pool::allocate(&rig.gpu, &rig.controllers, &[1 << 20], Some(Place::Host));
        let error = pool.expect_err("refused").to_string();
        assert!(error.contains("cuMemHostRegister"), "{error}");
        rig.finish();
    });
}

#[test]
fn a_pool_that_cannot_be_is_the_callers_mistake() {
    adit_gpu_emulated::load();
    let rig = Rig::new(1);
    let refused = |sizes: &[u64], place| {
        let pool = Pool::allocate(&rig.gpu, &rig.controllers, sizes, place);
        assert!(pool.expect_err("refused").is_usage());
    };
    refused(&[], None);
    refused(&[4096, 0], None);
    refused(&[4096; crate::reach::pool::REGIONS_MAX + 1], None);
    let pool =
        Pool::allocate(&rig.gpu, &rig.controllers, &[4096], Some(Place::Host)).expect("a pool");
    for (region, offset, len) in [(0, 0, 4097), (0, 4096, 1), (0, u64::MAX, 2), (1, 0, 1)] {
        let error = pool.read(region, offset, &mut vec![0; len]).expect_err("outside");
        assert!(error.is_usage(), "{error}");
    }
    assert!(pool.prp_lists(0, 0).is_none(), "one page needs no list");
}

#[test]
#[allow(unsafe_code)]
fn memory_of_the_callers_is_a_pool_and_stays_theirs() {
    let name = concat!(module_path!(), "::memory_of_the_callers_is_a_pool_and_stays_theirs");
    adit_gpu_emulated::alone("", name, || {
        let rig = Rig::new(1);
        let tensors = [4 << 20, 2 << 20]
            .map(|bytes| crate::cuda::DeviceMemory::exportable(&rig.gpu, bytes).expect("memory"));
        let regions = tensors.each_ref().map(|tensor| (tensor.address(), tensor.bytes()));
        let register = |regions: &[(u64, u64)]| {
            // SAFETY: the tensors outlive the pools.
            unsafe { Pool::register(&rig.gpu, &rig.controllers, regions) }
        };
        let error = register(&[(regions[0].0 + 512, 4096)]).expect_err("misaligned");
        assert!(error.is_usage(), "{error}");
        let pool = register(&regions).expect("a pool");
        assert_eq!(pool.path(), Some(MemoryPath::DmaBufIommufd), "{:?}", pool.reports());
        assert_eq!((pool.address(1), pool.bytes(1)), regions[1]);
        carries_data(&rig, &pool);
        drop(pool);
        let mut byte = [0];
        tensors[0].read(4097, &mut byte).expect("still there");
        assert_eq!(byte, [7]);
        rig.finish();
    });
}
