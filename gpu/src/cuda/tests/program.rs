//! Compiling and loading the device code, and every reason why that fails.

use super::{alone, alone_with, open};
use crate::Error;
use crate::cuda::program::{Kernel, Program, SOURCES, compile, compiler_version};
use adit_gpu_emulated::Installation;

#[test]
fn all_kernels_are_compiled_and_loaded() {
    alone("", || {
        let program = Program::load(&open()).expect("it compiles");
        assert_eq!(program.function(Kernel::Issue).name(), "adit_issue");
        assert_eq!(program.function(Kernel::Compute).name(), "adit_compute");
    });
}

#[test]
fn code_is_made_for_an_architecture_without_a_gpu() {
    alone("gpus=0", || {
        let compiled = compile("sm_90").expect("it compiles");
        assert!(
            !compiled.ptx.is_empty() && !compiled.ptx.contains('\0') && !compiled.cubin.is_empty()
        );
    });
}

#[test]
fn an_architecture_that_is_none_is_told() {
    alone("", || {
        let error = compile("sm_0").expect_err("there is no such architecture");
        assert!(matches!(error, Error::Cuda { call: "nvrtcCompileProgram", .. }), "{error}");
    });
}

#[test]
fn what_the_compiler_says_of_code_that_does_not_compile_is_told() {
    alone("nvrtc=error", || {
        let error = Program::load(&open()).expect_err("it does not compile");
        let Error::Cuda { call, name, fix, .. } = &error else { panic!("{error}") };
        assert_eq!(*call, "nvrtcCompileProgram");
        assert!(name.starts_with("NVRTC_ERROR_COMPILATION; kernels.cu(1): error"), "{name}");
        assert!(
            fix.starts_with("use NVRTC of CUDA") && !error.to_string().contains('\n'),
            "{error}"
        );
    });
}

#[test]
fn code_that_the_driver_does_not_take_names_the_versions() {
    alone("fail=cuModuleLoadData:209", || {
        let error = Program::load(&open()).expect_err("the driver does not take it");
        assert!(error.to_string().contains("NVRTC is newer than the driver"), "{error}");
    });
}

fn compiles_with(major: u32) {
    Program::load(&open()).expect("the driver takes what it compiles");
    assert_eq!(compiler_version().expect("there is a compiler").0, major);
}

#[test]
fn of_two_compilers_the_one_of_the_drivers_version_is_taken() {
    alone_with(Some(Installation::BothCompilers), "driver=12080", || compiles_with(12));
}

#[test]
fn a_newer_driver_takes_the_newest_compiler_that_is_there() {
    alone_with(Some(Installation::BothCompilers), "driver=14000", || compiles_with(13));
}

#[test]
fn a_compiler_newer_than_the_driver_is_the_last_resort() {
    alone("driver=12080", || {
        let error = Program::load(&open()).expect_err("the driver does not take it");
        assert!(error.to_string().contains("NVRTC is newer than the driver"), "{error}");
        assert_eq!(compiler_version().expect("there is a compiler").0, 13);
    });
}

#[test]
fn a_kernel_that_is_not_there_leaves_nothing_loaded() {
    alone("fail=cuModuleGetFunction:500", || {
        let error = Program::load(&open()).expect_err("there is no such kernel");
        assert!(error.to_string().contains("adit_issue"), "{error}");
        assert_eq!(adit_gpu_emulated::report().modules, 0);
    });
}

#[test]
fn headers_for_kernels_of_ones_own_are_all_there() {
    let names: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
    for (name, text) in SOURCES {
        let included =
            text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
        for other in included {
            assert!(names.contains(&other), "{name} includes {other}");
        }
    }
    assert!(names.contains(&"uring.h"));
}
