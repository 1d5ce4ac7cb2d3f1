//! Options as written, and the jobs they resolve to.

use std::fmt;

use super::draft::Draft;
use super::grammar::Parsed;
use super::job::Section;
use super::others;
use super::table::{self, ValueKind, unknown};
use crate::failure::{Failure, Result};

/// Where an option is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextPlace {
    /// On the command line.
    CommandLine,
    /// In a job file.
    File {
        /// The file name as given.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column, from 1, in characters.
        column: usize,
    },
}

impl fmt::Display for TextPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextPlace::CommandLine => f.write_str("command line"),
            TextPlace::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
        }
    }
}

impl TextPlace {
    /// Returns a usage failure for this place.
    pub(crate) fn refuse(&self, why: impl fmt::Display) -> Failure {
        match self {
            TextPlace::CommandLine => Failure::usage(why),
            TextPlace::File { .. } => Failure::usage(format!("{self}: {why}")),
        }
    }
}

/// An option as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its name without leading dashes.
    pub(crate) name: String,
    /// Its value, expanded; `None` if it has none.
    pub(crate) value: Option<String>,
    /// Where.
    pub(crate) place: TextPlace,
}

/// A section of a job file, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenSection {
    /// Its name; `None` for defaults of the sections after it.
    pub(crate) name: Option<String>,
    /// Where it starts.
    pub(crate) place: TextPlace,
    /// Its options in order.
    pub(crate) options: Vec<Written>,
}

impl Written {
    /// Returns fio's name of the option and its value, as the JSON lists them.
    fn listed(&self) -> (String, String) {
        let value = self.value.clone();
        (
            canonical(&self.name),
            value.unwrap_or_else(|| if is_switch(&self.name) { "1" } else { "" }.to_owned()),
        )
    }

    /// Applies it to the job.
    ///
    /// # Errors
    /// When there is no such option, or its value is invalid.
    pub(crate) fn set(&self, draft: &mut Draft) -> Result<()> {
        let (name, _) = self.listed();
        let shown = match self.place {
            TextPlace::CommandLine => format!("--{}", self.name),
            TextPlace::File { .. } => self.name.clone(),
        };
        set(draft, &name, self.value.as_deref())
            .map_err(|why| self.place.refuse(format!("{shown}: {why}")))
    }
}

/// Returns fio's spelling of the name, with underscores and with aliases resolved.
pub(crate) fn canonical(name: &str) -> String {
    let underlined = name.replace('-', "_");
    table::find(&underlined).map_or(underlined, |spec| spec.name.to_owned())
}

fn is_switch(name: &str) -> bool {
    let name = canonical(name);
    others::find(&name).is_some_and(|other| other.kind() == ValueKind::Switch)
        || table::find(&name).is_some_and(|spec| spec.is_switch())
}

/// Applies an option by name; `None` is no value.
///
/// # Errors
/// A sentence without the option's name.
pub(crate) fn set(draft: &mut Draft, name: &str, value: Option<&str>) -> Parsed<()> {
    if let Some(spec) = table::find(name) {
        let value = match (value, spec.kind) {
            (Some(value), ValueKind::Optional) => value,
            (Some(""), _) | (None, ValueKind::Value) => {
                return Err(format!("it needs a value, as in {name}={}", spec.value));
            }
            (Some(value), _) => value,
            (None, ValueKind::Optional) => "",
            (None, _) => "1",
        };
        return super::set::set(draft, spec.name, value);
    }
    others::find(name).ok_or_else(|| unknown(name))?.take(draft, name, value)
}

impl Section {
    /// Returns the section with another value for one option, which its listed options show too.
    ///
    /// # Errors
    /// A sentence that names the option, if the value is invalid or contradicts another option.
    pub(crate) fn with(&self, name: &str, value: &str) -> Parsed<Section> {
        let name = canonical(name);
        let mut draft = Draft::from(self.job.clone());
        set(&mut draft, &name, Some(value)).map_err(|why| format!("{name}: {why}"))?;
        let refused = |why| format!("job '{}' with {name}={value}: {why}", self.job.name);
        let job = draft.finish().map_err(refused)?;
        let mut given = self.given.clone();
        match given.iter_mut().find(|(given, _)| *given == name) {
            Some((_, old)) => value.clone_into(old),
            None => given.push((name, value.to_owned())),
        }
        Ok(Section { job, given })
    }
}

