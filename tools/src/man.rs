//! `adit man`: manual pages, one for each command, generated from the help's description.
//!
//! Text after the options in the help goes where a manual page has it: prose becomes part of the description, a
//! line that ends in a colon starts a section, and a section's lines (examples) stay as they are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::failure::{Failure, Result};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  adit man | man -l -
  sudo adit man --output /usr/local/share/man/man1";

/// Prints the manual page, or writes one for each command
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// Writes adit.1, adit-setup.1, adit-setup-bind.1, … into DIR, which is created if necessary
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Runs the command; `command` describes all of adit.
///
/// # Errors
/// When a page cannot be written.
pub(crate) fn run(args: &ManArgs, mut command: Command) -> Result<()> {
    // Commands know their full names only after this.
    command.build();
    let Some(directory) = &args.output else {
        return Output::Standard.write(&page(&command, None).1);
    };
    let created = fs::create_dir_all(directory);
    created.map_err(|why| Failure::failed(format!("{}: {why}", directory.display())))?;
    write_all(&command, None, directory)
}

/// Writes the pages of the command and of its subcommands.
fn write_all(command: &Command, parent: Option<&str>, directory: &Path) -> Result<()> {
    let (file, text) = page(command, parent);
    Output::open(Some(&directory.join(&file)))?.write(&text)?;
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    below.into_iter().try_for_each(|below| write_all(below, Some(display_name(command)), directory))
}

fn display_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Returns the name and the text of a command's page; `parent` is the parent command.
fn page(command: &Command, parent: Option<&str>) -> (String, String) {
    let man = Man::new(command.clone())
        .source(format!("adit {}", env!("CARGO_PKG_VERSION")))
        .manual("Adit");
    let mut text = Vec::new();
    render(&man, command, parent, &mut text).expect("memory takes everything");
    (man.get_filename(), defined_once(&String::from_utf8_lossy(&text)))
}

/// Removes repeated definitions of the apostrophe, with which each part begins.
fn defined_once(text: &str) -> String {
    let (head, rest) = text.split_at(text.find(".TH").unwrap_or(0));
    format!("{head}{}", rest.replace(head, ""))
}

fn render(
    man: &Man,
    command: &Command,
    parent: Option<&str>,
    text: &mut Vec<u8>,
) -> io::Result<()> {
    man.render_title(text)?;
    man.render_name_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_description_section(text)?;
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (prose, sections) = parts(&after);
    paragraphs(&prose).to_writer(text)?;
    man.render_options_section(text)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(text)?;
    }
    for (title, lines) in sections {
        verbatim(title, &lines).to_writer(text)?;
    }
    parent.map_or(Ok(()), |parent| see_also(parent).to_writer(text))
}

/// Splits text into lines of prose, and sections with title and lines.
fn parts(after: &str) -> (Vec<&str>, Vec<(&str, Vec<&str>)>) {
    let mut prose = Vec::new();
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in after.lines() {
        match (line.strip_suffix(':').filter(|_| !line.starts_with(' ')), sections.last_mut()) {
            (Some(title), _) => sections.push((title, Vec::new())),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => prose.push(line),
        }
    }
    (prose, sections)
}

fn paragraphs(prose: &[&str]) -> Roff {
    let mut roff = Roff::new();
    for paragraph in prose.split(|line| line.is_empty()).filter(|lines| !lines.is_empty()) {
        roff.control("PP", []);
        roff.text([roman(paragraph.join(" "))]);
    }
    roff
}

fn verbatim(title: &str, lines: &[&str]) -> Roff {
    let title = if title == "Example" { "Examples" } else { title };
    let mut roff = Roff::new();
    roff.control("SH", [title.to_uppercase().as_str()]);
    roff.control("nf", []);
    let end = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    for line in &lines[..end] {
        roff.text([roman(*line)]);
    }
    roff.control("fi", []);
    roff
}

fn see_also(parent: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(format!("{parent}(1)"))]);
    roff
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn prose_and_sections_are_told_apart() {
        let (prose, sections) =
            parts("One\ntwo.\n\nThree: four.\n\nExamples:\n  a:\n    b\n\nOther:\n  c");
        assert_eq!(prose, ["One", "two.", "", "Three: four.", ""]);
        assert_eq!(sections, [("Examples", vec!["  a:", "    b", ""]), ("Other", vec!["  c"])]);
        assert_eq!(parts(""), (vec![], vec![]));
    }

    #[test]
    fn every_command_has_a_page_with_its_options_and_examples() {
        fn look(command: &Command, parent: Option<&str>, seen: &mut Vec<String>) {
            let (file, text) = page(command, parent);
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES"] {
                assert!(text.contains(&format!(".SH {section}\n")), "{file}: no {section}");
            }
            assert_eq!(text.matches(".ds Aq '").count(), 1, "{file}");
            seen.push(file);
            for below in command.get_subcommands() {
                look(below, Some(display_name(command)), seen);
            }
        }
        let mut command = Cli::command();
        command.build();
        let mut seen = Vec::new();
        look(&command, None, &mut seen);
        for file in ["adit.1", "adit-setup.1", "adit-setup-bind.1", "adit-man.1"] {
            assert!(seen.iter().any(|one| one == file), "{file} is not among {seen:?}");
        }
    }

    #[test]
    fn examples_stay_lines_and_nothing_of_them_is_a_request() {
        let text = verbatim("Example", &["  a", ".b", "'c \\d", ""]).to_roff();
        assert_eq!(text, ".SH EXAMPLES\n.nf\n  a\n\\&.b\n\\&'c \\\\d\n.fi\n");
        assert!(see_also("adit").to_roff().contains("adit(1)"));
    }
}
