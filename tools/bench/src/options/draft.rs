//! A job while its options are read, in any order.

use super::job::JobOptions;
use super::values::{LatencyTarget, SteadyState, VerifyOptions};
use super::{check, targets};
use crate::units::{KbBase, Size};

/// A job whose options are not all read yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    /// Options that need no other option to be interpreted.
    pub(crate) job: JobOptions,
    /// `kb_base`: the meaning of `k`.
    pub(crate) kb_base: KbBase,
    /// The options around `verify`, kept whether they come before or after it.
    pub(crate) verify: VerifyOptions,
    /// Whether `verify` or `verify_only` turns verification on.
    pub(crate) verifies: bool,
    /// Whether `verify` was given; if not, `verify_pattern` also turns verification on.
    pub(crate) is_verify_given: bool,
    /// The options around `latency_target`; the target is zero until it is given.
    pub(crate) latency: LatencyTarget,
    /// The options around `steadystate`.
    pub(crate) steady: SteadyState,
    /// Whether `steadystate` was given.
    pub(crate) is_steady: bool,
    /// `rwmixread`, if given.
    pub(crate) mix_read: Option<u8>,
    /// `rwmixwrite`, if given.
    pub(crate) mix_write: Option<u8>,
    /// `filesize`: the size of each of the job's own files.
    pub(crate) file_bytes: Option<u64>,
}

impl Draft {
    /// Finishes the job once all options are read.
    ///
    /// # Errors
    /// A sentence, if options contradict each other.
    pub(crate) fn finish(mut self) -> Result<JobOptions, String> {
        self.mix()?;
        self.files();
        self.job.verify = self.verifies.then(|| self.verify.clone());
        self.job.time.latency_target = (!self.latency.target.is_zero()).then_some(self.latency);
        self.job.time.steadystate = self.is_steady.then_some(self.steady);
        self.log_names();
        self.endless();
        self.never_steady();
        check::job(&self.job)?;
        Ok(self.job)
    }

    /// Sets `rwmixread` from `rwmixread` and `rwmixwrite`.
    fn mix(&mut self) -> Result<(), String> {
        self.job.rwmixread = match (self.mix_read, self.mix_write) {
            (Some(read), Some(write)) if u16::from(read) + u16::from(write) != 100 => {
                return Err(format!(
                    "rwmixread={read} and rwmixwrite={write} are not 100 together; give only one"
                ));
            }
            (Some(read), _) => read,
            (None, Some(write)) => 100 - write,
            (None, None) => self.job.rwmixread,
        };
        Ok(())
    }

    /// With `filesize`, files have that length and `size` is the amount of I/O.
    fn files(&mut self) {
        if let Some(bytes) = self.file_bytes {
            let files = targets::count(&self.job) as u64;
            let whole = Size::Bytes(bytes.saturating_mul(files));
            self.job.amount.io_size = self.job.amount.io_size.or(self.job.amount.size);
            self.job.amount.size = Some(whole);
            self.job.amount.filesize = Some(bytes);
        }
    }

    /// As in fio, `time_based` needs a `runtime`.
    fn endless(&mut self) {
        if self.job.time.time_based && self.job.time.runtime.is_none() {
            self.job.time.time_based = false;
            self.job.unheeded.push((
                "time_based",
                "there is no runtime; the job ends with its size, give runtime=10 for ten seconds",
            ));
        }
    }

    /// As in fio, a job may be too short to become steady.
    fn never_steady(&mut self) {
        let needed = self.job.time.steadystate.map(|steady| steady.duration + steady.ramp);
        if self.job.time.runtime.zip(needed).is_some_and(|(runtime, needed)| runtime < needed) {
            self.job.unheeded.push((
                "steadystate",
                "steadystate_duration and steadystate_ramp_time are longer than runtime, so it is never attained; \
                 give a longer runtime",
            ));
        }
    }

    /// Names unnamed logs after the job.
    fn log_names(&mut self) {
        let logs = &mut self.job.logs;
        for log in [&mut logs.bw, &mut logs.iops, &mut logs.lat, &mut logs.hist] {
            if log.as_ref().is_some_and(|name| name.as_os_str().is_empty()) {
                *log = Some(self.job.name.clone().into());
            }
        }
    }
}
