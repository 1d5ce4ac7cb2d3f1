//! Devices of some path, and a shard on them that answers requests one after another.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request};
use adit_driver::spec::Lba;
use adit_driver::{Device, DeviceOptions, Time};
use adit_kvstore::internals::format::{self, FormatOptions};
use adit_kvstore::shard::{
    Action, Done, Failure, GetItem, LANE_MEMORY_BYTES, Lane, LaneInfo, Load, Outcome, Part,
    PutItem, PutOptions, Request as ShardRequest, Shard, ShardOptions,
};
use adit_kvstore::{Durability, Key, Result};

pub(crate) type Queue = DeviceQueue<Load>;
pub(crate) type Answer = std::result::Result<Outcome, Failure>;

/// Total bytes of all devices.
const BYTES: u64 = 48 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Devices formatted for one shard.
pub(crate) struct Rig {
    pub(crate) devices: Vec<Device>,
    files: Vec<PathBuf>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.files.iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

impl Rig {
    /// Creates software controllers.
    pub(crate) fn soft(count: u64) -> Rig {
        let bytes = (BYTES / count) >> 20;
        let open = |index| {
            let lba_bytes = [4096, 512][index as usize % 2];
            let target = format!("soft:mem={bytes}M,lba={lba_bytes}");
            let options = DeviceOptions { queue_count: 4, ..DeviceOptions::default() };
            Device::open(&target.parse().expect("a target"), &options).expect("a device")
        };
        Rig { devices: (0..count).map(open).collect(), files: Vec::new() }.formatted()
    }

    /// Opens the devices in `ADIT_TARGETS`, separated by spaces, and destroys their contents.
    pub(crate) fn named() -> Rig {
        let targets = std::env::var("ADIT_TARGETS").expect("ADIT_TARGETS names devices to destroy");
        let open = |target: &str| {
            let options = DeviceOptions { queue_count: 4, ..DeviceOptions::default() };
            Device::open(&target.parse().expect("a target"), &options).expect("a device")
        };
        let devices = targets.split_whitespace().map(open).collect();
        Rig { devices, files: Vec::new() }.formatted()
    }

    /// Creates files in the build directory, because direct I/O needs a real file system.
    pub(crate) fn uring(count: u64) -> Rig {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let file = |_| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("shard-{}-{number}", std::process::id());
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
        };
        let files: Vec<PathBuf> = (0..count).map(file).collect();
        let open = |file: &PathBuf| {
            let target = format!("uring:{}", file.display()).parse().expect("a target");
            let file_bytes = Some(BYTES / count);
            let options = DeviceOptions { file_bytes, ..DeviceOptions::default() };
            Device::open(&target, &options).expect("a device")
        };
        Rig { devices: files.iter().map(open).collect(), files }.formatted()
    }

    fn formatted(self) -> Rig {
        let options = FormatOptions {
            shards: 1,
            objects_max: 4096,
            key_bytes: 64,
            journal_bytes: Some(256 << 10),
            label: "tests".to_owned(),
            store_id: [7; 16],
            overwrite: true,
        };
        format::format(&mut self.lanes(), &options, &mut self.clock())
            .expect("devices that are large enough");
        self
    }

    pub(crate) fn clock(&self) -> impl FnMut() -> Time {
        let device = self.devices[0].clone();
        move || {
            std::thread::yield_now();
            device.now()
        }
    }

    pub(crate) fn lanes(&self) -> Vec<Lane<Queue>> {
        self.devices.iter().map(lane).collect()
    }

    pub(crate) fn try_open(&self, options: ShardOptions) -> Result<Opened<'_>> {
        let mut lanes = self.lanes();
        let set = format::read_set(&mut lanes, &mut self.clock())?;
        let (shard, _) = Shard::open(0, lanes, &set, options, &mut self.clock())?;
        Ok(Opened { rig: self, shard })
    }

    pub(crate) fn open(&self, durability: Durability) -> Opened<'_> {
        let options = ShardOptions { durability, ..ShardOptions::default() };
        self.try_open(options).expect("a store")
    }

    /// Allocates memory that every device can use, or the first one's.
    pub(crate) fn memory(&self, bytes: usize) -> Buffer {
        self.devices[0].allocate(bytes.next_multiple_of(4096)).expect("memory")
    }
}

fn queue(device: &Device, memory: &[&Buffer]) -> Queue {
    let depth = 32.min(device.info().queue_depth_max);
    let timeout = Duration::from_secs(10);
    let options = QueueOptions { depth, timeout, abort_timeout: timeout };
    device.create_queue(&options, memory).expect("a queue")
}

fn lane(device: &Device) -> Lane<Queue> {
    let memory = device.allocate(LANE_MEMORY_BYTES).expect("memory");
    let about = device.info().clone();
    let accepting = device.clone();
    let info = LaneInfo {
        device: about.device,
        bytes: about.bytes,
        lba_bytes: about.lba_bytes,
        command_bytes_max: about.command_bytes_max,
        boundary_bytes: about.boundary_bytes,
        depth: 32.min(about.queue_depth_max),
        deallocates: about.deallocates,
        deallocate_lbas_max: about.deallocate_lbas_max,
        may_lack_space: about.has_holes,
        protection: about.protection,
        accepts: Box::new(move |memory| accepting.accepts(memory)),
    };
    Lane::new(queue(device, &[&memory]), info, memory)
}

fn beside(device: &Device) -> DeviceQueue<Buffer> {
    let timeout = Duration::from_secs(10);
    let options = QueueOptions { depth: 1, timeout, abort_timeout: timeout };
    device.create_queue(&options, &[]).expect("a queue")
}

