//! The vfio-user bus against our own server, another implementation's, and lying ones.
#![allow(missing_docs)]
#![allow(unsafe_code)]

#[path = "support/served.rs"]
mod served;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_driver::bus::vfio_user::{Options, VfioUser};
use adit_driver::bus::{Bus, BusEvent, Doorbell};
use adit_driver::soft;
use adit_driver::spec::Iova;
use adit_driver::spec::Lba;
use adit_driver::sys::{Backing, HostMemory, Window};
use adit_driver::{Buffer, Controller, ControllerOptions, Event, QueuePair, QueuePairOptions};

use adit_driver::serve::DoorbellAccess;
use served::{Served, trust};

const CAP: u32 = 0x00;
const VS: u32 = 0x08;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;
const CSTS_READY: u32 = 1;
const CSTS_FAILED: u32 = 1 << 1;
const AQA: u32 = 0x24;
const ASQ: u32 = 0x28;
const ACQ: u32 = 0x30;
const ADMIN_TAIL: u32 = 0x1000;
const PAGE: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for scripted servers, long enough that only one that never answers misses it.
const DEADLINE: Duration = Duration::from_secs(1);

fn small() -> soft::Options {
    soft::Options::memory(1 << 20)
}

fn map(bus: &VfioUser, memory: &HostMemory) -> adit_driver::Result<Iova> {
    // SAFETY: the tests' servers reach no memory but by the commands of tests, which keep it until they are done.
    unsafe { bus.map(memory.range()) }
}

fn unmap(bus: &VfioUser, iova: Iova, len: usize) -> adit_driver::Result<()> {
    // SAFETY: tests unmap what they mapped and use no more.
    unsafe { bus.unmap(iova, len as u64) }
}

fn bar_window(bus: &VfioUser, bar: u8, offset: usize, len: usize) -> adit_driver::Result<Window> {
    // SAFETY: no queue is in what tests write there.
    unsafe { bus.bar_window(bar, offset as u64, len as u64) }
}

fn doorbell(bus: &Arc<VfioUser>, offset: u32) -> adit_driver::Result<Doorbell> {
    // SAFETY: tests ring for the commands that they wrote.
    unsafe { Arc::<VfioUser>::clone(bus).doorbell(offset) }
}

fn shared_memory(len: usize) -> Arc<HostMemory> {
    Arc::new(HostMemory::allocate(len, Backing::SharedFile, &|_, _| ()).expect("memory"))
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited for {what}");
        thread::sleep(Duration::from_micros(100));
    }
}

/// A bus with an enabled controller and three pages it can reach: submission
/// queue, completion queue, data.
struct Enabled {
    bus: Arc<VfioUser>,
    memory: Arc<HostMemory>,
    iova: u64,
}

fn enable(bus: Arc<VfioUser>) -> Enabled {
    let memory = shared_memory(3 * PAGE);
    let iova = map(&bus, &memory).expect("mapped").0;
    set_up(&bus, iova);
    Enabled { bus, memory, iova }
}

fn set_up(bus: &VfioUser, iova: u64) {
    // SAFETY: the queues are in memory that is mapped.
    unsafe {
        bus.write32(AQA, 0x000f_000f);
        bus.write64(ASQ, iova);
        bus.write64(ACQ, iova + PAGE as u64);
        bus.write32(CC, 0x0046_0001);
    }
    wait_for("CSTS.RDY", || bus.read32(CSTS) & 1 == 1);
}

impl Enabled {
    /// Posts Identify Controller by hand, the first command of the queue.
    fn identify(&self) -> Doorbell {
        let doorbell = doorbell(&self.bus, ADMIN_TAIL).expect("doorbell");
        self.identify_by(&doorbell);
        doorbell
    }

    fn identify_by(&self, doorbell: &Doorbell) {
        let words = self.memory.atomics();
        let data = self.iova + 2 * PAGE as u64;
        let dwords = [(0, 0x06), (6, data as u32), (7, (data >> 32) as u32), (10, 1)];
        for (index, value) in dwords {
            words.dwords()[index].store(value, Ordering::Relaxed);
        }
        doorbell.ring(1);
        let phase = &words.dwords()[PAGE / 4 + 3];
        wait_for("a completion", || phase.load(Ordering::Acquire) & 1 << 16 != 0);
        assert_eq!(phase.load(Ordering::Relaxed) >> 17, 0, "status");
    }

