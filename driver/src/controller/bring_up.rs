//! Takes a controller from reset to ready, as one function that passes values along (NVMe Base 2.0 section
//! 3.5.1).
//!
//! Every value the controller reports is checked here, once; the resulting [`Shared`] holds only checked
//! numbers. On an error, drops undo everything: the rings are unmapped after the controller is disabled.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::admin::{ADMIN_CQ_OFFSET, Admin, AdminCommand, Alone, Owned, admin_rings};
use super::claim::Claim;
use super::cmb::{self, Cmb};
use super::doorbells::Doorbells;
use super::events::Pause;
use super::info::{ControllerInfo, ControllerOptions};
use super::ladder::disable;
use super::life::SharedLife;
use super::registers::{describe, gone, read, wait_for, write};
use super::shared::{QueueIds, Shared};
use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::memory::{Buffer, DomainId, Mapping};
use crate::queue_pair::PagePool;
use crate::queue_pair::core::{Core, Parts};
use crate::spec::feature::{AsyncEventConfig, Fid, NumberOfQueues, Timestamp};
use crate::spec::identify::{self, IdentifyController, Oaes};
use crate::spec::log::CriticalWarning;
use crate::spec::register::{ACQ, AQA, ASQ, Aqa, CAP, CC, CRTO, CSTS, Cap, Cc, VS};
use crate::spec::{Cns, FeatureSelect, Iova, Nsid, Qid, QueueEntries, Sqe};
use crate::transfer::{PAGE_BYTES, SglSupport};
use zerocopy::{FromBytes, IntoBytes};

/// Entries of the admin queues; CAP.MQES bounds I/O queues only (Base 2.0 section 3.1.3.1).
const ADMIN_ENTRIES: u32 = 32;
/// The most asynchronous event requests outstanding.
const EVENT_REQUESTS: usize = 4;
/// The most aborts in flight, to keep room in the admin queue.
const ABORTS_MAX: usize = 8;
/// One unit of CAP.TO.
const READY_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// Longest time to become ready that is accepted; CRTO can say nine hours.
const READY_TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// Shutdown time without a hint from the controller.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest shutdown hint that is accepted.
const SHUTDOWN_TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Log2 of the ring entries' sizes: 64 and 16 bytes.
const SQES: u8 = 6;
const CQES: u8 = 4;
/// SMART critical warnings 0 to 4: spare, temperature, reliability, read-only, backup.
const CRITICAL_WARNINGS: u8 = 0x1f;
/// Data of Host Behavior Support; its first byte is ACRE.
const HOST_BEHAVIOR_BYTES: usize = 512;

