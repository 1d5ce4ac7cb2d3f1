//! What runs came across, to see that they are not idle.

use std::fmt;

use crate::faults::Fault;
use crate::outcome::Ending;

/// Sums over runs.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Schedules run to their end.
    pub schedules: u64,
    /// Actions of all schedules.
    pub actions: u64,
    /// Requests that a queue took.
    pub requests: u64,
    /// Requests that a queue gave back at once.
    pub refused: u64,
    /// Requests that succeeded.
    pub done: u64,
    /// Requests that ended with the controller's status.
    pub failed: u64,
    /// Requests that the driver ended, and how many of them with the promise that nothing was written.
    pub ended: [u64; 2],
    /// Requests whose queue was dropped first.
    pub swallowed: u64,
    /// Times that a controller was opened.
    pub opened: u64,
    /// Controllers that were found out of service.
    pub failures: u64,
    /// Controllers that kept memory because nothing could stop them.
    pub stuck: u64,
    /// LBAs whose data was held against the model.
    pub lbas_checked: u64,
    /// Longest call of the driver in virtual time, in nanoseconds.
    pub call_ns_max: u64,
    /// How often each kind of fault struck, in the order of [`Fault::ALL`].
    pub(crate) struck: [u64; Fault::ALL.len()],
}

impl Counts {
    pub(crate) fn ended(&mut self, ending: &Ending) {
        match ending {
            Ending::Done => self.done += 1,
            Ending::Failed => self.failed += 1,
            Ending::Ended { may_have_written } => {
                self.ended[0] += 1;
                self.ended[1] += u64::from(!may_have_written);
            }
        }
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Counts) {
        self.schedules += other.schedules;
        self.actions += other.actions;
        self.requests += other.requests;
        self.refused += other.refused;
        self.done += other.done;
        self.failed += other.failed;
        self.ended[0] += other.ended[0];
        self.ended[1] += other.ended[1];
        self.swallowed += other.swallowed;
        self.opened += other.opened;
        self.failures += other.failures;
        self.stuck += other.stuck;
        self.lbas_checked += other.lbas_checked;
        self.call_ns_max = self.call_ns_max.max(other.call_ns_max);
        for (mine, theirs) in self.struck.iter_mut().zip(other.struck) {
            *mine += theirs;
        }
    }

    /// Kinds of faults with how often they struck.
    pub fn faults(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        Fault::ALL.iter().zip(self.struck).map(|(fault, count)| (format!("{fault:?}"), count))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "requests: {} taken ({} done, {} failed by status, {} ended by the driver, {} of them with nothing written, \
             {} dropped with their queue), {} refused; {} LBAs checked",
            self.requests,
            self.done,
            self.failed,
            self.ended[0],
            self.ended[1],
            self.swallowed,
            self.refused,
            self.lbas_checked
        )?;
        writeln!(
            f,
            "controllers: opened {} times, out of service {} times, {} kept memory; longest call {:.1} s of virtual time",
            self.opened,
            self.failures,
            self.stuck,
            self.call_ns_max as f64 / 1e9
        )?;
        let faults: Vec<_> = self.faults().map(|(name, count)| format!("{name} {count}")).collect();
        write!(f, "faults: {}", faults.join(", "))
    }
}
