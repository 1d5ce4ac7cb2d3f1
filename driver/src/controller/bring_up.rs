//! From reset to ready, as one function that passes values along
//! (NVMe Base 2.0 section 3.5.1).
//!
//! Every value the controller reports is checked here, once; what comes out is
//! a [`Shared`] whose numbers can be relied on. On an error everything is undone
//! by drops: the rings are unmapped after the controller is disabled.

use std::sync::Arc;
use std::time::Duration;

use super::admin::{Admin, AdminCommand, Owned};
use super::claim::Claim;
use super::cmb::{self, Cmb};
use super::doorbells::Doorbells;
use super::queues::{QueueIds, admin_rings};
use super::registers::{describe, gone, read, wait_for, write};
use super::shared::{Parts, Shared, disable};
use super::{ControllerInfo, ControllerOptions};
use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::memory::{Buffer, DomainId, Mapping};
use crate::queue_pair::PagePool;
use crate::queue_pair::core::{Core, Parts as CoreParts};
use crate::spec::feature::{AsyncEventConfig, FeatureValue, Fid, NumberOfQueues, Timestamp};
use crate::spec::identify::{self, IdentifyController, Oaes};
use crate::spec::log::CriticalWarning;
use crate::spec::register::{
    ACQ, AQA, ASQ, Aqa, CAP, CC, CRTO, CSTS, Cap, Cc, CommandSetSelected, VS,
};
use crate::spec::{Cns, FeatureSelect, Nsid, Qid, QueueEntries, Sqe};
use crate::transfer::{PAGE_BYTES, SglSupport};
use zerocopy::{FromBytes, IntoBytes};

/// Entries of the admin queues; CAP.MQES bounds I/O queues only (Base 2.0 section 3.1.3.1).
const ADMIN_ENTRIES: u32 = 32;
/// Most asynchronous event requests kept with the controller.
const EVENT_REQUESTS: usize = 4;
/// Most aborts in flight, so that the admin queue keeps room for everything else.
const ABORTS_MAX: usize = 8;
/// One unit of CAP.TO.
const READY_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// The longest time to become ready that is believed; CRTO can say nine hours.
const READY_TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// Shutdown without a hint from the controller.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest shutdown hint that is believed.
const SHUTDOWN_TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Log2 of the ring entries' sizes: 64 and 16 bytes.
const SQES: u8 = 6;
const CQES: u8 = 4;
/// SMART critical warnings 0 to 4: spare, temperature, reliability, read-only, backup.
const CRITICAL_WARNINGS: u8 = 0x1f;

/// Makes a controller ready, or says why not.
pub(super) fn bring_up(bus: &Arc<dyn Bus>, options: &ControllerOptions) -> Result<Shared> {
    let claim = Claim::new(bus)?;
    let cap = capabilities(&**bus)?;
    let ready_timeout = ready_timeout(&**bus, cap);
    make_disabled(&**bus, ready_timeout)?;
    // Whoever had it before may have left its memory buffer over addresses that are now ours.
    cmb::switch_off(&**bus, cap);
    let cmb = if options.cmb { Some(Cmb::enable(bus)?) } else { None };
    // Before the guard in `enabled`, so that it is unmapped after the controller is disabled.
    let mut shadows = None;
    let (mut admin, enabled) = enable(bus, cap, ready_timeout)?;
    let mut calls = Calls { bus, admin: &mut admin, timeout: options.admin_timeout };
    let identify = calls.identify_controller()?;
    check_identity(&**bus, &identify)?;
    let queues = calls.negotiate_queues(options.io_queues)?;
    let write_cache = calls.volatile_write_cache(&identify)?;
    calls.set_timestamp(&identify)?;
    calls.configure_events(&identify)?;
    let vectors = if options.interrupts { enable_vectors(bus, queues)? } else { Vec::new() };
    if options.shadow_doorbells && identify.oacs().doorbell_buffer_config() {
        calls.configure_shadows(shadows.insert(Doorbells::allocate_shadows(bus)?))?;
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
        io_queues: queues,
        max_transfer_bytes: max_transfer_bytes(cap, &identify),
        sgl: if options.sgl { sgl_support(&identify) } else { SglSupport::None },
        shadow_doorbells: doorbells.has_shadows(),
        volatile_write_cache: write_cache,
        cmb_bytes: cmb.as_ref().map_or(0, Cmb::bytes),
        identify,
    };
    enabled.disarm();
    let ids = QueueIds::new(queues);
    let (bus, admin_timeout) = (Arc::clone(bus), options.admin_timeout);
    Ok(Shared::new(Parts { admin, ids, info, doorbells, cmb, vectors, admin_timeout, bus, claim }))
}

