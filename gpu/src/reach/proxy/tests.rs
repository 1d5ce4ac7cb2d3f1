//! The proxy with recording doorbells, and with a controller's queues under load.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;

use adit_driver::Time;
use adit_driver::bus::{Bus, BusEvent, Locality};
use adit_driver::spec::Iova;
use adit_driver::sys::{HostRange, Window};

use super::*;

/// A bus whose registers record writes; 13 makes the first of them panic.
#[derive(Debug, Default)]
struct Recorder {
    rung: Mutex<Vec<(u32, u32)>>,
    /// How long a write takes after recording.
    lingers: Duration,
    /// The last value, for measurements.
    last: AtomicU32,
}

impl Recorder {
    fn doorbells(self: &Arc<Self>, qid: u32) -> [Doorbell; 2] {
        [qid * 2, qid * 2 + 1].map(|offset| {
            let bus: Arc<dyn Bus> = Arc::<Recorder>::clone(self);
            // SAFETY: a recorder has no memory.
            unsafe { Doorbell::message(bus, offset) }
        })
    }

    fn rung(&self) -> Vec<(u32, u32)> {
        self.rung.lock().expect("no panic holds it").clone()
    }
}

// SAFETY: it maps nothing.
unsafe impl Bus for Recorder {
    fn device(&self) -> &str {
        "recorder"
    }
    fn read32(&self, _: u32) -> u32 {
        0
    }
    unsafe fn write32(&self, offset: u32, value: u32) {
        assert!((offset, value) != (0, 13), "a test's panic");
        self.last.store(value, Ordering::Release);
        self.rung.lock().expect("no panic holds it").push((offset, value));
        if !self.lingers.is_zero() {
            std::thread::sleep(self.lingers);
        }
    }
    fn read64(&self, _: u32) -> u64 {
        0
    }
    unsafe fn write64(&self, _: u32, _: u64) {}
    unsafe fn doorbell(self: Arc<Self>, offset: u32) -> adit_driver::Result<Doorbell> {
        // SAFETY: as above.
        Ok(unsafe { Doorbell::message(self, offset) })
    }
    unsafe fn bar_window(&self, _: u8, _: u64, _: u64) -> adit_driver::Result<Window> {
        Err(nothing())
    }
    unsafe fn map(&self, _: HostRange<'_>) -> adit_driver::Result<Iova> {
        Err(nothing())
    }
    unsafe fn unmap(&self, _: Iova, _: u64) -> adit_driver::Result<()> {
        Err(nothing())
    }
    fn reserve(&self, _: u64) -> adit_driver::Result<Iova> {
        Err(nothing())
    }
    fn reset(&self) -> adit_driver::Result<()> {
        Ok(())
    }
    fn vector_count(&self) -> u16 {
        0
    }
    fn enable_vectors(&self, _: u16) -> adit_driver::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }
    fn take_event(&self) -> Option<BusEvent> {
        None
    }
    fn now(&self) -> Time {
        Time::ZERO
    }
    fn pause(&self, _: Duration) {}
    fn locality(&self) -> Locality {
        Locality::default()
    }
}

fn nothing() -> adit_driver::Error {
    adit_driver::Error::Invalid {
        what: "a recorder".to_owned(),
        why: "it has no memory".to_owned(),
    }
}

fn proxy() -> Arc<ProxyThread> {
    adit_gpu_emulated::load();
    let gpu = Gpu::open(0).expect("the emulated GPU");
    ProxyThread::start(&gpu, &ProxyOptions::default()).expect("a proxy")
}

fn soon(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in time");
        std::thread::sleep(Duration::from_micros(20));
    }
}

#[test]
fn a_word_that_changes_is_rung_once_and_one_out_of_range_never() {
    let lingers = Duration::from_millis(20);
    let (proxy, bus) = (proxy(), Arc::new(Recorder { lingers, ..Default::default() }));
    let slot = proxy.add(bus.doorbells(1), 16).expect("room");
    slot.words()[0].store(5, Ordering::Release);
    soon(|| bus.rung() == [(2, 5)]);
    slot.words()[1].store(4, Ordering::Release);
    soon(|| bus.rung() == [(2, 5), (3, 4)]);
    slot.words()[0].store(16, Ordering::Release);
    soon(|| proxy.stats().refused == 1);
    slot.words()[0].store(0, Ordering::Release);
    soon(|| bus.rung() == [(2, 5), (3, 4), (2, 0)]);
    assert_eq!(proxy.stats(), ProxyStats { rung: 3, refused: 1, queues: 1 });
}

