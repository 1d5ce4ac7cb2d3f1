//! Rounds: every engine once in each, one child process after another.
//!
//! Taking turns spreads interference by the rest of the machine over all engines. However a run ends, a signal
//! included, it ends the child and removes its files; only a kill leaves the folder, which the next run removes.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM};

use crate::engine::Kind;
use crate::measured::Measured;
use crate::memory_limit::MemoryLimit;
use crate::message::{Ended, Message};
use crate::options::Options;
use crate::place::Place;
use crate::report::{Machine, Report, Turn};
use crate::size::Size;

/// Time between two checks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// A signal ended the run.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted; what was made is removed")
    }
}

impl std::error::Error for Interrupted {}

/// Compares the engines and prints the report.
///
/// # Errors
/// Invalid options, an engine that failed, wrong bytes, or [`Interrupted`].
pub(crate) fn run(options: &Options) -> Result<()> {
    check(options)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let place = Place::new(&options.dir, &options.load)?;
    if !MemoryLimit::is_possible() {
        eprintln!(
            "adit-compare: memory is not limited, because no memory group can be made here: run it as root, or plain \
             files have all of the machine's memory as their cache; the page cache is emptied between phases only"
        );
    }
    let before = load_average();
    let mut rounds = Rounds { options, place, stop, bar: bar(options), turns: Vec::new() };
    rounds.run()?;
    let memory_is_limited = rounds.turns.iter().all(|turn| turn.peak_bytes.is_some());
    let machine = Machine { memory_is_limited, load_before: before, load_after: load_average() };
    let report = Report::new(options, machine, std::mem::take(&mut rounds.turns));
    drop(rounds);
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.markdown()),
    }
    report.check()
}

fn check(options: &Options) -> Result<()> {
    if options.load.objects() < u64::from(options.load.depth) {
        bail!(
            "{} of data are {} objects, fewer than the {} in flight; give more with --data",
            options.load.data,
            options.load.objects(),
            options.load.depth
        );
    }
    if 2 * options.load.cache_bytes() > options.load.memory.0 {
        bail!(
            "{} of cache are more than half of the memory, and engines need as much for buffers: give at least {} with \
             --memory, or less with --cache",
            Size(options.load.cache_bytes()),
            Size(2 * options.load.cache_bytes())
        );
    }
    let twice = |(index, kind): (usize, &Kind)| options.engines[..index].contains(kind);
    if let Some((_, kind)) = options.engines.iter().enumerate().find(|item| twice(*item)) {
        bail!("--engines names {} twice; name each once, and repeat with --rounds", kind.name());
    }
    Ok(())
}

/// Returns the kernel's three load averages, or nothing if it provides none.
fn load_average() -> String {
    let all = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    all.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Creates a progress bar, which appears only on a terminal.
fn bar(options: &Options) -> ProgressBar {
    let turns = u64::from(options.rounds) * options.engines.len() as u64;
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} % {msg}")
        .expect("the template is right");
    ProgressBar::new(turns * 1000).with_style(style)
}

struct Rounds<'a> {
    options: &'a Options,
    place: Place,
    stop: Arc<AtomicBool>,
    bar: ProgressBar,
    turns: Vec<Turn>,
}

impl Rounds<'_> {
    fn run(&mut self) -> Result<()> {
        for round in 1..=self.options.rounds {
            for &kind in &self.options.engines {
                let turn = self.turn(round, kind)?;
                self.turns.push(turn);
            }
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    /// Runs one engine in one round.
    fn turn(&self, round: u32, kind: Kind) -> Result<Turn> {
        let limit = MemoryLimit::new(self.options.load.group_bytes(kind));
        let child = self.start(round, kind, limit.as_ref())?;
        let mut running = Running(child);
        let messages = listen(&mut running.0)?;
        let mut heard = Heard::default();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            match messages.recv_timeout(LOOK) {
                Ok(message) => self.hear(round, kind, message?, &mut heard),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = running.0.wait()?;
        // A signal from the terminal reaches the child as well, perhaps first.
        if self.stop.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        let Some(ended) = heard.ended.filter(|_| status.success()) else {
            let fix = match limit {
                Some(_) if status.signal() == Some(SIGKILL) => {
                    "it may have used up its memory: give more with --memory"
                }
                _ => "what it said is above",
            };
            bail!("{} ended with {status} in round {round}; {fix}", kind.name());
        };
        let peak_bytes = limit.as_ref().and_then(MemoryLimit::peak_bytes);
        Ok(Turn { round, engine: kind, phases: heard.phases, ended, peak_bytes })
    }

    fn start(&self, round: u32, kind: Kind, limit: Option<&MemoryLimit>) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("child").args(["--engine", &kind.name()]).args(["--seed", &round.to_string()]);
        command.arg("--folder").arg(self.place.fresh()?).args(self.options.load.arguments());
        if let Some(limit) = limit {
            command.arg("--group").arg(limit.members());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().context("this program cannot start itself")
    }

    fn hear(&self, round: u32, kind: Kind, message: Message, heard: &mut Heard) {
        match message {
            Message::Far { phase, done } => {
                let phases = self.options.load.phases.len() as f64 + 1.0;
                let part = (heard.phases.len() as f64 + done) / phases * 1000.0;
                self.bar.set_position(self.turns.len() as u64 * 1000 + part as u64);
                let rounds = self.options.rounds;
                self.bar.set_message(format!(
                    "round {round} of {rounds}, {}: {}",
                    kind.name(),
                    phase.title()
                ));
            }
            Message::Measured(measured) => heard.phases.push(measured),
            Message::Ended(ended) => heard.ended = Some(ended),
        }
    }
}

/// The child's reports so far.
#[derive(Default)]
struct Heard {
    phases: Vec<Measured>,
    ended: Option<Ended>,
}

/// A child that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The child may have ended already; a failure cannot be reported here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the child's output on a thread. Its libraries may print lines that are not messages.
fn listen(child: &mut Child) -> Result<Receiver<Result<Message>>> {
    let out = child.stdout.take().context("the child's output is piped")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines() {
            let message = line.map_err(anyhow::Error::from).and_then(|line| understand(&line));
            if let Some(message) = message.transpose()
                && sender.send(message).is_err()
            {
                break;
            }
        }
    });
    Ok(receiver)
}

/// Parses a line of the child, if it is a message.
fn understand(line: &str) -> Result<Option<Message>> {
    if !line.starts_with('{') {
        return Ok(None);
    }
    let message = serde_json::from_str(line);
    message.map(Some).with_context(|| format!("the child said '{line}', which is no message"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Phase;

    #[test]
    fn what_a_library_prints_is_no_message() {
        let line = serde_json::to_string(&Message::Far { phase: Phase::Zipf, done: 0.5 });
        let understood = understand(&line.expect("JSON")).expect("a message");
        assert!(matches!(understood, Some(Message::Far { phase: Phase::Zipf, .. })));
        assert!(understand("==========> 671088640").expect("ignored").is_none());
        assert!(understand("{\"far\"").expect_err("cut off").to_string().contains("no message"));
    }
}
