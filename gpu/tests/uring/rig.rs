//! The base of the tests: devices, a pool, rings; and a check that nothing of them is left.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_driver::{Controller, ControllerOptions, Namespace};
use adit_gpu::{Device, EngineChoice, GioUring, Gpu, Options, Place, Pool};
use adit_gpu_emulated::{Report, load, report, set};

/// Longer than any working operation takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const REGIONS: [u64; 2] = [4 << 20, 1 << 20];

static ALONE: Mutex<()> = Mutex::new(());

/// The emulated GPU for one test. Dropped last, it checks that nothing was left on it.
pub(crate) struct Alone {
    before: Report,
    _guard: MutexGuard<'static, ()>,
}

/// Waits for the emulated GPU, and applies these settings.
pub(crate) fn alone(settings: &str) -> Alone {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    load();
    set(settings);
    Alone { before: report(), _guard: guard }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (before, after) = (self.before, report());
        let live = |report: Report| {
            [
                report.allocations,
                report.host_allocations,
                report.registrations,
                report.mappings,
                report.streams,
                report.events,
                report.modules,
                report.kernels_running,
                report.misuses,
                report.leaks,
                report.stalls,
            ]
        };
        assert_eq!(live(before), live(after), "{after:?}");
        set("");
    }
}

/// Rings over some devices. The rings drop first.
pub(crate) struct Rig {
    pub(crate) uring: Arc<GioUring>,
    pub(crate) devices: Vec<Device>,
    pub(crate) gpu: Arc<Gpu>,
}

/// Few warps: the emulated GPU has a thread for each.
pub(crate) fn options() -> Options {
    Options {
        queues: 2,
        depth: 64,
        sms: Some(1),
        blocks: 8,
        engine: EngineChoice::Rings,
        ..Options::default()
    }
}

pub(crate) fn device(target: &str) -> Device {
    let target = target.parse().expect("a target");
    let options = ControllerOptions { shadow_doorbells: false, ..ControllerOptions::default() };
    let controller = Arc::new(Controller::open(&target, &options).expect("a controller"));
    let first = controller.namespace_ids().expect("namespaces")[0];
    let namespace: Namespace = controller.namespace(first).expect("a namespace");
    Device { controller, namespace }
}

impl Rig {
    pub(crate) fn new(targets: &[&str], place: Place, options: &Options) -> Rig {
        let gpu = Gpu::open(0).expect("a GPU");
        let devices = targets.iter().map(|target| device(target)).collect::<Vec<_>>();
        let controllers =
            devices.iter().map(|device| Arc::clone(&device.controller)).collect::<Vec<_>>();
        let pool = Pool::allocate(&gpu, &controllers, &REGIONS, Some(place)).expect("a pool");
        let uring = GioUring::init_queue(&gpu, devices.clone(), pool, options).expect("rings");
        Rig { uring: Arc::new(uring), devices, gpu }
    }
}
