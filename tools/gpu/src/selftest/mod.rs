//! Named checks of this machine's GPU, its driver, the device code and the rings.
//!
//! Checks are independent: a failure does not prevent the next. None waits forever.
//!
//! | module | holds |
//! |---|---|
//! | `check` | one check and how it ended |
//! | `machine` | the base of all checks: the GPU, the compiled device code, the partitions |
//! | `rings` | rings that the controller in device code serves |
//! | `trouble` | the same with faults |
//! | `sums` | checksums compared by the GPU |
//! | `waits` | streams and kernels that wait for control blocks |
//! | `hosted` | rings in host memory served by the driver's software controller, and the staged engine |

pub(crate) mod check;
pub(crate) mod command;
pub(crate) mod hosted;
mod machine;
pub(crate) mod rings;
pub(crate) mod sums;
mod trouble;
mod waits;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_gpu::Gpu;
use adit_gpu::internals::layout::Form;

use crate::failure::Failure;

use check::{CODE, DRIVER, Seen, make};
pub use check::{Check, CheckOutcome, Verdict, verdict};
use machine::Machine;

/// A check, by its requirements.
#[derive(Clone, Copy)]
enum Body {
    Whole(fn(&Machine) -> Seen),
    Gpu(fn(&Arc<Gpu>) -> Seen),
}
use Body::Whole;

impl Body {
    fn make(self, gpu: Option<&Arc<Gpu>>, machine: Option<&Machine>) -> Seen {
        let lacks = |what| move || Failure::unavailable(format!("it needs {what}"));
        match self {
            Body::Whole(body) => {
                body(machine.ok_or_else(lacks("a GPU and the compiled device code"))?)
            }
            Body::Gpu(body) => body(gpu.ok_or_else(lacks("a GPU"))?),
        }
    }
}

/// The checks after those of the machine, in order.
const CHECKS: [(&str, Body); 18] = [
    ("partitions", Whole(machine::partitions)),
    ("checksums", Whole(sums::compared)),
    ("rings of several shapes in GPU memory", Whole(rings::shapes)),
    ("rings in host memory", Whole(rings::in_host_memory)),
    ("one doorbell for one command", Whole(rings::one_at_a_time)),
    ("data by SGLs", Whole(|machine| rings::move_data(machine, Form::Sgl))),
    ("data by PRPs", Whole(|machine| rings::move_data(machine, Form::Prp))),
    ("stop and restart", Whole(rings::stop_and_restart)),
    ("commands that fail", Whole(trouble::failing)),
    ("deadline and abandoned commands", Whole(trouble::deadline)),
    ("late completions", Whole(trouble::late)),
    ("poison", Whole(trouble::poison)),
    ("a stream waits", Whole(waits::by_stream)),
    ("a kernel waits", Whole(waits::by_kernel)),
    ("one-shot kernels, mapped doorbells", Whole(hosted::mapped)),
    ("persistent kernel, doorbell proxy", Whole(hosted::proxied)),
    ("recovery", Whole(hosted::recovery)),
    ("staged engine", Body::Gpu(hosted::staged)),
];

/// Runs all checks of a GPU, numbered from 0. `stop` ends the list after the current check; `tell` receives the name of
/// each.
pub fn run(gpu: u32, stop: &AtomicBool, tell: &mut dyn FnMut(&'static str)) -> Vec<Check> {
    let mut checks = Vec::with_capacity(CHECKS.len() + 2);
    tell(DRIVER);
    let mut opened = None;
    checks.push(make(DRIVER, || machine::open(gpu, &mut opened)));
    tell(CODE);
    let mut machine = None;
    checks.push(make(CODE, || machine::compile(opened.as_ref(), &mut machine)));
    for (name, body) in CHECKS {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        tell(name);
        checks.push(make(name, || body.make(opened.as_ref(), machine.as_ref())));
    }
    checks
}