/// Resolves the jobs of one file or command line; `defaults` come before all of them.
///
/// # Errors
/// When an option is invalid, or options contradict each other.
pub fn sections(defaults: &[Written], written: &[WrittenSection]) -> Result<Vec<Section>> {
    let mut global: Vec<&Written> = defaults.iter().collect();
    let mut sections = Vec::new();
    for section in written {
        match &section.name {
            None => global.extend(&section.options),
            Some(name) => sections.push(job(name, &global, section)?),
        }
    }
    // Defaults that precede no job are checked too.
    global.iter().try_for_each(|option| option.set(&mut Draft::new()))?;
    Ok(sections)
}

/// Resolves one job from its own options and the ones before it.
fn job(name: &str, global: &[&Written], section: &WrittenSection) -> Result<Section> {
    let mut draft = Draft::new();
    draft.job.name = name.to_owned();
    let all = || global.iter().copied().chain(&section.options);
    // The meaning of k must be known before sizes are parsed. An unsupported engine must be reported before its
    // options are.
    for early in ["kb_base", "ioengine"] {
        all()
            .filter(|option| option.listed().0 == early)
            .try_for_each(|option| option.set(&mut draft))?;
    }
    all()
        .filter(|option| option.listed().0 != "kb_base")
        .try_for_each(|option| option.set(&mut draft))?;
    let job = draft.finish().map_err(|why| section.place.refuse(format!("job '{name}': {why}")))?;
    // As in fio, the name is listed if it was given as an option.
    let is_option = section.place == TextPlace::CommandLine;
    let named = (is_option && !section.options.iter().any(|option| option.name == "name"))
        .then(|| ("name".to_owned(), name.to_owned()));
    let given = named.into_iter().chain(section.options.iter().map(Written::listed)).collect();
    Ok(Section { job, given })
}

/// Returns the options of `[global]` sections as the JSON lists them; the last of a repeated option counts.
pub(crate) fn global(defaults: &[Written], written: &[WrittenSection]) -> Vec<(String, String)> {
    let sections = written.iter().filter(|section| section.name.is_none());
    let mut listed: Vec<(String, String)> = Vec::new();
    for option in defaults.iter().chain(sections.flat_map(|section| &section.options)) {
        let (name, value) = option.listed();
        listed.retain(|(before, _)| *before != name);
        listed.push((name, value));
    }
    listed
}

/// Returns the words of a command line for the same jobs; each job includes its defaults.
pub fn words(defaults: &[Written], written: &[WrittenSection]) -> Vec<Vec<String>> {
    let mut global: Vec<&Written> = defaults.iter().collect();
    let mut jobs = Vec::new();
    for section in written {
        match &section.name {
            None => global.extend(&section.options),
            Some(name) => {
                let options = global.iter().copied().chain(&section.options);
                // The last name among the options wins.
                let renamed = options.clone().rfind(|option| option.name == "name");
                let name = renamed.and_then(|option| option.value.as_ref()).unwrap_or(name);
                let mut job = vec![format!("--name={name}")];
                job.extend(options.filter(|option| option.name != "name").map(word));
                jobs.push(job);
            }
        }
    }
    jobs
}

