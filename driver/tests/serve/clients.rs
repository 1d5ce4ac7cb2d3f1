//! Clients that vanish or come together leave nothing behind.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use adit_driver::bus::vfio_user::VfioUser;
use adit_driver::serve::{DoorbellAccess, Event, Options, Pace, Server};
use adit_driver::soft::{self, Verdict};
use adit_driver::spec::Lba;
use adit_driver::sys::{SharedPages, Window};
use adit_driver::{Buffer, Controller, ControllerOptions, QueuePair, QueuePairOptions, Target};

use crate::raw::{
    DMA_MAP, GET_REGION_INFO, NO_REPLY, REGION_WRITE, REPLY, RESET, Raw, VERSION, dwords, qwords,
};
use crate::served::trust;
use crate::{Served, file_of, served, small, wait_for, works};

const IOVA: u64 = 1 << 32;
const ENTRIES: u32 = 256;
/// Places in pages: submission queue, completion queue, data.
const SUBMISSION: usize = 0;
const COMPLETION: usize = 4;
const DATA: usize = 5;

/// A client with an enabled controller, and its memory, which outlives the connection.
struct Host {
    raw: Raw,
    memory: SharedPages,
}

impl Host {
    fn enable(server: &Served) -> Host {
        let mut raw = Raw::open(server.socket());
        let memory = SharedPages::allocate(16 * 4096).expect("memory");
        enable(&mut raw, &memory);
        Host { raw, memory }
    }

    /// Fills the queue with Identify Controller.
    fn fill(&self) {
        let queue = self.memory.atomics().slice(SUBMISSION * 4096, ENTRIES as usize * 64);
        for (index, entry) in queue.dwords().chunks_exact(16).enumerate() {
            let data = IOVA + (DATA as u64) * 4096;
            let words = [
                (0, 6 | (index as u32) << 16),
                (6, data as u32),
                (7, (data >> 32) as u32),
                (10, 1),
            ];
            for (dword, value) in words {
                entry[dword].store(value, Ordering::Relaxed);
            }
        }
    }

    fn ring(&mut self, tail: u32) {
        self.raw.write(0, 0x1000, &tail.to_le_bytes());
    }

    fn bytes(memory: &SharedPages) -> Vec<u64> {
        memory.atomics().words().iter().map(|word| word.load(Ordering::Acquire)).collect()
    }
}

fn enable(raw: &mut Raw, memory: &SharedPages) {
    let map = [dwords(&[32, 3]), qwords(&[0, IOVA, 16 * 4096])].concat();
    assert_eq!(raw.ask_with(DMA_MAP, &map, &[&file_of(memory)]).flags, REPLY);
    raw.write(0, 0x24, &((ENTRIES - 1) << 16 | (ENTRIES - 1)).to_le_bytes());
    raw.write(0, 0x28, &IOVA.to_le_bytes());
    raw.write(0, 0x30, &(IOVA + COMPLETION as u64 * 4096).to_le_bytes());
    raw.write(0, 0x14, &0x0046_0001u32.to_le_bytes());
    wait_for("CSTS.RDY", || raw.read(0, 0x1c, 4)[0] & 1 == 1);
}

/// A server in its own loop, at its own pace.
struct Running {
    socket: PathBuf,
    stops: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<adit_driver::Result<()>>>,
}

impl Running {
    fn start(name: &str, controller: soft::Options, options: Options) -> Running {
        trust();
        let name = format!("adit-running-{name}-{}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let controller = soft::Controller::new(controller).expect("controller");
        let mut server = Server::bind(&socket, controller, options).expect("socket");
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stops);
        let thread = Some(thread::spawn(move || server.run(&stopped, &mut |_| ())));
        Running { socket, stops, thread }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Release);
        if thread::panicking() {
            return;
        }
        // A connection wakes a server that sleeps for long.
        let _ = std::os::unix::net::UnixStream::connect(&self.socket);
        let ended = self.thread.take().map(thread::JoinHandle::join);
        ended.expect("once").expect("no panic").expect("flushed");
        assert!(!self.socket.exists());
    }
}

