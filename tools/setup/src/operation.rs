//! One run of a command that changes the machine: prints each change, then makes it.
//!
//! [`run`] surrounds every such command: it checks rights, takes the lock, handles Ctrl-C, and reports at the
//! end.

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
use super::record::STATE;
use crate::failure::{Failure, Result};
use crate::human::printable;
use crate::interrupt::Interrupt;
use crate::output::Output;
use adit_guard::root::Root;
use adit_tools_common::meter::WaitLine;

/// Polling interval of waits.
const LOOK: Duration = Duration::from_millis(50);

/// Makes changes in order.
pub(crate) struct Operation<'a> {
    /// The machine as it is now.
    pub(crate) root: &'a Root,
    hands: &'a mut dyn Hands,
    interrupted: &'a dyn Fn() -> bool,
    dry_run: bool,
    json: bool,
    /// Changes made or attempted, in order.
    changes: Vec<Change>,
    notes: Vec<String>,
    /// The kernel has not finished a write, so nothing more can be done to that device.
    stuck: bool,
    /// The first failure to print; it does not stop changes that were begun.
    untold: Option<Failure>,
}

/// Carries out `body` on this machine and reports: sentences and changes as they come, or one JSON object at
/// the end.
///
/// # Errors
/// The error of `body`, or one before it: no root, a recorded machine, another `adit setup` running.
pub(crate) fn run<T: Serialize>(
    root: &Root,
    change: ChangeArgs,
    json: bool,
    body: impl FnOnce(&mut Operation) -> Result<T>,
) -> Result<()> {
    let admitted = if change.dry_run { Ok(None) } else { admit(root).map(Some) };
    let interrupt = Interrupt::install()?;
    let interrupted = || interrupt.requested();
    let mut hands = Machine;
    let mut operation = Operation::new(root, &mut hands, &interrupted, change.dry_run, json);
    // The lock is held until the body ends.
    let result = admitted.and_then(|_lock| body(&mut operation));
    operation.report(result)
}

/// Returns a sentence for one reason, or a list for several.
pub(crate) fn refusal(reasons: &[String]) -> Failure {
    match reasons {
        [reason] => Failure::failed(reason),
        _ => Failure::list("nothing was changed:", reasons),
    }
}

/// Checks that changes are allowed, and takes the lock for them.
fn admit(root: &Root) -> Result<Lock> {
    if !root.is_live() {
        return Err(Failure::usage("a recorded machine cannot be changed; add --dry-run"));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::failed(
            "this needs root: run it with sudo, or add --dry-run to see what it would do",
        ));
    }
    Lock::take(root)
}