pub(super) fn bring_up(bus: &Arc<dyn Bus>, options: &ControllerOptions) -> Result<Shared> {
    let claim = Claim::new(bus)?;
    // A link that went down while the device was unused leaves it without an address; a reset restores it. If
    // the reset fails, the checks below report why.
    if read(&**bus, CAP) == Cap(0) {
        let _ = bus.reset();
    }
    let cap = capabilities(&**bus)?;
    let ready_timeout = ready_timeout(&**bus, cap);
    make_disabled(&**bus, ready_timeout)?;
    // An earlier user may have left its memory buffer over addresses that are now ours.
    cmb::switch_off(&**bus, cap);
    let cmb = if options.cmb { Some(Cmb::enable(bus)?) } else { None };
    // Declared before the guard in `enabled`, so that it is unmapped after the controller is disabled.
    let mut shadows = None;
    let mut admin = admin_queue(bus, cap)?;
    let enabled = enable(bus, &admin, cap, ready_timeout)?;
    let mut calls = Calls { bus, admin: &mut admin, timeout: options.admin_timeout };
    let ready = calls.configure(options.io_queues)?;
    let identify = ready.identify;
    let vectors = if options.interrupts { enable_vectors(bus, ready.queues)? } else { Vec::new() };
    let takes_shadows = identify.oacs().doorbell_buffer_config() && !bus.doorbells_are_memory();
    if options.shadow_doorbells && takes_shadows {
        let mapping = shadows.insert(Doorbells::allocate_shadows(bus)?);
        calls.configure_shadows(Doorbells::shadow_pages(mapping))?;
    }
    let doorbells = Doorbells::new(bus, cap.dstrd()).with_shadows(shadows);
    if let (Some(submission), Some(completion)) = doorbells.shadows_of(Qid::ADMIN) {
        admin.set_shadows(submission, completion);
    }
    admin.set_aborts_max(ABORTS_MAX.min(identify.acl() as usize));
    let info = ControllerInfo {
        device: bus.device().to_owned(),
        cap,
        version: read(&**bus, VS),
        queue_entries_max: queue_entries_max(cap),
        ready_timeout,
        shutdown_timeout: shutdown_timeout(&identify),
        io_queues: ready.queues,
        max_transfer_bytes: max_transfer_bytes(cap, &identify),
        sgl: if options.sgl { sgl_support(&identify) } else { SglSupport::None },
        shadow_doorbells: doorbells.has_shadows(),
        volatile_write_cache: ready.write_cache,
        cmb_bytes: cmb.as_ref().map_or(0, Cmb::bytes),
        subsystem_reset: options.subsystem_reset
            && cap.nssrs()
            && !identify.cmic().multiple_controllers(),
        identify,
    };
    enabled.disarm();
    Ok(Shared {
        life: SharedLife::new(),
        reason: Mutex::default(),
        admin: Mutex::new(admin),
        ids: Mutex::new(QueueIds::new(ready.queues)),
        info,
        options: options.clone(),
        doorbells,
        cmb: cmb.map(Mutex::new),
        vectors,
        events: Mutex::default(),
        sizes: Mutex::default(),
        pause: Pause::default(),
        given_up: OnceLock::new(),
        bus: Arc::clone(bus),
        _claim: claim,
    })
}

/// Reads CAP and checks that this driver supports the device.
pub(super) fn capabilities(bus: &dyn Bus) -> Result<Cap> {
    if read(bus, CSTS).is_all_ones() {
        return Err(gone(bus));
    }
    let cap = read(bus, CAP);
    if cap == Cap(0) {
        let fix = "check the slot and the kernel log, and reset or power-cycle the device";
        return Err(not_online(bus, "its registers read as zero", fix));
    }
    let unsupported =
        |what: String| Err(Error::device(bus.device(), what, "this driver cannot use it"));
    if read(bus, VS).mjr() == 0 {
        return unsupported(format!("it reports NVMe version {}", read(bus, VS)));
    }
    if !cap.css_nvm() {
        return unsupported("it does not offer the NVM command set (CAP.CSS)".to_owned());
    }
    if cap.page_size_min() > PAGE_BYTES {
        return unsupported(format!(
            "its smallest memory page is {} bytes (CAP.MPSMIN), not 4096",
            cap.page_size_min()
        ));
    }
    if cap.mqes_z() == 0 {
        return unsupported(
            "its queues hold one entry (CAP.MQES), and an NVMe queue needs two".to_owned(),
        );
    }
    Ok(cap)
}

/// Returns the time limit for a change of CSTS.RDY: CAP.TO, or CRTO if longer (Base 2.0 section 3.1.3.21),
/// capped.
fn ready_timeout(bus: &dyn Bus, cap: Cap) -> Duration {
    let with_media = if cap.crms_crwms() { read(bus, CRTO).crwmt() } else { Duration::ZERO };
    cap.to().max(with_media).clamp(READY_TIMEOUT_MIN, READY_TIMEOUT_MAX)
}

/// Brings the controller to CC.EN = 0 from any state.
pub(super) fn make_disabled(bus: &dyn Bus, timeout: Duration) -> Result<()> {
    let (config, status) = (read(bus, CC), read(bus, CSTS));
    if config.en() && !status.rdy() && !status.cfs() {
        // EN must not be cleared while the controller is still becoming ready.
        let _ = wait_for(bus, "CSTS.RDY to follow CC.EN", timeout, |status| {
            status.rdy() || status.cfs()
        });
    }
    let disabled = if config.en() || status.rdy() { disable(bus, timeout) } else { Ok(()) };
    match disabled {
        Ok(()) if !read(bus, CSTS).cfs() => Ok(()),
        _ => bus.reset().and_then(|()| disable(bus, timeout)),
    }
}