    /// Sets the controller up again, with the same memory.
    fn start_over(&self) {
        self.memory.atomics().clear();
        set_up(&self.bus, self.iova);
    }

    fn data(&self) -> Vec<u8> {
        let words = self.memory.atomics().slice(2 * PAGE, PAGE);
        words.words().iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }
}

#[test]
fn registers_are_the_controllers() {
    let server = Served::start(small(), DoorbellAccess::Mapped);
    let bus = VfioUser::open(server.socket()).expect("open");
    let (cap, vs) = server
        .with(|it| (it.controller().read_register(CAP, 8), it.controller().read_register(VS, 4)));
    assert_eq!(bus.read64(CAP), cap);
    assert_eq!(u64::from(bus.read32(VS)), vs);
    assert_eq!(bus.read32(0xffff_fff0), u32::MAX, "outside the BAR");
    assert!(bus.device().starts_with("vfio-user:/"));
    assert_eq!(bus.take_event(), None);
}

#[test]
fn a_command_runs_over_a_mapped_doorbell() {
    let server = Served::start(small(), DoorbellAccess::Mapped);
    let enabled = enable(VfioUser::open(server.socket()).expect("open"));
    assert!(matches!(enabled.identify(), Doorbell::Mapped(_)));
    assert!(enabled.data().iter().any(|byte| *byte != 0), "identify data came");
}

#[test]
fn a_command_runs_over_messages_and_both_ways_give_the_same() {
    let mappable = Served::start(small(), DoorbellAccess::Mapped);
    let messages = Served::start(small(), DoorbellAccess::Messages);
    let first = enable(VfioUser::open(messages.socket()).expect("open"));
    assert!(matches!(first.identify(), Doorbell::Message(_)));
    let options = Options { map_doorbells: false, ..Options::default() };
    let second = enable(VfioUser::open_with(mappable.socket(), options).expect("open"));
    assert!(matches!(second.identify(), Doorbell::Message(_)));
    assert_eq!(first.data(), second.data());
}

#[test]
fn interrupts_arrive_by_eventfd() {
    let server = Served::start(small(), DoorbellAccess::Mapped);
    let bus = VfioUser::open(server.socket()).expect("open");
    let count = bus.vector_count();
    assert!(count >= 2);
    let vectors = bus.enable_vectors(count).expect("vectors");
    assert_eq!(vectors.len(), usize::from(count));
    assert!(bus.enable_vectors(count + 1).is_err());
    let enabled = enable(bus);
    enabled.identify();
    let mut admin = File::from(vectors.into_iter().next().expect("vector 0"));
    let mut signals = [0; 8];
    wait_for("an interrupt", || admin.read_exact(&mut signals).is_ok());
    assert!(enabled.bus.enable_vectors(0).expect("disabled").is_empty());
}

#[test]
fn memory_comes_and_goes() {
    let server = Served::start(small(), DoorbellAccess::Messages);
    let bus = VfioUser::open(server.socket()).expect("open");
    assert_eq!(bus.backing(), Backing::SharedFile);
    let memory = shared_memory(2 * PAGE);
    let iova = map(&bus, &memory).expect("mapped");
    assert_ne!(map(&bus, &memory).expect("twice is fine").0, iova.0);
    assert_ne!(bus.reserve(1 << 20).expect("reserved").0, iova.0);
    assert_eq!(server.with(|it| it.mapping_count()), 2);
    assert!(unmap(&bus, iova, PAGE).is_err(), "half a mapping");
    unmap(&bus, iova, 2 * PAGE).expect("unmapped");
    assert_eq!(server.with(|it| it.mapping_count()), 1);
    let plain = HostMemory::allocate(PAGE, Backing::Any, &|_, _| ()).expect("memory");
    let error = map(&bus, &plain).expect_err("no file").to_string();
    assert!(error.contains("memfd"), "{error}");
    drop(bus);
    wait_for("the server to let go", || server.with(|it| it.mapping_count()) == 0);
}

#[test]
fn a_reset_starts_over_and_the_next_client_finds_a_fresh_controller() {
    let server = Served::start(small(), DoorbellAccess::Mapped);
    let enabled = enable(VfioUser::open(server.socket()).expect("open"));
    enabled.bus.reset().expect("reset");
    assert_eq!(enabled.bus.read32(CSTS) & 1, 0);
    drop(enabled);
    let again = enable(VfioUser::open(server.socket()).expect("open again"));
    again.identify();
}

