//! One check and how it ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde::Serialize;

use crate::failure::{Failure, Result, UNAVAILABLE};

pub(super) const DRIVER: &str = "driver and GPU";
pub(super) const CODE: &str = "device code";
/// The checks that all others depend on.
const ESSENTIAL: [&str; 2] = [DRIVER, CODE];

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// It found what it should.
    Passed,
    /// Something is wrong.
    Failed,
    /// The machine lacks what the check needs.
    Skipped,
}

/// A finished check; the names of its fields are those of the JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was checked, in a few words.
    pub name: &'static str,
    /// How it ended.
    pub outcome: CheckOutcome,
    /// The finding, or the reason with what to do.
    pub detail: String,
    /// How long it took.
    pub took_ms: f64,
}

/// The result of all checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing failed.
    #[serde(rename = "passed")]
    Sound,
    /// Something failed.
    Failed,
    /// Nothing failed, but the rings could not be checked: there is no GPU, no driver, or no NVRTC that compiles for
    /// it.
    Unavailable,
}

/// Combines checks: a failure outweighs everything, and without the essential checks the rings count as unavailable.
pub fn verdict(checks: &[Check]) -> Verdict {
    if checks.iter().any(|check| check.outcome == CheckOutcome::Failed) {
        return Verdict::Failed;
    }
    let has_passed = |name: &&str| {
        checks.iter().any(|check| check.name == *name && check.outcome == CheckOutcome::Passed)
    };
    if ESSENTIAL.iter().all(has_passed) { Verdict::Sound } else { Verdict::Unavailable }
}

/// Result of a check's body: the finding. A failure for what the machine lacks skips the check.
pub(super) type Seen = Result<String>;

/// Fails with `otherwise` unless `holds`.
pub(super) fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Failure::failed(otherwise())) }
}

/// Runs one check. A panic within it fails only that check.
pub(super) fn make(name: &'static str, body: impl FnOnce() -> Seen) -> Check {
    let begin = Instant::now();
    // Nothing that the body leaves behind is used after a panic.
    let (outcome, detail) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(seen)) => (CheckOutcome::Passed, seen),
        Ok(Err(failure)) if failure.code() == UNAVAILABLE => {
            (CheckOutcome::Skipped, failure.to_string())
        }
        Ok(Err(failure)) => (CheckOutcome::Failed, failure.to_string()),
        Err(panic) => (CheckOutcome::Failed, format!("it panicked: {}", message_of(&*panic))),
    };
    Check { name, outcome, detail, took_ms: begin.elapsed().as_secs_f64() * 1e3 }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_gpu::Error;

    fn made(body: impl FnOnce() -> Seen) -> Check {
        make("a check", body)
    }

    #[test]
    fn what_a_machine_lacks_is_skipped_with_the_reason() {
        let check = made(|| Err(Error::unavailable("a GPU", "there is none", "add one").into()));
        let reason = "a GPU is unavailable: there is none; add one";
        assert_eq!((check.outcome, check.detail.as_str()), (CheckOutcome::Skipped, reason));
    }

    #[test]
    fn a_panic_is_a_failure_of_its_check_alone() {
        let check = made(|| panic!("out of paper"));
        let said = "it panicked: out of paper";
        assert_eq!((check.outcome, check.detail.as_str()), (CheckOutcome::Failed, said));
    }

    #[test]
    fn one_failure_outweighs_all_that_passed() {
        let passed = |name| make(name, || Ok("fine".to_owned()));
        let skipped = |name| make(name, || Err(Error::unavailable("x", "y", "z").into()));
        let failed = made(|| expect(false, || "bent".to_owned()).map(|()| String::new()));
        assert_eq!(verdict(&[passed(DRIVER), passed(CODE), failed]), Verdict::Failed);
        assert_eq!(verdict(&[passed(DRIVER), passed(CODE), skipped("more")]), Verdict::Sound);
        assert_eq!(verdict(&[passed(DRIVER), skipped(CODE), passed("more")]), Verdict::Unavailable);
        assert_eq!(verdict(&[skipped(DRIVER)]), Verdict::Unavailable);
    }
}
