//! The handle with which any thread sends requests.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;

use super::options::ReactorOptions;
use super::outcome::{Data, End, RefuseReason, Refused};
use super::pending::Pending;
use super::port::{Action, Note, Port, Request, Stats};
use super::retry::Retry;
use crate::controller::{Controller, Event};
use crate::error::{Error, Result};
use crate::memory::{AnyBuffer, Buffer, DomainId};
use crate::namespace::Namespace;
use crate::queue_pair::{Body, Command, CommandError, Completion, RejectReason};
use crate::runtime::{Cells, Refusal, block_until, lock, try_or_want};
use crate::spec::Lba;
use crate::{Time, deadline};

/// The most events kept for clients; the oldest are dropped first.
const EVENTS: usize = 64;

/// State shared by the lanes and clients of one controller.
#[derive(Debug)]
pub(super) struct Device {
    domain: DomainId,
    /// Indexed by the number in a request's action. Only grows.
    namespaces: Mutex<Vec<Arc<Namespace>>>,
    events: ArrayQueue<Event>,
    /// The most cells a client keeps.
    cells: usize,
    /// Whether requests may wait for an out-of-service controller: recovery is enabled, and the last attempt,
    /// if any, succeeded.
    may_wait: AtomicBool,
}

/// State shared by the clients of one controller; the last drop tells the lanes.
#[derive(Debug)]
struct Senders {
    device: Arc<Device>,
    controller: Controller,
    ports: Vec<Arc<Port>>,
    next_core: AtomicUsize,
}

impl Drop for Senders {
    fn drop(&mut self) {
        self.ports.iter().for_each(|port| port.requests.stop());
    }
}

impl Device {
    pub(super) fn new(
        controller: &Controller,
        namespace: &Namespace,
        options: &ReactorOptions,
        ports: Vec<Arc<Port>>,
    ) -> Result<(Arc<Device>, Client)> {
        let device = Arc::new(Device {
            domain: controller.domain(),
            namespaces: Mutex::default(),
            events: ArrayQueue::new(EVENTS),
            cells: options.mailbox_depth,
            may_wait: AtomicBool::new(options.auto_recover),
        });
        let (number, namespace) = device.enter(namespace)?;
        let senders = Arc::new(Senders {
            device: Arc::clone(&device),
            controller: controller.clone(),
            ports,
            next_core: AtomicUsize::new(1),
        });
        let cells = Cells::new(device.cells);
        let client = Client { senders, core: 0, namespace, number, retry: options.retry, cells };
        Ok((device, client))
    }

    /// Returns the number of a namespace, adding it if new.
    fn enter(&self, namespace: &Namespace) -> Result<(usize, Arc<Namespace>)> {
        if namespace.domain() != self.domain {
            return Err(Error::invalid(
                format!("namespace {} as a reactor's", namespace.nsid()),
                RejectReason::Foreign,
            ));
        }
        let mut namespaces = lock(&self.namespaces);
        let known = namespaces.iter().position(|known| is_same(known, namespace));
        let number = known.unwrap_or_else(|| {
            namespaces.push(Arc::new(namespace.clone()));
            namespaces.len() - 1
        });
        Ok((number, Arc::clone(&namespaces[number])))
    }

    pub(super) fn namespaces(&self) -> Vec<Arc<Namespace>> {
        lock(&self.namespaces).clone()
    }

    /// Polls the controller and stores its events.
    pub(super) fn tend(&self, controller: &Controller, now: Time) {
        for event in std::iter::from_fn(|| controller.poll(now)).take(EVENTS) {
            self.events.force_push(event);
        }
    }

    /// Returns whether requests may wait for an out-of-service controller.
    pub(super) fn may_wait(&self) -> bool {
        self.may_wait.load(Ordering::Acquire)
    }

    /// Records that the controller will not be recovered any more.
    pub(super) fn end_waiting(&self) {
        self.may_wait.store(false, Ordering::Release);
    }

    /// Records that the controller is in service.
    pub(super) fn allow_waiting(&self) {
        if !self.may_wait() {
            self.may_wait.store(true, Ordering::Release);
        }
    }

    /// Recovers the controller. After a failed attempt, requests no longer wait until one succeeds.
    pub(super) fn recover(&self, controller: &Controller) -> bool {
        let recovered = controller.recover();
        // The error is in the log and in `check`.
        self.may_wait.store(recovered.is_ok(), Ordering::Release);
        recovered.is_ok()
    }
}

/// Returns whether both namespaces yield identical commands.
fn is_same(one: &Namespace, other: &Namespace) -> bool {
    std::ptr::eq(one, other)
        || (one.nsid() == other.nsid()
            && one.domain() == other.domain()
            && one.limits() == other.limits())
}