#[test]
fn the_controller_memory_buffer_is_mapped() {
    let options = soft::Options { cmb_bytes: 1 << 20, ..small() };
    let server = Served::start(options, DoorbellAccess::Mapped);
    let bus = VfioUser::open(server.socket()).expect("open");
    let window = bar_window(&bus, soft::CMB_BAR, PAGE, PAGE).expect("mapped");
    window.write32(8, 0x1234_5678);
    let seen = server.with(|it| {
        let cmb = it.controller().cmb().expect("a buffer");
        cmb.pages().atomics().dwords()[(PAGE + 8) / 4].load(Ordering::Acquire)
    });
    assert_eq!(seen, 0x1234_5678);
    assert!(bar_window(&bus, soft::CMB_BAR, 1 << 20, 8).is_err(), "past its end");
    assert!(bar_window(&bus, 0, 0, 8).is_err(), "registers may not be mapped");
    assert!(bar_window(&bus, 6, 0, 8).is_err(), "no such BAR");
}

#[test]
fn a_doorbell_outside_the_bar_is_refused() {
    let server = Served::start(small(), DoorbellAccess::Mapped);
    let bus = VfioUser::open(server.socket()).expect("open");
    assert!(doorbell(&bus, 0x10_0000).is_err());
}

/// Ends a server and starts another at the same socket.
fn replaced(server: Served, options: soft::Options, doorbells: DoorbellAccess) -> Served {
    let socket = server.socket().to_owned();
    drop(server);
    let serving = adit_driver::serve::Options { doorbells, ..Default::default() };
    Served::start_at(socket, options, serving)
}

#[test]
fn a_server_that_came_back_is_met_again() {
    let options = || soft::Options { cmb_bytes: 1 << 20, ..small() };
    for doorbells in [DoorbellAccess::Mapped, DoorbellAccess::Messages] {
        let server = Served::start(options(), doorbells);
        let enabled = enable(VfioUser::open(server.socket()).expect("open"));
        let vectors = enabled.bus.enable_vectors(2).expect("vectors");
        let cmb = bar_window(&enabled.bus, soft::CMB_BAR, 0, 1 << 20).expect("mapped");
        let doorbell = enabled.identify();
        let before = enabled.data();
        // Another process serves there now, which knows nothing of us.
        let server = replaced(server, options(), doorbells);
        assert_eq!(enabled.bus.read32(CSTS), u32::MAX);
        assert_eq!(enabled.bus.take_event(), Some(BusEvent::Gone));
        enabled.bus.reset().expect("met again");
        // Everything handed out before still works.
        assert_eq!(server.with(|it| it.mapping_count()), 1);
        let mut admin = File::from(vectors.into_iter().next().expect("vector 0"));
        let mut signals = [0; 8];
        while admin.read_exact(&mut signals).is_ok() {}
        enabled.start_over();
        enabled.identify_by(&doorbell);
        assert_eq!(enabled.data(), before);
        wait_for("an interrupt", || admin.read_exact(&mut signals).is_ok());
        cmb.write32(8, 0x1234_5678);
        let seen = server.with(|it| {
            let cmb = it.controller().cmb().expect("a buffer");
            cmb.pages().atomics().dwords()[2].load(Ordering::Acquire)
        });
        assert_eq!(seen, 0x1234_5678);
        unmap(&enabled.bus, Iova(enabled.iova), 3 * PAGE).expect("unmapped");
        assert_eq!(server.with(|it| it.mapping_count()), 0);
        drop(server);
        wait_for("the loss", || enabled.bus.take_event() == Some(BusEvent::Gone));
    }
}

