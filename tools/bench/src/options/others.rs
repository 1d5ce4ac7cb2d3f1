//! fio's options that Adit does not support: accepted without effect, accepted with a warning, or refused.

use std::sync::LazyLock;

use super::draft::Draft;
use super::grammar::{Parsed, switch, whole};
use super::rows::rows;
use super::table::ValueKind;

/// Options of fio with the same treatment for the same reason.
#[derive(Debug)]
pub(crate) struct Other {
    pub(crate) names: Vec<&'static str>,
    pub(crate) treatment: Treatment,
    /// The accepted values, or the ones without a warning.
    pub(crate) values: &'static str,
    /// Why it has no effect; for absent options, what to use instead.
    pub(crate) reason: &'static str,
    /// What to do if the value is refused.
    pub(crate) instead: &'static str,
}

/// The response to an option that is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Accepted so that job files run unchanged. Values that would have an effect are refused.
    WithoutEffect,
    /// Accepted with a warning: it affects other processes or tracing, not which I/Os run.
    WithWarning,
    /// Refused, unless its value switches it off.
    Absent,
    /// An option of the command line that is not a job option; refused.
    AbsentForRun,
}

use Treatment::{Absent, AbsentForRun, WithWarning, WithoutEffect};

/// Any number is accepted.
const NUMBER: &str = "any number";
/// The option is a switch.
const SWITCH: &str = "0, 1";

static OTHERS: LazyLock<Vec<Other>> =
    LazyLock::new(|| rows(include_str!("others.txt")).map(other).collect());

fn other((heading, [names, values, reason, instead]): (&str, [&'static str; 4])) -> Other {
    let treatment = match heading {
        "without effect" => WithoutEffect,
        "with a warning" => WithWarning,
        "absent" => Absent,
        _ => AbsentForRun,
    };
    let values = if values == "-" { "" } else { values };
    Other { names: names.split(' ').collect(), treatment, values, reason, instead }
}

/// Returns all such options.
pub(crate) fn all() -> impl Iterator<Item = &'static Other> {
    OTHERS.iter()
}

/// Finds an option by name.
pub(crate) fn find(name: &str) -> Option<&'static Other> {
    all().find(|other| other.names.contains(&name))
}

impl Other {
    /// Returns whether a command line may omit the value.
    pub(crate) fn kind(&self) -> ValueKind {
        match self.treatment {
            WithoutEffect if self.values == SWITCH => ValueKind::Switch,
            WithWarning if self.lists("0") => ValueKind::Bool,
            WithoutEffect | WithWarning => ValueKind::Value,
            Absent | AbsentForRun => ValueKind::Optional,
        }
    }

    /// Returns the treatment in words, if the option is accepted.
    pub(crate) fn explained(&self) -> Option<String> {
        match self.treatment {
            WithoutEffect => Some(format!("No effect: {}", self.reason)),
            WithWarning => Some(format!("Ignored with a warning: {}", self.reason)),
            Absent | AbsentForRun => None,
        }
    }

    /// Returns the message that refuses an absent option.
    pub(crate) fn refusal(&self) -> String {
        format!("fio has this option, adit does not: {}", self.reason)
    }

    fn lists(&self, text: &str) -> bool {
        !text.is_empty() && self.values.split(", ").any(|value| value == text)
    }

    /// Accepts a value, and records a warning if it is ignored.
    ///
    /// # Errors
    /// A sentence without the option's name, if the value would have an effect.
    pub(crate) fn take(&self, draft: &mut Draft, name: &str, value: Option<&str>) -> Parsed<()> {
        let text = value.unwrap_or("1");
        let name = self.names.iter().copied().find(|known| *known == name).unwrap_or_default();
        match (self.treatment, self.values) {
            (WithWarning, _) => {
                draft.job.unheeded.retain(|(known, _)| *known != name);
                if !self.lists(text) {
                    draft.job.unheeded.push((name, self.reason));
                }
                Ok(())
            }
            (WithoutEffect, SWITCH) => switch(text).map(drop),
            (WithoutEffect, NUMBER) => whole(text, draft.kb_base).map(drop),
            _ if self.lists(text) => Ok(()),
            (WithoutEffect, values) if self.instead.is_empty() => {
                Err(format!("there is no '{text}'; it is one of {values}"))
            }
            (WithoutEffect, _) => Err(format!("'{text}' is not supported; {}", self.instead)),
            (Absent | AbsentForRun, _) => Err(self.refusal()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    /// All options of fio 3.33 and of its engines libaio, io_uring and io_uring_cmd, and those that fio 3.41 and
    /// the other engines taken here add.
    const OF_FIO: &str =
        concat!(include_str!("fio-3.33-options.txt"), include_str!("fio-3.41-options.txt"));

    fn take(name: &str, value: &str) -> Parsed<()> {
        find(name).expect(name).take(&mut Draft::new(), name, Some(value))
    }

    #[test]
    fn each_option_of_fio_is_supported_or_listed_here_once() {
        for name in OF_FIO.split_whitespace().map(|name| name.replace('-', "_")) {
            let listed = all().filter(|other| other.names.contains(&&*name)).count();
            assert_eq!(listed + usize::from(table::find(&name).is_some()), 1, "{name}");
        }
        assert!(OF_FIO.split_whitespace().count() > 200);
    }

    #[test]
    fn each_row_is_whole() {
        for other in all() {
            assert!(!other.reason.is_empty() && !other.reason.ends_with('.'), "{other:?}");
            let is_absent = matches!(other.treatment, Absent | AbsentForRun);
            assert!(!is_absent || other.reason.len() > 10 && other.instead.is_empty(), "{other:?}");
        }
        for treatment in [WithoutEffect, WithWarning, Absent, AbsentForRun] {
            assert!(all().any(|other| other.treatment == treatment), "{treatment:?}");
        }
    }

    #[test]
    fn an_absent_option_that_is_switched_off_is_taken() {
        assert_eq!(take("atomic", "0"), Ok(()));
        assert!(take("atomic", "1").is_err() && take("uid", "0").is_err());
        assert!(find("atomic").expect("a row").take(&mut Draft::new(), "atomic", None).is_err());
    }

    #[test]
    fn a_value_that_would_matter_is_refused() {
        assert_eq!(take("thread", "1"), Ok(()));
        assert!(take("bwavgtime", "100").is_err() && take("thread", "2").is_err());
        assert!(take("clocksource", "sundial").expect_err("unknown").contains("one of"));
    }

    #[test]
    fn a_steady_state_that_runtime_leaves_no_time_for_is_a_warning() {
        let warned = |options: &str| {
            let section = crate::options::Section::of(options).expect("taken");
            section.job.unheeded.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        };
        let job = "filename=null: steadystate=iops:1% steadystate_duration=20";
        assert_eq!(warned(&format!("{job} runtime=19")), ["steadystate"]);
        assert_eq!(warned(&format!("{job} steadystate_ramp_time=5 runtime=24")), ["steadystate"]);
        assert_eq!(warned(&format!("{job} steadystate_ramp_time=5 runtime=25")), [""; 0]);
        assert_eq!(warned(job), [""; 0]);
    }

    #[test]
    fn the_last_value_decides_whether_there_is_a_warning() {
        let mut draft = Draft::new();
        let nice = find("nice").expect("an option");
        let mut names = |text: &str| {
            nice.take(&mut draft, "nice", Some(text)).expect("taken");
            draft.job.unheeded.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        };
        assert_eq!(names("5"), ["nice"]);
        assert_eq!(names("7"), ["nice"]);
        assert!(names("0").is_empty());
    }
}
