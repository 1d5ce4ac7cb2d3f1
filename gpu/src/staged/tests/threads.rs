//! The whole engine: its own threads, devices with their threads, copies by the emulated GPU.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_driver::spec::Lba;
use adit_driver::{Controller, ControllerOptions, Namespace, QueuePairOptions, Target};

use super::rig::pattern;
use crate::commands::layout::Context;
use crate::cuda::{DeviceMemory, Event, Gpu, PinnedMemory, Priority, Stream};
use crate::error::Error;
use crate::staged::{Area, Progress, Staged, StagedOptions, Work};

const LBA: u64 = 512;
const LBAS: u64 = 8;
const CONTEXTS: u64 = 24;
/// Blocks in flight together.
const BLOCKS: u64 = 12;
const REGION: u64 = BLOCKS * CONTEXTS * LBAS * LBA;
/// Words of a block: statuses and `done`.
const WORDS: u64 = CONTEXTS + 1;

struct Rig {
    gpu: Arc<Gpu>,
    devices: Vec<(Arc<Controller>, Namespace)>,
    memory: Arc<DeviceMemory>,
    words: Arc<DeviceMemory>,
    staged: Option<Staged>,
}

impl Rig {
    fn new(device_count: usize, threads: usize) -> Rig {
        let options = StagedOptions { threads, pinned_bytes: 1 << 20, ..StagedOptions::default() };
        Rig::with(device_count, &options)
    }

    /// Creates a rig with a short time limit for what never comes.
    fn impatient() -> Rig {
        Rig::with(1, &StagedOptions { drain: Duration::from_secs(1), ..StagedOptions::default() })
    }

    fn with(device_count: usize, options: &StagedOptions) -> Rig {
        adit_gpu_emulated::load();
        let gpu = Gpu::open(0).expect("the emulated one");
        let devices: Vec<_> = (0..device_count).map(|_| open()).collect();
        let memory = Arc::new(DeviceMemory::allocate(&gpu, REGION).expect("memory"));
        let words = Arc::new(DeviceMemory::allocate(&gpu, BLOCKS * WORDS * 4).expect("memory"));
        words.zero().expect("zeroes");
        let keep: Arc<dyn Any + Send + Sync> = Arc::new((Arc::clone(&memory), Arc::clone(&words)));
        let areas = [Area { address: memory.address(), bytes: REGION }];
        let staged = Staged::new(&gpu, &devices, &areas, &keep, options).expect("an engine");
        Rig { gpu, devices, memory, words, staged: Some(staged) }
    }

    fn staged(&self) -> &Staged {
        self.staged.as_ref().expect("it was not dropped")
    }

    /// Creates block `number`, whose contexts are consecutive on its device and in the region.
    fn work(&self, number: u64, is_write: bool, after: Option<Arc<Event>>) -> Work<Arc<Event>> {
        let first = number * CONTEXTS;
        let context = |n: u64| Context {
            address: (first + n) * LBAS * LBA,
            place: Context::place((first + n) * LBAS, LBAS as u32 as u64, 0, is_write),
        };
        let words = self.words.address() + number * WORDS * 4;
        Work {
            device: number as usize % self.devices.len(),
            generation: 1 + u32::from(!is_write),
            contexts: (0..CONTEXTS).map(context).collect(),
            after,
            done: words + CONTEXTS * 4,
            statuses: words,
            timeout: Duration::from_secs(10),
            progress: Arc::new(Progress::new(CONTEXTS as usize)),
        }
    }

    fn move_all(&self, is_write: bool) {
        let progress: Vec<_> = (0..BLOCKS)
            .map(|number| {
                let work = self.work(number, is_write, None);
                let progress = (Arc::clone(&work.progress), work.generation);
                self.staged().issue(work).expect("valid");
                progress
            })
            .collect();
        for (progress, generation) in progress {
            wait(|| progress.done() == generation);
            assert_eq!(progress.failed(), 0);
        }
    }

    fn done_word(&self, number: u64) -> u32 {
        let mut word = [0; 4];
        self.words.read((number * WORDS + CONTEXTS) * 4, &mut word).expect("inside");
        u32::from_le_bytes(word)
    }
}

fn open() -> (Arc<Controller>, Namespace) {
    let target: Target = "soft:mem=16M,lba=512".parse().expect("a target");
    let controller = Controller::open(&target, &ControllerOptions::default()).expect("it opens");
    let namespace = controller.namespace_of(&target).expect("its namespace");
    (Arc::new(controller), namespace)
}

