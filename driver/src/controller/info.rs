//! The options and the checked properties of a controller.

use std::time::Duration;

use crate::bus::vfio_user::SERVER_TIMEOUT;
use crate::spec::identify::IdentifyController;
use crate::spec::register::{Cap, Version};
use crate::transfer::SglSupport;

/// Options for opening a controller.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// I/O queue pairs to request; the controller may grant fewer. Default 64.
    pub io_queues: u16,
    /// Use SGLs if the controller supports them. Default true.
    pub sgl: bool,
    /// Use shadow doorbells if the controller supports them and its doorbells are not memory themselves, as those
    /// that a vfio-user server lets us map. Default true.
    pub shadow_doorbells: bool,
    /// Enable the controller memory buffer, for [`super::Placement::Cmb`]. Default false.
    pub cmb: bool,
    /// Give each queue an interrupt vector and an eventfd. Default false: queues are polled.
    pub interrupts: bool,
    /// Time limit of an admin command. Default 10 s.
    pub admin_timeout: Duration,
    /// Time limit of each answer of a vfio-user server. A server that exceeds it is lost: requests in flight
    /// end at most twice this time after their own deadline. Default 5 s.
    pub server_timeout: Duration,
    /// Allow resetting the NVM subsystem of a controller that cannot be disabled, if it offers that and is
    /// alone in the subsystem. Default true.
    pub subsystem_reset: bool,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        ControllerOptions {
            io_queues: 64,
            sgl: true,
            shadow_doorbells: true,
            cmb: false,
            interrupts: false,
            admin_timeout: Duration::from_secs(10),
            server_timeout: SERVER_TIMEOUT,
            subsystem_reset: true,
        }
    }
}

/// The checked properties of an open controller.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ControllerInfo {
    /// The target string.
    pub device: String,
    /// The capabilities register.
    pub cap: Cap,
    /// The version register.
    pub version: Version,
    /// The most entries of a queue (CAP.MQES + 1).
    pub queue_entries_max: u32,
    /// Time limit for becoming ready or disabled.
    pub ready_timeout: Duration,
    /// Time limit for a shutdown.
    pub shutdown_timeout: Duration,
    /// I/O queue pairs granted.
    pub io_queues: u16,
    /// The most bytes of one command (MDTS, and what the driver can express).
    pub max_transfer_bytes: u64,
    /// SGLs in use.
    pub sgl: SglSupport,
    /// Whether shadow doorbells are in use.
    pub shadow_doorbells: bool,
    /// Whether a volatile write cache is enabled: if so, only Flush and FUA make data durable.
    pub volatile_write_cache: bool,
    /// Bytes of the controller memory buffer in use; 0 if disabled.
    pub cmb_bytes: u64,
    /// Whether the driver may use a subsystem reset to stop it.
    pub subsystem_reset: bool,
    /// Identify Controller as read on opening.
    pub identify: Box<IdentifyController>,
}
