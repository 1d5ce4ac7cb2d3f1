//! Builds the emulated libraries from `native/`, `../device/` and an example's kernels with the machine's C++ compiler.
//!
//! Each library goes to a directory of `OUT_DIR` under every name that programs look for: `all` has the driver, NVRTC
//! and gdrcopy, `driver` the driver alone, `old` a driver without green contexts, `both` the driver and NVRTC of CUDA 12
//! and of CUDA 13. All names are the same file, but for NVRTC in `both`. Its soname is the name that a program tries
//! first, so that the name finds a library already loaded.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Sources of the driver, in `native/`.
const DRIVER: [&str; 13] = [
    "codes", "context", "copy", "device", "event", "kernels", "memory", "module", "register",
    "settings", "state", "stream", "virtual",
];

const FLAGS: [&str; 8] =
    ["-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"];

/// Functions that a driver of CUDA 12.3 lacks.
const NOT_IN_OLD: [&str; 4] =
    ["cuGreenCtx*", "cuCtxFromGreenCtx", "cuDevResource*", "cuDevSmResource*"];

fn main() {
    let output = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo:rerun-if-changed=native");
    println!("cargo:rerun-if-changed=../device");
    println!("cargo:rerun-if-changed=../examples/beside/kernels.cu");
    println!("cargo:rerun-if-env-changed=CXX");
    for directory in ["objects", "all", "driver", "old", "both"] {
        std::fs::create_dir_all(output.join(directory)).expect("OUT_DIR can be written");
    }
    compile_all(&output);
    let driver: Vec<PathBuf> = DRIVER.iter().map(|name| object(&output, name)).collect();
    for directory in ["all", "driver", "both"] {
        link(&output.join(directory), &["libcuda.so", "libcuda.so.1"], &driver, &[]);
    }
    let hidden = output.join("old.map");
    std::fs::write(&hidden, format!("{{ local: {}; }};\n", NOT_IN_OLD.join("; ")))
        .expect("OUT_DIR can be written");
    let script = format!("-Wl,--version-script={}", hidden.display());
    link(&output.join("old"), &["libcuda.so", "libcuda.so.1"], &driver, &[&script]);
    let nvrtc = [object(&output, "nvrtc"), object(&output, "settings")];
    link(&output.join("all"), &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"], &nvrtc, &[]);
    for (name, compiler) in [("libnvrtc.so.13", "nvrtc"), ("libnvrtc.so.12", "nvrtc12")] {
        let objects = [object(&output, compiler), object(&output, "settings")];
        link(&output.join("both"), &[name], &objects, &[]);
    }
    let search = format!("-L{}", output.join("all").display());
    let gdrapi = [object(&output, "gdrapi")];
    let beside = [search.as_str(), "-lcuda", "-Wl,-rpath,$ORIGIN"];
    link(&output.join("all"), &["libgdrapi.so.2", "libgdrapi.so"], &gdrapi, &beside);
}

fn object(output: &Path, name: &str) -> PathBuf {
    output.join("objects").join(format!("{name}.o"))
}

/// Compiles every source, a few at a time.
fn compile_all(output: &Path) {
    let names: Vec<&str> = DRIVER.into_iter().chain(["nvrtc", "nvrtc12", "gdrapi"]).collect();
    std::thread::scope(|scope| {
        let halves = names.chunks(names.len().div_ceil(2));
        let workers: Vec<_> = halves
            .map(|half| scope.spawn(move || half.iter().for_each(|name| compile(output, name))))
            .collect();
        for worker in workers {
            worker.join().expect("the sources compile");
        }
    });
}

fn compile(output: &Path, name: &str) {
    let (source, more) = match name {
        "nvrtc12" => ("nvrtc", &["-DADIT_NVRTC_MAJOR=12"][..]),
        name => (name, &[][..]),
    };
    let source = format!("native/{source}.cpp");
    run(compiler()
        .args(FLAGS)
        .args(more)
        .arg("-I../device")
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object(output, name)));
}

/// Links a library under its first name, its soname, and makes the other names links to it.
fn link(directory: &Path, names: &[&str], objects: &[PathBuf], more: &[&str]) {
    let soname = format!("-Wl,-soname,{}", names[0]);
    let library = directory.join(names[0]);
    run(compiler()
        .args(["-shared", "-pthread", &soname, "-Wl,-z,defs"])
        .arg("-o")
        .arg(&library)
        .args(objects)
        .args(more)
        .arg("-ldl"));
    for name in &names[1..] {
        let other = directory.join(name);
        let _ = std::fs::remove_file(&other);
        std::os::unix::fs::symlink(names[0], &other).expect("OUT_DIR can be written");
    }
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()))
}

fn run(command: &mut Command) {
    let name = command.get_program().to_owned();
    let output = command.output().unwrap_or_else(|why| {
        panic!(
            "the emulated GPU is C++, and {name:?} cannot be run: {why}. \
             Install a compiler (Debian: apt install g++) or set CXX"
        )
    });
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{text}");
}