fn gone(server: &Served) {
    wait_for("the server to let go", || server.with(|it| it.mapping_count()) == 0);
    let events = server.events();
    assert!(matches!(events.last(), Some(Event::ClientGone { .. })), "{events:?}");
}

#[test]
fn nothing_is_touched_after_a_client_vanished_mid_command() {
    let server = served();
    for round in 0..20 {
        let mut host = Host::enable(&server);
        host.fill();
        host.ring(ENTRIES - 1);
        let Host { raw, memory } = host;
        drop(raw);
        gone(&server);
        let before = Host::bytes(&memory);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(Host::bytes(&memory), before, "round {round}");
    }
    works(server.socket());
}

#[test]
fn a_command_that_was_held_when_its_client_vanished_never_runs() {
    let server = served();
    server.with(|it| it.controller().set_hook(|_, _| Verdict::Hold));
    let mut host = Host::enable(&server);
    host.fill();
    host.ring(5);
    let Host { raw, memory } = host;
    drop(raw);
    gone(&server);
    let before = Host::bytes(&memory);
    server.with(|it| {
        it.controller().clear_hook();
        let nowhere = adit_driver::sys::DmaTable::default();
        assert_eq!(it.controller().release_held(&nowhere), 0, "the reset ended them");
        assert_eq!(nowhere.faults(), 0);
    });
    assert_eq!(Host::bytes(&memory), before);
    works(server.socket());
}

#[test]
fn a_reset_that_a_fault_refuses_is_an_error_and_still_keeps_clients_apart() {
    let server = Served::start(
        "mem=1M,faults=refuse-reset".parse().expect("options"),
        DoorbellAccess::Mapped,
    );
    let mut host = Host::enable(&server);
    assert_eq!(host.raw.refusal(RESET, &[], &[]), libc::EIO);
    host.fill();
    host.ring(5);
    let Host { raw, memory } = host;
    drop(raw);
    gone(&server);
    let before = Host::bytes(&memory);
    // The next client's memory has the same addresses; the last one's queues must be gone.
    let next = Host::enable(&server);
    next.fill();
    thread::sleep(Duration::from_millis(2));
    let completions = next.memory.atomics().slice(COMPLETION * 4096, 4096);
    assert!(completions.words().iter().all(|word| word.load(Ordering::Acquire) == 0));
    assert_eq!(Host::bytes(&memory), before);
}

#[test]
fn commands_that_take_their_time_end_while_the_server_sleeps() {
    let options = "mem=1M,faults=delay(30ms)@admin".parse().expect("options");
    let pace =
        Pace { sleep: Duration::from_secs(60), nap_until: Duration::ZERO, ..Pace::default() };
    let served = Running::start("delayed", options, Options { pace, ..Options::default() });
    let mut raw = Raw::open(&served.socket);
    let memory = SharedPages::allocate(16 * 4096).expect("memory");
    enable(&mut raw, &memory);
    let mut host = Host { raw, memory };
    host.fill();
    host.ring(1);
    let status =
        || host.memory.atomics().slice(COMPLETION * 4096, 16).dwords()[3].load(Ordering::Acquire);
    wait_for("a completion", || status() & 1 << 16 != 0);
}

