use std::sync::mpsc::channel;

use adit_driver::paths::{Device, DeviceOptions};

use super::threads::Threads;
use super::*;
use crate::ModelGpu;
use crate::copy::queue::BlockingOptions;

const UNIT: u64 = 4096;
const TENSOR: u64 = 5 << 20;

fn keys(layer: u32) -> TensorId {
    TensorId::pair(layer)[0]
}

/// A worker without storage.
fn bare<G: Gpu>(gpu: Arc<G>) -> Worker<G> {
    Worker {
        gpu,
        memory: None,
        portion_bytes: UNIT,
        file: None,
        direct: None,
        extent: None,
        turns: Default::default(),
        checksums: None,
        fills: Fillings::default(),
        counts: Arc::default(),
    }
}

/// A worker with a file, and a software drive with these faults instead of the file's direct path.
fn worker(faults: &str) -> Worker<ModelGpu> {
    let file = CachedFile::create(&std::env::temp_dir(), TENSOR).expect("a file");
    file.unlink().expect("it has a name");
    file.allocate(0, TENSOR).expect("space");
    let target = format!("soft:mem=16M,lba=4096{faults}").parse().expect("a target");
    let device = Device::open(&target, &DeviceOptions::default()).expect("a drive");
    let memory = device.allocate(TENSOR as usize).expect("memory");
    let mut spare = device.allocate(UNIT as usize).expect("memory");
    drop(spare.split_off(UNIT as usize));
    let timeout = Duration::from_secs(5);
    let options = BlockingOptions { command_bytes: 64 << 10, depth: 8, timeout };
    let direct = BlockingQueue::open(&device, &options, &memory, vec![spare]).expect("a queue");
    Worker {
        memory: Some(memory),
        portion_bytes: TENSOR,
        file: Some(file),
        direct: Some(direct),
        ..bare(Arc::new(ModelGpu::new(0, false)))
    }
}

fn carry_out(worker: &mut Worker<ModelGpu>, task: Task) -> Result<()> {
    worker.carry_out(task, &Reads(None), &mut Moved::default())
}

fn write(route: Route) -> Work {
    Work::Write { route, at: 0, bytes: UNIT, fill: None }
}

const CACHED: Route = Route { home: Home::Cached, offset: 0, runs_on: true };
const DIRECT: Route = Route { home: Home::Direct, ..CACHED };

#[test]
fn whatever_comes_next_for_a_tensor_waits_for_the_write_left_behind() {
    let read = Work::Read { route: CACHED, bytes: UNIT, overlap: Overlap::Intra, copy_to: None };
    let next = [
        Task::Tensor(keys(3), read),
        Task::Tensor(keys(3), write(CACHED)),
        Task::Tensor(keys(3), write(DIRECT)),
        Task::Tensor(keys(3), Work::Forget { offset: 0, bytes: UNIT }),
        Task::Settle,
    ];
    for task in next {
        let mut worker = worker(",faults=status(2:80:dnr)@write:n=1");
        let name = format!("{task:?}");
        let behind = Task::Tensor(keys(3), write(DIRECT));
        carry_out(&mut worker, behind).expect("it is left behind");
        let text = carry_out(&mut worker, task).expect_err(&name).to_string();
        assert!(text.contains("write a token of K of layer 3"), "{name}: {text}");
    }
}

#[test]
fn an_idle_thread_reads_a_tensor_piece_by_piece() {
    let mut worker = worker("");
    let data: Vec<u8> = (0..TENSOR).map(|at| (at / 4096 % 251) as u8).collect();
    worker.file().write(0, &data).expect("a write");
    worker.fills.add(keys(0), CACHED, 1);
    worker.fills.add(keys(0), CACHED, TENSOR);
    worker.fills.add(keys(1), CACHED, UNIT);
    worker.fills.forget(keys(1));
    let (jobs, waiting) = channel();
    jobs.send(Job { ticket: 7, task: Task::Settle }).expect("a receiver");
    assert_eq!(worker.next(&waiting).expect("a job").ticket, 7);
    let counts = Arc::clone(&worker.counts);
    let filled = || counts.filled_bytes.load(Ordering::Relaxed);
    assert_eq!(filled(), 0, "a job goes before");
    for end in [PIECE_BYTES, 2 * PIECE_BYTES, TENSOR] {
        let start = filled();
        worker.fill();
        assert_eq!(filled(), end);
        let memory = worker.memory.as_ref().expect("it came back");
        let piece = (end - start) as usize;
        assert!(memory[..piece] == data[start as usize..end as usize], "the piece that ends {end}");
    }
    worker.fill();
    assert_eq!(filled(), TENSOR, "nothing is left");
}

