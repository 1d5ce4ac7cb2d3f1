//! A controller from reset to shutdown.
//!
//! | file | job |
//! |---|---|
//! | `info` | options, and the checked properties |
//! | `bring_up`, `recovery` | reset to ready, as one function; a failed controller back to ready |
//! | `claim` | one controller for each bus at a time |
//! | `registers` | typed registers, waits with deadlines |
//! | `admin` | the admin queue: calls, events, aborts |
//! | `queues` | creating and deleting I/O queues, where rings lie |
//! | `queue_pair` | an I/O queue pair and its single owner: the engine with its controller |
//! | `doorbells`, `cmb` | shadow doorbells; the controller memory buffer |
//! | `shared`, `life` | state shared by handle and queues; failure, shutdown |
//! | `ladder` | stopping a controller, step by stronger step |
//! | `events`, `watch` | asynchronous events of the controller and its bus; checking for them and reacting |
//!
//! [`Controller`] is a handle. The controller is shut down once all handles and queue pairs are dropped; its
//! memory outlives that.

mod admin;
mod bring_up;
mod claim;
mod cmb;
mod doorbells;
mod events;
mod info;
mod ladder;
mod life;
mod queue_pair;
mod queues;
mod recovery;
mod registers;
pub(crate) mod shared;
mod watch;

use std::any::Any;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use zerocopy::FromBytes;

pub use events::Event;
pub use info::{ControllerInfo, ControllerOptions};
pub use queue_pair::{QueuePair, QueuePairOptions};
pub use queues::{Placement, RawQueuePair, RingDepths, RingSpace, SuppliedRings};

use crate::Time;
use crate::bus::soft::{Drive, SoftBus};
use crate::bus::vfio::Vfio;
use crate::bus::vfio_user::{self, VfioUser};
use crate::bus::{Bus, Locality};
use crate::error::{Error, Result};
use crate::file_mapping::FileMapping;
use crate::memory::{self, Buffer, IoBuffer};
use crate::namespace::{self, CommandLimits, ControllerLimits, Namespace};
use crate::queue_pair::CommandError;
use crate::runtime::lock;
use crate::spec::identify::{
    IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace, NamespaceList,
};
use crate::spec::{Cns, Nsid, Sqe, View};
use crate::sys::HostMemory;
use crate::target::{QueueMemory, Target};
use crate::transfer::PAGE_BYTES;
use shared::Shared;

/// The most active namespaces accepted; a list can name four thousand million.
const NAMESPACES_MAX: usize = 1 << 16;
/// Longest delay before a retry that is accepted; a controller can say 109 minutes.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// A handle to an open controller.
#[derive(Clone, Debug)]
pub struct Controller {
    shared: Arc<Shared>,
}

impl Controller {
    /// Opens the controller that `target` names. SGLs and shadow doorbells are used only if options and
    /// target both allow them; either can request the controller memory buffer.
    ///
    /// # Errors
    /// Any obstacle to reaching the device, with its remedy, and as [`Controller::attach`].
    pub fn open(target: &Target, options: &ControllerOptions) -> Result<Controller> {
        let bus: Arc<dyn Bus> = match target {
            Target::Vfio { address, .. } => Vfio::open(address)?,
            Target::VfioUser { socket, .. } => {
                let deadline = options.server_timeout;
                VfioUser::open_with(socket, vfio_user::Options { deadline, ..Default::default() })?
            }
            Target::Soft { options, .. } => SoftBus::new(options.parse()?, Drive::Thread)?,
            Target::Kernel(kernel) => {
                let why = "the kernel's driver has the controller; name one by vfio:, vfio-user: or soft:";
                return Err(Error::target(kernel.device(), why));
            }
        };
        let settings = target.settings();
        let options = ControllerOptions {
            sgl: options.sgl && settings.sgl,
            shadow_doorbells: options.shadow_doorbells && settings.dbbuf,
            cmb: options.cmb || settings.queues == QueueMemory::Cmb,
            ..options.clone()
        };
        Controller::attach(bus, &options)
    }