#[test]
fn a_client_that_left_rings_nothing_any_more() {
    let server = served();
    let mut first = Raw::open(server.socket());
    let doorbells = |raw: &mut Raw| -> Window {
        let reply = raw.ask(GET_REGION_INFO, &dwords(&[64, 0, 0, 0, 0, 0, 0, 0]));
        let file = reply.file.expect("mappable");
        assert!(file.set_len(0).is_err(), "the client cannot take the page away");
        Window::map(file.as_fd(), 0x1000, 4096).expect("mapped")
    };
    let old = doorbells(&mut first);
    drop(first);
    // The old client's page is not the new one's.
    wait_for("the end of the first", || {
        matches!(server.events()[..], [.., Event::ClientGone { .. }])
    });
    let mut host = Host::enable(&server);
    host.fill();
    let new = doorbells(&mut host.raw);
    old.write32(0, 5);
    std::thread::sleep(Duration::from_millis(5));
    let first_entry =
        || host.memory.atomics().slice(COMPLETION * 4096, 16).dwords()[3].load(Ordering::Acquire);
    assert_eq!(first_entry(), 0, "no doorbell was rung");
    new.write32(0, 1);
    wait_for("a completion", || first_entry() != 0);
}

#[test]
fn two_clients_at_once_are_one_and_a_reason() {
    let server = served();
    let first = VfioUser::open(server.socket()).expect("first");
    let error = VfioUser::open(server.socket()).expect_err("second").to_string();
    assert!(error.contains("busy") && error.contains("no other client"), "{error}");
    assert!(server.events().contains(&Event::TurnedAway));
    drop(first);
    works(server.socket());
}

#[test]
fn what_a_client_left_unread_keeps_the_next_one_waiting_for_nothing() {
    let server = served();
    for _ in 0..20 {
        let mut raw = Raw::open(server.socket());
        // More than the server handles between two polls for other clients.
        for _ in 0..1000 {
            raw.send(REGION_WRITE, NO_REPLY, &[0; 20], &[]);
        }
        drop(raw);
        works(server.socket());
    }
}

/// Shadow doorbells wake no thread, so a server that goes to sleep has to ask for a ring.
#[test]
fn a_sleeping_server_is_woken_by_the_ring_it_asked_for() {
    let pace =
        Pace { sleep: Duration::from_secs(60), nap_until: Duration::ZERO, ..Pace::default() };
    let options = Options { doorbells: DoorbellAccess::Messages, pace, ..Options::default() };
    let served = Running::start("sleeper", small(), options);
    let target = format!("vfio-user:{}", served.socket.display());
    let target: Target = target.parse().expect("target");
    let controller = Controller::open(&target, &ControllerOptions::default()).expect("open");
    let namespace = controller.namespace_of(&target).expect("namespace");
    let mut queue: QueuePair<Buffer> =
        controller.create_queue_pair(QueuePairOptions::default()).expect("queue");
    let mut buffer = Some(controller.allocate(4096).expect("memory"));
    for idle_ms in [0, 1, 5, 20, 20] {
        thread::sleep(Duration::from_millis(idle_ms));
        let read = namespace.read(Lba(0), buffer.take().expect("it came back"));
        queue.submit(controller.now(), read).expect("room");
        wait_for("a completion", || {
            queue.poll(controller.now(), |done| buffer = Some(done.buffer));
            buffer.is_some()
        });
    }
}

#[test]
fn silent_connections_keep_no_client_out() {
    let server = served();
    let silent: Vec<Raw> = (0..20).map(|_| Raw::connect(server.socket())).collect();
    works(server.socket());
    drop(silent);
    works(server.socket());
    let mut last = Raw::connect(server.socket());
    assert_eq!(last.ask(VERSION, b"\0\0\x01\0").flags, REPLY);
}

#[test]
fn clients_one_after_another_find_their_data_and_a_fresh_controller() {
    let server = Served::start(soft::Options { dbbuf: false, ..small() }, DoorbellAccess::Messages);
    for _ in 0..50 {
        let mut host = Host::enable(&server);
        host.fill();
        host.ring(3);
        let memory = &host.memory;
        let last = || {
            memory.atomics().slice(COMPLETION * 4096 + 32, 16).dwords()[3].load(Ordering::Acquire)
        };
        wait_for("three completions", || last() & 1 << 16 != 0);
        assert_eq!(last() >> 17, 0, "status");
    }
    assert_eq!(server.events().iter().filter(|event| **event == Event::ClientCame).count(), 50);
}