#[test]
fn a_controllers_handles_go_on_after_its_server_was_replaced() {
    // Declared first, so that it outlives its users.
    let mut server = Served::start(small(), DoorbellAccess::Mapped);
    let target = format!("vfio-user:{}", server.socket().display()).parse().expect("target");
    let controller = Controller::open(&target, &ControllerOptions::default()).expect("open");
    let namespace = controller.namespace_of(&target).expect("namespace");
    let mut queue: QueuePair<Buffer> =
        controller.create_queue_pair(QueuePairOptions::default()).expect("queue");
    let mut run = |command| {
        queue.submit(controller.now(), command).expect("room");
        let mut ended = None;
        wait_for("a completion", || {
            queue.poll(controller.now(), |done| ended = Some(done));
            ended.is_some()
        });
        ended.expect("it came")
    };
    let buffer = controller.allocate(4096).expect("memory");
    let done = run(namespace.read(Lba(0), buffer));
    assert_eq!(done.result, Ok(0));
    // The server ends and comes back.
    server = replaced(server, small(), DoorbellAccess::Mapped);
    assert!(matches!(controller.poll(controller.now()), Some(Event::Bus(BusEvent::Gone))));
    assert!(controller.check().is_err(), "out of service");
    controller.recover().expect("back in service");
    assert!(server.with(|it| it.mapping_count()) > 0, "it has the memory again");
    // The same namespace, queue and buffer work again.
    let mut buffer = done.buffer;
    buffer.fill(0xad);
    let mut buffer = run(namespace.write(Lba(8), buffer)).buffer;
    buffer.fill(0);
    let done = run(namespace.read(Lba(8), buffer));
    assert_eq!(done.result, Ok(0));
    assert!(done.buffer.iter().all(|byte| *byte == 0xad));
}

#[test]
fn another_device_is_not_taken_for_the_old_one() {
    let server = Served::start(small(), DoorbellAccess::Mapped);
    let enabled = enable(VfioUser::open(server.socket()).expect("open"));
    let fewer = soft::Options { io_queue_count: 3, ..small() };
    let server = replaced(server, fewer, DoorbellAccess::Mapped);
    let error = enabled.bus.reset().expect_err("fewer vectors").to_string();
    assert!(error.contains("another device"), "{error}");
    let server = replaced(server, small(), DoorbellAccess::Messages);
    let error = enabled.bus.reset().expect_err("nothing to map").to_string();
    assert!(error.contains("another device"), "{error}");
    assert_eq!(enabled.bus.read32(CSTS), u32::MAX, "gone as before");
    assert_eq!(server.with(|it| it.mapping_count()), 0, "it was not given any memory");
    let _server = replaced(server, small(), DoorbellAccess::Mapped);
    enabled.bus.reset().expect("the right one again");
}

