//! One controller's queue pair and its mailbox: a poller's work, turn by turn.
//!
//! A lane has no thread and reads no clock. Each thread of a [`super::Reactor`] has a lane for each
//! controller; a program with its own loop, such as a simulation, calls [`Lane::turn`] instead.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::client::{Client, Device};
use super::flights::{Flights, Later};
use super::options::ReactorOptions;
use super::outcome::{End, Lost, RefuseReason};
use super::port::{Action, Note, Port, Request, Stats};
use crate::Time;
use crate::controller::{Controller, QueuePair, QueuePairOptions};
use crate::error::Result;
use crate::memory::AnyBuffer;
use crate::namespace::Namespace;
use crate::queue_pair::{
    Body, Command, CommandError, Completion, LbaCommand, RejectReason, Rejected,
};
use crate::runtime::{Alarm, lock};

/// The most requests posted before ringing the doorbell, so that the first does not wait for the last.
const BATCH: usize = 32;
/// Interval between looks at the controller.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Delay between recovery attempts; doubles.
const RECOVERY_WAIT: Duration = Duration::from_secs(1);
const RECOVERY_WAIT_MAX: Duration = Duration::from_secs(64);

/// A buffer in the queue, with the number of its request's note.
type Tagged = (AnyBuffer, u32);

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Requests posted, ended or refused: 0 is an idle turn.
    pub moved: usize,
    /// Requests in flight on the device.
    pub in_flight: usize,
    /// When the next turn is due if nothing arrives: a deadline, a retry or a look at the controller.
    pub next: Time,
}

/// One controller's queue pair on one core, and its mailbox.
pub struct Lane {
    controller: Controller,
    device: Arc<Device>,
    port: Arc<Port>,
    queue: QueuePair<Tagged>,
    flights: Flights,
    later: Later,
    /// The next request to post, which did not fit into the queue.
    head: Option<Request>,
    namespaces: Vec<Arc<Namespace>>,
    next_look: Time,
    /// Polls the controller on behalf of all its lanes.
    is_keeper: bool,
    /// The keeper recovers a failed controller.
    recovers: bool,
    next_recovery: Time,
    recovery_wait: Duration,
}

impl Lane {
    /// Creates a lane for `controller` without a thread, and a client for `namespace`. Ignores the options
    /// about threads.
    ///
    /// # Errors
    /// As [`Controller::create_queue_pair`] and [`super::Reactor::attach`].
    pub fn attach(
        controller: &Controller,
        namespace: &Namespace,
        options: &ReactorOptions,
    ) -> Result<(Lane, Client)> {
        options.check()?;
        let alarms = [Alarm::new()?];
        let (mut lanes, client) = attach(controller, namespace, options, &alarms)?;
        Ok((lanes.remove(0), client))
    }

    /// Runs one turn: takes completions and wakes their waiters, posts due requests and the mailbox's, and
    /// rings the doorbell once. `now` is [`Lane::now`], or a simulation's time.
    ///
    /// Bounded like [`QueuePair::poll`].
    pub fn turn(&mut self, now: Time) -> Turn {
        let mut moved = self.reap(now);
        if now >= self.next_look || !self.queue.is_in_service() {
            moved += self.look(now);
        }
        if self.queue.is_in_service() {
            moved += self.start(now);
            self.queue.ring();
        }
        self.port.turns.add(1);
        Turn { moved, in_flight: self.flights.live(), next: self.next_turn() }
    }

    /// Returns the current time on the controller's clock.
    pub fn now(&self) -> Time {
        self.controller.now()
    }

    /// Returns whether the lane will never have work again: its clients are gone or it was told to stop, and
    /// all requests have ended.
    pub fn is_over(&self) -> bool {
        self.port.requests.is_stopping()
            && self.port.requests.is_empty()
            && self.head.is_none()
            && self.later.is_empty()
            && self.flights.live() == 0
    }

    /// Returns the lane's counters.
    pub fn stats(&self) -> Stats {
        self.port.stats()
    }

    pub(super) fn stop(&self) {
        self.port.requests.stop();
    }

