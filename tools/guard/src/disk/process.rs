//! Processes of the machine.

use serde::Serialize;

use crate::root::Root;

/// A process of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its command name.
    pub name: String,
}

impl Process {
    /// Describes that it has `what` open, and how to end that.
    pub fn opened(&self, what: &str) -> (String, String) {
        let Process { pid, name } = self;
        (format!("{what} is open in process {pid} ({name})"), format!("end process {pid}"))
    }
}

/// Returns the ids of all processes.
pub(super) fn processes(root: &Root) -> Vec<u32> {
    let names = root.names_quietly("/proc");
    let mut pids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Returns a process with its name.
pub(super) fn process(root: &Root, pid: u32) -> Process {
    Process { pid, name: root.text(format!("/proc/{pid}/comm")).unwrap_or_default() }
}
