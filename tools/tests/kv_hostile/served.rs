//! The server: its process, and what it takes of the system.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::adit;

const PATIENCE: Duration = Duration::from_secs(60);
/// More descriptors than the clients and the connections that the server takes may need.
const FILES_MAX: u64 = 12 * 8 + 16 * 4 + 150;
/// As many threads: one for each of those, the store's, and some that close files.
const THREADS_MAX: u64 = 12 + 16 + 40;
/// More memory of its own than the server needs for all of them.
const OWN_KIB_MAX: u64 = 400 << 10;

/// What a process takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peaks {
    pub(crate) files: u64,
    pub(crate) threads: u64,
    /// Anonymous memory.
    pub(crate) own_kib: u64,
}

pub(crate) struct Served {
    child: Child,
    events: Option<JoinHandle<Vec<String>>>,
    peaks: Peaks,
}

impl Served {
    pub(crate) fn start(target: &str, socket: &Path, limits: &[&str]) -> Served {
        let socket = socket.to_str().expect("text");
        let words = ["kv", "serve", "--store", target, "--socket", socket, "--json"];
        let mut command = adit(&[&words, limits].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("adit runs");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert!(line.contains("ready"), "{line}");
        // Without a reader the server would wait. The last lines are enough.
        let events = std::thread::spawn(move || {
            let mut last = Vec::new();
            for line in output.lines().map_while(Result::ok) {
                last.truncate(1);
                last.insert(0, line);
            }
            last
        });
        Served { child, events: Some(events), peaks: Peaks::default() }
    }

    /// Returns what it takes now.
    pub(crate) fn look(&self) -> Peaks {
        let process = format!("/proc/{}", self.child.id());
        let status = std::fs::read_to_string(format!("{process}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        let files = std::fs::read_dir(format!("{process}/fd")).map_or(0, |all| all.count() as u64);
        Peaks { files, threads: field("Threads:"), own_kib: field("RssAnon:") }
    }

    /// Checks that it is there, and takes no more than it may.
    pub(crate) fn watch(&mut self) -> Result<(), String> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(format!("the server has ended: {status}"));
        }
        let now = self.look();
        let most = &mut self.peaks;
        most.files = most.files.max(now.files);
        most.threads = most.threads.max(now.threads);
        most.own_kib = most.own_kib.max(now.own_kib);
        let fits =
            now.files <= FILES_MAX && now.threads <= THREADS_MAX && now.own_kib <= OWN_KIB_MAX;
        if fits { Ok(()) } else { Err(format!("the server takes too much: {now:?}")) }
    }

    /// Checks that it comes to take as many descriptors and threads as before, apart from some that it keeps.
    pub(crate) fn check_as_before(&self, before: &Peaks) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let now = self.look();
            if now.files <= before.files + 4 && now.threads <= before.threads + 20 {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("the server keeps {now:?}, before it had {before:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it in order. Returns the most that it took.
    pub(crate) fn end(&mut self) -> Result<Peaks, String> {
        let process = Pid::from_raw(i32::try_from(self.child.id()).expect("a process number"));
        kill(process, Signal::SIGTERM).map_err(|why| why.to_string())?;
        let status = self.child.wait().map_err(|why| why.to_string())?;
        let events = self.events.take().expect("once").join().expect("no panic");
        let last = events.first().cloned().unwrap_or_default();
        match status.code() == Some(0) && last.contains("\"ended\"") {
            true => Ok(self.peaks.clone()),
            false => Err(format!("the server did not end in order: {status}, {last}")),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