impl<'a> Operation<'a> {
    /// Creates an operation that uses `hands`; `interrupted` tells whether the user wants to stop.
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
            stuck: false,
            untold: None,
        }
    }

    pub(crate) fn is_dry(&self) -> bool {
        self.dry_run
    }

    /// Prints the change and makes it.
    ///
    /// # Errors
    /// The attempted change, the system's reason, and what to do next if known.
    pub(crate) fn change(&mut self, change: Change) -> Result<()> {
        self.tell(&change);
        // Includes failed changes, which may have had an effect.
        self.changes.push(change.clone());
        if self.dry_run {
            return Ok(());
        }
        let _line = WaitLine::begin(&change.to_string());
        self.hands.apply(&change).map_err(|why| {
            self.stuck |= why.kind() == io::ErrorKind::TimedOut;
            explain(&change, &why)
        })
    }

    /// Fails if the user has interrupted, so that nothing more begins.
    ///
    /// # Errors
    /// After an interrupt.
    pub(crate) fn heed(&self) -> Result<()> {
        if self.is_interrupted() { Err(Failure::stopped("interrupted")) } else { Ok(()) }
    }

    /// Makes a change on the way forward: none after an interrupt.
    ///
    /// # Errors
    /// As [`Operation::heed`] and [`Operation::change`].
    pub(crate) fn step(&mut self, change: Change) -> Result<()> {
        self.heed()?;
        self.change(change)
    }

    /// Makes the change unless it is a file that already has its content; returns whether it did.
    ///
    /// # Errors
    /// As [`Operation::change`].
    pub(crate) fn keep(&mut self, change: Change) -> Result<bool> {
        if let Change::File { path, content, .. } = &change
            && self.root.text(path).is_some_and(|text| text == content.trim())
        {
            return Ok(false);
        }
        self.change(change).map(|()| true)
    }

    /// Runs a program whose failure does no harm: `otherwise` says why, and is printed then.
    ///
    /// # Errors
    /// As [`Operation::say`].
    pub(crate) fn prompt(
        &mut self,
        program: &str,
        arguments: &[&str],
        otherwise: &str,
    ) -> Result<()> {
        match self.change(Change::run(program, arguments)) {
            Ok(()) => Ok(()),
            Err(why) => self.say(format!("{why}; {otherwise}")),
        }
    }

    fn tell(&mut self, change: &Change) {
        let prefix = if self.dry_run { "would " } else { "" };
        let mut text = format!("{prefix}{change}\n");
        // Our own state files are listed without their content, which is in the JSON.
        if let Change::File { path, content, .. } = change
            && !path.starts_with(STATE)
        {
            text.extend(content.lines().map(|line| format!("    {}\n", printable(line))));
        }
        self.print(&text);
    }

    /// Prints a sentence on one line.
    ///
    /// # Errors
    /// Never during changes: output failures are reported after all changes.
    pub(crate) fn say(&mut self, sentence: impl Display) -> Result<()> {
        let sentence = printable(&sentence.to_string());
        self.print(&format!("{sentence}\n"));
        self.notes.push(sentence);
        Ok(())
    }

    fn print(&mut self, text: &str) {
        if !self.json {
            let printed = Output::Standard.write(text);
            self.untold = self.untold.take().or(printed.err());
        }
    }

    /// Claims a block device; see [`Hands::claim`]. A dry run on this machine claims too, if it has the rights,
    /// to find out whether it would succeed.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn claim(&mut self, device: &Path) -> io::Result<Claim> {
        if self.dry_run && !self.root.is_live() {
            return Ok(Claim(None));
        }
        match self.hands.claim(device) {
            Err(why) if self.dry_run && why.kind() == io::ErrorKind::PermissionDenied => {
                Ok(Claim(None))
            }
            other => other,
        }
    }

    /// Returns whether a change has timed out and is still in progress in the kernel.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Returns whether the user wants to stop.
    pub(crate) fn is_interrupted(&self) -> bool {
        (self.interrupted)()
    }

    /// Waits for `done` for a limited time; returns whether it became true. A dry run does not wait. An
    /// interrupt during the wait ends it; an earlier one does not, because undoing waits too.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&Root) -> bool,
    ) -> bool {
        let _line = WaitLine::begin(what);
        let mut waited = Duration::ZERO;
        let interrupted = self.is_interrupted();
        while !self.dry_run && !done(self.root) {
            if waited >= limit || (self.is_interrupted() && !interrupted) {
                return false;
            }
            let begun = Instant::now();
            self.hands.pause(LOOK);
            waited += LOOK.max(begun.elapsed());
        }
        true
    }

    /// Ends the operation; with JSON, prints one object that includes a failure.
    fn report<T: Serialize>(mut self, result: Result<T>) -> Result<()> {
        let result = result.and_then(|outcome| self.untold.take().map_or(Ok(outcome), Err));
        if self.json {
            let (outcome, error) = match &result {
                Ok(outcome) => (Some(outcome), None),
                Err(failure) => (None, Some(failure.to_string())),
            };
            Output::Standard.json(&json!({
                "dry_run": self.dry_run,
                "changes": self.changes,
                "notes": self.notes,
                "result": outcome,
                "error": error,
            }))?;
        }
        result.map(drop)
    }
}

