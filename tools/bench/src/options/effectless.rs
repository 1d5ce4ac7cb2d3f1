//! fio options that have no effect here, accepted so that job files run unchanged.
//!
//! Each gives its reason. Values that would have an effect are refused.

use super::draft::Draft;
use super::grammar::{Parsed, switch, whole};

/// An accepted option without effect.
#[derive(Debug)]
pub(crate) struct Effectless {
    /// fio's name.
    pub(crate) name: &'static str,
    /// Its accepted values.
    pub(crate) values: Values,
    /// Why it has no effect; completes a sentence that begins with "has no effect because".
    pub(crate) because: &'static str,
    /// What to do if the value is refused.
    pub(crate) instead: &'static str,
}

/// Accepted values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// On and off.
    Switch,
    /// Any number.
    Number,
    /// These words.
    Words(&'static [&'static str]),
    /// Any value, if I/O bypasses the page cache.
    Direct,
}

use Values::{Direct, Number, Switch, Words};

const ON: Values = Words(&["1"]);
const OFF: Values = Words(&["0"]);

const fn free(name: &'static str, values: Values, because: &'static str) -> Effectless {
    Effectless { name, values, because, instead: "" }
}

const fn only(
    name: &'static str,
    values: Values,
    because: &'static str,
    instead: &'static str,
) -> Effectless {
    Effectless { name, values, because, instead }
}

/// All such options, by name.
pub(crate) const WITHOUT_EFFECT: &[Effectless] = &[
    only(
        "bwavgtime",
        Words(&["500"]),
        "rates are sampled by the half second",
        "take log_avg_msec for logs",
    ),
    only(
        "iopsavgtime",
        Words(&["500"]),
        "rates are sampled by the half second",
        "take log_avg_msec for logs",
    ),
    free(
        "clocksource",
        Words(&["gettimeofday", "clock_gettime", "cpu"]),
        "time is told by the calibrated time stamp counter, or by clock_gettime where there is none",
    ),
    only("cmd_type", Words(&["nvme"]), "commands are NVMe's", "leave it away"),
    free("create_fsync", Switch, "files are made before the clock starts"),
    free("create_serialize", Switch, "files are made before the clock starts"),
    free("error_dump", Switch, "errors are counted by name, and the first of them told"),
    free("fadvise_hint", Direct, "the page cache is passed by"),
    free(
        "io_submit_mode",
        Words(&["inline", "offload"]),
        "load with a rate is open loop in any case: latencies count from when an I/O was due",
    ),
    free("log_entries", Number, "logs grow as they need"),
    only(
        "lockfile",
        Words(&["none"]),
        "files are not locked",
        "let jobs work on regions of their own (offset_increment)",
    ),
    only(
        "mem",
        Words(&["malloc", "mmap", "shm", "mmaphuge", "shmhuge"]),
        "buffers are always memory that the device can reach, aligned to pages",
        "leave it away",
    ),
    only(
        "iomem",
        Words(&["malloc", "mmap", "shm", "mmaphuge", "shmhuge"]),
        "buffers are always memory that the device can reach, aligned to pages",
        "leave it away",
    ),
    free("mem_align", Number, "buffers are aligned to pages"),
    free("iomem_align", Number, "buffers are aligned to pages"),
    free("hugepage_size", Number, "the driver takes the pages that the system offers"),
    free("nonvectored", Switch, "I/Os are never vectored"),
    free("openfiles", Number, "all files of a job are open while it runs"),
    only(
        "md_per_io_size",
        OFF,
        "the controller keeps the protection information to itself",
        "metadata is not carried to the host; leave it away",
    ),
    only(
        "pi_act",
        ON,
        "the controller makes and drops protection information",
        "metadata is not carried to the host; leave it away",
    ),
    only("pre_read", OFF, "it is off", "run a job that reads before it, and a stonewall"),
    only("rate_ignore_thinktime", OFF, "it is off", "leave thinktime away, as the rate decides"),
    free("registerfiles", Switch, "files are always registered with io_uring"),
    free("significant_figures", Number, "figures have as many digits as they deserve"),
    free("rwmixcycle", Number, "fio ignores it as well"),
    only("stats", ON, "it is on", "leave out of the report what is not needed"),
    free("thread", Switch, "jobs are always threads"),
    // Missing from fio's list, but fio accepts it and its example job files use it.
    free("threads", Switch, "jobs are always threads"),
    free("unique_filename", Switch, "there are no network clients"),
    only("unit_base", Words(&["0", "8"]), "rates are in bytes", "multiply by 8"),
    free("userspace_reap", Switch, "completions are always taken from the ring in memory"),
    only("verify_offset", OFF, "it is off", "headers stand at the front of each block"),
    only(
        "zonemode",
        Words(&["none"]),
        "it is off",
        "neither zoned devices (ZNS) nor strided zones are driven; take rw=read:N, which skips N bytes after each I/O, or random_distribution=zoned for hot and cold regions",
    ),
];

/// Finds an option by name.
pub(crate) fn find(name: &str) -> Option<&'static Effectless> {
    WITHOUT_EFFECT.iter().find(|option| option.name == name)
}

impl Effectless {
    /// Accepts a value and records any condition it depends on.
    ///
    /// # Errors
    /// A sentence without the option's name, if the value would have an effect.
    pub(crate) fn take(&self, draft: &mut Draft, text: &str) -> Parsed<()> {
        let refused = || format!("'{text}' cannot be heeded; {}", self.instead);
        match self.values {
            Switch => switch(text).map(|_| ()),
            Number => whole(text, draft.kb_base).map(|_| ()),
            Words(words) if words.contains(&text) => Ok(()),
            Words(_) if !self.instead.is_empty() => Err(refused()),
            Words(words) => Err(format!("there is no '{text}'; it is one of {}", words.join(", "))),
            Direct => {
                draft.wants_direct.push(self.name);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_in_the_table_as_well() {
        for option in WITHOUT_EFFECT {
            assert!(super::super::table::find(option.name).is_none(), "{}", option.name);
        }
    }

    #[test]
    fn a_value_that_would_matter_is_refused() {
        let take =
            |name: &str, value: &str| find(name).expect(name).take(&mut Draft::default(), value);
        assert_eq!(take("thread", "1"), Ok(()));
        assert!(take("bwavgtime", "100").is_err() && take("thread", "2").is_err());
        assert!(take("clocksource", "sundial").expect_err("unknown").contains("one of"));
    }

    #[test]
    fn what_matters_through_the_page_cache_needs_direct() {
        let with = |direct: bool, target: &str| {
            let mut draft = Draft::default();
            draft.job.direct = direct;
            draft.job.filename = vec![target.to_owned()];
            find("fadvise_hint").expect("an option").take(&mut draft, "0").expect("taken");
            draft.finish().is_ok()
        };
        assert!(with(true, "/dev/x") && with(false, "soft:mem=1G") && !with(false, "/dev/x"));
    }
}