#[test]
fn each_word_has_the_range_of_its_own_ring() {
    let (proxy, bus) = (proxy(), Arc::new(Recorder::default()));
    let depths = RingDepths { submission: 16, completion: 32 };
    let slot = proxy.add(bus.doorbells(1), depths).expect("room");
    slot.words()[1].store(31, Ordering::Release);
    soon(|| bus.rung() == [(3, 31)]);
    slot.words()[0].store(16, Ordering::Release);
    soon(|| proxy.stats().refused == 1);
    slot.words()[1].store(32, Ordering::Release);
    soon(|| proxy.stats().refused == 2);
    assert_eq!(bus.rung(), [(3, 31)]);
}

#[test]
fn a_slot_that_is_used_again_starts_at_zero_and_rings_the_new_queue_alone() {
    let (proxy, bus) = (proxy(), Arc::new(Recorder::default()));
    let (first, second) = (proxy.add(bus.doorbells(1), 16), proxy.add(bus.doorbells(2), 16));
    let (first, second) = (first.expect("room"), second.expect("room"));
    first.words()[0].store(9, Ordering::Release);
    soon(|| bus.rung() == [(2, 9)]);
    let addresses = first.addresses();
    drop(first);
    let third = proxy.add(bus.doorbells(3), 16).expect("room");
    assert_eq!((third.addresses(), third.words()[0].load(Ordering::Acquire)), (addresses, 0));
    third.words()[0].store(9, Ordering::Release);
    second.words()[1].store(1, Ordering::Release);
    soon(|| bus.rung().len() == 3);
    let mut rung = bus.rung();
    rung.sort_unstable();
    assert_eq!(rung, [(2, 9), (5, 1), (6, 9)]);
    assert_eq!(proxy.stats().queues, 2);
}

#[test]
fn a_panic_ends_the_proxy_and_is_told_of() {
    let (proxy, bus) = (proxy(), Arc::new(Recorder::default()));
    let slot = proxy.add(bus.doorbells(0), 16).expect("room");
    slot.words()[0].store(13, Ordering::Release);
    soon(|| proxy.check().is_err());
    let error = proxy.add(bus.doorbells(1), 16).expect_err("it is over").to_string();
    assert!(error.contains("panicked"), "{error}");
    drop(slot);
}

#[test]
fn there_are_as_many_slots_as_it_says() {
    let (proxy, bus) = (proxy(), Arc::new(Recorder::default()));
    let slots: Vec<Slot> =
        (0..SLOTS).map(|_| proxy.add(bus.doorbells(1), 16).expect("room")).collect();
    let error = proxy.add(bus.doorbells(1), 16).expect_err("full").to_string();
    assert!(error.contains("1024 queues"), "{error}");
    drop(slots);
    assert_eq!(proxy.stats().queues, 0);
}

#[test]
fn writers_on_many_queues_see_their_last_value_rung() {
    let (proxy, bus) = (proxy(), Arc::new(Recorder::default()));
    let slots: Vec<Slot> =
        (0..16).map(|qid| proxy.add(bus.doorbells(qid), 4096).expect("room")).collect();
    std::thread::scope(|scope| {
        for slot in &slots {
            // From 1000 on, which avoids the panic's value.
            scope.spawn(|| {
                (1000..4000).for_each(|value| slot.words()[0].store(value, Ordering::Release))
            });
        }
    });
    soon(|| slots.iter().all(|slot| bus.rung().contains(&(slot.index as u32 * 2, 3999))));
    let rung = bus.rung();
    for qid in 0..16 {
        let of_one: Vec<u32> =
            rung.iter().filter(|ring| ring.0 == qid * 2).map(|ring| ring.1).collect();
        assert!(of_one.is_sorted(), "in the order in which they were written");
    }
    assert_eq!(proxy.stats().rung, rung.len() as u64);
}

#[test]
fn the_thread_goes_with_its_last_owner_and_lets_the_doorbells_go() {
    let (proxy, bus) = (proxy(), Arc::new(Recorder::default()));
    let slot = proxy.add(bus.doorbells(1), 16).expect("room");
    let shared = Arc::downgrade(&proxy.shared);
    drop(proxy);
    assert!(shared.upgrade().is_some(), "a queue still needs it");
    drop(slot);
    assert!(shared.upgrade().is_none());
    assert_eq!(Arc::strong_count(&bus), 1);
}

#[test]
fn the_thread_runs_on_the_core_it_was_given() {
    let name = concat!(module_path!(), "::the_thread_runs_on_the_core_it_was_given");
    adit_gpu_emulated::alone("", name, || {
        let core = core_affinity::get_core_ids().expect("cores")[0].id;
        let gpu = Gpu::open(0).expect("the emulated GPU");
        let options = ProxyOptions { core: Some(core), ..Default::default() };
        let _proxy = ProxyThread::start(&gpu, &options).expect("a proxy");
        soon(|| allowed_of("adit-doorbells").is_some_and(|list| list == core.to_string()));
    });
}