    pub(super) fn interrupt(&self) -> Option<BorrowedFd<'_>> {
        self.queue.interrupt()
    }

    fn next_turn(&self) -> Time {
        self.next_look.min(self.queue.next_deadline()).min(self.later.next_due())
    }

    fn reap(&mut self, now: Time) -> usize {
        let Lane { queue, flights, later, controller, device, port, .. } = self;
        queue.poll(now, |Completion { buffer: (buffer, number), result }| {
            // A lost request only leaves its buffer to drop.
            let Some(note) = flights.remove(number) else { return };
            match fate(note, buffer, result, controller, device, now) {
                Fate::Again(due, request) => {
                    port.retries.add(1);
                    later.push(due, request);
                }
                Fate::Over(note, end) => {
                    port.ended.add(1);
                    note.reply.send(end);
                }
            }
        })
    }

    /// Posts what is due: first the request that did not fit, then retries, then new requests in order.
    fn start(&mut self, now: Time) -> usize {
        let mut started = 0;
        let mut from_mailbox = 0;
        while started < BATCH && self.queue.in_flight() < self.queue.capacity() {
            let before = self.head.take().or_else(|| self.later.take_due(now));
            let request = before.or_else(|| {
                from_mailbox += 1;
                self.port.requests.take()
            });
            let Some(request) = request else { break };
            self.head = self.post(now, request);
            if self.head.is_some() {
                break;
            }
            started += 1;
        }
        if from_mailbox > 0 {
            self.port.requests.made_room();
        }
        started
    }

    /// Posts a request, or ends one that no queue takes. Returns it if the queue is full.
    fn post(&mut self, now: Time, request: Request) -> Option<Request> {
        let Request { note, buffer } = request;
        self.know_namespace(&note.action);
        let body = match note.action {
            Action::Transfer { namespace, opcode, lba, control } => {
                let namespace = &*self.namespaces[namespace];
                Body::Transfer(LbaCommand { namespace, opcode, lba, control })
            }
            Action::Raw { sqe, bounds } => Body::Raw { sqe, bounds },
        };
        let is_retry = note.failures > 0;
        let number = self.flights.insert(note);
        let command = Command { body, buffer: (buffer, number) };
        let posted = match is_retry {
            false => self.queue.post(now, command),
            true => self.queue.resubmit(now, command),
        };
        match posted {
            Ok(_) => None,
            Err(Rejected { buffer: (buffer, number), reason }) => {
                let note = self.flights.remove(number).expect("it was just put there");
                let request = Request { note, buffer };
                if reason == RejectReason::Full {
                    return Some(request);
                }
                self.port.ended.add(1);
                request.end(RefuseReason::Rejected(reason));
                None
            }
        }
    }

    /// Fetches namespaces opened by clients since the last look.
    fn know_namespace(&mut self, action: &Action) {
        if let Action::Transfer { namespace, .. } = action
            && *namespace >= self.namespaces.len()
        {
            self.namespaces = self.device.namespaces();
        }
    }

    /// Looks after the controller: polls it, publishes counters, recovers it or returns requests.
    fn look(&mut self, now: Time) -> usize {
        if now >= self.next_look {
            self.next_look = now + LOOK_EVERY;
            *lock(&self.port.queue) = self.queue.stats();
            if self.is_keeper {
                self.device.tend(&self.controller, now);
            }
        }
        let Err(error) = self.queue.check() else {
            self.recovery_wait = RECOVERY_WAIT;
            if self.recovers {
                self.device.allow_waiting();
            }
            return 0;
        };
        if self.is_keeper && self.recovers && now >= self.next_recovery {
            return self.recover();
        }
        if self.device.may_wait() { 0 } else { self.give_back(&RefuseReason::Failed(error)) }
    }

    /// Recovers the controller, or lengthens the delay before the next attempt. Counts as activity: the next
    /// turn has work either way.
    fn recover(&mut self) -> usize {
        if !self.device.recover(&self.controller) {
            self.next_recovery = self.now() + self.recovery_wait;
            self.recovery_wait = (self.recovery_wait * 2).min(RECOVERY_WAIT_MAX);
        }
        1
    }

    /// Ends requests that wait for an out-of-service controller, and those lost with it.
    fn give_back(&mut self, reason: &RefuseReason) -> usize {
        let waiting = self.head.take().into_iter().chain(self.later.take_all());
        let mut ended = 0;
        // At most one mailbox: senders that continue cannot keep the lane here.
        let mail =
            std::iter::from_fn(|| self.port.requests.take()).take(self.port.requests.depth());
        for request in waiting.chain(mail) {
            request.end(reason.clone());
            ended += 1;
        }
        if self.queue.is_stuck() {
            ended += self.flights.live();
            let device = self.controller.info().device.clone();
            self.flights.lose(&Lost::Stuck { device });
        }
        self.port.ended.add(ended);
        self.port.requests.made_room();
        ended
    }
}

/// The next step of a request that left the queue.
enum Fate {
    /// Retry at this time.
    Again(Time, Request),
    Over(Note, End),
}

fn fate(
    mut note: Note,
    buffer: AnyBuffer,
    result: Result<u32, CommandError>,
    controller: &Controller,
    device: &Device,
    now: Time,
) -> Fate {
    if let Err(error) = result {
        note.failures = note.failures.saturating_add(1);
        note.last_error = Some(error);
        let delay = note.retry.delay(&error, note.action.is_known(), note.failures, controller);
        if let Some(delay) = delay.filter(|_| device.may_wait() || controller.check().is_ok()) {
            return Fate::Again(now + delay, Request { note, buffer });
        }
    }
    Fate::Over(note, End::Completed(buffer, result))
}

