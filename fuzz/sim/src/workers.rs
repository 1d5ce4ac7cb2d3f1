//! The process that starts the workers, sums their results and reports the first failure.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::task::Totals;
use crate::worker::{Batch, Line};

/// Interval of progress reports and checks for signals.
const TELL_EVERY: Duration = Duration::from_millis(500);

pub(crate) enum End {
    /// All of it was run.
    Done,
    /// The user stopped it.
    Stopped,
    /// The report of the first failure.
    Failed(String),
}

/// A message from a worker's reader.
enum Message {
    Line(u64, Line),
    /// The worker is gone without having reported its end.
    Gone(u64),
}

/// Runs a batch in `jobs` processes until it is done, a seed fails or `stops` is set.
pub(crate) fn run(
    batch: &Batch,
    jobs: u64,
    stops: &AtomicBool,
    tell: impl Fn(&Totals),
) -> (Totals, End) {
    let (sender, receiver) = channel();
    let mut totals = batch.task.totals();
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
        Next::Failed(index) => (totals, End::Failed(report(batch, index))),
        Next::Died(index) => {
            let status = statuses.get(index as usize).copied().flatten();
            let round = rounds[index as usize] * jobs + index;
            (totals, End::Failed(find_death(batch, round, status)))
        }
    }
}

/// How to proceed after the workers have ended.
enum Next {
    End(End),
    Failed(u64),
    Died(u64),
}

fn follow(
    receiver: &Receiver<Message>,
    stops: &AtomicBool,
    totals: &mut Totals,
    rounds: &mut [u64],
    tell: &impl Fn(&Totals),
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
            Ok(Message::Line(_, Line::Failed(index))) => return Next::Failed(index),
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

/// Reads a worker's output until it is gone.
fn listen(index: u64, stdout: ChildStdout, sender: &Sender<Message>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Some(line) = Line::parse(&line) else { continue };
        let is_last = !matches!(line, Line::Round(_));
        // The receiver is gone when the batch is over.
        if sender.send(Message::Line(index, line)).is_err() || is_last {
            return;
        }
    }
    let _ = sender.send(Message::Gone(index));
}

/// Returns this program as a command without input.
fn program() -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.stdin(Stdio::null());
    Ok(command)
}

fn start(batch: &Batch, index: u64, jobs: u64) -> std::io::Result<Child> {
    let mut command = program()?;
    batch.task.hand_on(&mut command);
    command.arg("--seed").arg(batch.first.to_string());
    command.arg("--worker").arg(format!("{index}/{jobs}")).stdout(Stdio::piped());
    if let Some(schedules) = batch.schedules {
        command.arg("--schedules").arg(schedules.to_string());
    }
    if let Some(time) = batch.minutes {
        command.arg("--minutes").arg((time.as_secs_f64() / 60.0).to_string());
    }
    command.spawn()
}

/// Runs one schedule in a process of its own; returns its output and its exit status.
fn alone(batch: &Batch, index: u64) -> Option<(String, ExitStatus)> {
    let mut command = program().ok()?;
    batch.task.hand_on_one(&mut command, batch.first, index);
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    Some((text, output.status))
}

/// Returns the arguments of a command that runs one schedule, as a user types them.
fn arguments(batch: &Batch, index: u64) -> String {
    let mut command = Command::new("sim");
    batch.task.hand_on_one(&mut command, batch.first, index);
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Returns the report of a schedule that failed.
fn report(batch: &Batch, index: u64) -> String {
    match alone(batch, index) {
        Some((text, status)) if !status.success() => text,
        _ => format!(
            "'{}' failed once and passed when it was run again: it is not deterministic",
            arguments(batch, index)
        ),
    }
}

/// Finds the schedule of a round that kills its process.
fn find_death(batch: &Batch, round: u64, status: Option<ExitStatus>) -> String {
    for index in batch.round(round) {
        if let Some((_, status)) = alone(batch, index)
            && status.code().is_none()
        {
            let repeat = arguments(batch, index);
            return format!(
                "the process died ({status})\nrepeat it: cargo xtask sim {repeat} --trace"
            );
        }
    }
    let why = status.map_or("no status".to_owned(), |status| status.to_string());
    let repeat = arguments(batch, batch.round(round).start);
    let schedules = batch.round(round).count();
    format!(
        "a process died ({why}), and no schedule kills it alone\n\
         repeat it: cargo xtask sim {repeat} --schedules {schedules} --jobs 1"
    )
}
