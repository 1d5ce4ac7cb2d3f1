//! The reactor's threads on the machine's clock: sleeping and waking, stopping, panics in foreign code, futures,
//! several cores and controllers.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::reactor::{Client, Pending, Reactor, ReactorOptions, RefuseReason, Unfinished};
use adit_driver::runtime::{Cores, Idle};
use adit_driver::soft::Verdict;
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{Buffer, Completion, Controller, ControllerOptions, Namespace};

use crate::rig::Rig;

struct Machine {
    bus: Arc<SoftBus>,
    controller: Controller,
    namespace: Namespace,
}

impl Machine {
    fn new(interrupts: bool) -> Machine {
        let options = "mem=16M".parse().expect("options");
        let bus = SoftBus::new(options, Drive::Thread).expect("bus");
        let options = ControllerOptions { interrupts, ..ControllerOptions::default() };
        let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &options).expect("open");
        let namespace = controller.namespace(Nsid(1)).expect("namespace 1");
        Machine { bus, controller, namespace }
    }

    fn attach(&self, options: ReactorOptions) -> (Reactor, Client) {
        let reactor = Reactor::start(options).expect("reactor");
        let client = reactor.attach(&self.controller, &self.namespace).expect("client");
        (reactor, client)
    }

    fn buffer(&self) -> Buffer {
        self.controller.allocate(512).expect("memory")
    }

    fn hold(&self) {
        let hook = |_: &_, qid: adit_driver::spec::Qid| {
            if qid.is_admin() { Verdict::Run } else { Verdict::Hold }
        };
        self.bus.with_controller(|controller| controller.set_hook(hook));
    }

    /// Waits until the controller holds a command, and runs it.
    fn release(&self) {
        let started = Instant::now();
        while self.bus.release_held() == 0 {
            assert!(started.elapsed() < Duration::from_secs(20), "nothing was held");
            std::thread::yield_now();
        }
    }

    /// Closes everything, in any order, and checks that nothing is left mapped.
    fn finish(self) {
        let Machine { bus, controller, namespace } = self;
        drop((controller, namespace));
        assert_eq!((bus.mapped_bytes(), bus.dma_faults()), (0, 0));
    }
}

/// Makes a reactor sleep as soon as it is idle.
fn drowsy() -> ReactorOptions {
    let zero = Duration::ZERO;
    let idle = Idle { spin: zero, pause: zero, sleep_max: Duration::from_micros(200) };
    ReactorOptions { idle, ..ReactorOptions::default() }
}

fn ok(pending: Pending<Buffer>) -> Buffer {
    let Completion { buffer, result } = pending.wait().expect("carried out");
    assert_eq!(result, Ok(0));
    buffer
}

/// Runs a future to its end on this thread, with only the standard library.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// The thread sleeps between requests. A lost wake-up delays it by the 100 ms between its controller checks, and enough
/// of them fail the test.
#[test]
fn a_sleeping_reactor_is_woken_by_every_request() {
    for interrupts in [false, true] {
        let machine = Machine::new(interrupts);
        let (reactor, client) = machine.attach(drowsy());
        let mut buffer = machine.buffer();
        let (mut late, mut round) = (0, 0);
        // On a busy machine, most requests come before the thread sleeps.
        while client.stats().wakes < 1000 {
            let sent = Instant::now();
            buffer = ok(client.read(Lba(round % 64), buffer).expect("room"));
            late += u32::from(sent.elapsed() > Duration::from_millis(90));
            round += 1;
            assert!(late < 20, "{late} of {round} requests waited as long as without a wake-up");
            assert!(round < 1_000_000, "it is not woken: {:?}", client.stats());
        }
        drop((buffer, client, reactor));
        machine.finish();
    }
}

/// With interrupts, the thread sleeps while the command is in flight, and the completion wakes it.
#[test]
fn an_interrupt_wakes_a_reactor_that_waits_for_a_completion() {
    let machine = Machine::new(true);
    let (reactor, client) = machine.attach(drowsy());
    machine.hold();
    let pending = client.read(Lba(0), machine.buffer()).expect("room");
    std::thread::sleep(Duration::from_millis(20));
    let before = client.stats();
    std::thread::sleep(Duration::from_millis(50));
    let naps = client.stats().sleeps - before.sleeps;
    assert!(naps < 25, "{naps} sleeps in 50 ms: it naps instead of waiting for the interrupt");
    machine.release();
    ok(pending);
    drop((client, reactor));
    machine.finish();
}

#[test]
fn futures_work_on_any_executor() {
    let machine = Machine::new(false);
    let (reactor, client) = machine.attach(ReactorOptions::default());
    let read = async {
        let mut buffers = Vec::new();
        for lba in 0..100u64 {
            let mut buffer = machine.buffer();
            buffer.fill(lba as u8);
            let write = client.namespace().write(Lba(lba), buffer);
            let Completion { buffer, result } = client.submit_async(write).await?.await?;
            assert_eq!(result, Ok(0));
            buffers.push(client.read(Lba(lba), buffer)?);
        }
        for (lba, pending) in buffers.into_iter().enumerate() {
            let Completion { buffer, result } = pending.await?;
            assert_eq!(result, Ok(0));
            assert!(buffer.iter().all(|byte| usize::from(*byte) == lba));
        }
        Ok::<(), Unfinished<Buffer>>(())
    };
    block_on(read).expect("all carried out");
    drop((client, reactor));
    machine.finish();
}

