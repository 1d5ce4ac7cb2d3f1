//! Counters of what runs encountered, to show that they exercise the driver.

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
    /// Requests rejected at once by a queue.
    pub refused: u64,
    /// Requests that succeeded.
    pub done: u64,
    /// Requests that ended with an error status of the controller.
    pub failed: u64,
    /// Requests that the driver ended, and how many of them with the promise that nothing was written.
    pub ended: [u64; 2],
    /// Requests whose queue was dropped first.
    pub swallowed: u64,
    /// How often a controller was opened.
    pub opened: u64,
    /// How often a controller was found out of service.
    pub failures: u64,
    /// How often a controller was recovered.
    pub recovered: u64,
    /// Controllers that kept memory because nothing could stop them.
    pub stuck: u64,
    /// LBAs whose data was checked against the model.
    pub lbas_checked: u64,
    /// Longest call of the driver in virtual time, in nanoseconds.
    pub call_ns_max: u64,
    /// How often each kind of fault struck, in the order of [`Fault::ALL`].
    pub(crate) struck: Vec<u64>,
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

    /// Returns the sums, in the order of serialization.
    fn sums(&mut self) -> impl Iterator<Item = &mut u64> {
        let [ended, unwritten] = &mut self.ended;
        let own = [
            &mut self.schedules,
            &mut self.actions,
            &mut self.requests,
            &mut self.refused,
            &mut self.done,
            &mut self.failed,
            ended,
            unwritten,
            &mut self.swallowed,
            &mut self.opened,
            &mut self.failures,
            &mut self.recovered,
            &mut self.stuck,
            &mut self.lbas_checked,
        ];
        self.struck.resize(Fault::ALL.len(), 0);
        own.into_iter().chain(&mut self.struck)
    }

    /// Adds another run's counters.
    pub fn add(&mut self, other: &Counts) {
        let mut other = other.clone();
        self.sums().zip(other.sums()).for_each(|(mine, theirs)| *mine += *theirs);
        self.call_ns_max = self.call_ns_max.max(other.call_ns_max);
    }

    /// Formats them as one line of numbers, for another process.
    pub fn to_line(&self) -> String {
        let mut copy = self.clone();
        let mut line = self.call_ns_max.to_string();
        copy.sums().for_each(|sum| line.push_str(&format!(" {sum}")));
        line
    }

    /// Parses the output of [`Counts::to_line`]; returns `None` if it is invalid.
    pub fn from_line(line: &str) -> Option<Counts> {
        let mut words = line.split(' ').map(|word| word.parse().ok());
        let mut counts = Counts { call_ns_max: words.next()??, ..Counts::default() };
        for sum in counts.sums() {
            *sum = words.next()??;
        }
        words.next().is_none().then_some(counts)
    }

    /// Iterates over the kinds of faults, each with how often it struck.
    pub fn faults(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        Fault::ALL.iter().zip(&self.struck).map(|(fault, count)| (format!("{fault:?}"), *count))
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
            "controllers: opened {} times, out of service {} times, {} times brought back, {} kept memory; longest call {:.1} s of virtual time",
            self.opened,
            self.failures,
            self.recovered,
            self.stuck,
            self.call_ns_max as f64 / 1e9
        )?;
        let faults: Vec<_> = self
            .faults()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        write!(f, "faults: {}", faults.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_passed_on_and_added() {
        let mut counts = Counts::default();
        counts.sums().enumerate().for_each(|(at, sum)| *sum = at as u64);
        counts.call_ns_max = 9;
        let line = counts.to_line();
        let mut twice = Counts::from_line(&line).expect("its own line");
        twice.add(&counts);
        assert_eq!((twice.call_ns_max, twice.refused, twice.struck[0]), (9, 6, 28));
        for wrong in ["", "1 2", &format!("{line} 1"), &line.replace("0", "x")] {
            assert!(Counts::from_line(wrong).is_none(), "{wrong}");
        }
    }
}