fn word(option: &Written) -> String {
    let (name, value) = option.listed();
    // fio too accepts a switch with a value anywhere.
    if option.value.is_none() && value.is_empty() {
        format!("--{name}")
    } else {
        format!("--{name}={value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{AmountOptions, JobOptions};

    fn written(text: &str) -> Written {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        Written { name: name.to_owned(), value, place: TextPlace::CommandLine }
    }

    fn section(name: Option<&str>, options: &[&str]) -> WrittenSection {
        WrittenSection {
            name: name.map(str::to_owned),
            place: TextPlace::CommandLine,
            options: options.iter().map(|text| written(text)).collect(),
        }
    }

    #[test]
    fn defaults_apply_to_the_sections_after_them() {
        let all = [
            section(Some("a"), &["bs=8k"]),
            section(None, &["rw=randread"]),
            section(Some("b"), &[]),
            section(None, &["rw=write"]),
            section(Some("c"), &["iodepth=4"]),
        ];
        let jobs = sections(&[written("iodepth=2")], &all).expect("jobs");
        let seen: Vec<_> = jobs
            .iter()
            .map(|s| (&*s.job.name, s.job.rw.random, s.job.rw.writes, s.job.iodepth))
            .collect();
        assert_eq!(seen, [("a", false, false, 2), ("b", true, false, 2), ("c", false, true, 4)]);
        let given = [("name".to_owned(), "a".to_owned()), ("bs".to_owned(), "8k".to_owned())];
        assert_eq!(jobs[0].given, given);
    }

    #[test]
    fn the_meaning_of_k_does_not_depend_on_the_order() {
        let jobs = sections(&[], &[section(Some("a"), &["bs=4k", "kb_base=1000", "size=8ki"])])
            .expect("jobs");
        assert_eq!(
            (jobs[0].job.bs.0[0].max(), jobs[0].job.amount.size),
            (4000, Some(crate::units::Size::Bytes(8192)))
        );
    }

    #[test]
    fn fios_options_and_unknown_ones_are_told_apart() {
        let refusal =
            |text: &str| written(text).set(&mut Draft::new()).expect_err(text).to_string();
        assert_eq!(
            refusal("bs_unaligned").split(':').nth(1),
            Some(" fio has this option, adit does not")
        );
        assert!(
            refusal("iodetph=4").contains("did you mean 'iodepth'?"),
            "{}",
            refusal("iodetph=4")
        );
        assert!(refusal("quux").contains("adit bench --help"));
        assert!(refusal("bs").contains("as in bs=SIZES"));
        assert!(refusal("rw=").contains("needs a value"));
    }

    #[test]
    fn a_switch_is_listed_as_fio_does() {
        assert_eq!(written("wait_for_previous").listed(), ("stonewall".to_owned(), "1".to_owned()));
        assert_eq!(
            written("group-reporting=0").listed(),
            ("group_reporting".to_owned(), "0".to_owned())
        );
    }

    #[test]
    fn of_defaults_that_are_given_twice_the_last_is_listed() {
        let all = [section(None, &["bs=4k", "rw=read"]), section(None, &["blocksize=8k"])];
        let listed = global(&[], &all);
        assert_eq!(
            listed,
            [("rw".to_owned(), "read".to_owned()), ("bs".to_owned(), "8k".to_owned())]
        );
    }

    #[test]
    fn a_changed_option_changes_nothing_else() {
        let base = Section {
            job: Section::of("verify=md5").expect("a job").job,
            given: vec![("iodepth".to_owned(), "1".to_owned())],
        };
        let changed = base
            .with("iodepth", "8")
            .and_then(|section| section.with("io-limit", "1m"))
            .expect("a job");
        let expected = JobOptions {
            iodepth: 8,
            amount: AmountOptions {
                io_size: Some(crate::units::Size::Bytes(1 << 20)),
                ..base.job.amount
            },
            ..base.job
        };
        assert_eq!(changed.job, expected);
        let given =
            [("iodepth".to_owned(), "8".to_owned()), ("io_size".to_owned(), "1m".to_owned())];
        assert_eq!(changed.given, given);
    }

    #[test]
    fn what_contradicts_the_rest_is_refused() {
        let job = Section::of("iodepth_batch_complete_min=0").expect("a job");
        assert!(job.with("iodepth_low", "2").expect_err("too deep").contains("iodepth_low=2"));
        assert!(job.with("iodepth", "x").expect_err("no number").starts_with("iodepth: "));
    }
}
