//! The whole bench on the emulated GPU. Checks its counts; its times mean nothing here.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_gpu::Place;
use adit_gpu_tools::bench::{BenchOptions, BenchReport, ControllerChoice, Watch, run};

/// Serializes benches: each has as many threads as a small machine takes.
static TURN: Mutex<()> = Mutex::new(());

fn small() -> BenchOptions {
    BenchOptions {
        queues: 2,
        depth: 64,
        sms: 2,
        warps: 2,
        block_bytes: 4096,
        runtime: Duration::from_millis(1),
        single_commands: 20,
        compute: Duration::from_millis(5),
        ..BenchOptions::default()
    }
}

fn report(options: &BenchOptions) -> BenchReport {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    adit_gpu_emulated::load();
    adit_gpu_emulated::set("sms=8");
    let report = run(options, &Watch::new(&AtomicBool::new(false), &|_| ())).expect("measured");
    let emulated = adit_gpu_emulated::report();
    assert_eq!((emulated.kernels_running, emulated.allocations), (0, 0), "{emulated:?}");
    assert_eq!((emulated.misuses, emulated.frees_behind_kernels), (0, 0), "{emulated:?}");
    report
}

fn check_counts(report: &BenchReport) {
    let saturated = report.saturated.expect("rings were saturated");
    assert!(saturated.commands > 0);
    assert_eq!((saturated.checked, saturated.refused), (saturated.commands, 0));
    // The device is told after each quarter of a lap: four times a lap, and once more where a measurement starts within
    // one.
    let rings = saturated.cq_rings as f64;
    let queues = f64::from(report.options.queues);
    assert!(rings <= 4.0 * saturated.laps + queues, "{saturated:?}");
    assert!(saturated.sq_rings <= saturated.commands, "{saturated:?}");
    // Only the controller in device code counts its looks at full completion rings; it has none.
    let counts = report.options.controller == ControllerChoice::Gpu;
    assert_eq!(saturated.full, counts.then_some(0));
    let single = report.single.expect("single commands were measured");
    assert_eq!((single.commands, single.sq_rings), (20, 20));
    assert!(single.p50_ns <= single.p99_ns);
    let preparation = report.preparation.expect("blocks were filled");
    assert_eq!((preparation.tensors, preparation.commands), (8_000, 8_000));
}

#[test]
fn a_controller_on_the_gpu_checks_every_command_of_rings_in_gpu_memory() {
    let report = report(&small());
    check_counts(&report);
    let beside = report.beside.as_ref().expect("a compute kernel ran beside the rings");
    assert!(beside.commands > 0 && beside.alone_ms > 0.0 && beside.beside_ms > 0.0, "{beside:?}");
    assert_eq!((beside.sms_all, beside.kind.as_str()), (8, "green contexts"));
    assert!(report.missing.is_empty(), "{:?}", report.missing);
}

#[test]
fn a_controller_on_the_gpu_serves_rings_in_host_memory() {
    check_counts(&report(&BenchOptions { placement: Place::Host, ..small() }));
}

#[test]
fn controllers_on_the_cpu_serve_rings_in_host_memory() {
    let report = report(&BenchOptions {
        placement: Place::Host,
        controller: ControllerChoice::Cpu,
        ..small()
    });
    check_counts(&report);
    assert_eq!(report.beside, None);
    assert_eq!(report.missing.len(), 1, "{:?}", report.missing);
}

#[test]
fn an_interrupted_bench_reports_what_it_has() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    adit_gpu_emulated::load();
    adit_gpu_emulated::set("sms=8");
    let stop = AtomicBool::new(false);
    let tell = |what: &str| stop.store(what.starts_with("saturated"), Ordering::Relaxed);
    let options = BenchOptions { runtime: Duration::from_secs(3600), ..small() };
    let report = run(&options, &Watch::new(&stop, &tell)).expect("what there is");
    assert!(report.saturated.is_some_and(|part| part.commands > 0));
    let missing: Vec<_> = report.missing.iter().map(|(part, _)| *part).collect();
    assert_eq!(missing, ["one command at a time", "beside compute"]);
}