    /// Opens the controller behind a bus: resets it and makes it ready.
    ///
    /// # Errors
    /// [`Error::Invalid`] while the bus has another controller, [`Error::Device`] for an unsupported device,
    /// [`Error::Timeout`] and [`Error::Status`] for a controller that does not become ready. It is then left
    /// disabled.
    pub fn attach(bus: Arc<dyn Bus>, options: &ControllerOptions) -> Result<Controller> {
        let _span = tracing::info_span!("attach", device = bus.device()).entered();
        Ok(Controller { shared: Arc::new(bring_up::bring_up(&bus, options)?) })
    }

    /// Returns the controller's properties.
    pub fn info(&self) -> &ControllerInfo {
        &self.shared.info
    }

    /// Returns the identifiers of all active namespaces, ascending (Base 2.0 section 5.17.2.2).
    ///
    /// # Errors
    /// As [`Controller::log_page`]; [`Error::Device`] for an unordered list.
    pub fn namespace_ids(&self) -> Result<Vec<Nsid>> {
        let mut ids = Vec::new();
        loop {
            let after = ids.last().copied().unwrap_or(Nsid::NONE);
            let page = self.identify(Cns::ACTIVE_NAMESPACES, after)?;
            let list = NamespaceList::view(&page).expect("a page is as long as the list");
            if !self.append(&mut ids, list)? {
                return Ok(ids);
            }
        }
    }

    /// Appends a list; returns `true` if it was full and may continue.
    fn append(&self, ids: &mut Vec<Nsid>, list: &NamespaceList) -> Result<bool> {
        let (before, after) = (ids.len(), ids.last().copied().unwrap_or(Nsid::NONE));
        for nsid in list.iter(after) {
            let broken = |error| self.broken(format!("its namespace list is broken: {error}"));
            ids.push(nsid.map_err(broken)?);
        }
        if ids.len() > NAMESPACES_MAX {
            return Err(self.broken(format!("it lists more than {NAMESPACES_MAX} namespaces")));
        }
        Ok(ids.len() - before == list.nsids.len())
    }

    /// Opens the namespace `target` names (`ns=N`), or the first active one.
    ///
    /// # Errors
    /// As [`Controller::namespace`]; [`Error::Device`] if there is no namespace.
    pub fn namespace_of(&self, target: &Target) -> Result<Namespace> {
        let first = || {
            let fix = "create and attach one under the kernel's driver with `nvme create-ns` and `nvme attach-ns`";
            let none = || Error::device(&self.info().device, "it has no active namespace", fix);
            self.namespace_ids()?.first().copied().ok_or_else(none)
        };
        self.namespace(target.settings().namespace.map_or_else(first, Ok)?)
    }

    /// Opens a namespace.
    ///
    /// # Errors
    /// [`Error::Device`] if it is inactive or has an unsupported format.
    pub fn namespace(&self, nsid: Nsid) -> Result<Namespace> {
        let active = self.namespace_ids()?;
        if !active.contains(&nsid) {
            return Err(self.no_namespace(nsid, &active));
        }
        let page = self.identify(Cns::NAMESPACE, nsid)?;
        let identify = Box::new(
            IdentifyNamespace::read_from_bytes(&page).expect("a page is as long as the structure"),
        );
        let extended = self.extended_format(nsid, &identify)?;
        let limits = ControllerLimits {
            device: &self.info().device,
            bus: self.shared.bus(),
            max_transfer_bytes: self.info().max_transfer_bytes,
            sgl: self.info().sgl,
            commands: self.command_limits()?,
        };
        let mut sizes = lock(&self.shared.sizes);
        Namespace::new(nsid, identify, extended.as_deref(), limits, |shape, lba_count| {
            sizes.share(nsid, shape, lba_count)
        })
    }

    /// Reads the limits of the NVM command set (CNS 06h), if the controller reports them.
    fn command_limits(&self) -> Result<CommandLimits> {
        let info = self.info();
        if !CommandLimits::are_told(info.version, info.cap) {
            return Ok(CommandLimits::NONE);
        }
        match self.identify(Cns::COMMAND_SET_CONTROLLER, Nsid::NONE) {
            Ok(page) => {
                let identify = IdentifyNvmController::view(&page);
                let identify = identify.expect("a page is as long as the structure");
                Ok(CommandLimits::of(identify, info.cap.page_size_min()))
            }
            Err(Error::Status { .. }) => Ok(CommandLimits::NONE),
            Err(error) => Err(error),
        }
    }