/// Disables the controller again unless bring-up completes: the admin rings must not be unmapped under an
/// enabled controller.
pub(super) struct Enabled {
    bus: Option<Arc<dyn Bus>>,
    timeout: Duration,
}

impl Enabled {
    pub(super) fn disarm(mut self) {
        self.bus = None;
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        if let Some(bus) = self.bus.take()
            && disable(&*bus, self.timeout).is_err()
            && let Err(error) = bus.reset()
        {
            tracing::error!("{}: left enabled after a failed start: {error}", bus.device());
        }
    }
}

/// Allocates the admin queue; the controller does not know it yet.
fn admin_queue(bus: &Arc<dyn Bus>, cap: Cap) -> Result<Admin> {
    let page = PAGE_BYTES as usize;
    let rings_bytes = ADMIN_CQ_OFFSET as usize + page;
    let lists_bytes = crate::transfer::LIST_PAGES_PER_COMMAND * page;
    let host = Mapping::allocate(bus, rings_bytes + lists_bytes + page)?;
    let bells = Doorbells::new(bus, cap.dstrd());
    let bells = bells.bells(Qid::ADMIN, bells.registers(Qid::ADMIN)?);
    let (sq, cq) = admin_rings(&host, ADMIN_ENTRIES, bells);
    let pool = |offset: usize, bytes: usize| {
        let at = host.iova().checked_add(offset as u64).expect("inside the mapping");
        PagePool::new(host.atomics().slice(offset, bytes), at)
    };
    let core: Core<Owned> = Core::new(Parts {
        qid: Qid::ADMIN,
        domain: DomainId::of(bus),
        sq,
        cq,
        slots: ADMIN_ENTRIES as usize - 1,
        lists: pool(rings_bytes, lists_bytes),
        bounces: pool(rings_bytes + lists_bytes, page),
        timeout: Duration::MAX,
        latencies: false,
    });
    Ok(Admin::new(core, host))
}

/// Hands the admin queue to the controller and enables it.
pub(super) fn enable(
    bus: &Arc<dyn Bus>,
    admin: &Admin,
    cap: Cap,
    timeout: Duration,
) -> Result<Enabled> {
    let entries = QueueEntries::new(ADMIN_ENTRIES).expect("2 to 65536");
    let (asq, acq) = admin.rings();
    write(&**bus, AQA, Aqa::new(entries, entries).expect("at most 4096 entries"));
    write(&**bus, ASQ, asq);
    write(&**bus, ACQ, acq);
    // From here on the controller may write the rings, so the guard precedes EN.
    let enabled = Enabled { bus: Some(Arc::clone(bus)), timeout };
    start(&**bus, cap, timeout)?;
    Ok(enabled)
}

/// Sets CC.EN and waits for CSTS.RDY.
fn start(bus: &dyn Bus, cap: Cap, timeout: Duration) -> Result<()> {
    let all_sets = cap.css() & (1 << 6) != 0;
    let css = if all_sets { Cc::ALL_COMMAND_SETS } else { 0 };
    write(bus, CC, Cc(0).with_css(css).with_iosqes(SQES).with_iocqes(CQES).with_en(true));
    let status =
        wait_for(bus, "CSTS.RDY after CC.EN = 1", timeout, |status| status.rdy() || status.cfs())?;
    if status.cfs() {
        let what = format!("fatal status (CSTS.CFS) while it was enabled; {}", describe(bus));
        let fix = "power-cycle the device or look for DMA faults in the kernel log";
        return Err(not_online(bus, what, fix));
    }
    Ok(())
}

/// Returns the error of a controller that offers nothing: a virtual function is most likely not online, which
/// its physical function changes; `fix` is for the others. Offline, CSTS.CFS is set and the other properties
/// mean nothing (NVMe Base 2.1, Virtualization Enhancements: secondary controller states).
fn not_online(bus: &dyn Bus, what: impl ToString, fix: &str) -> Error {
    match bus.virtual_function() {
        None => Error::device(bus.device(), what, fix),
        Some(function) => {
            let what = format!("it is a virtual function that is not online: {}", what.to_string());
            Error::device(bus.device(), what, function.remedy())
        }
    }
}

