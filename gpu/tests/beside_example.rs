//! The example that launches kernels of its own beside the persistent one, run as a process on the emulated GPU.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Builds the example and returns its path: `cargo test --test beside_example` alone would run a stale one.
fn example() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let profile = test.parent().and_then(Path::parent).expect("deps/ is in a profile's folder");
    // Not set if the tests were built elsewhere and run by hand.
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "adit-gpu", "--example", "beside"]);
        build.arg("--target-dir").arg(profile.parent().expect("it is in a target folder"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "the example builds");
    }
    profile.join("examples/beside")
}

fn run(settings: &str) -> Output {
    let mut command = Command::new(example());
    command.env("LD_LIBRARY_PATH", adit_gpu_emulated::directory());
    command.env("ADIT_EMULATED_GPU", settings).env_remove("ADIT_NVRTC");
    command.output().expect("the example runs")
}

#[test]
fn kernels_of_ones_own_run_beside_the_persistent_one() {
    let output = run("");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("on 2 SMs beside the kernels; 0 of 65536 words differ"), "{said}");
}

#[test]
fn kernels_that_would_wait_behind_the_persistent_one_are_not_begun() {
    let output = run("queues=1");
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{complained}");
    assert!(complained.contains("CUDA_DEVICE_MAX_CONNECTIONS=32"), "{complained}");
}
