//! Returns a failed controller to service, as its next incarnation.

use super::admin::Admin;
use super::bring_up::{
    Calls, Ready, capabilities, enable, make_disabled, max_transfer_bytes, sgl_support,
};
use super::cmb;
use super::info::ControllerInfo;
use super::ladder::quiesce;
use super::life::{Life, LifeState};
use super::registers::{gone, read};
use super::shared::Shared;
use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::runtime::lock;
use crate::spec::register::{CAP, CSTS};
use crate::transfer::SglSupport;

impl Shared {
    /// Returns the controller to service.
    ///
    /// # Errors
    /// As [`bring_up_again`]; the controller is then out of service as before.
    pub(super) fn recover(&self) -> Result<()> {
        loop {
            let life = self.life();
            match life.state() {
                LifeState::Running => return Ok(()),
                _ if self.given_up.get().is_some() => return self.check_not_given_up(),
                LifeState::Failing | LifeState::Recovering => {
                    self.wait_settled(life);
                }
                LifeState::Quiesced | LifeState::Stuck => {
                    if self.life.advance(life, life.with(LifeState::Recovering)) {
                        return self.recover_from(life);
                    }
                }
            }
        }
    }

    /// Returns whether a failed recovery may succeed later: the device does not answer, and its removal was
    /// not requested.
    pub(super) fn may_come_back(&self) -> bool {
        self.given_up.get().is_none() && read(&*self.bus, CSTS).is_all_ones()
    }

    /// Forbids recovery from now on.
    pub(super) fn give_up(&self, why: &'static str) {
        self.given_up.get_or_init(|| why);
    }

    fn check_not_given_up(&self) -> Result<()> {
        match self.given_up.get() {
            Some(why) => Err(Error::device(self.bus.device(), why, "close it and open it again")),
            None => Ok(()),
        }
    }

    fn recover_from(&self, life: Life) -> Result<()> {
        let _span = tracing::info_span!("recover", device = self.bus.device()).entered();
        let begun = self.bus.now();
        if let Err(error) = reach(self) {
            // Nothing was handed to the device, so restore its state.
            tracing::debug!("{}: cannot be reached: {error}", self.bus.device());
            *lock(&self.reason) = error.to_string();
            self.life.set(life);
            return Err(error);
        }
        let recovered = self.with_admin(|admin| bring_up_again(self, admin));
        match &recovered {
            Ok(()) => {
                self.pause.clear();
                self.life.set(life.next());
                // The system may have requested removal meanwhile, when there was nothing to fail.
                if let Some(why) = self.given_up.get() {
                    self.fail(life.next(), why);
                    return self.check_not_given_up();
                }
                self.look_at_open_namespaces();
                let took = self.bus.now().since(begun);
                probe::probe!(adit, recover, took.as_nanos() as u64);
                tracing::info!("{}: back in service after {took:?}", self.bus.device());
            }
            Err(error) => {
                tracing::error!("{}: cannot be recovered: {error}", self.bus.device());
                *lock(&self.reason) = error.to_string();
                self.finish(life, quiesce(&*self.bus, &self.info));
            }
        }
        recovered
    }
}

/// Resets the function if the device does not answer, whatever its link went through. One that lost its
/// address to a link reset may read as anything.
///
/// # Errors
/// The bus's error of the reset; [`Error::Device`] if the device is gone.
fn reach(shared: &Shared) -> Result<()> {
    let bus = &**shared.bus();
    if read(bus, CSTS).is_all_ones() || read(bus, CAP) != shared.info.cap {
        bus.reset()?;
    }
    if read(bus, CSTS).is_all_ones() { Err(gone(bus)) } else { Ok(()) }
}

/// Makes an out-of-service controller ready again with the properties its handles rely on.
///
/// # Errors
/// As [`bring_up`]; [`Error::Device`] if another device answers, or this one with other properties.
fn bring_up_again(shared: &Shared, admin: &mut Admin) -> Result<()> {
    let (bus, info) = (shared.bus(), &shared.info);
    if capabilities(&**bus)? != info.cap {
        return Err(other_device(&**bus, "its capabilities (CAP) differ"));
    }
    make_disabled(&**bus, info.ready_timeout)?;
    cmb::switch_off(&**bus, info.cap);
    if let Some(cmb) = &shared.cmb {
        lock(cmb).place_again(&**bus)?;
    }
    let shadow_pages = shared.doorbells.clear_shadows();
    admin.restart();
    let enabled = enable(bus, admin, info.cap, info.ready_timeout)?;
    let mut calls = Calls { bus, admin, timeout: shared.options.admin_timeout };
    let ready = calls.configure(info.io_queues)?;
    check_same(&**bus, info, &ready)?;
    if let Some(pages) = shadow_pages {
        calls.configure_shadows(pages)?;
    }
    enabled.disarm();
    Ok(())
}

/// Checks that a controller still has the properties it was opened with.
fn check_same(bus: &dyn Bus, info: &ControllerInfo, ready: &Ready) -> Result<()> {
    let (was, is) = (&info.identify, &ready.identify);
    let sgl = sgl_support(is);
    let same = [
        ("its serial number differs", was.sn == is.sn && was.mn == is.mn),
        ("it grants fewer I/O queues", ready.queues >= info.io_queues),
        (
            "it takes shorter transfers (MDTS)",
            max_transfer_bytes(info.cap, is) >= info.max_transfer_bytes,
        ),
        ("its SGL support differs", info.sgl == SglSupport::None || info.sgl == sgl),
        ("its volatile write cache is on", info.volatile_write_cache || !ready.write_cache),
        (
            "it takes no shadow doorbells",
            !info.shadow_doorbells || is.oacs().doorbell_buffer_config(),
        ),
    ];
    match same.iter().find(|(_, holds)| !holds) {
        Some((what, _)) => Err(other_device(bus, what)),
        None => Ok(()),
    }
}

fn other_device(bus: &dyn Bus, what: &str) -> Error {
    let what = format!("it came back changed: {what}");
    Error::device(bus.device(), what, "close it and open it again")
}