    /// Reads a namespace's CNS 05h, if its format depends on it.
    fn extended_format(
        &self,
        nsid: Nsid,
        identify: &IdentifyNamespace,
    ) -> Result<Option<Box<IdentifyNvmNamespace>>> {
        if !namespace::needs_extended(identify, self.info().identify.ctratt()) {
            return Ok(None);
        }
        let page = self.identify(Cns::COMMAND_SET_NAMESPACE, nsid)?;
        let extended = IdentifyNvmNamespace::read_from_bytes(&page);
        Ok(Some(Box::new(extended.expect("a page is as long as the structure"))))
    }

    /// Reads Identify data (Base 2.0 section 5.17), 4096 bytes.
    ///
    /// # Errors
    /// As [`Controller::log_page`].
    pub fn identify(&self, cns: Cns, nsid: Nsid) -> Result<Buffer> {
        self.shared.read_page("Identify", Sqe::identify(cns, nsid, 0), PAGE_BYTES as usize)
    }

    /// Reads the first `bytes` of a log page (Base 2.0 section 5.16); a multiple of 4.
    ///
    /// # Errors
    /// [`Error::Status`] if the controller fails the command; [`Error::Timeout`] if it does not answer, which
    /// takes the controller out of service; [`Error::Failed`] after that; [`Error::Invalid`] for an invalid
    /// length.
    pub fn log_page(&self, lid: crate::spec::Lid, nsid: Nsid, bytes: u32) -> Result<Buffer> {
        let sqe = Sqe::get_log_page(lid, nsid, bytes, 0, false);
        let sqe = sqe.ok_or_else(|| {
            Error::invalid(format!("a log page of {bytes} bytes"), "ask for a multiple of 4")
        })?;
        self.shared.read_page("Get Log Page", sqe, bytes as usize)
    }

    /// Runs an admin command unchanged, with `data` as its data, and returns DW0 and the data. `name` is for
    /// messages.
    ///
    /// # Safety
    /// The driver does not examine what the command does. It must transfer exactly as many bytes as `data`
    /// holds (see [`crate::Command::raw`]), its other pointers must name memory the caller owns for as long
    /// as the controller uses it, and it must not take away what the driver relies on (its queues, its
    /// doorbell buffers).
    ///
    /// # Errors
    /// [`Error::Status`] if the controller fails the command; [`Error::Timeout`] if it does not answer, which
    /// takes the controller out of service; [`Error::Failed`] after that.
    #[allow(unsafe_code)]
    pub unsafe fn admin(
        &self,
        name: &'static str,
        sqe: Sqe,
        data: Option<Buffer>,
    ) -> Result<(u32, Option<Buffer>)> {
        self.shared.call(name, sqe, data)
    }

    /// Checks for events outside the queues, handles them, and returns one. Call it regularly, until it
    /// returns none; it also detects a failed controller before any deadline.
    ///
    /// Does not wait unless something happened; handling an event takes as long as the commands that examine
    /// it.
    pub fn poll(&self, now: Time) -> Option<Event> {
        self.shared.poll(now)
    }

    /// Returns a controller to service: resets it and makes it ready as before. Does nothing if it is in
    /// service.
    ///
    /// Every handle stays valid. A [`QueuePair`] ends its commands in flight and recreates its queue in its
    /// next poll; memory stays registered; namespace sizes are read again. A [`RawQueuePair`] is not
    /// recreated: drop it and create another.
    ///
    /// # Errors
    /// As [`Controller::attach`]; [`Error::Device`] if another device answers, or the same one with
    /// properties that handles cannot use. The controller then stays out of service.
    pub fn recover(&self) -> Result<()> {
        self.shared.recover()
    }

