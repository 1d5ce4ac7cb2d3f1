//! The wrappers with the emulated driver, each test in its own process: a process has one driver and one set of its
//! settings.

mod gpu;
mod memory;
mod partition;
mod program;
mod registration;
mod running;
mod stream;

use crate::cuda::Gpu;
use adit_gpu_emulated::{Installation, Report};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Set in a test's own process.
const ALONE: &str = "ADIT_TEST_ALONE";

/// Runs a test in its own process, with the emulated driver and these settings. Fails also if the test leaves anything
/// on the GPU, or misuses the driver. Call it directly from a test, with the whole body.
pub(crate) fn alone(settings: &str, test: fn()) {
    alone_with(Some(Installation::All), settings, test);
}

/// Runs as [`alone`], with another installation of the driver, or with none.
pub(crate) fn alone_with(installation: Option<Installation>, settings: &str, test: fn()) {
    run(installation, settings, || {
        test();
        if installation.is_some() {
            let report = adit_gpu_emulated::report();
            let clean = Report { launches: report.launches, ..Report::default() };
            assert_eq!(report, clean, "something is left, or was misused");
        }
    });
}

/// Runs as [`alone`], for a test that loses the GPU, which then takes nothing back.
pub(crate) fn alone_without_a_report(settings: &str, test: fn()) {
    run(Some(Installation::All), settings, test);
}

pub(crate) fn open() -> Arc<Gpu> {
    Gpu::open(0).expect("the emulated driver has a GPU")
}

fn run(installation: Option<Installation>, settings: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_none() {
        return start(settings, caller());
    }
    if let Some(installation) = installation {
        adit_gpu_emulated::load_installation(installation);
    }
    test();
}

/// Returns the name of the test that runs on this thread.
fn caller() -> String {
    let thread = std::thread::current();
    thread.name().expect("the harness names a test's thread after it").to_owned()
}

fn start(settings: &str, name: String) {
    let program = std::env::current_exe().expect("a test is a program");
    let mut command = Command::new(&program);
    command.args(["--exact", &name, "--nocapture", "--test-threads=1"]);
    command.env(ALONE, "1").env("ADIT_EMULATED_GPU", settings);
    command.env_remove("ADIT_NVRTC").env("LD_LIBRARY_PATH", nothing(&program));
    let output = command.output().expect("a test can be started again");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    assert!(said.contains("1 passed"), "no test is named {name}:\n{said}");
}

/// Makes a directory that hides this machine's driver and compiler: the linker stops at files that are not libraries.
fn nothing(program: &Path) -> PathBuf {
    let directory = program.with_file_name("no-cuda");
    std::fs::create_dir_all(&directory).expect("the directory of the tests can be written");
    let drivers = ["libcuda.so", "libcuda.so.1"];
    let compilers = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11"];
    for name in drivers.into_iter().chain(compilers) {
        std::fs::write(directory.join(name), "").expect("a directory of one's own can be written");
    }
    directory
}