/// Explains a failed change, and what to do next.
fn explain(change: &Change, why: &io::Error) -> Failure {
    use io::ErrorKind::{
        NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, ResourceBusy, StorageFull,
        TimedOut,
    };
    let next = match (why.kind(), change) {
        (ReadOnlyFilesystem, Change::Write { .. }) => {
            "; sysfs is mounted read only, as in a container: run this on the host"
        }
        (ReadOnlyFilesystem, _) => "; that file system is mounted read only",
        (PermissionDenied, _) => {
            "; root's rights are not enough here, as in a container: run this on the host"
        }
        (StorageFull | QuotaExceeded, _) => "; make room on that file system",
        (NotFound, Change::Run { .. }) => "; install the package that brings it",
        (NotFound, Change::Write { .. }) => "; the device or its driver is gone",
        (ResourceBusy, Change::Write { .. }) => "; it is in use now: see 'adit setup status'",
        (TimedOut, _) => "; a driver or a device hangs: see 'dmesg'",
        _ => "",
    };
    Failure::failed(format!("cannot do '{change}': {why}{next}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Hands that do nothing, or refuse everything.
    #[derive(Default)]
    struct Idle {
        refuses: Option<io::ErrorKind>,
        pauses: u32,
        done: u32,
    }

    impl Hands for Idle {
        fn apply(&mut self, _: &Change) -> io::Result<()> {
            self.done += 1;
            self.refuses.map_or(Ok(()), |kind| Err(kind.into()))
        }

        fn claim(&mut self, _: &Path) -> io::Result<Claim> {
            self.done += 1;
            self.refuses.map_or(Ok(Claim(None)), |kind| Err(kind.into()))
        }

        fn pause(&mut self, _: Duration) {
            self.pauses += 1;
        }
    }

    fn machine() -> Root {
        Root::recorded("/sys/x = 0").expect("a recording")
    }

    fn write() -> Change {
        Change::Write { path: "/sys/x".into(), value: "1".into() }
    }

    /// Returns the message for a `change` that is refused.
    fn refused(kind: io::ErrorKind, change: Change) -> String {
        let (root, mut hands) = (machine(), Idle { refuses: Some(kind), ..Idle::default() });
        let mut operation = Operation::new(&root, &mut hands, &|| false, false, true);
        operation.change(change).expect_err("refused").to_string()
    }

    #[test]
    fn a_dry_run_counts_changes_and_makes_none() {
        let (root, mut hands) = (machine(), Idle::default());
        let mut operation = Operation::new(&root, &mut hands, &|| false, true, true);
        operation.change(write()).expect("told");
        operation.claim(Path::new("/dev/nvme0n1")).expect("a recording has no devices");
        assert!(operation.wait("", LOOK, |_| false), "nothing is waited for");
        assert_eq!(operation.changes, [write()]);
        assert_eq!((hands.done, hands.pauses), (0, 0));
    }

    #[test]
    fn a_refusal_says_what_was_done_why_not_and_what_next() {
        let why = refused(io::ErrorKind::ReadOnlyFilesystem, write());
        assert!(why.starts_with("cannot do 'echo 1 > /sys/x': "), "{why}");
        assert!(
            why.ends_with("sysfs is mounted read only, as in a container: run this on the host")
        );
        let why = refused(io::ErrorKind::PermissionDenied, write());
        assert!(why.ends_with(
            "root's rights are not enough here, as in a container: run this on the host"
        ));
        let why = refused(io::ErrorKind::NotFound, Change::run("modprobe", &["vfio-pci"]));
        assert!(why.starts_with("cannot do 'modprobe vfio-pci': "), "{why}");
        assert!(why.ends_with("install the package that brings it"), "{why}");
        let file = Change::file("/var/x", String::new());
        let why = refused(io::ErrorKind::StorageFull, file);
        assert!(why.ends_with("make room on that file system"), "{why}");
    }

    #[test]
    fn what_hangs_is_remembered() {
        let (root, mut hands) =
            (machine(), Idle { refuses: Some(io::ErrorKind::TimedOut), ..Idle::default() });
        let mut operation = Operation::new(&root, &mut hands, &|| false, false, true);
        assert!(!operation.is_stuck());
        operation.change(write()).expect_err("it hangs");
        assert!(operation.is_stuck());
    }

    #[test]
    fn waiting_ends_when_it_is_done_when_time_is_up_or_when_the_person_asks() {
        let (root, mut hands) = (machine(), Idle::default());
        let asked = Cell::new(false);
        let interrupted = || asked.get();
        let mut operation = Operation::new(&root, &mut hands, &interrupted, false, true);
        let mut looks = 0;
        assert!(operation.wait("", LOOK * 9, |_| {
            looks += 1;
            looks == 4
        }));
        assert!(!operation.wait("", LOOK * 9, |_| false));
        asked.set(true);
        // Interrupted earlier: as in undoing, it waits all the same.
        assert!(!operation.wait("", LOOK * 9, |_| false));
        asked.set(false);
        assert!(!operation.wait("", Duration::from_secs(3600), |_| {
            asked.set(true);
            false
        }));
        assert_eq!(hands.pauses, 3 + 9 + 9);
    }

    #[test]
    fn a_recorded_machine_is_not_changed() {
        let why =
            run(&machine(), ChangeArgs::default(), false, |operation| operation.change(write()));
        let why = why.expect_err("it is a recording");
        assert_eq!(why.code(), crate::failure::USAGE);
        assert!(why.to_string().contains("--dry-run"), "{why}");
    }
}