/// Sends requests from any thread to one controller, through one of the reactor's threads.
///
/// Each handle always sends to the same thread of the reactor. A clone sends to the next thread in turn, so
/// one clone per thread spreads the load; [`Client::on`] chooses a thread. Clone once per thread or task, not
/// per request.
///
/// # Order
/// Requests that one thread sends through one handle are *posted* to the device in that order: same mailbox,
/// same queue. A device carries out commands in flight in any order (NVMe Base 2.0 section 3.3), so a read
/// does not see a write that has not completed, and a retried request goes behind those posted meanwhile.
pub struct Client {
    senders: Arc<Senders>,
    core: usize,
    namespace: Arc<Namespace>,
    number: usize,
    retry: Retry,
    cells: Arc<Cells<End>>,
}

impl Clone for Client {
    fn clone(&self) -> Client {
        let next = self.senders.next_core.fetch_add(1, Ordering::Relaxed);
        self.on(next % self.cores())
    }
}

impl Client {
    /// Returns a client that sends to the reactor's thread `core`, counted from 0.
    ///
    /// # Panics
    /// If `core` is not below [`Client::cores`].
    pub fn on(&self, core: usize) -> Client {
        assert!(core < self.cores(), "the reactor has {} cores and no core {core}", self.cores());
        Client {
            senders: Arc::clone(&self.senders),
            core,
            namespace: Arc::clone(&self.namespace),
            number: self.number,
            retry: self.retry,
            cells: Cells::new(self.senders.device.cells),
        }
    }

    /// Returns a client on the same thread for another namespace of the controller.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another controller's namespace.
    pub fn with_namespace(&self, namespace: &Namespace) -> Result<Client> {
        let (number, namespace) = self.senders.device.enter(namespace)?;
        Ok(Client { number, namespace, ..self.on(self.core) })
    }

    /// Returns a client on the same thread with other retries.
    pub fn with_retry(&self, retry: Retry) -> Client {
        Client { retry, ..self.on(self.core) }
    }

    /// Returns the number of the reactor's threads.
    pub fn cores(&self) -> usize {
        self.senders.ports.len()
    }

    /// Returns the thread this client sends to.
    pub fn core(&self) -> usize {
        self.core
    }

    /// Returns the namespace, which builds the commands for [`Client::submit`].
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the controller, to allocate memory ([`Controller::allocate`]) and read its properties.
    pub fn controller(&self) -> &Controller {
        &self.senders.controller
    }