/// Reads CAP and checks that this driver can work with it.
fn capabilities(bus: &dyn Bus) -> Result<Cap> {
    if read(bus, CSTS).is_all_ones() {
        return Err(gone(bus));
    }
    let cap = read(bus, CAP);
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

/// How long CSTS.RDY may take to change: CAP.TO, or CRTO where that is longer
/// (Base 2.0 section 3.1.3.21), within reason.
fn ready_timeout(bus: &dyn Bus, cap: Cap) -> Duration {
    let with_media = if cap.crms_crwms() { read(bus, CRTO).crwmt() } else { Duration::ZERO };
    cap.to().max(with_media).clamp(READY_TIMEOUT_MIN, READY_TIMEOUT_MAX)
}

/// Brings the controller to CC.EN = 0 from whatever state somebody left it in.
fn make_disabled(bus: &dyn Bus, timeout: Duration) -> Result<()> {
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

/// Disables the controller again unless bring-up came to its end: the admin rings
/// must not be unmapped under an enabled controller.
struct Enabled {
    bus: Option<Arc<dyn Bus>>,
    timeout: Duration,
}

impl Enabled {
    fn disarm(mut self) {
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

/// Gives the controller its admin queues and enables it.
fn enable(bus: &Arc<dyn Bus>, cap: Cap, timeout: Duration) -> Result<(Admin, Enabled)> {
    let entries = ADMIN_ENTRIES;
    let page = PAGE_BYTES as usize;
    let sq_bytes = (entries as usize * 64).next_multiple_of(page);
    let lists_bytes = crate::transfer::LIST_PAGES_PER_COMMAND * page;
    let host = Mapping::allocate(bus, sq_bytes + page + lists_bytes + page)?;
    let bells = Doorbells::new(bus, cap.dstrd());
    let bells = bells.bells(Qid::ADMIN, bells.registers(Qid::ADMIN)?);
    let (sq, cq) = admin_rings(&host, entries, bells);
    let (asq, acq) =
        (host.iova(), host.iova().checked_add(sq_bytes as u64).expect("inside the mapping"));
    let queue_entries = QueueEntries::new(entries).expect("2 to 65536");
    write(&**bus, AQA, Aqa::new(queue_entries, queue_entries).expect("at most 4096 entries"));
    write(&**bus, ASQ, asq);
    write(&**bus, ACQ, acq);
    let pages = host.atomics();
    let at = |offset: usize| host.iova().checked_add(offset as u64).expect("inside the mapping");
    let core: Core<Owned> = Core::new(CoreParts {
        qid: Qid::ADMIN,
        domain: DomainId::of(bus),
        sq,
        cq,
        slots: entries as usize - 1,
        lists: PagePool::new(pages.slice(sq_bytes + page, lists_bytes), at(sq_bytes + page)),
        bounces: PagePool::new(
            pages.slice(sq_bytes + page + lists_bytes, page),
            at(sq_bytes + page + lists_bytes),
        ),
        timeout: Duration::MAX,
    });
    // From here on the controller may write the rings: the guard comes before EN.
    let enabled = Enabled { bus: Some(Arc::clone(bus)), timeout };
    let admin = Admin::new(core, host);
    start(&**bus, cap, timeout)?;
    Ok((admin, enabled))
}

/// Sets CC.EN and waits for CSTS.RDY.
fn start(bus: &dyn Bus, cap: Cap, timeout: Duration) -> Result<()> {
    let all_sets = cap.css() & (1 << 6) != 0;
    let css = if all_sets { CommandSetSelected::AllSupported } else { CommandSetSelected::Nvm };
    write(bus, CC, Cc(0).with_css(css).with_iosqes(SQES).with_iocqes(CQES).with_en(true));
    let status =
        wait_for(bus, "CSTS.RDY after CC.EN = 1", timeout, |status| status.rdy() || status.cfs())?;
    if status.cfs() {
        let what = format!("fatal status (CSTS.CFS) while it was enabled; {}", describe(bus));
        return Err(Error::device(
            bus.device(),
            what,
            "power-cycle the device or look for DMA faults in the kernel log",
        ));
    }
    Ok(())
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
            "its queue entries have other sizes (SQES {:02x}h, CQES {:02x}h)",
            identify.sqes, identify.cqes
        );
        return Err(Error::device(bus.device(), what, "this driver cannot use it"));
    }
    Ok(())
}

/// MDTS in bytes, or what NLB can count at most where there is no limit.
fn max_transfer_bytes(cap: Cap, identify: &IdentifyController) -> u64 {
    const UNLIMITED: u64 = 65536 * 4096;
    let bytes = identify.max_transfer_bytes(cap.page_size_min());
    bytes.map_or(UNLIMITED, |bytes| bytes.min(UNLIMITED))
}

fn sgl_support(identify: &IdentifyController) -> SglSupport {
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

/// Admin commands while nobody else uses the queue.
struct Calls<'a> {
    bus: &'a Arc<dyn Bus>,
    admin: &'a mut Admin,
    timeout: Duration,
}

impl Calls<'_> {
    fn call(
        &mut self,
        name: &'static str,
        sqe: Sqe,
        data: Option<Buffer>,
    ) -> Result<(u32, Option<Buffer>)> {
        let command = AdminCommand { name, sqe, data };
        self.admin.call(&**self.bus, command, self.timeout, &|| Ok(()))
    }

    /// A command the driver can do without: a controller that fails it is told of in the
    /// log and used all the same.
    fn optional(
        &mut self,
        name: &'static str,
        sqe: Sqe,
        data: Option<Buffer>,
    ) -> Result<Option<u32>> {
        match self.call(name, sqe, data) {
            Ok((dw0, _)) => Ok(Some(dw0)),
            Err(error @ Error::Status { .. }) => {
                tracing::warn!("{error}; going on without");
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

    /// Asks for I/O queues (Base 2.0 section 5.27.1.5) and returns how many pairs were granted.
    fn negotiate_queues(&mut self, wanted: u16) -> Result<u16> {
        let wanted = u32::from(wanted.max(1));
        let wanted = NumberOfQueues::new(wanted, wanted).expect("1 to 65535");
        let sqe = set_feature(NumberOfQueues::FID, wanted.into_dword());
        let (dw0, _) = self.call("Set Features (Number of Queues)", sqe, None)?;
        Ok(NumberOfQueues::from_dword(dw0).pairs())
    }

    /// Whether a volatile write cache is there and enabled.
    fn volatile_write_cache(&mut self, identify: &IdentifyController) -> Result<bool> {
        if !identify.vwc().present() {
            return Ok(false);
        }
        let sqe =
            Sqe::get_features(Fid::VOLATILE_WRITE_CACHE, Nsid::NONE, 0, FeatureSelect::Current);
        let enabled = self.optional("Get Features (Volatile Write Cache)", sqe, None)?;
        // A cache that does not say whether it is enabled is taken to be.
        Ok(enabled.is_none_or(|dw0| dw0 & 1 == 1))
    }

    /// Tells the controller the time, where it wants to know (ONCS bit 6).
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

    /// Enables the events the driver can pass on and leaves requests for them.
    fn configure_events(&mut self, identify: &IdentifyController) -> Result<()> {
        // The notices have the same bits in both (Base 2.0 section 5.27.1.8).
        let notices = Oaes(0).with_namespace_attribute(true).with_firmware_activation(true).0;
        let config = AsyncEventConfig(identify.oaes().0 & notices)
            .with_critical_warning(CriticalWarning(CRITICAL_WARNINGS));
        let sqe = set_feature(AsyncEventConfig::FID, config.into_dword());
        self.optional("Set Features (Asynchronous Event Configuration)", sqe, None)?;
        self.admin.request_events(EVENT_REQUESTS.min(identify.aerl() as usize));
        Ok(())
    }

    /// Gives the controller shadow doorbells.
    fn configure_shadows(&mut self, shadows: &Mapping) -> Result<()> {
        let (pages, events) = Doorbells::shadow_pages(shadows);
        let sqe = Sqe::doorbell_buffer_config(pages, events);
        self.call("Doorbell Buffer Config", sqe, None).map(drop)
    }
}
