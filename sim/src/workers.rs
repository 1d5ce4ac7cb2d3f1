//! The process that starts the workers, adds up what they did and tells the first failure.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use adit_sim::Counts;

use crate::worker::{Batch, Line};

/// How often the person is told, and listened to.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// How a batch ended.
pub(crate) enum End {
    /// All of it was run.
    Done,
    /// The person stopped it.
    Stopped,
    /// What to tell of the first failure.
    Failed(String),
}

/// What a worker's reader passes on.
enum Message {
    Line(u64, Line),
    /// The worker is gone and never said that it was done.
    Gone(u64),
}

/// Runs a batch in `jobs` processes until it is done, a seed fails or `stops` is set.
pub(crate) fn run(
    batch: &Batch,
    jobs: u64,
    stops: &AtomicBool,
    tell: impl Fn(&Counts),
) -> (Counts, End) {
    let (sender, receiver) = channel();
    let mut totals = Counts::default();
    let mut rounds = vec![0; jobs as usize];
    let mut children = Vec::new();
    for index in 0..jobs {
        match start(batch, index, jobs) {
            Ok(child) => children.push(child),
            Err(why) => return (totals, End::Failed(format!("cannot start a process: {why}"))),
        }
    }
    let end = std::thread::scope(|scope| {
        for (index, child) in children.iter_mut().enumerate() {
            let (sender, stdout) = (sender.clone(), child.stdout.take());
            scope.spawn(move || {
                stdout.into_iter().for_each(|stdout| listen(index as u64, stdout, &sender));
            });
        }
        drop(sender);
        let end = follow(&receiver, stops, &mut totals, &mut rounds, &tell);
        // Their readers end with them.
        children.iter_mut().for_each(|child| drop(child.kill()));
        end
    });
    let statuses: Vec<_> = children.iter_mut().map(|child| child.wait().ok()).collect();
    match end {
        Next::End(end) => (totals, end),
        Next::Failed(seed) => (totals, End::Failed(report(batch, seed))),
        Next::Died(index) => {
            let status = statuses.get(index as usize).copied().flatten();
            let round = rounds[index as usize] * jobs + index;
            (totals, End::Failed(find_death(batch, round, status)))
        }
    }
}

/// What is to be done when nobody needs to work any more.
enum Next {
    End(End),
    Failed(u64),
    Died(u64),
}

fn follow(
    receiver: &Receiver<Message>,
    stops: &AtomicBool,
    totals: &mut Counts,
    rounds: &mut [u64],
    tell: &impl Fn(&Counts),
) -> Next {
    let mut left = rounds.len();
    let mut told = Instant::now();
    while left > 0 {
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tell(totals);
        }
        match receiver.recv_timeout(TELL_EVERY) {
            Ok(Message::Line(index, Line::Round(counts))) => {
                totals.add(&counts);
                rounds[index as usize] += 1;
            }
            Ok(Message::Line(_, Line::Failed(seed))) => return Next::Failed(seed),
            Ok(Message::Line(_, Line::End)) => left -= 1,
            Ok(Message::Gone(index)) if !stops.load(Ordering::Relaxed) => return Next::Died(index),
            Ok(Message::Gone(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if stops.load(Ordering::Relaxed) {
            return Next::End(End::Stopped);
        }
    }
    Next::End(End::Done)
}

/// Reads what a worker says until it is gone.
fn listen(index: u64, stdout: ChildStdout, sender: &Sender<Message>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Some(line) = Line::parse(&line) else { continue };
        let is_last = !matches!(line, Line::Round(_));
        // Nobody listens any more when the batch is over.
        if sender.send(Message::Line(index, line)).is_err() || is_last {
            return;
        }
    }
    let _ = sender.send(Message::Gone(index));
}

/// This program, for seeds of the batch.
fn program(batch: &Batch, seed: u64) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--seed").arg(seed.to_string()).stdin(Stdio::null());
    if let Some(canary) = batch.canary {
        command.arg("--canary").arg(canary.name());
    }
    Ok(command)
}

fn start(batch: &Batch, index: u64, jobs: u64) -> std::io::Result<Child> {
    let mut command = program(batch, batch.first)?;
    command.arg("--worker").arg(format!("{index}/{jobs}")).stdout(Stdio::piped());
    if let Some(schedules) = batch.schedules {
        command.arg("--schedules").arg(schedules.to_string());
    }
    if let Some(time) = batch.minutes {
        command.arg("--minutes").arg((time.as_secs_f64() / 60.0).to_string());
    }
    command.spawn()
}

/// Runs one seed in a process of its own; what it said and how it ended.
fn alone(batch: &Batch, seed: u64) -> Option<(String, ExitStatus)> {
    let output = program(batch, seed).ok()?.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    Some((text, output.status))
}

/// What there is to tell of a seed that failed.
fn report(batch: &Batch, seed: u64) -> String {
    match alone(batch, seed) {
        Some((text, status)) if !status.success() => text,
        _ => format!(
            "seed {seed:#x} failed once and passed when it was run again: it is not deterministic"
        ),
    }
}

/// Finds the seed of a round that kills its process.
fn find_death(batch: &Batch, round: u64, status: Option<ExitStatus>) -> String {
    for index in batch.round(round) {
        let seed = batch.first.wrapping_add(index);
        if let Some((_, status)) = alone(batch, seed)
            && status.code().is_none()
        {
            return format!(
                "the process died ({status})\nrepeat it: cargo xtask sim --seed {seed:#x} --trace"
            );
        }
    }
    let why = status.map_or("no status".to_owned(), |status| status.to_string());
    let seed = batch.first.wrapping_add(batch.round(round).start);
    let schedules = batch.round(round).count();
    format!(
        "a process died ({why}), and no seed kills it alone\n\
         repeat it: cargo xtask sim --seed {seed:#x} --schedules {schedules} --jobs 1"
    )
}