    /// Reads as many LBAs from `lba` as fill `buffer`.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn read<D: Data>(&self, lba: Lba, buffer: D) -> Result<Pending<D>, Refused<D>> {
        self.submit(self.namespace.read(lba, buffer))
    }

    /// Writes `buffer` to the LBAs from `lba`.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn write<D: Data>(&self, lba: Lba, buffer: D) -> Result<Pending<D>, Refused<D>> {
        self.submit(self.namespace.write(lba, buffer))
    }

    /// Makes all completed writes durable, from any sender.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn flush(&self) -> Result<Pending<()>, Refused<()>> {
        self.submit(self.namespace.flush())
    }

    /// Sends any command built by [`Client::namespace`], without waiting.
    ///
    /// # Errors
    /// [`Refused`] returns the buffer and the reason, usually [`RefuseReason::Full`]. A rejection by the
    /// queue ([`RefuseReason::Rejected`]) is mostly detected on posting and then reported by the [`Pending`].
    pub fn submit<D: Data>(&self, command: Command<'_, D>) -> Result<Pending<D>, Refused<D>> {
        self.submit_with(command, self.retry)
    }

    /// Like [`Client::submit`], with this request's own retries.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn submit_with<D: Data>(
        &self,
        command: Command<'_, D>,
        retry: Retry,
    ) -> Result<Pending<D>, Refused<D>> {
        match self.action(command.body) {
            Ok(action) => self.send(action, command.buffer, retry),
            Err(reason) => Err(Refused { buffer: command.buffer, reason }),
        }
    }

    /// Like [`Client::submit`], but waits for room in the mailbox, for at most `at_most`.
    ///
    /// # Errors
    /// As [`Client::submit`]; [`RefuseReason::Full`] if there was none in time.
    pub fn submit_wait<D: Data>(
        &self,
        command: Command<'_, D>,
        at_most: Duration,
    ) -> Result<Pending<D>, Refused<D>> {
        let until = Some(deadline(at_most));
        let mut submitting = self.submit_async(command);
        block_until(until, |context| Pin::new(&mut submitting).poll(context))
            .unwrap_or_else(|| Err(submitting.give_up()))
    }

    /// Like [`Client::submit`], as a future that waits for room in the mailbox. Dropping it sends nothing.
    pub fn submit_async<D: Data>(&self, command: Command<'_, D>) -> Submitting<'_, D> {
        let action = self.action(command.body);
        Submitting { client: self, action, buffer: Some(command.buffer) }
    }

    /// Sends a command, waiting for room in the mailbox, and blocks until it ends. Returns the buffer and the
    /// command's result (DW0).
    ///
    /// # Errors
    /// [`Error::Invalid`] if no queue takes it, [`Error::Status`] or [`Error::Failed`] if it fails.
    pub fn execute<D: Data>(&self, command: Command<'_, D>) -> Result<(D, u32)> {
        let Completion { buffer, result } = self.submit_wait(command, Duration::MAX)?.wait()?;
        let device = || self.controller().info().device.clone();
        match result {
            Ok(dw0) => Ok((buffer, dw0)),
            Err(CommandError::Status(status)) => {
                Err(Error::Status { device: device(), command: "the I/O command", status })
            }
            Err(error) => Err(Error::Failed { device: device(), reason: error.to_string() }),
        }
    }

    /// Takes the controller's oldest event, for all clients. The last 64 are kept.
    pub fn take_event(&self) -> Option<Event> {
        self.senders.device.events.pop()
    }

    /// Returns the counters of this client's thread for the controller, over all clients.
    pub fn stats(&self) -> Stats {
        self.port().stats()
    }

    /// Returns the counters of this client's queue pair, up to 100 ms old, or more while the thread sleeps
    /// longer.
    pub fn queue_stats(&self) -> crate::Stats {
        self.port().queue_stats()
    }

    fn port(&self) -> &Port {
        &self.senders.ports[self.core]
    }

    pub(super) fn ports(&self) -> &[Arc<Port>] {
        &self.senders.ports
    }

    /// Converts a command's body to one without references.
    fn action(&self, body: Body<'_>) -> Result<Action, RefuseReason> {
        match body {
            Body::Raw { sqe, bounds } => Ok(Action::Raw { sqe, bounds }),
            Body::Transfer(transfer) if is_same(transfer.namespace, &self.namespace) => {
                Ok(Action::Transfer {
                    namespace: self.number,
                    opcode: transfer.opcode,
                    lba: transfer.lba,
                    control: transfer.control,
                })
            }
            Body::Transfer(_) => Err(RefuseReason::OtherNamespace),
            Body::Refused(reason) => Err(RefuseReason::Rejected(reason)),
        }
    }

    fn send<D: Data>(
        &self,
        action: Action,
        buffer: D,
        retry: Retry,
    ) -> Result<Pending<D>, Refused<D>> {
        if let Err(error) = self.senders.controller.check()
            && !self.senders.device.may_wait()
        {
            return Err(Refused { buffer, reason: RefuseReason::Failed(error) });
        }
        let (reply, receipt) = self.cells.pair();
        let note = Note { action, reply, retry, failures: 0, last_error: None };
        let request = Request { note, buffer: buffer.into_any() };
        let Err((Request { note, buffer }, why)) = self.port().requests.send(request) else {
            return Ok(Pending::new(receipt));
        };
        // Before the receipt, so that the cell can be used again.
        drop(note);
        let reason = match why {
            Refusal::Full => RefuseReason::Full,
            Refusal::Closed => RefuseReason::Stopped,
        };
        Err(Refused { buffer: D::from_any(buffer), reason })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("device", &self.controller().info().device)
            .field("namespace", &self.namespace.nsid())
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

/// A request that waits for room in the mailbox; see [`Client::submit_async`].
#[must_use = "nothing is sent until it is polled"]
pub struct Submitting<'c, D: Data> {
    client: &'c Client,
    action: Result<Action, RefuseReason>,
    /// Present until sent.
    buffer: Option<D>,
}

impl<D: Data> Submitting<'_, D> {
    /// Sends it, unless there is no room.
    fn send(&mut self) -> Option<Result<Pending<D>, Refused<D>>> {
        let buffer = self.buffer.take().expect("a request is sent once");
        let sent = match &self.action {
            Ok(action) => self.client.send(*action, buffer, self.client.retry),
            Err(reason) => Err(Refused { buffer, reason: reason.clone() }),
        };
        match sent {
            Err(Refused { buffer, reason: RefuseReason::Full }) => {
                self.buffer = Some(buffer);
                None
            }
            sent => Some(sent),
        }
    }

    fn give_up(mut self) -> Refused<D> {
        let buffer = self.buffer.take().expect("it was not sent");
        Refused { buffer, reason: RefuseReason::Full }
    }
}

impl<D: Data> Future for Submitting<'_, D> {
    type Output = Result<Pending<D>, Refused<D>>;

    /// # Panics
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let requests = &self.client.port().requests;
        try_or_want(context, |waker| requests.want_room(waker), || self.send())
    }
}

impl<D: Data> fmt::Debug for Submitting<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitting").field("client", &self.client).finish_non_exhaustive()
    }
}

const _: () = {
    const fn is_shared<T: Clone + Send + Sync + 'static>() {}
    const fn is_sent<T: Send + 'static>() {}
    is_shared::<Client>();
    is_sent::<Pending<Buffer>>();
    is_sent::<AnyBuffer>();
};
