//! `adit gpu selftest`: checks whether this machine's GPU can drive rings.

use super::{self as selftest, Check, CheckOutcome, Verdict};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::options::{GpuArg, check_ordinal};
use crate::output;
use adit_tools_common::meter::Meter;

const EXAMPLES: &str = "\
Examples:
  The first GPU, as a table:
    adit gpu selftest
  The second, for a program to read:
    adit gpu selftest --gpu 1 --json

Exit codes: 0 nothing failed, 1 a check failed, 2 an option cannot be, 3 no GPU, or none that rings can use \
(a compiler for device code included), 130 interrupted.";

/// Checks the driver of a GPU, the device code and the rings, against software controllers
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SelftestArgs {
    #[command(flatten)]
    gpu: GpuArg,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When a check failed, there is nothing to check, or the user interrupted it.
pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    check_ordinal(args.gpu.ordinal)?;
    let interrupt = Interrupt::install()?;
    let mut meter = Meter::new();
    let checks =
        selftest::run(args.gpu.ordinal, interrupt.flag(), &mut |name| meter.show(|_| name.into()));
    drop(meter);
    output::report(args.json, || json(args.gpu.ordinal, &checks), || table(&checks))?;
    if interrupt.requested() {
        return Err(Failure::interrupted());
    }
    end(&checks)
}

fn end(checks: &[Check]) -> Result<()> {
    match selftest::verdict(checks) {
        Verdict::Sound => Ok(()),
        Verdict::Failed => {
            let failed = checks.iter().filter(|check| check.outcome == CheckOutcome::Failed);
            Err(Failure::failed(format!("{} of {} checks failed", failed.count(), checks.len())))
        }
        Verdict::Unavailable => {
            let skipped = checks.iter().find(|check| check.outcome == CheckOutcome::Skipped);
            let why = skipped.map_or("nothing was checked", |check| &check.detail);
            Err(Failure::unavailable(human::printable(why)))
        }
    }
}

fn json(gpu: u32, checks: &[Check]) -> Value {
    json!({ "gpu": gpu, "verdict": selftest::verdict(checks), "checks": checks })
}

fn table(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let line = |Check { name, outcome, detail, .. }: &Check| {
        let (outcome, detail) = (output::word(outcome), human::printable(detail));
        format!("{outcome:<7} {name:<width$}  {detail}\n")
    };
    checks.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use CheckOutcome::{Failed, Passed, Skipped};

    fn check(name: &'static str, outcome: CheckOutcome, detail: &str) -> Check {
        Check { name, outcome, detail: detail.to_owned(), took_ms: 2.0 }
    }

    #[test]
    fn what_was_skipped_is_the_reason_and_not_what_passed_before() {
        let checks =
            [check("driver and GPU", Passed, "a GPU"), check("device code", Skipped, "no NVRTC")];
        let failure = end(&checks).expect_err("no device code was checked");
        assert_eq!((failure.code(), failure.to_string()), (3, "no NVRTC".to_owned()));
    }

    #[test]
    fn nothing_to_check_ends_with_its_reason_and_a_code_of_its_own() {
        let checks = [check("driver library", Skipped, "there is no driver")];
        let failure = end(&checks).expect_err("nothing was checked");
        assert_eq!((failure.code(), failure.to_string()), (3, "there is no driver".to_owned()));
        assert_eq!(json(0, &checks)["verdict"], "unavailable");
    }

    #[test]
    fn a_failed_check_is_counted_and_its_row_says_why() {
        let checks = [
            check("driver library", Passed, "CUDA 13.0"),
            check("partitions", Failed, "there are none"),
        ];
        let failure = end(&checks).expect_err("one failed");
        assert_eq!((failure.code(), failure.to_string()), (1, "1 of 2 checks failed".to_owned()));
        let text = table(&checks);
        assert_eq!(
            text,
            "passed  driver library  CUDA 13.0\nfailed  partitions      there are none\n"
        );
        assert_eq!(json(0, &checks)["checks"][1]["outcome"], "failed");
    }
}
