//! One guest of the matrix: its controllers, its commands, and what they must say.
//!
//! A step passes if its exit code is the expected one, its output has every expected fragment (ignoring case), and nothing
//! panicked. A case passes if its steps do, every rule for QEMU's monitor was carried out, and the guest's IOMMU refused
//! no access.

use crate::failure::Result;
use crate::guest::{self, GuestArgs, GuestOutcome, Waiting, quote};
use crate::process::tail;

/// One guest.
pub(crate) struct Case {
    pub(super) name: &'static str,
    /// Options of `cargo xtask vm`.
    pub(super) guest: Vec<String>,
    pub(super) steps: Vec<Step>,
}

/// One shell text in the guest.
pub(super) struct Step {
    pub(super) shell: String,
    /// The exit code that it must have: 1 for a refusal, 2 for a usage error, 130 for an end by Ctrl-C.
    pub(super) exit: u8,
    pub(super) says: Vec<String>,
}

/// What steps call.
const FUNCTIONS: &str = include_str!("cases/functions.sh");

/// A guest that takes longer is stuck, however busy the machine is: the longest takes a minute on an idle one.
const LIMIT_S: &str = "900";

/// Maximum boots of a guest that dies each time. QEMU 7.2 occasionally aborts when its controller is reset with
/// commands in flight (its own assertion `cq->cqid == req->sq->cqid`), sometimes twice in a row.
const BOOTS_MAX: u32 = 4;

/// Maximum lines shown of a failed step's output.
const SHOWN_LINES: usize = 30;

/// Prefix of output lines that are shown even on success, such as figures.
const TOLD: &str = "TOLD ";

/// Ends a step's output: the mark, then the exit code.
const MARK: &str = "@@ exit code";

impl Case {
    /// Returns the error, and the lines to show in any case. If the guest or QEMU dies silently, that says
    /// nothing about the driver: `again` is called, and the guest is booted again, [`BOOTS_MAX`] times in
    /// total.
    pub(super) fn run(&self, again: impl Fn(String)) -> (Option<String>, Vec<String>) {
        let mut ended = self.run_once();
        for _ in 1..BOOTS_MAX {
            match &ended.0 {
                Some(problem) if problem.starts_with(guest::DIED) => {
                    again(format!("AGAIN {}: {}", self.name, indent(problem).trim_start()));
                }
                _ => break,
            }
            ended = self.run_once();
        }
        ended
    }

    fn run_once(&self) -> (Option<String>, Vec<String>) {
        let mut output = Vec::new();
        let outcome = self
            .arguments()
            .and_then(|arguments| guest::run(&arguments, Waiting::Silently, &mut output));
        let output = String::from_utf8_lossy(&output);
        let problem = match outcome {
            Ok(outcome) => self.judge(&output, &outcome),
            Err(failure) => {
                Some(format!("{failure}\n--- output so far ---\n{}", tail(&output, SHOWN_LINES)))
            }
        };
        (problem, told(&output))
    }

    pub(super) fn arguments(&self) -> Result<GuestArgs> {
        let script = self.script();
        let more = ["--timeout", LIMIT_S, "--", "sh", "-c", &script];
        let words: Vec<&str> = self.guest.iter().map(String::as_str).chain(more).collect();
        GuestArgs::parse(&words)
    }

    /// Returns all steps as one shell text.
    fn script(&self) -> String {
        let step =
            |step: &Step| format!("(\n{}\n) 2>&1\nprintf '\\n{MARK} %d\\n' $?\n", step.shell);
        FUNCTIONS.to_owned() + &self.steps.iter().map(step).collect::<String>()
    }

    /// Returns how to repeat this case, and how to try one command in the same guest.
    pub(super) fn command_line(&self) -> String {
        let options: Vec<String> = self.guest.iter().map(|option| quote(option)).collect();
        let (name, options) = (self.name, options.join(" "));
        format!("cargo xtask test --only {name}, or cargo xtask vm {options} -- …")
    }

    /// Returns the output of every failed step, and the faults.
    fn judge(&self, output: &str, outcome: &GuestOutcome) -> Option<String> {
        let mut problems = Vec::new();
        let mut rest = output;
        for step in &self.steps {
            let Some((said, code, after)) = split_step(rest) else {
                problems.push(step.report("did not end", rest));
                break;
            };
            problems.extend(step.judge(said, code).map(|problem| step.report(&problem, said)));
            rest = after;
        }
        if !outcome.faults.is_empty() {
            problems.push(format!(
                "the IOMMU refused accesses of a device:\n{}",
                outcome.faults.join("\n")
            ));
        }
        (!problems.is_empty()).then(|| problems.join("\n"))
    }
}

impl Step {
    /// Returns what is wrong with this output and exit code.
    fn judge(&self, said: &str, code: u8) -> Option<String> {
        if said.contains("panicked at") {
            return Some("panicked".to_owned());
        }
        if code != self.exit {
            return Some(format!("exit code {code} instead of {}", self.exit));
        }
        let lower = said.to_lowercase();
        let missing = self.says.iter().find(|fragment| !lower.contains(&fragment.to_lowercase()));
        missing.map(|fragment| format!("does not say {fragment:?}"))
    }

    fn report(&self, problem: &str, said: &str) -> String {
        format!("{}\n  {problem}; it said:\n{}", self.shell, indent(&tail(said, SHOWN_LINES)))
    }
}

/// Returns the lines that are shown in any case.
fn told(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_prefix(TOLD)).map(str::to_owned).collect()
}

/// Splits off the first step's output and exit code.
fn split_step(text: &str) -> Option<(&str, u8, &str)> {
    let (said, after) = text.split_once(MARK)?;
    let (code, rest) = after.split_once('\n')?;
    Some((said, code.trim().parse().ok()?, rest))
}

pub(super) fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::text::parse;
    use super::*;

    fn judge(output: &str, faults: &[&str]) -> Option<String> {
        let faults = faults.iter().map(|&fault| fault.to_owned()).collect();
        let text = "== sample\n$ echo Yes\n> yes\n1$ false\n> because\n";
        parse(text)[0].judge(output, &GuestOutcome { exit: 0, faults })
    }

    #[test]
    fn a_case_passes_when_every_step_says_what_it_must() {
        let good = "Yes\n\n@@ exit code 0\nbecause\n\n@@ exit code 1\n";
        assert_eq!(judge(good, &[]), None);
        assert!(judge(good, &["DMAR: fault"]).unwrap().contains("DMAR: fault"));
    }

    #[test]
    fn a_wrong_code_a_missing_fragment_a_panic_and_a_step_without_end_fail() {
        assert!(judge("yes\n@@ exit code 7\n", &[]).unwrap().contains("exit code 7 instead of 0"));
        assert!(judge("no\n@@ exit code 0\n", &[]).unwrap().contains("does not say \"yes\""));
        assert!(judge("yes panicked at x\n@@ exit code 0\n", &[]).unwrap().contains("panicked"));
        assert!(judge("yes\n@@ exit code 0\nbeca", &[]).unwrap().contains("did not end"));
    }

    #[test]
    fn figures_are_told_of_steps_that_pass() {
        assert_eq!(told("one\nTOLD ratio 1.02\nnot TOLD\nTOLD two\n"), ["ratio 1.02", "two"]);
    }
}
