//! What a job is made from.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::paths::Device;

use crate::data::Data;
use crate::data::state::VerifyState;
use crate::interrupt::Interrupt;
use crate::logs::{IoLog, JobLogs};
use crate::options::Section;
use crate::run::flow::Group;
use crate::run::progress::Progress;
use crate::run::supervisor::Recovery;
use crate::workload::{JobRegion, Steps};

/// A file or device of a job.
#[derive(Clone, Debug)]
pub(crate) struct JobFile<'a> {
    pub(crate) device: &'a Device,
    /// The part of it that the job works on.
    pub(crate) region: JobRegion,
    /// The domain of the buffers its queue can use.
    pub(crate) domain: usize,
}

/// Everything a job is made from.
pub(crate) struct Setting<'a> {
    pub(crate) section: &'a Section,
    /// In order; at least one.
    pub(crate) files: Vec<JobFile<'a>>,
    /// Their targets, as a string that parses back to them.
    pub(crate) target: String,
    pub(crate) thread: u32,
    /// Its index among the threads of its job.
    pub(crate) number: u32,
    pub(crate) group: u32,
    pub(crate) seed: u64,
    /// Distinguishes this run's data from an earlier run's with the same seed.
    pub(crate) stamp: u64,
    pub(crate) steps: Steps,
    pub(crate) data: Data,
    /// Bytes after which the job ends; `None` if only time ends it.
    pub(crate) bytes_max: Option<u64>,
    /// The most I/Os submitted at once.
    pub(crate) batch_max: usize,
    /// The time without completions after which the thread yields its core.
    pub(crate) yield_after: Duration,
    pub(crate) recovery: &'a Recovery,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) progress: &'a Progress,
    pub(crate) logs: Option<JobLogs>,
    /// `write_iolog`.
    pub(crate) iolog: Option<IoLog>,
    /// The state an interrupted run left, to be read back.
    pub(crate) earlier: Option<VerifyState>,
    /// The folder for this job's verify state.
    pub(crate) state_folder: &'a Path,
    /// Whether to report blocks of zeroes, which may never have been written before this run.
    pub(crate) samples_zeroes: bool,
    /// Retries of a failed I/O unless the job specifies them.
    pub(crate) retries: u8,
    /// The jobs it shares I/Os with.
    pub(crate) flow: Option<Arc<Group>>,
}

impl Setting<'_> {
    /// Returns the device for messages, or the job's name if there are several.
    pub(super) fn name(&self) -> &str {
        match &self.files[..] {
            [only] => &only.device.info().device,
            _ => &self.section.job.name,
        }
    }

    /// Returns the device of a file for messages, if there are several.
    pub(super) fn place(&self, file: u32) -> String {
        match &self.files[..] {
            [_] => String::new(),
            files => format!(" of {}", files[file as usize].device.info().device),
        }
    }
}
