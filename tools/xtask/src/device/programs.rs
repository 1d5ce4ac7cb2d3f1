//! Runs the C++ tests of the device code; each file of `gpu/device/tests` is a program.
//!
//! Each program is built and run plain, with ThreadSanitizer, and with the address and undefined behaviour
//! sanitizers. A line `// canary: NAME` means that it must fail when built with that macro.

use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::progress::Progress;
use crate::tally::Tally;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread::available_parallelism;
use std::time::Instant;

/// Flags of every build.
const FLAGS: [&str; 8] = [
    "-std=c++17",
    "-O1",
    "-g1",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-omit-frame-pointer",
];
/// The variants of builds with their flags.
const VARIANTS: [(&str, &[&str]); 3] = [
    ("thread", &["-fsanitize=thread"]),
    ("address", &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]),
    ("plain", &[]),
];
/// Time limit of a program.
const LIMIT_S: &str = "240";
const CANARY: &str = "// canary: ";

/// A build of a program to run.
struct Job {
    source: PathBuf,
    /// Its name in reports, also the name of its file.
    name: String,
    flags: Vec<String>,
    must_fail: bool,
}

/// Builds and runs all programs, one per core at a time.
pub(super) fn run() -> Result<Tally> {
    let directory = workspace::target_directory()?.join("device");
    fs::create_dir_all(&directory).context(directory.display())?;
    let jobs = jobs()?;
    let total = jobs.len();
    let has_canary = jobs.iter().any(|job| job.must_fail);
    let _progress = Progress::start(format!("running the device code's {total} C++ tests"));
    let waiting = Mutex::new(jobs);
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(job) = waiting.lock().ok().and_then(|mut jobs| jobs.pop()) {
                    let begun = Instant::now();
                    let outcome = carry_out(&job, &directory);
                    let mut ended = ended.lock().expect("no thread panics while holding it");
                    ended.push(tell(&job, &outcome, begun.elapsed().as_secs_f64()));
                }
            });
        }
    });
    let mut tally = Tally::default();
    for passed in ended.into_inner().expect("no thread panicked while holding it") {
        tally.count(passed);
    }
    if !has_canary {
        println!("FAIL: no test of the device code names a canary");
        tally.count(false);
    }
    Ok(tally)
}

fn tell(job: &Job, outcome: &Result<()>, took_s: f64) -> bool {
    match outcome {
        Ok(()) => println!("PASS {} ({took_s:.1} s)", job.name),
        Err(failure) => println!("FAIL {} ({took_s:.1} s): {failure}", job.name),
    }
    outcome.is_ok()
}

/// Returns every build of every program, the longest last, because jobs are taken from the end.
fn jobs() -> Result<Vec<Job>> {
    let directory = workspace::root().join("gpu/device/tests");
    let mut jobs = Vec::new();
    for source in sources(&directory)? {
        let text = fs::read_to_string(&source).context(source.display())?;
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for name in canaries(&text) {
            let flags = vec![format!("-D{name}")];
            jobs.push(Job {
                source: source.clone(),
                name: format!("{stem}.{name}"),
                flags,
                must_fail: true,
            });
        }
        for (variant, flags) in VARIANTS.iter().rev() {
            let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
            jobs.push(Job {
                source: source.clone(),
                name: format!("{stem}.{variant}"),
                flags,
                must_fail: false,
            });
        }
    }
    jobs.sort_by_key(|job| job.name.ends_with(".thread"));
    Ok(jobs)
}

fn sources(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).context(directory.display())?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "cpp"));
    files.sort();
    if files.is_empty() {
        return Err(Failure::new(format!("there is no test in {}", directory.display())));
    }
    Ok(files)
}

/// Returns the macros with which a program must fail.
fn canaries(text: &str) -> Vec<&str> {
    let names = text.lines().filter_map(|line| line.trim().strip_prefix(CANARY));
    names.filter_map(|name| name.split_whitespace().next()).collect()
}

fn carry_out(job: &Job, directory: &Path) -> Result<()> {
    let program = directory.join(&job.name);
    let include = format!("-I{}", workspace::root().join("gpu/device").display());
    let mut compiler = Command::new("c++");
    compiler.args(FLAGS).args(&job.flags).arg(include).arg("-o").arg(&program).arg(&job.source);
    process::run_quietly(&mut compiler)?;
    let ran = run_program(&program, &[]);
    let ran = match ran {
        // The kernel randomizes addresses more than this ThreadSanitizer supports.
        Err(failure) if failure.to_string().contains("unexpected memory mapping") => {
            run_program(&program, &["setarch", "--addr-no-randomize"])
        }
        ran => ran,
    };
    match (ran, job.must_fail) {
        (Ok(()), true) => {
            Err(Failure::new("it passes with its known fault: it would not notice that fault"))
        }
        (Err(_), true) => Ok(()),
        (ran, false) => ran,
    }
}

fn run_program(program: &Path, wrapper: &[&str]) -> Result<()> {
    let mut command = Command::new("timeout");
    command.args(["--signal=ABRT", LIMIT_S]).args(wrapper).arg(program);
    command.env("TSAN_OPTIONS", "halt_on_error=1");
    process::run_quietly(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canaries_are_read_from_comments() {
        let text = "// A test.\n// canary: ADIT_BREAK_PUBLISH loses an entry\nint main() {}\n";
        assert_eq!(canaries(text), ["ADIT_BREAK_PUBLISH"]);
        assert!(canaries("// No canaries here\n").is_empty());
    }

    #[test]
    fn every_test_of_the_device_code_is_built_in_every_way() {
        let jobs = jobs().expect("the tests are there");
        let plain = jobs.iter().filter(|job| !job.must_fail && job.flags.is_empty()).count();
        let thread =
            jobs.iter().filter(|job| job.flags.contains(&"-fsanitize=thread".to_owned())).count();
        assert!(plain > 0 && plain == thread, "{plain} plain, {thread} with ThreadSanitizer");
    }
}
