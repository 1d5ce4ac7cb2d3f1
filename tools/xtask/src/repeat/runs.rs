//! Runs test binaries, several at a time, each until it ends or times out.

use super::binaries::Binary;
use super::outcome::{self, End};
use super::record::Record;
use crate::failure::{Context, Result};
use crate::interrupt;
use crate::progress::Line;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Polling interval.
const NAP: Duration = Duration::from_millis(20);

/// The limits of a pass.
pub(super) struct Limits {
    /// Runs of each binary.
    pub(super) times: u32,
    /// Time limit of a run.
    pub(super) timeout: Duration,
    /// The directory for output of running binaries.
    pub(super) outputs: PathBuf,
}

/// Runs each of `binaries` `limits.times` times, `jobs` at a time, round by round. Ctrl-C ends it early,
/// without an error.
pub(super) fn pass(
    binaries: &[Binary],
    arguments: &[String],
    jobs: usize,
    limits: &Limits,
    record: &mut Record,
) -> Result<()> {
    fs::create_dir_all(&limits.outputs).context(limits.outputs.display())?;
    let mut waiting = (0..limits.times).flat_map(|_| 0..binaries.len());
    let (mut running, mut line): (Vec<Run>, Line) = (Vec::new(), Line::new());
    let mut started = 0;
    loop {
        while running.len() < jobs
            && let Some(index) = waiting.next()
        {
            let output = limits.outputs.join(format!("{}-{started}.txt", std::process::id()));
            running.push(Run::start(index, &binaries[index], arguments, output)?);
            started += 1;
        }
        if running.is_empty() || interrupt::requested() {
            line.clear();
            return Ok(());
        }
        std::thread::sleep(NAP);
        take_ended(&mut running, limits.timeout, record, &mut line)?;
        line.show(&record.state());
    }
}

/// Counts the runs that ended, and prints new failures.
fn take_ended(
    running: &mut Vec<Run>,
    timeout: Duration,
    record: &mut Record,
    line: &mut Line,
) -> Result<()> {
    let mut still = Vec::with_capacity(running.len());
    for mut run in running.drain(..) {
        let Some(end) = run.end(timeout)? else {
            still.push(run);
            continue;
        };
        // Ctrl-C in a terminal also ends the binaries, which is no failure.
        if interrupt::requested() {
            continue;
        }
        let output = fs::read(&run.output).context(run.output.display())?;
        let news =
            record.count(run.binary, outcome::failures(end, &String::from_utf8_lossy(&output)));
        if !news.is_empty() {
            line.clear();
            print!("{news}");
        }
    }
    *running = still;
    Ok(())
}

/// A running binary. Dropping it kills it and removes its output.
struct Run {
    binary: usize,
    child: Child,
    /// A file rather than a pipe, because a process left behind by the test would keep a pipe open.
    output: PathBuf,
    begun: Instant,
}

impl Run {
    fn start(index: usize, binary: &Binary, arguments: &[String], output: PathBuf) -> Result<Run> {
        let file = File::create(&output).context(output.display())?;
        let both = file.try_clone().context(output.display())?;
        let mut command = Command::new(&binary.program);
        command.args(arguments).current_dir(&binary.directory).stdin(Stdio::null());
        let child = command.stdout(file).stderr(both).spawn();
        let child = child.context(format_args!("cannot run {}", binary.program.display()))?;
        Ok(Run { binary: index, child, output, begun: Instant::now() })
    }

    /// Returns how it ended; `None` while it runs.
    fn end(&mut self, timeout: Duration) -> Result<Option<End>> {
        let status = self.child.try_wait().context("cannot wait for a test")?;
        let is_over = status.is_none() && self.begun.elapsed() > timeout;
        Ok(status.map(End::Exit).or(is_over.then_some(End::Killed(timeout))))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Both fail for a process that has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.output);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A directory of shell scripts that act as test binaries, removed on drop.
    struct Scripts(PathBuf);

    impl Scripts {
        fn new(name: &str) -> Scripts {
            let path =
                std::env::temp_dir().join(format!("adit-repeat-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("a directory");
            Scripts(path)
        }

        fn binary(&self, target: &str, script: &str) -> Binary {
            let directory = self.0.join(target);
            fs::create_dir_all(&directory).expect("a directory");
            fs::write(directory.join("script"), script).expect("a file");
            let program = Path::new("/bin/sh").to_path_buf();
            Binary { package: "a".into(), target: target.into(), program, directory }
        }

        fn run(&self, binaries: &[Binary], times: u32, timeout: Duration) -> Record {
            let limits = Limits { times, timeout, outputs: self.0.join("outputs") };
            let mut record = Record::new(binaries, times);
            for jobs in [1, 4] {
                record.begin_pass();
                pass(binaries, &["script".into()], jobs, &limits, &mut record).expect("sh");
            }
            let left = fs::read_dir(&limits.outputs).expect("a directory").count();
            assert_eq!(left, 0, "files of output");
            record
        }
    }

    impl Drop for Scripts {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_fails_once_and_what_dies_is_listed_and_what_passes_is_not() {
        let scripts = Scripts::new("mixed");
        let once = "mkdir seen 2>&- || exit 0\nprintf 'failures:\\n    t::once\\n\\n'; exit 101";
        let binaries = [
            scripts.binary("dies", "kill -ABRT $$"),
            scripts.binary("once", once),
            scripts.binary("passes", "echo t::once; exit 0"),
        ];
        let summary = scripts.run(&binaries, 3, Duration::from_secs(600)).summary();
        assert!(
            summary.contains("t::once\n    failed in 1 of 3 alone, 0 of 3 side by side"),
            "{summary}"
        );
        assert!(summary.contains("SIGABRT"), "{summary}");
        assert!(summary.contains("failed in 3 of 3 alone, 3 of 3 side by side"), "{summary}");
        assert!(!summary.contains("a passes"), "{summary}");
        assert!(summary.contains("9 runs alone and 9 side by side; 2 "), "{summary}");
    }

    #[test]
    fn what_does_not_end_is_killed() {
        let scripts = Scripts::new("hangs");
        let binaries = [scripts.binary("hangs", "exec sleep 600")];
        let summary = scripts.run(&binaries, 1, Duration::from_millis(100)).summary();
        assert!(summary.contains("a hangs: the binary killed after 0.1 s"), "{summary}");
    }
}
