//! One run of a command that changes the machine: each change told, then done.
//!
//! [`run`] is the frame of every such command: rights, the lock against a second one, Ctrl-C, and the report at the end.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use super::args::ChangeArgs;
use super::change::{Change, Claim, Hands};
use super::lock::Lock;
use super::machine::Machine;
use super::root::Root;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Output;

/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// Changes in the order in which they are made.
pub(crate) struct Operation<'a> {
    /// The machine as it is now.
    pub(crate) root: &'a Root,
    hands: &'a mut dyn Hands,
    interrupted: &'a dyn Fn() -> bool,
    dry_run: bool,
    json: bool,
    changes: Vec<Change>,
    notes: Vec<String>,
}

/// Carries out `body` on this machine, and reports: sentences and changes as they come, or one JSON object at the end.
///
/// # Errors
/// What `body` returns, and before it: no root, a recorded machine, another `adit setup` at work.
pub(crate) fn run<T: Serialize>(
    root: &Root,
    change: ChangeArgs,
    json: bool,
    body: impl FnOnce(&mut Operation) -> Result<T>,
) -> Result<()> {
    let _lock = if change.dry_run { None } else { Some(admit(root)?) };
    let interrupt = Interrupt::install()?;
    let interrupted = || interrupt.requested();
    let mut hands = Machine;
    let mut operation = Operation::new(root, &mut hands, &interrupted, change.dry_run, json);
    let result = body(&mut operation);
    operation.report(result)
}

/// Whether changes may be made at all; the lock is held for as long as they are.
fn admit(root: &Root) -> Result<Lock> {
    if !root.is_live() {
        return Err(Failure::usage("a recorded machine cannot be changed; add --dry-run"));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::failed(
            "this takes root: run it with sudo, or add --dry-run to see what it would do",
        ));
    }
    Lock::take(root)
}

impl<'a> Operation<'a> {
    /// An operation by `hands`; `interrupted` says whether the person has asked to end.
    pub(crate) fn new(
        root: &'a Root,
        hands: &'a mut dyn Hands,
        interrupted: &'a dyn Fn() -> bool,
        dry_run: bool,
        json: bool,
    ) -> Operation<'a> {
        Operation {
            root,
            hands,
            interrupted,
            dry_run,
            json,
            changes: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Whether nothing is really done.
    pub(crate) fn is_dry(&self) -> bool {
        self.dry_run
    }

    /// Tells the change, and makes it.
    ///
    /// # Errors
    /// What was attempted, the system's reason, and what to do next where that is known.
    pub(crate) fn change(&mut self, change: Change) -> Result<()> {
        self.tell(&change)?;
        if !self.dry_run {
            self.hands.apply(&change).map_err(|why| explain(&change, &why))?;
        }
        self.changes.push(change);
        Ok(())
    }

    fn tell(&self, change: &Change) -> Result<()> {
        let prefix = if self.dry_run { "would " } else { "" };
        let mut text = format!("{prefix}{change}\n");
        if let Change::File { content, .. } = change {
            text.extend(content.lines().map(|line| format!("    {line}\n")));
        }
        self.print(&text)
    }

    /// A sentence for the person.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn say(&mut self, sentence: impl Display) -> Result<()> {
        let sentence = sentence.to_string();
        self.print(&format!("{sentence}\n"))?;
        self.notes.push(sentence);
        Ok(())
    }

    fn print(&self, text: &str) -> Result<()> {
        if self.json { Ok(()) } else { Output::Standard.write(text) }
    }

    /// Claims a block device; see [`Hands::claim`]. Also when nothing is changed: it tells whether it could be.
    ///
    /// # Errors
    /// The system's own.
    pub(crate) fn claim(&mut self, device: &Path) -> io::Result<Claim> {
        self.hands.claim(device)
    }

    /// Whether the person has asked to end.
    pub(crate) fn is_interrupted(&self) -> bool {
        (self.interrupted)()
    }

    /// Waits until `done`, for a bounded time; says whether it came to be. Nothing is waited for in a dry run.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&Root) -> bool,
    ) -> bool {
        let mut line = crate::setup::progress::Line::new(what);
        let mut waited = Duration::ZERO;
        while !self.dry_run && !done(self.root) {
            if waited >= limit {
                return false;
            }
            let begun = Instant::now();
            self.hands.pause(LOOK);
            waited += LOOK.max(begun.elapsed());
            line.show(waited);
        }
        true
    }

    /// Ends the operation: with JSON, one object that also tells of a failure.
    fn report<T: Serialize>(self, result: Result<T>) -> Result<()> {
        if self.json {
            let (outcome, error) = match &result {
                Ok(outcome) => (Some(outcome), None),
                Err(failure) => (None, Some(failure.to_string())),
            };
            let object = json!({
                "dry_run": self.dry_run,
                "changes": self.changes,
                "notes": self.notes,
                "result": outcome,
                "error": error,
            });
            let text = serde_json::to_string_pretty(&object).map_err(Failure::failed)?;
            Output::Standard.write(&(text + "\n"))?;
        }
        result.map(drop)
    }
}

/// What a refusal means, and what to do next.
fn explain(change: &Change, why: &io::Error) -> Failure {
    let next = match why.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "; it is mounted read only: in a container, run this on the host"
        }
        io::ErrorKind::PermissionDenied => {
            "; root's rights are not enough here: in a container, run this on the host or privileged"
        }
        io::ErrorKind::StorageFull => "; make room on that file system",
        io::ErrorKind::NotFound if matches!(change, Change::Run { .. }) => {
            "; install the package that brings it"
        }
        _ => "",
    };
    Failure::failed(format!("cannot do '{change}': {why}{next}"))
}
