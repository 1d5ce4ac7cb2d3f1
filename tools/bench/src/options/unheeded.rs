//! fio options that are accepted but ignored, with a warning in the report.
//!
//! They affect other processes or tracing, not which I/Os run, so scripts that use them still work.

use super::draft::Draft;

/// An option accepted with a warning.
#[derive(Debug)]
pub(crate) struct Unheeded {
    /// fio's name.
    pub(crate) name: &'static str,
    /// Values that request nothing and cause no warning.
    pub(crate) silent: &'static [&'static str],
    /// Why it is ignored, and what to do instead.
    pub(crate) because: &'static str,
}

const NO_PRIORITIES: &str =
    "all I/Os have the same priority; run two jobs with a rate each to tell classes apart";
const POLLED_BY_JOB: &str =
    "the job's thread submits; take a vfio: target, where submission is no system call";
const VERIFIED_BY_JOB: &str = "blocks are verified by the job's own thread; give it a core";

const fn unless(
    name: &'static str,
    silent: &'static [&'static str],
    because: &'static str,
) -> Unheeded {
    Unheeded { name, silent, because }
}

/// All such options, by name.
pub(crate) const UNHEEDED: &[Unheeded] = &[
    unless("cmdprio", &["0"], NO_PRIORITIES),
    unless("cmdprio_bssplit", &[], NO_PRIORITIES),
    unless("cmdprio_class", &[], NO_PRIORITIES),
    unless("cmdprio_hint", &[], NO_PRIORITIES),
    unless("cmdprio_percentage", &["0"], NO_PRIORITIES),
    unless("create_on_open", &["0"], "files are laid out before the clock starts"),
    unless("experimental_verify", &["0"], "verify remembers what was written in any case"),
    unless("force_async", &["0"], "I/Os are submitted without a detour"),
    unless("gtod_cpu", &[], "the time stamp counter is read without the kernel's help"),
    unless("log_compression", &["0"], "logs are written as they are; compress them after the run"),
    unless("log_compression_cpus", &[], "logs are not compressed; compress them after the run"),
    unless("nice", &["0"], "start the whole run with nice"),
    unless("nowait", &["0"], "submission never waits for the device"),
    unless(
        "numa_mem_policy",
        &["default", "local"],
        "buffers lie near the device or the job's core; bind the process with numactl",
    ),
    unless("prio", &["0"], "start the whole run with ionice"),
    unless("prioclass", &["0"], "start the whole run with ionice"),
    unless("priohint", &["0"], NO_PRIORITIES),
    unless("softrandommap", &["0"], "the order needs no map in memory"),
    unless("sqthread_poll", &["0"], POLLED_BY_JOB),
    unless("sqthread_poll_cpu", &[], POLLED_BY_JOB),
    unless("verify_async", &["0"], VERIFIED_BY_JOB),
    unless("verify_async_cpus", &[], VERIFIED_BY_JOB),
    unless("write_hint", &["none"], "I/Os carry no hints about lifetimes"),
];

/// Finds an option by name.
pub(crate) fn find(name: &str) -> Option<&'static Unheeded> {
    UNHEEDED.iter().find(|option| option.name == name)
}

impl Unheeded {
    /// Accepts any value and records that it is ignored.
    pub(crate) fn take(&self, draft: &mut Draft, text: &str) {
        draft.job.unheeded.retain(|(name, _)| *name != self.name);
        if !self.silent.contains(&text) {
            draft.job.unheeded.push((self.name, self.because));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_decides_whether_there_is_a_warning() {
        let mut draft = Draft::default();
        let nice = find("nice").expect("an option");
        let mut names = |text: &str| {
            nice.take(&mut draft, text);
            draft.job.unheeded.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        };
        assert_eq!(names("5"), ["nice"]);
        assert_eq!(names("7"), ["nice"]);
        assert!(names("0").is_empty());
    }
}