#[test]
fn a_server_that_is_busy_or_mute_is_not_waited_for_long() {
    let server = Served::start(small(), DoorbellAccess::Mapped);
    let socket = server.socket().to_owned();
    let options = Options { deadline: Duration::from_millis(200), ..Options::default() };
    let enabled = enable(VfioUser::open_with(&socket, options).expect("open"));
    let server = replaced(server, small(), DoorbellAccess::Mapped);
    let other = VfioUser::open(&socket).expect("faster than us");
    let error = enabled.bus.reset().expect_err("busy").to_string();
    assert!(error.contains("busy") && error.contains("no other client"), "{error}");
    drop(other);
    drop(server);
    let _mute = UnixListener::bind(&socket).expect("socket");
    let started = Instant::now();
    let error = enabled.bus.reset().expect_err("mute").to_string();
    assert!(error.contains("within 200 ms"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
    std::fs::remove_file(&socket).expect("removed");
}

/// A scripted server's reaction to one request.
enum Act {
    Reply(Vec<u8>),
    Refuse(u32),
    Silence,
    HangUp,
}

/// A server that answers each request by a script, given its command and body.
struct Scripted {
    socket: PathBuf,
}

impl Scripted {
    fn start(name: &str, act: impl Fn(u16, &[u8]) -> Act + Send + 'static) -> Scripted {
        trust();
        let name = format!("adit-liar-{name}-{}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("socket");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("client");
            while answer(&mut stream, &act).is_some() {}
        });
        Scripted { socket }
    }

    fn open(&self) -> adit_driver::Result<Arc<VfioUser>> {
        VfioUser::open_with(&self.socket, Options { deadline: DEADLINE, map_doorbells: true })
    }

    fn refusal(&self) -> String {
        self.open().expect_err("must be refused").to_string()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn answer(stream: &mut UnixStream, act: &impl Fn(u16, &[u8]) -> Act) -> Option<()> {
    let mut header = [0; 16];
    stream.read_exact(&mut header).ok()?;
    let size = u32::from_ne_bytes(header[4..8].try_into().ok()?) as usize;
    let mut body = vec![0; size - header.len()];
    stream.read_exact(&mut body).ok()?;
    let command = u16::from_ne_bytes([header[2], header[3]]);
    let (flags, error, reply) = match act(command, &body) {
        Act::Reply(reply) => (1u32, 0, reply),
        Act::Refuse(errno) => (1 | 1 << 5, errno, Vec::new()),
        Act::Silence => return Some(()),
        Act::HangUp => return None,
    };
    header[4..8].copy_from_slice(&(16 + reply.len() as u32).to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&error.to_ne_bytes());
    stream.write_all(&header).ok()?;
    stream.write_all(&reply).ok()
}

fn dwords(values: &[u32]) -> Act {
    Act::Reply(values.iter().flat_map(|value| value.to_ne_bytes()).collect())
}

/// The answers of an honest server with an 8 KiB BAR0 and nothing to map.
fn honest(command: u16, body: &[u8]) -> Act {
    match command {
        1 => Act::Reply(b"\0\0\x01\0{}\0".to_vec()),
        4 => dwords(&[16, 0b11, 9, 0]),
        5 => dwords(&[32, 0b11, body[8].into(), 0, 0x2000, 0, 0, 0]),
        9 => Act::Reply([body, &[0xab; 4]].concat()),
        10 => Act::Reply(body[..16].to_vec()),
        _ => Act::Reply(Vec::new()),
    }
}

#[test]
fn the_honest_script_opens() {
    let server = Scripted::start("honest", honest);
    let bus = server.open().expect("open");
    assert_eq!(bus.read32(8), 0xabab_abab);
    assert_eq!(bus.vector_count(), 0);
}

/// Behaves as SPDK's target: an admin completion signals INTx unless that is disabled, and the controller fails if the
/// interrupt has no file. A reset clears the command register.
fn signals_intx() -> impl Fn(u16, &[u8]) -> Act + Send {
    let (pci_command, csts) = (AtomicU16::new(0), AtomicU32::new(0));
    move |command, body| {
        let place = (body.get(8).copied(), body.first().map(|offset| u32::from(*offset)));
        match (command, place) {
            (9, (Some(7), Some(4))) => {
                Act::Reply([body, &pci_command.load(Ordering::Relaxed).to_le_bytes()].concat())
            }
            (10, (Some(7), Some(4))) => {
                let value = u16::from_le_bytes([body[16], body[17]]);
                pci_command.store(value, Ordering::Relaxed);
                honest(command, body)
            }
            (10, (Some(0), Some(CC))) => {
                let is_well = pci_command.load(Ordering::Relaxed) & 1 << 10 != 0;
                csts.store(if is_well { CSTS_READY } else { CSTS_FAILED }, Ordering::Relaxed);
                honest(command, body)
            }
            (9, (Some(0), Some(CSTS))) => {
                let value = csts.load(Ordering::Relaxed).to_le_bytes();
                Act::Reply([body, &value].concat())
            }
            (13, _) => {
                pci_command.store(0, Ordering::Relaxed);
                csts.store(0, Ordering::Relaxed);
                honest(command, body)
            }
            _ => honest(command, body),
        }
    }
}

#[test]
fn a_server_that_signals_intx_stays_well_after_a_reset_too() {
    let server = Scripted::start("intx", signals_intx());
    let bus = server.open().expect("open");
    // SAFETY: the server only plays a controller, which reaches no memory.
    let enable = || unsafe { bus.write32(CC, 0x0046_0001) };
    enable();
    assert_eq!(bus.read32(CSTS), CSTS_READY);
    bus.reset().expect("reset");
    assert_eq!(bus.read32(CSTS), 0);
    enable();
    assert_eq!(bus.read32(CSTS), CSTS_READY);
}

#[test]
fn a_server_without_a_command_register_is_taken() {
    let server = Scripted::start("no-config", |command, body| match (command, body.get(8)) {
        (9 | 10, Some(7)) => Act::Refuse(22),
        _ => honest(command, body),
    });
    assert_eq!(server.open().expect("open").read32(8), 0xabab_abab);
}

#[test]
fn lies_while_opening_are_refusals_in_time() {
    let expect = |name: &str, part: &str, act: fn(u16, &[u8]) -> Act| {
        let started = Instant::now();
        let text = Scripted::start(name, act).refusal();
        assert!(text.contains(part), "{name}: {text}");
        assert!(started.elapsed() < Duration::from_secs(5), "{name} took too long");
    };
    expect("mute", "within 1000 ms", |_, _| Act::Silence);
    expect("hang-up", "closed the connection", |_, _| Act::HangUp);
    expect("refuse", "Invalid argument", |_, _| Act::Refuse(22));
    expect("future", "version 9", |_, _| Act::Reply(vec![9, 0, 0, 0]));
    expect("empty", "no version", |_, _| Act::Reply(Vec::new()));
    expect("json", "not JSON", |_, _| Act::Reply(b"\0\0\x01\0{{\0".to_vec()));
    expect("platform", "not a PCI device", |command, body| match command {
        4 => dwords(&[16, 0b101, 9, 0]),
        _ => honest(command, body),
    });
    expect("short", "describe region 0", |command, body| match command {
        5 => dwords(&[32, 0b11]),
        _ => honest(command, body),
    });
    expect("other", "describe region 0", |command, body| match command {
        5 => dwords(&[32, 0b11, 3, 0, 0x2000, 0, 0, 0]),
        _ => honest(command, body),
    });
}

#[test]
fn a_mappable_region_without_a_file_falls_back_to_messages() {
    let server = Scripted::start("fileless", |command, body| match command {
        5 => dwords(&[32, 0b111, body[8].into(), 0, 0x2000, 0, 0, 0]),
        _ => honest(command, body),
    });
    let bus = server.open().expect("open");
    assert!(matches!(doorbell(&bus, 0x1000).expect("doorbell"), Doorbell::Message(_)));
}

#[test]
fn a_server_that_goes_away_reads_as_all_ones_and_is_told_once() {
    let server = Scripted::start("gone", |command, body| match command {
        9 if body[8] == 0 => Act::HangUp,
        _ => honest(command, body),
    });
    let bus = server.open().expect("open");
    assert_eq!(bus.take_event(), None);
    assert_eq!(bus.read32(CSTS), u32::MAX);
    assert_eq!(bus.read64(CAP), u64::MAX);
    // SAFETY: it enables nothing.
    unsafe { bus.write32(CC, 0) };
    assert_eq!(bus.take_event(), Some(BusEvent::Gone));
    assert_eq!(bus.take_event(), None);
    // Its socket accepts connections for a moment after it stops answering.
    wait_for("a refusal by the system", || {
        let error = bus.reset().expect_err("gone").to_string();
        error.contains("cannot be restored") && error.contains("start the server")
    });
    let memory = shared_memory(PAGE);
    assert!(map(&bus, &memory).is_err());
}

#[test]
fn a_server_that_stops_answering_is_gone_after_the_deadline() {
    let server = Scripted::start("stuck", |command, body| match command {
        9 if body[8] == 0 => Act::Silence,
        _ => honest(command, body),
    });
    let bus = server.open().expect("open");
    let started = Instant::now();
    assert_eq!(bus.read32(CSTS), u32::MAX);
    assert_eq!(bus.read32(CSTS), u32::MAX);
    assert!(started.elapsed() < 2 * DEADLINE, "only the first waits");
    assert_eq!(bus.take_event(), Some(BusEvent::Gone));
}

#[test]
fn a_refused_mapping_and_a_wrong_unmap_are_errors_with_reasons() {
    let server = Scripted::start("dma", |command, body| match command {
        2 if u64::from_ne_bytes(body[24..32].try_into().expect("size")) > 4096 => Act::Refuse(12),
        3 => Act::Reply(vec![0; 24]),
        _ => honest(command, body),
    });
    let bus = server.open().expect("open");
    let large = shared_memory(2 * PAGE);
    let error = map(&bus, &large).expect_err("refused").to_string();
    assert!(error.contains("Cannot allocate memory"), "{error}");
    let small = shared_memory(PAGE);
    let iova = map(&bus, &small).expect("mapped");
    let error = unmap(&bus, iova, PAGE).expect_err("a lie").to_string();
    assert!(error.contains("it unmapped 0 bytes"), "{error}");
}

#[test]
fn an_answer_to_another_register_is_not_believed() {
    let server = Scripted::start("register", |command, body| match command {
        9 => Act::Reply([&[0; 16], &[0xab; 4][..]].concat()),
        _ => honest(command, body),
    });
    assert_eq!(server.open().expect("open").read32(CSTS), u32::MAX);
}

#[test]
fn a_missing_server_is_reported_plainly() {
    trust();
    let error = VfioUser::open("/nonexistent/adit.sock".as_ref()).expect_err("absent").to_string();
    assert!(error.contains("no such socket") && error.contains("start the server"), "{error}");
}