    /// Returns whether a failed [`Controller::recover`] may succeed later: the device does not answer at all,
    /// like a vfio-user server that ended, and the system has not requested its removal. Reads a register.
    pub fn may_come_back(&self) -> bool {
        self.shared.may_come_back()
    }

    /// Returns whether the controller is out of service and may still write memory handed to it. Requests in
    /// flight then do not end until [`Controller::recover`] succeeds: do not wait for them.
    pub fn may_still_write(&self) -> bool {
        self.shared.may_still_write()
    }

    /// Returns the delay before resending a request that failed with `error`: what the controller requests
    /// (Command Retry Delay, NVMe Base 2.0 section 3.3.3.2.1), at most a minute, or zero. `None` if it would fail again.
    pub fn retry_delay(&self, error: &CommandError) -> Option<Duration> {
        let crd = match error {
            CommandError::Status(status) => status.crd(),
            CommandError::TimedOut { .. }
            | CommandError::Reset { .. }
            | CommandError::System(_)
            | CommandError::Short { .. } => 0,
        };
        let delay = Duration::from_millis(self.info().identify.retry_delay_ms(crd));
        error.is_retryable().then_some(delay.min(RETRY_DELAY_MAX))
    }

    /// Returns the number of protocol violations on the admin queue.
    pub fn admin_violations(&self) -> u64 {
        self.shared.with_admin(|admin| admin.violations())
    }

