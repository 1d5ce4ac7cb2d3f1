//! The table of job options: names, help text and setter, defined once for job files, command line, help and
//! completions.

mod amount;
mod data;
mod depth;
mod place;
mod telling;
mod timing;
mod work;

use super::draft::Draft;
use super::grammar::Parsed;

/// One option of a job.
#[derive(Debug)]
pub(crate) struct OptionSpec {
    /// fio's name.
    pub(crate) name: &'static str,
    /// fio's aliases.
    pub(crate) aliases: &'static [&'static str],
    /// The name of its value in the help.
    pub(crate) value: &'static str,
    /// One line of help.
    pub(crate) help: &'static str,
    /// Whether the value may be omitted.
    pub(crate) kind: Kind,
    /// The help heading it is listed under.
    pub(crate) group: Group,
    /// Parses and stores its value; returns a sentence without the option's name if it is invalid.
    pub(crate) set: fn(&mut Draft, &str) -> Parsed<()>,
}

/// Whether an option's value may be omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Required.
    Value,
    /// Optional, with a default; a command line attaches the value with `=`.
    Optional,
    /// A switch; fio requires a value, here a missing one means on.
    Bool,
    /// A switch whose missing value means on; a command line attaches the value with `=`.
    Switch,
}

/// A heading of the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Place,
    /// Kind of I/O.
    Work,
    Amount,
    /// Concurrency.
    Depth,
    Timing,
    Data,
    /// Reporting.
    Telling,
}

impl Group {
    /// All groups, in help order.
    pub(crate) const ALL: [Group; 7] = [
        Group::Place,
        Group::Work,
        Group::Amount,
        Group::Depth,
        Group::Timing,
        Group::Data,
        Group::Telling,
    ];

    /// Returns the heading text.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Group::Place => "Job: where",
            Group::Work => "Job: which I/Os",
            Group::Amount => "Job: how much",
            Group::Depth => "Job: how many at a time",
            Group::Timing => "Job: when and how fast",
            Group::Data => "Job: data, verification and failures",
            Group::Telling => "Job: what is reported",
        }
    }

    fn options(self) -> &'static [OptionSpec] {
        match self {
            Group::Place => place::OPTIONS,
            Group::Work => work::OPTIONS,
            Group::Amount => amount::OPTIONS,
            Group::Depth => depth::OPTIONS,
            Group::Timing => timing::OPTIONS,
            Group::Data => data::OPTIONS,
            Group::Telling => telling::OPTIONS,
        }
    }
}

impl OptionSpec {
    /// Returns whether the option is a switch.
    pub(crate) fn is_switch(&self) -> bool {
        matches!(self.kind, Kind::Bool | Kind::Switch)
    }
}

/// Returns all options, by group.
pub(crate) fn options() -> impl Iterator<Item = &'static OptionSpec> {
    Group::ALL.into_iter().flat_map(Group::options)
}

/// Finds an option by name or alias.
pub(crate) fn find(name: &str) -> Option<&'static OptionSpec> {
    options().find(|spec| spec.name == name || spec.aliases.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_is_given_twice() {
        let mut seen = BTreeSet::new();
        for spec in options() {
            for name in std::iter::once(&spec.name).chain(spec.aliases) {
                assert!(seen.insert(*name), "{name}");
            }
        }
        assert!(seen.len() > 100, "{}", seen.len());
    }

    #[test]
    fn each_group_lists_its_own() {
        for group in Group::ALL {
            assert!(group.options().iter().all(|spec| spec.group == group), "{group:?}");
        }
    }

    #[test]
    fn help_is_one_line_and_switches_have_no_other_value() {
        for spec in options() {
            assert!(
                !spec.help.is_empty() && !spec.help.contains('\n') && !spec.help.ends_with('.'),
                "{}",
                spec.name
            );
            assert_eq!(spec.is_switch(), spec.value == "0|1", "{}", spec.name);
        }
    }

    #[test]
    fn no_option_takes_nonsense_without_a_word() {
        let free = ["name", "description", "filename", "directory", "filename_format", "wait_for"];
        for spec in
            options().filter(|spec| !free.contains(&spec.name) && !spec.name.starts_with("write_"))
        {
            assert!((spec.set)(&mut Draft::default(), "no%sense").is_err(), "{}", spec.name);
        }
    }
}