impl Drop for Lane {
    /// Ends all requests; the queue pair then takes its commands back from the device before their buffers
    /// are freed.
    fn drop(&mut self) {
        if self.is_keeper {
            self.device.end_waiting();
        }
        self.port.requests.close();
        for request in self.head.take().into_iter().chain(self.later.take_all()) {
            request.end(RefuseReason::Stopped);
        }
        self.flights.lose(&Lost::Stopped);
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("queue", &self.queue)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Creates a lane of one controller for each alarm, and their first client.
pub(super) fn attach(
    controller: &Controller,
    namespace: &Namespace,
    options: &ReactorOptions,
    alarms: &[Arc<Alarm>],
) -> Result<(Vec<Lane>, Client)> {
    let port = |alarm: &Arc<Alarm>| Port::new(options.mailbox_depth, Arc::clone(alarm));
    let ports = alarms.iter().map(port).collect();
    let (device, client) = Device::new(controller, namespace, options, ports)?;
    let lane = |(core, port): (usize, &Arc<Port>)| {
        let queue = controller.create_queue_pair(QueuePairOptions {
            depth: options.queue_depth,
            timeout: options.timeout,
            abort_timeout: options.abort_timeout,
            latencies: options.latencies,
            ..QueuePairOptions::default()
        })?;
        Ok(Lane {
            controller: controller.clone(),
            flights: Flights::new(queue.capacity()),
            later: Later::default(),
            head: None,
            namespaces: device.namespaces(),
            next_look: Time::ZERO,
            is_keeper: core == 0,
            recovers: options.auto_recover,
            next_recovery: Time::ZERO,
            recovery_wait: RECOVERY_WAIT,
            device: Arc::clone(&device),
            port: Arc::clone(port),
            queue,
        })
    };
    let lanes = client.ports().iter().enumerate().map(lane).collect::<Result<_>>()?;
    Ok((lanes, client))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::Bus;
    use crate::bus::soft::{Drive, SoftBus};
    use crate::controller::ControllerOptions;
    use crate::spec::{Lba, Nsid};

    /// Returns lanes of two cores on a controller that the first recovers.
    fn two_lanes(tail: &str) -> (Arc<SoftBus>, Vec<Lane>, Client) {
        let bus = SoftBus::new(tail.parse().expect("options"), Drive::Manual).expect("bus");
        let controller =
            Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
        let controller = controller.expect("controller");
        let namespace = controller.namespace(Nsid(1)).expect("namespace");
        let options = ReactorOptions { auto_recover: true, ..ReactorOptions::default() };
        let alarms = [(); 2].map(|()| Alarm::new().expect("alarm"));
        let (lanes, client) = attach(&controller, &namespace, &options, &alarms).expect("lanes");
        (bus, lanes, client)
    }

    fn turn_last(bus: &SoftBus, lanes: &mut [Lane]) {
        for _ in 0..1000 {
            let lane = lanes.last_mut().expect("a lane");
            lane.turn(lane.now());
            bus.advance(Duration::from_millis(1));
        }
    }

    #[test]
    fn requests_do_not_wait_for_a_recovery_whose_lane_is_gone() {
        let (bus, mut lanes, client) = two_lanes("mem=1M");
        let client = client.on(1);
        let [first, second] = [0, 1].map(|_| client.controller().allocate(512).expect("memory"));
        let pending = client.read(Lba(0), first).expect("room");
        drop(lanes.remove(0));
        bus.unplug();
        client.controller().poll(bus.now());
        turn_last(&bus, &mut lanes);
        let ended = pending.try_wait().expect("the request ends");
        assert!(ended.is_err(), "{ended:?}");
        assert!(client.read(Lba(0), second).is_err(), "the next is refused");
    }

    #[test]
    fn other_lanes_wait_for_the_first_to_bring_the_controller_back() {
        let (bus, mut lanes, client) = two_lanes("mem=1M");
        let client = client.on(1);
        let buffer = client.controller().allocate(512).expect("memory");
        bus.report(crate::bus::BusEvent::Error);
        client.controller().poll(bus.now());
        let pending = client.read(Lba(0), buffer).expect("requests may wait");
        turn_last(&bus, &mut lanes);
        let pending = pending.try_wait().expect_err("it waits");
        lanes[0].turn(bus.now());
        while bus.step() > 0 {}
        lanes[1].turn(bus.now());
        while bus.step() > 0 {}
        lanes[1].turn(bus.now());
        assert_eq!(pending.try_wait().expect("ended").expect("carried out").result, Ok(0));
    }
}