    /// Allocates zeroed DMA memory of at least `len` bytes and returns `len` of them, in the largest
    /// available pages, near the device. Allocate once and use [`Buffer::split_off`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes, [`Error::Refused`] with the limit that refused.
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        // A controller that could not be stopped may still write to addresses it knows.
        self.shared.check()?;
        memory::allocate(self.shared.bus(), len)
    }

    /// Registers caller-owned memory once for any number of transfers: any mapping, memfd or pinned pool of
    /// whole 4 KiB pages. `file` is the file behind it and the offset of the first byte; only vfio-user needs
    /// it.
    ///
    /// # Safety
    /// `owner` keeps `at..at+len` mapped, readable and writable while it lives, and while the buffer or a
    /// part of it is in flight no Rust reference to its bytes is used.
    ///
    /// # Errors
    /// [`Error::Invalid`] for misaligned memory, [`Error::Refused`] with the limit that refused.
    #[allow(unsafe_code)]
    pub unsafe fn register(
        &self,
        at: NonNull<u8>,
        len: usize,
        file: Option<(File, u64)>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Buffer> {
        // SAFETY: passed on to our caller.
        self.register_memory(unsafe { HostMemory::adopt(at, len, file, owner)? })
    }

    /// Registers memory once for any number of transfers: of [`Controller::host_memory`], or adopted.
    ///
    /// # Errors
    /// [`Error::Refused`] with the limit that refused.
    pub fn register_memory(&self, memory: HostMemory) -> Result<Buffer> {
        self.shared.check()?;
        memory::register(self.shared.bus(), memory)
    }

    /// Registers `len` bytes from `offset` of a file, even if this process cannot access them: a dma-buf of
    /// another device's memory. Offset and length are multiples of 4096.
    ///
    /// # Safety
    /// The file holds those bytes for as long as `owner` lives, and only the owner's users rely on their
    /// content.
    ///
    /// # Errors
    /// [`Error::Refused`] if the bus cannot map files or the system refuses this one; as
    /// [`Controller::register`].
    #[allow(unsafe_code)]
    pub unsafe fn register_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<FileMapping> {
        self.shared.check()?;
        // SAFETY: passed on to our caller.
        unsafe { FileMapping::new(self.shared.bus(), file, offset, len, owner) }
    }

    /// Allocates at least `len` bytes of zeroed memory near the device, of a kind that can be registered with
    /// this and other devices. It is not registered yet.
    ///
    /// # Errors
    /// As [`Controller::allocate`].
    pub fn host_memory(&self, len: usize) -> Result<HostMemory> {
        memory::near(self.shared.bus(), len)
    }

    /// Creates an I/O queue pair for one thread to drive.
    ///
    /// # Errors
    /// [`Error::Invalid`] for unsupported options, [`Error::Device`] if no queue is left, [`Error::Status`]
    /// if the controller refuses one.
    pub fn create_queue_pair<B: IoBuffer>(
        &self,
        mut options: QueuePairOptions,
    ) -> Result<QueuePair<B>> {
        let placement = std::mem::take(&mut options.placement);
        if placement.is_remote() {
            let what = format!("{}: a queue pair for this process to drive", self.info().device);
            return Err(Error::invalid(what, "this process cannot access its rings"));
        }
        QueuePair::new(self.create_rings(options.depth.into(), placement)?, &options)
    }

    /// Creates an I/O queue pair for another agent, such as a GPU, to drive; its rings may differ in depth. The
    /// agent rings doorbell registers, which a controller with shadow doorbells ignores: open it without them.
    ///
    /// # Safety
    /// The driver does not examine what the agent writes into the rings: its commands must reach only memory
    /// it owns, as with [`crate::Command::raw`].
    ///
    /// # Errors
    /// As [`Controller::create_queue_pair`]; [`Error::Invalid`] if shadow doorbells are in use.
    #[allow(unsafe_code)]
    pub unsafe fn create_raw_queue_pair(
        &self,
        depths: impl Into<RingDepths>,
        placement: Placement,
    ) -> Result<RawQueuePair> {
        if self.info().shadow_doorbells {
            return Err(Error::invalid(
                format!("{}: a queue pair for another agent", self.info().device),
                "shadow doorbells are in use, and such an agent rings registers; open the controller with shadow_doorbells off (dbbuf=off)",
            ));
        }
        self.create_rings(depths.into(), placement)
    }

    fn create_rings(&self, depths: RingDepths, placement: Placement) -> Result<RawQueuePair> {
        let device = self.shared.bus().device();
        let depth = depths.submission;
        let _span = tracing::info_span!("create_queue_pair", device, depth).entered();
        self.shared.check()?;
        RawQueuePair::create(&self.shared, depths, placement)
    }

    /// Returns the current time on the device's clock.
    pub fn now(&self) -> Time {
        self.shared.bus().now()
    }

    /// Pauses for `at_most` or less.
    pub fn pause(&self, at_most: Duration) {
        self.shared.bus().pause(at_most);
    }

    /// Returns the device's location.
    pub fn locality(&self) -> Locality {
        self.shared.bus().locality()
    }

    /// Returns whether a namespace belongs to this controller.
    pub fn owns(&self, namespace: &Namespace) -> bool {
        namespace.domain() == self.domain()
    }

    /// Returns the address space its buffers are mapped in.
    pub(crate) fn domain(&self) -> memory::DomainId {
        memory::DomainId::of(self.shared.bus())
    }

    /// Checks that the controller is in service.
    ///
    /// # Errors
    /// [`Error::Failed`] with the first failure's reason.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    fn no_namespace(&self, nsid: Nsid, active: &[Nsid]) -> Error {
        let listed = active.iter().map(|nsid| nsid.0.to_string()).collect::<Vec<_>>().join(", ");
        let fix = match active {
            [] => "it has none: create and attach one under the kernel's driver".to_owned(),
            _ => format!("choose one of its namespaces with ns=N: {listed}"),
        };
        Error::device(&self.info().device, format!("it has no active namespace {}", nsid.0), fix)
    }

    fn broken(&self, what: String) -> Error {
        Error::device(
            &self.info().device,
            what,
            "update the device's firmware, or use another device",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_namespace_list_without_end_is_given_up_on() {
        let bus = SoftBus::new("null".parse().expect("options"), Drive::Manual).expect("bus");
        let controller = Controller::attach(bus, &ControllerOptions::default()).expect("open");
        let (mut ids, mut list) = (Vec::new(), NamespaceList::new_zeroed());
        let mut next = 1u32;
        let error = loop {
            for nsid in &mut list.nsids {
                *nsid = next.into();
                next += 1;
            }
            match controller.append(&mut ids, &list) {
                Ok(goes_on) => assert!(goes_on, "a full list"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("more than 65536 namespaces"), "{error}");
        assert!(ids.len() <= NAMESPACES_MAX + list.nsids.len());
    }
}
