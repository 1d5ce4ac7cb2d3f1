//! The options of a job: names, help and meaning, said once for job files, command lines, help and completions.

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
    /// fio's other names for it.
    pub(crate) aliases: &'static [&'static str],
    /// What its value is called in the help.
    pub(crate) value: &'static str,
    /// What it does, in one line, for people.
    pub(crate) help: &'static str,
    /// Whether it may stand without a value.
    pub(crate) kind: Kind,
    /// Under which heading it is listed.
    pub(crate) group: Group,
    /// Takes its value; a sentence without the option's name if it cannot.
    pub(crate) set: fn(&mut Draft, &str) -> Parsed<()>,
}

/// Whether an option may stand without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No.
    Value,
    /// It has a value of its own without one, which on a command line follows only by `=`.
    Optional,
    /// On or off; fio wants a value, here it is on without one.
    Bool,
    /// On or off; on without a value, which on a command line follows only by `=`.
    Switch,
}

/// A heading of the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Where.
    Place,
    /// Which I/Os.
    Work,
    /// How much.
    Amount,
    /// How many at a time.
    Depth,
    /// When.
    Timing,
    /// What is written.
    Data,
    /// What is reported.
    Telling,
}

impl Group {
    /// All of them, in the order of the help.
    pub(crate) const ALL: [Group; 7] = [
        Group::Place,
        Group::Work,
        Group::Amount,
        Group::Depth,
        Group::Timing,
        Group::Data,
        Group::Telling,
    ];

    /// The heading.
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
    /// Whether it may stand without a value.
    pub(crate) fn is_switch(&self) -> bool {
        matches!(self.kind, Kind::Bool | Kind::Switch)
    }
}

/// All options, by group.
pub(crate) fn options() -> impl Iterator<Item = &'static OptionSpec> {
    Group::ALL.into_iter().flat_map(Group::options)
}

/// The option of a name or alias.
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