fn queue_entries_max(cap: Cap) -> u32 {
    u32::from(cap.mqes_z()) + 1
}

/// Checks the parts of Identify Controller that the driver relies on.
fn check_identity(bus: &dyn Bus, identify: &IdentifyController) -> Result<()> {
    let sqes = identify.sqes_min()..=identify.sqes_max();
    let cqes = identify.cqes_min()..=identify.cqes_max();
    if !sqes.contains(&SQES) || !cqes.contains(&CQES) {
        let what = format!(
            "its queue entries have unsupported sizes (SQES {:02x}h, CQES {:02x}h)",
            identify.sqes, identify.cqes
        );
        return Err(Error::device(bus.device(), what, "this driver cannot use it"));
    }
    Ok(())
}

/// Returns MDTS in bytes, capped by the range of NLB.
pub(super) fn max_transfer_bytes(cap: Cap, identify: &IdentifyController) -> u64 {
    const UNLIMITED: u64 = 65536 * 4096;
    let bytes = identify.max_transfer_bytes(cap.page_size_min());
    bytes.map_or(UNLIMITED, |bytes| bytes.min(UNLIMITED))
}

pub(super) fn sgl_support(identify: &IdentifyController) -> SglSupport {
    match identify.sgls().support() {
        identify::SglSupport::ByteAligned => SglSupport::Byte,
        identify::SglSupport::DwordAligned => SglSupport::Dword,
        _ => SglSupport::None,
    }
}

fn shutdown_timeout(identify: &IdentifyController) -> Duration {
    let hint = Duration::from_micros(u64::from(identify.rtd3e_us.get()));
    hint.clamp(SHUTDOWN_TIMEOUT, SHUTDOWN_TIMEOUT_MAX)
}

fn enable_vectors(bus: &Arc<dyn Bus>, queues: u16) -> Result<Vec<std::os::fd::OwnedFd>> {
    match bus.vector_count().min(queues.saturating_add(1)) {
        0 => Err(Error::device(
            bus.device(),
            "it has no interrupt vectors",
            "open it without interrupts and poll",
        )),
        count => bus.enable_vectors(count),
    }
}

fn set_feature(fid: Fid, cdw11: u32) -> Sqe {
    Sqe::set_features(fid, Nsid::NONE, cdw11, false)
}

/// Properties of a controller that became ready.
pub(super) struct Ready {
    pub(super) identify: Box<IdentifyController>,
    pub(super) queues: u16,
    pub(super) write_cache: bool,
}

/// Runs admin commands while the queue has no other user.
pub(super) struct Calls<'a> {
    pub(super) bus: &'a Arc<dyn Bus>,
    pub(super) admin: &'a mut Admin,
    pub(super) timeout: Duration,
}

