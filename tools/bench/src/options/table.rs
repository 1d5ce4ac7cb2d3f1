//! The supported job options: names and help text, defined once for job files, command line, help and completions.

use std::sync::LazyLock;

use super::grammar::nearest;
use super::rows::rows;

/// One option of a job.
#[derive(Debug)]
pub(crate) struct OptionSpec {
    /// fio's name.
    pub(crate) name: &'static str,
    /// fio's aliases.
    pub(crate) aliases: Vec<&'static str>,
    /// The name of its value in the help.
    pub(crate) value: &'static str,
    /// One line of help.
    pub(crate) help: &'static str,
    /// Whether the value may be omitted.
    pub(crate) kind: ValueKind,
    /// fio's default; empty for none.
    pub(crate) default: &'static str,
    /// The help heading it is listed under.
    pub(crate) heading: &'static str,
}

/// Whether an option's value may be omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// Required.
    Value,
    /// Optional, with a default; a command line attaches the value with `=`.
    Optional,
    /// A switch; fio requires a value, here a missing one means on.
    Bool,
    /// A switch whose missing value means on; a command line attaches the value with `=`.
    Switch,
}

static OPTIONS: LazyLock<Vec<OptionSpec>> =
    LazyLock::new(|| rows(include_str!("supported.txt")).map(spec).collect());

fn spec((heading, [names, value, help, default]): (&'static str, [&'static str; 4])) -> OptionSpec {
    let mut names = names.split(' ');
    let kind = match value {
        "0|1" => ValueKind::Bool,
        "=0|1" => ValueKind::Switch,
        _ if value.starts_with('=') => ValueKind::Optional,
        _ => ValueKind::Value,
    };
    OptionSpec {
        name: names.next().unwrap_or_default(),
        aliases: names.collect(),
        value: value.trim_start_matches('='),
        help,
        kind,
        default,
        heading,
    }
}

impl OptionSpec {
    /// Returns whether the option is a switch.
    pub(crate) fn is_switch(&self) -> bool {
        matches!(self.kind, ValueKind::Bool | ValueKind::Switch)
    }
}

/// Returns all options, in the order of the help.
pub(crate) fn options() -> impl Iterator<Item = &'static OptionSpec> {
    OPTIONS.iter()
}

/// Finds an option by name or alias.
pub(crate) fn find(name: &str) -> Option<&'static OptionSpec> {
    options().find(|spec| spec.name == name || spec.aliases.contains(&name))
}

/// Returns the message for an unknown option.
pub(crate) fn unknown(name: &str) -> String {
    unknown_beside(name, std::iter::empty())
}

/// Returns the message for an unknown option where other names also exist.
pub(crate) fn unknown_beside<'a>(name: &str, others: impl Iterator<Item = &'a str>) -> String {
    let names =
        options().flat_map(|spec| std::iter::once(&spec.name).chain(&spec.aliases).copied());
    match nearest(name, names.chain(others)) {
        Some(meant) => format!("there is no such option; did you mean '{meant}'?"),
        None => "there is no such option; 'adit bench --help' lists them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::draft::Draft;
    use super::super::set::set;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_is_given_twice() {
        let mut seen = BTreeSet::new();
        for spec in options() {
            for name in std::iter::once(&spec.name).chain(&spec.aliases) {
                assert!(seen.insert(*name), "{name}");
            }
        }
        assert!(seen.len() > 100, "{}", seen.len());
    }

    #[test]
    fn each_row_is_whole() {
        for spec in options() {
            assert!(!spec.help.is_empty() && !spec.help.ends_with('.'), "{}", spec.name);
            assert_eq!(spec.is_switch(), spec.value == "0|1", "{}", spec.name);
            assert!(spec.heading.starts_with("Job: "), "{}", spec.name);
        }
    }

    #[test]
    fn each_option_can_be_set_and_none_takes_nonsense_silently() {
        let free = ["name", "description", "filename", "directory", "filename_format", "wait_for"];
        for spec in options() {
            let name = spec.name;
            let is_free = free.contains(&name)
                || name.starts_with("write_")
                || ["read_iolog", "replay_redirect"].contains(&name);
            let taken = set(&mut Draft::new(), name, "no%sense");
            assert_eq!(taken.is_ok(), is_free, "{name}: {taken:?}");
        }
    }
}