/// Waits for something that takes almost no time.
fn wait(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_written_by_several_threads_to_several_devices_is_read_back() {
    let rig = Rig::new(2, 3);
    let data = pattern(7, REGION as usize);
    rig.memory.write(0, &data).expect("inside");
    rig.move_all(true);
    rig.memory.zero().expect("zeroes");
    rig.move_all(false);
    let mut read = vec![0; REGION as usize];
    rig.memory.read(0, &mut read).expect("inside");
    assert!(read == data, "the data are not what was written");
    assert!((0..BLOCKS).all(|number| rig.done_word(number) == 2), "the GPU was told");
    wait(|| rig.staged().stats().blocks == 2 * BLOCKS);
    let stats = rig.staged().stats();
    assert_eq!((stats.contexts, stats.bytes), (2 * BLOCKS * CONTEXTS, 2 * REGION));
    assert!(stats.rings < stats.contexts, "a doorbell is for many commands: {stats:?}");
}

#[test]
fn threads_run_on_the_cores_they_are_given() {
    let name = concat!(module_path!(), "::threads_run_on_the_cores_they_are_given");
    adit_gpu_emulated::alone("", name, || {
        let core = core_affinity::get_core_ids().expect("this machine's cores")[0].id;
        let options = StagedOptions { cores: vec![core; 3], ..StagedOptions::default() };
        let rig = Rig::with(1, &options);
        rig.move_all(true);
        let tasks = std::fs::read_dir("/proc/self/task").expect("this process's threads");
        let statuses = tasks.map(|task| {
            let path = task.expect("a thread").path().join("status");
            std::fs::read_to_string(path).unwrap_or_default()
        });
        let ours: Vec<String> =
            statuses.filter(|status| status.contains("Name:\tadit-staged-")).collect();
        // They create the emulated GPU's threads, which inherit their names.
        for number in 0..3 {
            let name = format!("Name:\tadit-staged-{number}\n");
            assert!(ours.iter().any(|status| status.contains(&name)), "{ours:?}");
        }
        let allowed = format!("Cpus_allowed_list:\t{core}\n");
        assert!(ours.iter().all(|status| status.contains(&allowed)), "{ours:?}");
    });
}

#[test]
fn a_write_takes_what_the_stream_left_before_its_event() {
    let rig = Rig::new(1, 1);
    let gate = PinnedMemory::allocate(&rig.gpu, 4).expect("memory");
    let stream = Stream::new(&rig.gpu, Priority::Normal).expect("a stream");
    let data = pattern(9, 4096);
    let pinned = PinnedMemory::allocate(&rig.gpu, 4096).expect("memory");
    for (word, four) in pinned.words().iter().zip(data.chunks_exact(4)) {
        let four = u32::from_le_bytes(four.try_into().expect("four bytes"));
        word.store(four, std::sync::atomic::Ordering::Relaxed);
    }
    stream.wait32_at_least(gate.address(), 1, false).expect("enqueued");
    stream.copy_to_gpu(rig.memory.address(), &pinned, 0..4096).expect("enqueued");
    let event = Arc::new(stream.record().expect("recorded"));
    let work = rig.work(0, true, Some(event));
    let progress = Arc::clone(&work.progress);
    rig.staged().issue(work).expect("valid");
    assert_eq!(progress.done(), 0);
    gate.words()[0].store(1, std::sync::atomic::Ordering::Release);
    wait(|| progress.done() == 1);
    let (controller, namespace) = &rig.devices[0];
    let buffer = controller.allocate(4096).expect("memory");
    let mut queue = controller.create_queue_pair(QueuePairOptions::default()).expect("one");
    let (read, _) = queue.execute(namespace.read(Lba(0), buffer)).expect("read");
    assert!(read[..] == data[..], "the device has what the stream copied");
}

#[test]
fn an_engine_dropped_in_flight_ends_every_block() {
    for is_write in [false, true] {
        let mut rig = Rig::new(2, 2);
        let works = (0..BLOCKS).map(|number| rig.work(number, is_write, None));
        let progress: Vec<_> = works
            .map(|work| {
                let progress = (Arc::clone(&work.progress), work.generation);
                rig.staged().issue(work).expect("valid");
                progress
            })
            .collect();
        rig.staged = None;
        for (progress, generation) in progress {
            assert_eq!(progress.done(), generation, "its waiters are released");
        }
        assert_eq!(Arc::strong_count(&rig.memory), 1, "no thread keeps the memory");
    }
}

#[test]
fn what_lies_outside_its_region_is_refused() {
    let rig = Rig::new(1, 1);
    for (address, region, lbas, device) in
        [(REGION - LBA, 0, 2, 0), (u64::MAX - LBA + 1, 0, 1, 0), (0, 1, 1, 0), (0, 0, 1, 1)]
    {
        let place = Context::place(0, lbas, region, false);
        let contexts = [Context { address, place }].into();
        let work = Work { contexts, device, ..rig.work(0, false, None) };
        let refused = rig.staged().issue(work);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
}

#[test]
fn an_engine_goes_on_once_its_controllers_have_been_recovered() {
    let rig = Rig::new(1, 2);
    let controller = Arc::clone(&rig.devices[0].0);
    controller.recover().expect("nothing to do");
    rig.move_all(true);
    rig.staged().recover().expect("in service");
    rig.move_all(false);
}

#[test]
fn nothing_is_left_of_an_engine_that_was_dropped_in_flight() {
    let name = concat!(module_path!(), "::nothing_is_left_of_an_engine_that_was_dropped_in_flight");
    adit_gpu_emulated::alone("", name, || {
        let mut rig = Rig::new(2, 2);
        rig.move_all(true);
        for number in 0..BLOCKS {
            rig.staged().issue(rig.work(number, false, None)).expect("valid");
        }
        let before = adit_gpu_emulated::report();
        assert_eq!(before.registrations, 4, "one for each thread and device");
        rig.staged = None;
        let after = adit_gpu_emulated::report();
        // One stream is the GPU's own, for small copies.
        assert_eq!((after.registrations, after.streams, after.events), (0, 1, 0), "{after:?}");
        assert_eq!((after.misuses, after.leaks), (0, 0), "{after:?}");
    });
}

#[test]
fn copies_that_the_gpu_refuses_end_their_blocks() {
    let name = concat!(module_path!(), "::copies_that_the_gpu_refuses_end_their_blocks");
    adit_gpu_emulated::alone("", name, || {
        for function in ["cuMemcpyAsync", "cuEventRecord", "cuStreamWriteValue32", "cuEventQuery"] {
            let rig = Rig::new(1, 1);
            adit_gpu_emulated::set(&format!("fail={function}:1"));
            for is_write in [false, true] {
                let work = rig.work(0, is_write, None);
                let (progress, generation) = (Arc::clone(&work.progress), work.generation);
                rig.staged().issue(work).expect("valid");
                wait(|| progress.done() == generation);
            }
            adit_gpu_emulated::set("");
        }
        Rig::new(1, 1).move_all(true);
    });
}

#[test]
fn an_engine_whose_memory_the_gpu_does_not_take_is_not_made() {
    let name =
        concat!(module_path!(), "::an_engine_whose_memory_the_gpu_does_not_take_is_not_made");
    adit_gpu_emulated::alone("host-register=refused", name, || {
        let gpu = Gpu::open(0).expect("the emulated one");
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(());
        let made = Staged::new(&gpu, &[open()], &[], &keep, &StagedOptions::default());
        assert!(made.is_err());
        let report = adit_gpu_emulated::report();
        assert_eq!((report.registrations, report.streams, report.misuses), (0, 1, 0));
    });
}

#[test]
fn an_engine_dropped_behind_an_event_that_does_not_come_leaves_what_copies_reach() {
    let name = concat!(
        module_path!(),
        "::an_engine_dropped_behind_an_event_that_does_not_come_leaves_what_copies_reach"
    );
    adit_gpu_emulated::alone("", name, || {
        let mut rig = Rig::impatient();
        let gate = PinnedMemory::allocate(&rig.gpu, 4).expect("memory");
        let stream = Stream::new(&rig.gpu, Priority::Normal).expect("a stream");
        stream.wait32_at_least(gate.address(), 1, false).expect("enqueued");
        let event = Arc::new(stream.record().expect("recorded"));
        let work = rig.work(0, true, Some(event));
        let progress = Arc::clone(&work.progress);
        rig.staged().issue(work).expect("valid");
        wait(|| rig.staged().stats().copies > 0);
        rig.staged = None;
        assert_eq!(progress.done(), 1, "the CPU does not wait for ever");
        assert_eq!(adit_gpu_emulated::report().registrations, 1, "the chunks stay");
        assert!(Arc::strong_count(&rig.memory) > 1, "and so does the pool");
        gate.words()[0].store(1, std::sync::atomic::Ordering::Release);
        stream.synchronize(Duration::from_secs(10)).expect("it goes on");
        wait(|| rig.done_word(0) == 1);
    });
}

#[test]
fn words_behind_an_event_that_does_not_come_are_left_as_well() {
    let name =
        concat!(module_path!(), "::words_behind_an_event_that_does_not_come_are_left_as_well");
    adit_gpu_emulated::alone("", name, || {
        let mut rig = Rig::impatient();
        let gate = PinnedMemory::allocate(&rig.gpu, 4).expect("memory");
        let stream = Stream::new(&rig.gpu, Priority::Normal).expect("a stream");
        stream.wait32_at_least(gate.address(), 1, false).expect("enqueued");
        let event = Arc::new(stream.record().expect("recorded"));
        // The LBA does not exist: there is nothing to copy, and two words to write.
        let place = Context::place(rig.devices[0].1.lba_count(), 1, 0, false);
        let contexts = [Context { address: 0, place }].into();
        let progress = Arc::new(Progress::new(1));
        let work = Work { contexts, progress, ..rig.work(0, false, Some(event)) };
        rig.staged().issue(work).expect("valid");
        wait(|| rig.staged().stats().marks > 0);
        rig.staged = None;
        assert!(Arc::strong_count(&rig.words) > 1, "the words are still written");
        gate.words()[0].store(1, std::sync::atomic::Ordering::Release);
        stream.synchronize(Duration::from_secs(10)).expect("it goes on");
        wait(|| rig.done_word(0) == 2);
    });
}