/// Writes `bytes` over the first place on a device that begins with `pattern`. Returns whether there is one.
pub(crate) fn overwrite(device: &Device, pattern: &[u8], bytes: &[u8]) -> bool {
    let mut memory = device.allocate(4096).expect("memory");
    let mut queue = beside(device);
    for at in (0..device.info().bytes).step_by(4096) {
        let lba = Lba(at / u64::from(device.info().lba_bytes));
        memory = carry_out(device, &mut queue, Operation::Read(lba), memory);
        if memory.starts_with(pattern) {
            overwrite_at(device, at, bytes);
            return true;
        }
    }
    false
}

/// Writes `bytes` to a place on a device.
pub(crate) fn overwrite_at(device: &Device, at: u64, bytes: &[u8]) {
    let mut memory = device.allocate(bytes.len()).expect("memory");
    memory.copy_from_slice(bytes);
    let lba = Lba(at / u64::from(device.info().lba_bytes));
    carry_out(device, &mut beside(device), Operation::Write(lba), memory);
}

fn carry_out(
    device: &Device,
    queue: &mut DeviceQueue<Buffer>,
    operation: Operation,
    buffer: Buffer,
) -> Buffer {
    queue.post(device.now(), Request { operation, buffer }).expect("an idle queue takes it");
    queue.ring();
    let mut finished = None;
    let begun = Instant::now();
    while finished.is_none() {
        queue.poll(device.now(), |completion| finished = Some(completion));
        assert!(begun.elapsed() < PATIENCE, "a request never completed");
    }
    let finished = finished.expect("it is over");
    finished.result.expect("a healthy device");
    finished.buffer
}

pub(crate) struct Opened<'a> {
    rig: &'a Rig,
    pub(crate) shard: Shard<Queue>,
}

impl Opened<'_> {
    pub(crate) fn now(&self) -> Time {
        self.rig.devices[0].now()
    }

    /// Submits requests together; each answer returns its request's position.
    pub(crate) fn submit(&mut self, actions: impl IntoIterator<Item = Action>) {
        let request = |(reply, action)| ShardRequest { reply, deadline: Time::NEVER, action };
        self.shard.submit_many(self.now(), (0..).zip(actions).map(request));
    }

    /// Returns the next `count` answers, in the order of their arrival.
    pub(crate) fn answers(&mut self, count: usize) -> Vec<Done> {
        let (mut answers, begun) = (Vec::new(), Instant::now());
        while answers.len() < count {
            let turn = self.shard.poll(self.rig.devices[0].now(), &mut |done| answers.push(done));
            assert!(begun.elapsed() < PATIENCE, "{turn:?}: {} of {count} answers", answers.len());
        }
        assert_eq!(answers.len(), count);
        answers
    }

    /// Submits a request and returns its answer.
    pub(crate) fn one(&mut self, action: Action) -> (Answer, AnyBuffer) {
        self.submit([action]);
        let done = self.answers(1).pop().expect("an answer");
        (done.result, done.memory)
    }

    pub(crate) fn put_item(&self, key: &str, bytes: u64) -> PutItem {
        let mut data = self.rig.memory(bytes as usize);
        fill(&mut data[..bytes as usize], key);
        let key = Key::try_from(key).expect("a key");
        PutItem { key, bytes, data: AnyBuffer::One(data), options: PutOptions::default() }
    }

    /// Puts an object whose contents derive from its key.
    pub(crate) fn put(&mut self, key: &str, bytes: u64) -> Answer {
        self.one(Action::Put(self.put_item(key, bytes))).0
    }

    pub(crate) fn get_item(&self, key: &str, bytes: u64, part: Part) -> GetItem {
        let into = AnyBuffer::One(self.rig.memory(bytes as usize));
        GetItem { key: Key::try_from(key).expect("a key"), part, into, version: None }
    }

    /// Returns whether an object exists, and checks its bytes.
    pub(crate) fn has(&mut self, key: &str, bytes: u64) -> bool {
        let (answer, memory) = self.one(Action::Get(self.get_item(key, bytes, Part::All)));
        match answer.expect("healthy devices") {
            Outcome::Hit { bytes: read } => {
                assert_eq!(read, bytes, "{key}");
                check(&memory, key, bytes, 0);
                true
            }
            Outcome::Miss => false,
            other => panic!("{key}: {other:?}"),
        }
    }

    pub(crate) fn commit(&mut self) {
        assert_eq!(self.one(Action::Commit).0, Ok(Outcome::Committed));
    }
}

/// Fills `bytes` with the contents of the object with this key.
pub(crate) fn fill(bytes: &mut [u8], key: &str) {
    let seed: u64 = key.bytes().fold(11, |seed, byte| seed.wrapping_mul(131) + u64::from(byte));
    for (index, byte) in bytes.iter_mut().enumerate() {
        let word =
            (index as u64 / 8 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *byte = word.to_le_bytes()[index % 8];
    }
}

/// Checks the bytes read at `from` in an object of `bytes`.
pub(crate) fn check(memory: &AnyBuffer, key: &str, bytes: u64, from: usize) {
    let AnyBuffer::One(memory) = memory else { panic!("the memory that was given") };
    let mut expected = vec![0; bytes as usize];
    fill(&mut expected, key);
    let part = &expected[from..];
    let len = part.len().min(memory.len());
    assert!(memory[..len] == part[..len], "{key}: wrong bytes");
}
