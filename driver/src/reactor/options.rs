//! Options of a reactor.

use std::time::Duration;

use super::retry::Retry;
use crate::bus::Locality;
use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::runtime::{Cores, Idle};

/// Options for starting a reactor.
#[derive(Clone, Debug)]
pub struct ReactorOptions {
    /// The threads and their cores. Default one thread, pinned to a core of the reactor's choice: it polls a device.
    pub cores: Cores,
    /// The device's location, which [`Cores::Count`] prefers and [`Cores::Near`] keeps to. Default unknown.
    pub near: Locality,
    /// Entries of each queue: one less can be in flight for each controller on each core. Default 256.
    pub queue_depth: u32,
    /// The most requests waiting to be posted, for each controller on each core; 1 to 65536. Default 256.
    pub mailbox_depth: usize,
    /// Time limit of a command from its posting, before it is aborted. Default 10 s.
    pub timeout: Duration,
    /// Time limit of an aborted command before its queue is recreated. Default 2 s.
    pub abort_timeout: Duration,
    /// Record command latencies, in [`super::Client::queue_stats`]. Default false.
    pub latencies: bool,
    /// Retries of failed requests, unless the client sets its own.
    pub retry: Retry,
    /// Whether the first thread returns an out-of-service controller to service with [`Controller::recover`];
    /// that thread serves nothing else meanwhile. Requests wait for it and are sent again as `retry` allows.
    /// If it fails, they are refused, and it is tried again after 1 s, 2 s, 4 s and so on, up to a minute.
    /// Default false: they are refused until the program recovers the controller.
    pub auto_recover: bool,
    /// When an idle thread pauses and sleeps.
    pub idle: Idle,
    /// Time that a dropped reactor waits for its requests. Default 15 s.
    pub drain_timeout: Duration,
}

impl Default for ReactorOptions {
    fn default() -> Self {
        ReactorOptions {
            cores: Cores::Count(1),
            near: Locality::default(),
            queue_depth: 256,
            mailbox_depth: 256,
            timeout: Duration::from_secs(10),
            abort_timeout: Duration::from_secs(2),
            latencies: false,
            retry: Retry::default(),
            auto_recover: false,
            idle: Idle::default(),
            drain_timeout: Duration::from_secs(15),
        }
    }
}

impl ReactorOptions {
    /// Returns the defaults, on a core near `controller`.
    pub fn near(controller: &Controller) -> ReactorOptions {
        ReactorOptions { near: controller.locality(), ..ReactorOptions::default() }
    }

    /// Checks the limits of the options.
    pub(super) fn check(&self) -> Result<()> {
        if (1..=65536).contains(&self.mailbox_depth) {
            return Ok(());
        }
        let what = format!("a reactor's mailbox for {} requests", self.mailbox_depth);
        Err(Error::invalid(what, "mailbox_depth is 1 to 65536"))
    }
}