#[test]
fn execute_waits_for_room_and_the_end() {
    let machine = Machine::new(false);
    let options = ReactorOptions { mailbox_depth: 1, queue_depth: 2, ..ReactorOptions::default() };
    let (reactor, client) = machine.attach(options);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut buffer = machine.buffer();
                for lba in 0..50 {
                    (buffer, _) =
                        client.execute(client.namespace().read(Lba(lba), buffer)).expect("read");
                }
            });
        }
    });
    let error = client.execute(client.namespace().read(Lba(1 << 40), machine.buffer()));
    assert!(error.expect_err("beyond the end").to_string().contains("reach beyond"));
    drop((client, reactor));
    machine.finish();
}

#[test]
fn a_reactor_that_is_dropped_finishes_what_it_was_given() {
    let machine = Machine::new(false);
    let (reactor, client) = machine.attach(ReactorOptions::default());
    let sent: Vec<_> =
        (0..100).map(|lba| client.read(Lba(lba), machine.buffer()).expect("room")).collect();
    drop(reactor);
    sent.into_iter().for_each(|pending| drop(ok(pending)));
    let refused = client.read(Lba(0), machine.buffer()).expect_err("it has stopped");
    assert!(matches!(refused.reason, RefuseReason::Stopped), "{refused}");
    drop((refused, client));
    machine.finish();
}

#[test]
fn a_reactor_does_not_wait_for_ever_for_what_does_not_end() {
    let machine = Machine::new(false);
    let drain_timeout = Duration::from_millis(20);
    let (reactor, client) =
        machine.attach(ReactorOptions { drain_timeout, ..ReactorOptions::default() });
    machine.hold();
    let pending = client.read(Lba(0), machine.buffer()).expect("room");
    drop(reactor);
    let error = pending.wait().expect_err("its buffer was freed with the queue");
    assert!(error.to_string().contains("drain_timeout"), "{error}");
    drop(client);
    machine.finish();
}

/// The thread is never idle, and stops all the same.
#[test]
fn a_reactor_stops_under_load_that_never_ends() {
    let machine = Machine::new(false);
    let (reactor, client) = machine.attach(ReactorOptions::default());
    let loads: Vec<_> = (0..2)
        .map(|_| {
            let (client, mut buffers) = (client.clone(), Vec::new());
            buffers.resize_with(64, || machine.buffer());
            std::thread::spawn(move || {
                let send = |buffer| client.read(Lba(0), buffer).ok();
                let mut flying: VecDeque<_> = buffers.into_iter().map_while(send).collect();
                while let Some(pending) = flying.pop_front() {
                    let Ok(Completion { buffer, result }) = pending.wait() else { continue };
                    assert_eq!(result, Ok(0));
                    flying.extend(send(buffer));
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    assert!(client.stats().ended > 0, "they are at it");
    drop(reactor);
    loads.into_iter().for_each(|load| load.join().expect("no panic"));
    drop(client);
    machine.finish();
}

/// Requests race with the end of the reactor; each one ends nevertheless.
#[test]
fn no_request_hangs_when_the_reactor_goes_away_under_it() {
    let machine = Machine::new(false);
    for round in 0..60u64 {
        let (reactor, client) = machine.attach(drowsy());
        let sender = std::thread::spawn({
            let buffer = machine.buffer();
            move || {
                let mut buffer = buffer;
                loop {
                    let pending = match client.read(Lba(0), buffer) {
                        Ok(pending) => pending,
                        Err(refused) => return refused.reason.to_string(),
                    };
                    match pending.wait_timeout(Duration::from_secs(20)).expect("it ends") {
                        Ok(completion) => buffer = completion.buffer,
                        Err(unfinished) => return unfinished.to_string(),
                    }
                }
            }
        });
        std::thread::sleep(Duration::from_micros(37 * round));
        drop(reactor);
        let end = sender.join().expect("no panic");
        assert!(end.contains("has stopped"), "{end}");
    }
    machine.finish();
}

#[test]
fn a_panic_in_a_waker_does_not_end_the_thread() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as arranged: this panic is caught");
        }
    }
    let machine = Machine::new(false);
    let (reactor, client) = machine.attach(ReactorOptions::default());
    machine.hold();
    let mut pending = pin!(client.read(Lba(0), machine.buffer()).expect("room"));
    let waker = Waker::from(Arc::new(Panics));
    assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    machine.release();
    machine.bus.with_controller(|controller| controller.clear_hook());
    assert!(block_on(pending).is_ok());
    ok(client.read(Lba(1), machine.buffer()).expect("room"));
    drop((client, reactor));
    machine.finish();
}

/// Simulates a bug of our own in the software controller, which the thread steps while it reads a log.
#[test]
fn a_panic_that_ends_the_thread_ends_its_requests() {
    let rig = Rig::new("mem=1M");
    let reactor = Reactor::start(ReactorOptions::default()).expect("reactor");
    let client = reactor.attach(&rig.controller, &rig.namespace).expect("client");
    let mut panics = true;
    rig.hook(move |_, qid| {
        let here = std::thread::current();
        let is_reactor = here.name().is_some_and(|name| name.starts_with("adit-reactor"));
        if is_reactor && std::mem::take(&mut panics) {
            panic!("as arranged: this ends the reactor's thread");
        }
        if qid.is_admin() { Verdict::Run } else { Verdict::Hold }
    });
    let buffer = || rig.controller.allocate(512).expect("memory");
    let pending = client.read(Lba(0), buffer()).expect("room");
    rig.bus.soft.with_controller(|controller| {
        controller.warn_critical(1);
    });
    rig.settle();
    rig.bus.soft.advance(Duration::from_secs(1));
    let ended = pending.wait_timeout(Duration::from_secs(20)).expect("it does not hang");
    let error = ended.expect_err("it was not carried out").to_string();
    assert!(error.contains("stopped"), "{error}");
    let refused = client.read(Lba(0), buffer()).expect_err("the thread is gone");
    assert!(matches!(refused.reason, RefuseReason::Stopped), "{refused}");
    let error = reactor.attach(&rig.controller, &rig.namespace).expect_err("nor for others");
    assert!(error.to_string().contains("one of its threads has ended"), "{error}");
    drop((refused, client, reactor));
    rig.finish();
}

/// A task that holds the last handles is dropped by its own waker, on the reactor's thread.
#[test]
fn a_reactor_may_be_dropped_by_a_waker_on_its_own_thread() {
    struct DropsIt(Mutex<Option<(Reactor, Client)>>, AtomicUsize);
    impl Wake for DropsIt {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().expect("not poisoned").take());
            self.1.store(1, Ordering::Release);
        }
    }
    let machine = Machine::new(false);
    let (reactor, client) = machine.attach(ReactorOptions::default());
    machine.hold();
    let mut pending = pin!(client.read(Lba(0), machine.buffer()).expect("room"));
    let drops = Arc::new(DropsIt(Mutex::new(Some((reactor, client))), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&drops));
    assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    machine.release();
    let started = Instant::now();
    while drops.1.load(Ordering::Acquire) == 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "the waker waits for itself");
        std::thread::yield_now();
    }
    assert!(block_on(pending).is_ok());
}

