//! Runs `adit softnvme` as another process.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

/// A ready server, killed on drop.
pub(crate) struct Softnvme {
    child: Child,
    out: BufReader<ChildStdout>,
    err: Option<ChildStderr>,
    pub(crate) ready: String,
    folder: PathBuf,
}

impl Softnvme {
    /// Serves at `folder`, with more arguments in `words`.
    pub(crate) fn start(folder: &Path, words: &[&str]) -> Softnvme {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
        command.args(["softnvme", "--socket"]).arg(folder).args(words);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("adit runs");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut err = child.stderr.take().expect("piped");
        let mut ready = String::new();
        out.read_line(&mut ready).expect("UTF-8");
        if ready.is_empty() {
            let mut said = String::new();
            let _ = err.read_to_string(&mut said);
            panic!("not served: {said}");
        }
        Softnvme { child, out, err: Some(err), ready, folder: folder.to_owned() }
    }

    /// Returns the target for clients.
    pub(crate) fn target(&self) -> String {
        format!("vfio-user:{}", self.folder.join("cntrl").display())
    }

    /// Returns the next line it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("UTF-8");
        line
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with a signal; returns its exit code, remaining output, and errors.
    pub(crate) fn end(mut self, signal: &str) -> (Option<i32>, String, String) {
        kill(signal, self.child.id());
        let (mut out, mut complaints) = (String::new(), String::new());
        self.out.read_to_string(&mut out).expect("UTF-8");
        let mut err = self.err.take().expect("not taken before");
        err.read_to_string(&mut complaints).expect("UTF-8");
        (self.child.wait().expect("a child").code(), out, complaints)
    }
}

impl Drop for Softnvme {
    fn drop(&mut self) {
        // Already ended if `end` was called.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn kill(signal: &str, id: u32) {
    let ended = Command::new("kill").args([&format!("-{signal}"), &id.to_string()]).status();
    assert!(ended.expect("kill runs").success());
}