#[test]
fn threads_fill_while_none_has_a_job() {
    let mut worker = worker("");
    worker.fills.add(keys(0), CACHED, TENSOR);
    let counts = Arc::clone(&worker.counts);
    counts.unended.fetch_add(1, Ordering::Relaxed);
    let (jobs, waiting) = channel();
    let (reports, _heard) = channel();
    let thread = std::thread::spawn(move || worker.run(&waiting, &reports));
    let filled = || counts.filled_bytes.load(Ordering::Relaxed);
    std::thread::sleep(20 * LULL);
    assert_eq!(filled(), 0, "another thread has a job");
    counts.unended.fetch_sub(1, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(20);
    while filled() < TENSOR {
        assert!(Instant::now() < deadline, "{} of {TENSOR} bytes", filled());
        std::thread::sleep(LULL);
    }
    drop(jobs);
    thread.join().expect("it ends");
}

#[test]
fn checksums_cover_each_token() {
    let mut checksums = Checksums::new(4);
    let tensor = keys(0);
    checksums.keep(tensor, 0, b"aaaabbbb");
    checksums.keep(tensor, 8, b"cccc");
    let verify = |checksums: &Checksums, bytes: &[u8]| {
        checksums.verify(tensor, 0, bytes).map_err(|error| error.to_string())
    };
    assert_eq!(verify(&checksums, b"aaaabbbbcccc"), Ok(()));
    let text = verify(&checksums, b"aaaaXbbb").expect_err("a read shorter than the write");
    assert!(text.contains("K of layer 0") && text.contains("token 1"), "{text}");
    checksums.keep(tensor, 4, b"BBBB");
    assert_eq!(verify(&checksums, b"aaaaBBBBcccc"), Ok(()));
    assert!(verify(&checksums, b"aaaXBBBB").is_err(), "writing a token keeps the others'");
    assert!(verify(&checksums, b"aaaabbbb").is_err(), "the second was written over");
    assert!(checksums.verify(keys(1), 0, b"anything").is_ok(), "another tensor");
    assert!(checksums.verify(tensor, 4, b"BBBBcccc").is_ok(), "from the second token on");
    assert!(checksums.verify(tensor, 4, b"BBBBccc?").is_err());
}

#[test]
fn the_kernels_count_of_what_drives_deliver_is_found() {
    assert_eq!(read_bytes("rchar: 5\nread_bytes: 8192\nwrite_bytes: 1\n"), Some(8192));
    assert_eq!(read_bytes("rchar: 5\n"), None);
    assert_eq!(Reads(None).bytes(), None);
}

/// Panics instead of a copy.
struct Broken;

impl Gpu for Broken {
    fn to_host(&self, _: TensorId, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        panic!("this is a test");
    }

    fn to_device(&self, _: TensorId, _: u64, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

const LONG: Duration = Duration::from_secs(60);

type First = fn() -> Result<()>;

/// Starts two threads, the first of which begins with `first`.
fn start(gpu: &Arc<Broken>, first: First) -> Result<Threads> {
    let gpu = Arc::clone(gpu);
    let make = move |index| {
        let device = Device::open(&"null:".parse()?, &DeviceOptions::default())?;
        if index == 0 {
            first()?;
        }
        let memory = Some(device.allocate(UNIT as usize)?);
        Ok(Worker { memory, ..bare(Arc::clone(&gpu)) })
    };
    Threads::start(2, LONG, Arc::default(), make)
}

#[test]
fn no_thread_is_left_if_one_cannot_start() {
    let fails: [(First, &str); 2] = [
        (|| Err(Error::invalid("this", "a test", "go on")), "a test"),
        (|| panic!("this is a test"), "it panicked"),
    ];
    for (first, expected) in fails {
        let (gpu, begun) = (Arc::new(Broken), Instant::now());
        let text = start(&gpu, first).expect_err("it fails").to_string();
        assert!(text.contains(expected), "{text}");
        assert_eq!(Arc::strong_count(&gpu), 1, "the other thread has ended");
        assert!(begun.elapsed() < LONG / 2, "nothing waited for its time limit");
    }
}

#[test]
fn a_thread_that_panics_is_reported_at_once() {
    let (gpu, begun) = (Arc::new(Broken), Instant::now());
    let mut threads = start(&gpu, || Ok(())).expect("threads");
    let task = || Task::Tensor(keys(0), write(CACHED));
    threads.send_to(0, task()).expect("it takes a job");
    threads.send_to(1, Task::Settle).expect("it takes a job");
    let mut heard = std::iter::from_fn(|| Some(threads.receive().map(|done| done.ticket)));
    let failed = heard.by_ref().find_map(Result::err).expect("a job never ends");
    assert!(failed.to_string().contains("panicked"), "{failed}");
    assert!(heard.take(2).all(|heard| heard.is_err()), "and so for good");
    threads.stop();
    assert!(begun.elapsed() < LONG / 2, "nothing waited for its time limit");
    assert_eq!(Arc::strong_count(&gpu), 1, "both threads have ended");
}
