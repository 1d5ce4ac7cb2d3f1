//! A process started with a directory of the libraries in its path has that GPU, without loading anything itself.
#![allow(unsafe_code)]

use adit_gpu_emulated::{Installation, directory_of};
use cudarc::{driver::sys, nvrtc};
use std::process::Command;

/// Tells a child of this test which installation it was started with.
const CHILD: &str = "EMULATED_CHILD";

/// Reports what is found by name: the driver, functions for green contexts, NVRTC, and the number of multiprocessors.
fn found() -> String {
    // SAFETY: the libraries are the emulated ones, which the test's path names.
    unsafe {
        if !sys::is_culib_present() {
            return "nothing".to_owned();
        }
        let green = sys::culib().get::<*const u8>(b"cuGreenCtxCreate\0").is_ok();
        let (mut sms, attribute) =
            (0, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        assert_eq!(sys::cuInit(0), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuDeviceGetAttribute(&mut sms, attribute, 0), sys::CUresult::CUDA_SUCCESS);
        let gdr = libloading::Library::new("libgdrapi.so.2").is_ok();
        format!("green {green} nvrtc {} gdr {gdr} sms {sms}", nvrtc::sys::is_culib_present())
    }
}

fn child(installation: Installation) -> String {
    let path = std::env::current_exe().expect("this is a program");
    let output = Command::new(path)
        .args(["--exact", "a_process_has_the_gpu_of_its_library_path", "--nocapture"])
        .env("LD_LIBRARY_PATH", directory_of(installation))
        .env("ADIT_EMULATED_GPU", "sms=16")
        .env(CHILD, "1")
        .output()
        .expect("a test can be run again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line =
        text.lines().find_map(|line| line.split_once("found: ").map(|(_, found)| found.to_owned()));
    line.unwrap_or_else(|| {
        panic!("the child says: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

#[test]
fn a_process_has_the_gpu_of_its_library_path() {
    if std::env::var_os(CHILD).is_some() {
        println!("found: {}", found());
        return;
    }
    assert_eq!(child(Installation::All), "green true nvrtc true gdr true sms 16");
    assert!(child(Installation::DriverAlone).starts_with("green true nvrtc "));
    assert!(child(Installation::OldDriver).starts_with("green false nvrtc "));
}
