//! A server under test: the example of `adit-kvstore` on a file, started, killed, and started again.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ledger::End;
use crate::failure::{Context, Failure, Result};

/// How long a server may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(120);
/// KV blocks of the second model: 2 MiB each.
pub(super) const LAYOUT: &str = "second";
pub(super) const BLOCK_BYTES: usize = 2 << 20;

/// What clients know of a server.
#[derive(Debug, Default)]
pub(super) struct Lives {
    state: Mutex<Ends>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Ends {
    /// How each life ended.
    ends: Vec<End>,
    /// The address of the life that goes on, if one does.
    address: Option<String>,
}

impl Lives {
    /// Returns the ends of all lives from number `seen` on.
    pub(super) fn ends_since(&self, seen: usize) -> Vec<End> {
        self.lock().ends[seen..].to_vec()
    }

    /// Returns the number of the life that goes on, and its address; waits for one for a moment.
    pub(super) fn current(&self) -> Option<(usize, String)> {
        let state = self.lock();
        let wait = self
            .changed
            .wait_timeout_while(state, Duration::from_millis(100), |state| state.address.is_none());
        let (state, _) = wait.unwrap_or_else(PoisonError::into_inner);
        Some((state.ends.len(), state.address.clone()?))
    }

    fn begin(&self, address: String) {
        self.lock().address = Some(address);
        self.changed.notify_all();
    }

    fn end(&self, end: End) {
        let mut state = self.lock();
        state.address = None;
        state.ends.push(end);
    }

    fn lock(&self) -> MutexGuard<'_, Ends> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server's place, and the server while it lives.
pub(super) struct Server<'a> {
    name: &'static str,
    program: &'a Path,
    image: PathBuf,
    config: PathBuf,
    log: PathBuf,
    pub(super) lives: &'a Lives,
    child: Option<Child>,
    is_durable: bool,
}

impl<'a> Server<'a> {
    /// Prepares a server called `name`, with its store in `disk` and its texts in `texts`.
    pub(super) fn new(
        (name, bytes): (&'static str, u64),
        program: &'a Path,
        (disk, texts): (&Path, &Path),
        lives: &'a Lives,
    ) -> Result<Server<'a>> {
        let image = disk.join(format!("{name}.img"));
        let (config, log) = (texts.join(format!("{name}.toml")), texts.join(format!("{name}.log")));
        let text = format!(
            "listen = '127.0.0.1:0'\n[store]\ntargets = ['uring:{}']\n[store.format]\nfile_bytes = {bytes}\n\
             [layouts.{LAYOUT}]\nlayers = 8\ntensors_per_layer = 2\nkv_heads = 8\nhead_dim = 128\n\
             dtype = 'bf16'\ntokens = 64\nslots = 8\n",
            image.display()
        );
        fs::write(&config, text).context(config.display())?;
        Ok(Server { name, program, image, config, log, lives, child: None, is_durable: false })
    }

    /// Starts a life; with `formats`, on an empty store.
    pub(super) fn start(&mut self, formats: bool, is_durable: bool) -> Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .context(self.log.display())?;
        if formats {
            // A store that is left there from before.
            drop(fs::remove_file(&self.image));
        }
        let durability = if is_durable { "durable" } else { "restart" };
        let mut command = Command::new(self.program);
        command.arg("--config").arg(&self.config).args(["--durability", durability]);
        command.args(formats.then_some("--format"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let child =
            command.spawn().context(format_args!("cannot run {}", self.program.display()))?;
        let child = self.child.insert(child);
        let stdout = child.stdout.take().expect("piped");
        self.is_durable = is_durable;
        self.lives.begin(self.address(stdout)?);
        Ok(())
    }

    /// Waits until the server says where it listens.
    fn address(&self, stdout: std::process::ChildStdout) -> Result<String> {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines();
            // The receiver is gone if it took too long.
            let _ = sender.send(lines.next());
            // Read on, so that its last words do not end the server.
            lines.for_each(drop);
        });
        let line = receiver.recv_timeout(PATIENCE).ok().flatten().and_then(std::result::Result::ok);
        let address =
            line.and_then(|line| line.strip_prefix("listening on http://").map(str::to_owned));
        address.ok_or_else(|| {
            Failure::new(format!("the {} does not start; see {}", self.name, self.log.display()))
        })
    }

    /// Kills it, or with `is_clean` lets it close.
    pub(super) fn end(&mut self, is_clean: bool) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        self.lives.end(End { at: Instant::now(), is_clean, is_durable: self.is_durable });
        if !is_clean {
            child.kill().context("cannot kill the server")?;
            child.wait().context("cannot wait for the server")?;
            return Ok(());
        }
        let pid = child.id().to_string();
        crate::process::run_quietly(Command::new("kill").args(["-s", "TERM", &pid]))?;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match child.try_wait().context("cannot wait for the server")? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.failed(&format!("it closed with {status}"))),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        drop((child.kill(), child.wait()));
        Err(self.failed("it does not close"))
    }

    /// Fails if it ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        status.map_or(Ok(()), |status| Err(self.failed(&format!("it ended by itself: {status}"))))
    }

    fn failed(&self, what: &str) -> Failure {
        Failure::new(format!("the {}: {what}; see {}", self.name, self.log.display()))
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // Its data are checked no more.
        let _ = self.end(false);
    }
}