#[test]
fn cores_share_the_clients_and_controllers_share_the_cores() {
    let (one, other) = (Machine::new(false), Machine::new(false));
    let cores = std::thread::available_parallelism().expect("cores").get().min(2);
    let options = ReactorOptions { cores: Cores::Count(cores), ..ReactorOptions::default() };
    let (reactor, client) = one.attach(options);
    let second = reactor.attach(&other.controller, &other.namespace).expect("a second one");
    assert_eq!((reactor.cores().len(), client.cores()), (cores, cores));
    let clones: Vec<Client> = (0..cores).map(|_| client.clone()).collect();
    let mut on: Vec<usize> = clones.iter().map(Client::core).collect();
    on.sort_unstable();
    assert_eq!(on, (0..cores).collect::<Vec<_>>(), "clones are spread over the cores");
    for core in 0..cores {
        ok(client.on(core).read(Lba(0), one.buffer()).expect("room"));
        ok(second.on(core).write(Lba(0), other.buffer()).expect("room"));
        assert_eq!(client.on(core).stats().ended, 1);
    }
    drop((clones, client));
    // The other controller's requests continue.
    ok(second.read(Lba(0), other.buffer()).expect("room"));
    drop((second, reactor));
    one.finish();
    other.finish();
}

#[test]
fn handles_may_go_in_any_order() {
    for order in 0..6 {
        let Machine { bus, controller, namespace } = Machine::new(false);
        let reactor = Reactor::start(ReactorOptions::near(&controller)).expect("reactor");
        let client = reactor.attach(&controller, &namespace).expect("client");
        let buffer = controller.allocate(512).expect("memory");
        let pending = client.read(Lba(0), buffer).expect("room");
        let mut handles: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(reactor)),
            Some(Box::new((controller, namespace))),
            Some(Box::new(client)),
        ];
        for turn in 0..3 {
            let index = if order < 3 { (turn + order) % 3 } else { (order + 2 - turn) % 3 };
            drop(handles[index].take());
        }
        drop(pending);
        let started = Instant::now();
        while bus.mapped_bytes() > 0 {
            assert!(started.elapsed() < Duration::from_secs(20), "order {order}: memory is left");
            std::thread::yield_now();
        }
        assert_eq!(bus.dma_faults(), 0);
    }
}

#[test]
fn cores_that_are_not_there_are_refused() {
    let options = ReactorOptions { cores: Cores::List(vec![100_000]), ..ReactorOptions::default() };
    let error = Reactor::start(options).expect_err("no such core").to_string();
    assert!(error.contains("core 100000 asked for; the calling thread may use 0"), "{error}");
}