impl Calls<'_> {
    /// Queries and configures a ready controller, except for shadow doorbells.
    pub(super) fn configure(&mut self, io_queues: u16) -> Result<Ready> {
        let identify = self.identify_controller()?;
        check_identity(&**self.bus, &identify)?;
        let queues = self.negotiate_queues(io_queues)?;
        let write_cache = self.volatile_write_cache(&identify)?;
        self.set_timestamp(&identify)?;
        self.enable_retry_delays(&identify)?;
        self.configure_events(&identify)?;
        Ok(Ready { identify, queues, write_cache })
    }

    fn call(
        &mut self,
        name: &'static str,
        sqe: Sqe,
        data: Option<Buffer>,
    ) -> Result<(u32, Option<Buffer>)> {
        let command = AdminCommand { name, sqe, data };
        self.admin.call(&**self.bus, command, self.timeout, &Alone(&**self.bus))
    }

    /// Runs a command the driver can do without: a failure is logged and the controller used anyway.
    fn optional(
        &mut self,
        name: &'static str,
        sqe: Sqe,
        data: Option<Buffer>,
    ) -> Result<Option<u32>> {
        match self.call(name, sqe, data) {
            Ok((dw0, _)) => Ok(Some(dw0)),
            Err(error @ Error::Status { .. }) => {
                tracing::warn!("{error}; continuing without");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn identify_controller(&mut self) -> Result<Box<IdentifyController>> {
        let page = crate::memory::allocate(self.bus, PAGE_BYTES as usize)?;
        let (_, page) = self.call(
            "Identify Controller",
            Sqe::identify(Cns::CONTROLLER, Nsid::NONE, 0),
            Some(page),
        )?;
        let page = page.expect("a call gives its buffer back");
        Ok(Box::new(
            IdentifyController::read_from_bytes(&page)
                .expect("the page is as long as the structure"),
        ))
    }

    /// Requests I/O queues (Base 2.0 section 5.27.1.5); returns the number of pairs granted.
    fn negotiate_queues(&mut self, wanted: u16) -> Result<u16> {
        let wanted = u32::from(wanted.max(1));
        let wanted = NumberOfQueues::new(wanted, wanted).expect("1 to 65535");
        let sqe = set_feature(Fid::NUMBER_OF_QUEUES, wanted.0);
        let (dw0, _) = self.call("Set Features (Number of Queues)", sqe, None)?;
        Ok(NumberOfQueues(dw0).pairs())
    }

    /// Returns whether a volatile write cache is present and enabled.
    fn volatile_write_cache(&mut self, identify: &IdentifyController) -> Result<bool> {
        if !identify.vwc().present() {
            return Ok(false);
        }
        let sqe =
            Sqe::get_features(Fid::VOLATILE_WRITE_CACHE, Nsid::NONE, 0, FeatureSelect::Current);
        let enabled = self.optional("Get Features (Volatile Write Cache)", sqe, None)?;
        // If the state is unknown, assume enabled.
        Ok(enabled.is_none_or(|dw0| dw0 & 1 == 1))
    }

    /// Sets the controller's clock, if it has one (ONCS bit 6).
    fn set_timestamp(&mut self, identify: &IdentifyController) -> Result<()> {
        if !identify.oncs().timestamp() {
            return Ok(());
        }
        let mut page = crate::memory::allocate(self.bus, PAGE_BYTES as usize)?;
        let Some(timestamp) = Timestamp::new(self.bus.unix_ms()) else {
            return Ok(());
        };
        page[..size_of::<Timestamp>()].copy_from_slice(timestamp.as_bytes());
        let sqe = set_feature(Fid::TIMESTAMP, 0);
        self.optional("Set Features (Timestamp)", sqe, Some(page)).map(drop)
    }

    /// Makes failed commands report a delay before a retry (Advanced Command Retry Enable, Base 2.0 section
    /// 5.27.1.18), if the controller has any.
    fn enable_retry_delays(&mut self, identify: &IdentifyController) -> Result<()> {
        if identify.crdt_100ms.iter().all(|delay| delay.get() == 0) {
            return Ok(());
        }
        let mut page = crate::memory::allocate(self.bus, HOST_BEHAVIOR_BYTES)?;
        page[0] = 1;
        let sqe = set_feature(Fid::HOST_BEHAVIOR_SUPPORT, 0);
        self.optional("Set Features (Host Behavior Support)", sqe, Some(page)).map(drop)
    }

    /// Enables the events the driver can report and posts requests for them.
    fn configure_events(&mut self, identify: &IdentifyController) -> Result<()> {
        // The notices have the same bits in OAES and the feature (Base 2.0 section 5.27.1.8).
        let notices = Oaes(0).with_namespace_attribute(true).with_firmware_activation(true).0;
        let config = AsyncEventConfig(identify.oaes().0 & notices)
            .with_critical_warning(CriticalWarning(CRITICAL_WARNINGS));
        let sqe = set_feature(Fid::ASYNC_EVENT_CONFIG, config.0);
        self.optional("Set Features (Asynchronous Event Configuration)", sqe, None)?;
        self.admin.request_events(EVENT_REQUESTS.min(identify.aerl() as usize));
        Ok(())
    }

    pub(super) fn configure_shadows(&mut self, (pages, events): (Iova, Iova)) -> Result<()> {
        let sqe = Sqe::doorbell_buffer_config(pages, events);
        self.call("Doorbell Buffer Config", sqe, None).map(drop)
    }
}
