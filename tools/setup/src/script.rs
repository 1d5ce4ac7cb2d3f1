//! A shell script for the user: `adit setup` prints it and changes nothing.
//!
//! The text runs as it is (`… | sudo sh`): files first, then commands. The commands that undo it are comments.

use std::fmt::Write;

use serde::Serialize;

use crate::failure::Result;
use crate::output;

/// Ends the content of a file in the text.
const END: &str = "END_OF_FILE";

/// The parts of a script, and the commands that undo it.
#[derive(Debug, Serialize)]
pub(crate) struct Script {
    /// Sentences: the effect first.
    pub(crate) notes: Vec<String>,
    /// Files that root writes.
    pub(crate) files: Vec<ScriptFile>,
    /// Commands that root runs afterwards.
    pub(crate) commands: Vec<String>,
    /// Commands that undo all of it.
    pub(crate) undo: Vec<String>,
}

/// A file of a [`Script`].
#[derive(Debug, Serialize)]
pub(crate) struct ScriptFile {
    pub(crate) path: &'static str,
    pub(crate) content: String,
}

impl Script {
    /// Prints the script, or its parts as JSON.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        output::report(json, || self, || self.text())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut add = |line: std::fmt::Arguments| {
            writeln!(text, "{line}").expect("a string takes everything");
        };
        self.notes.iter().for_each(|note| add(format_args!("# {note}")));
        for ScriptFile { path, content } in &self.files {
            add(format_args!("cat > {path} <<'{END}'\n{content}{END}"));
        }
        self.commands.iter().for_each(|command| add(format_args!("{command}")));
        add(format_args!("# These lines undo it:"));
        self.undo.iter().for_each(|command| add(format_args!("#   {command}")));
        text
    }
}