/// Returns the cores that a thread of this process may run on, in the kernel's format.
fn allowed_of(thread: &str) -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
    let ours = |status: &String| status.lines().next() == Some(&format!("Name:\t{thread}"));
    let status = tasks.flatten().filter_map(status).find(ours)?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

#[test]
fn the_thread_sleeps_neither_while_work_is_under_way_nor_wakes_without_any() {
    let (proxy, bus) = (proxy(), Arc::new(Recorder::default()));
    let slot = proxy.add(bus.doorbells(1), 16).expect("room");
    let is_busy = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_busy);
    let work: Arc<Ringing> = Arc::new(move || asked.load(Ordering::Acquire));
    proxy.watch(&work);
    let sleeps = || proxy.poller.alarm().counts().0;
    let pause = || std::thread::sleep(Duration::from_millis(20));
    pause();
    let before = sleeps();
    pause();
    assert_eq!(sleeps(), before, "work is under way");
    is_busy.store(false, Ordering::Release);
    soon(|| sleeps() == before + 1);
    pause();
    assert_eq!(sleeps(), before + 1, "and it does not nap");
    // As work that begins again does.
    is_busy.store(true, Ordering::Release);
    proxy.wake();
    slot.words()[0].store(5, Ordering::Release);
    soon(|| bus.rung() == [(2, 5)]);
    drop(work);
    soon(|| sleeps() > before + 2);
}

/// Writes a word as the GPU does, and returns how long the ring took.
fn ring_ns(slot: &Slot, bus: &Recorder, value: u32) -> u64 {
    let started = Instant::now();
    slot.words()[0].store(value, Ordering::Release);
    while bus.last.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
    started.elapsed().as_nanos() as u64
}

/// Returns how long a thread of this process was on a processor.
fn time_on_cpu(thread: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let named = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == thread)
    };
    let task = tasks.into_iter().find(named).expect("it runs");
    let stat = std::fs::read_to_string(task.path().join("schedstat")).expect("its times");
    Duration::from_nanos(stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number"))
}

/// For docs/design/perf.md: `cargo test --release -p adit-gpu --lib doorbells_by_proxy -- --ignored --nocapture`.
#[test]
#[ignore = "measures, and so needs an idle machine of two cores"]
fn doorbells_by_proxy_are_rung_within_microseconds_and_idling_costs_nothing() {
    let cores = core_affinity::get_core_ids().expect("cores");
    let [ours, its, ..] = cores[..] else { panic!("two cores") };
    assert!(core_affinity::set_for_current(ours), "pinned");
    adit_gpu_emulated::load();
    let gpu = Gpu::open(0).expect("the emulated GPU");
    let options = ProxyOptions { core: Some(its.id), ..Default::default() };
    let proxy = ProxyThread::start(&gpu, &options).expect("a proxy");
    let bus = Arc::new(Recorder::default());
    let slot = proxy.add(bus.doorbells(1), 4096).expect("room");
    let is_busy = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_busy);
    let work: Arc<Ringing> = Arc::new(move || asked.load(Ordering::Acquire));
    proxy.watch(&work);
    let told = |mut all: Vec<u64>| {
        all.sort_unstable();
        [50, 99].map(|percent| all[all.len() * percent / 100])
    };
    let awake: Vec<u64> = (0..20_000).map(|at| ring_ns(&slot, &bus, 1 + at % 4000)).collect();
    println!("awake, p50 and p99 ns: {:?}", told(awake));
    let mut first = [0; 2];
    for ahead in [0, 50, 200].map(Duration::from_micros) {
        let after = |at: u32| {
            is_busy.store(false, Ordering::Release);
            std::thread::sleep(Duration::from_millis(3));
            is_busy.store(true, Ordering::Release);
            proxy.wake();
            let woken = Instant::now();
            while woken.elapsed() < ahead {
                std::hint::spin_loop();
            }
            ring_ns(&slot, &bus, 1 + at % 4000)
        };
        first = told((0..500).map(after).collect());
        println!("first after idling, {ahead:?} after the wake-up: {first:?}");
    }
    is_busy.store(false, Ordering::Release);
    std::thread::sleep(Duration::from_millis(10));
    let before = time_on_cpu("adit-doorbells");
    std::thread::sleep(Duration::from_secs(2));
    let idle = (time_on_cpu("adit-doorbells") - before).as_secs_f64() / 2.0 * 100.0;
    println!("idling: {idle:.3} % of a core");
    assert!(first[1] <= 5_000 && idle < 1.0);
}
