//! QEMU's trace of the recorded commands.

use crate::commands::Queue;

/// QEMU's trace of one command; its first line names queue and opcode.
pub(crate) struct Traced {
    lines: Vec<&'static str>,
}

/// Returns the traces of the listed commands in order: those after the creation of the recorder's queue pair.
pub(crate) fn of_qemu() -> Vec<Traced> {
    let lines = include_str!("qemu-trace.txt").lines();
    let after = lines.skip_while(|line| !line.starts_with("pci_nvme_create_sq ")).skip(2);
    let mut commands: Vec<Traced> = Vec::new();
    for line in after {
        match (is_start(line), commands.last_mut()) {
            (false, Some(command)) => command.lines.push(line),
            _ => commands.push(Traced { lines: vec![line] }),
        }
    }
    commands
}

fn is_start(line: &str) -> bool {
    line.starts_with("pci_nvme_admin_cmd ") || line.starts_with("pci_nvme_io_cmd ")
}

impl Traced {
    pub(crate) fn queue(&self) -> Queue {
        match self.lines[0].starts_with("pci_nvme_admin_cmd ") {
            true => Queue::Admin,
            false => Queue::Io,
        }
    }

    /// Returns a value of the line that names queue and opcode.
    pub(crate) fn head(&self, key: &str) -> Option<u64> {
        value(self.lines[0], key)
    }

    /// Whether QEMU reached `event`.
    pub(crate) fn has(&self, event: &str) -> bool {
        self.events(event).next().is_some()
    }

    /// Returns the value of `key` in the command's first `event`.
    pub(crate) fn get(&self, event: &str, key: &str) -> Option<u64> {
        self.events(event).find_map(|line| value(line, key))
    }

    /// Returns the values of `key` in all of the command's `event`s.
    pub(crate) fn all(&self, event: &str, key: &str) -> Vec<u64> {
        self.events(event).filter_map(|line| value(line, key)).collect()
    }

    fn events(&self, event: &str) -> impl Iterator<Item = &'static str> {
        let name = format!("pci_nvme_{event}");
        self.lines.iter().copied().filter(move |line| line.split(' ').next() == Some(&name))
    }
}

/// Parses the number after `key`, decimal or `0x` hexadecimal, with a space or `=` between.
fn value(line: &str, key: &str) -> Option<u64> {
    let mut words = line.split([' ', '=', ',']).skip_while(|word| *word != key).skip(1);
    let word = words.next()?;
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[test]
fn values_are_found_by_their_keys() {
    let line = "pci_nvme_create_cq create completion queue, addr=0x1f, cqid=5, qsize=63";
    assert_eq!((value(line, "addr"), value(line, "cqid")), (Some(0x1f), Some(5)));
    assert_eq!(value("pci_nvme_read cid 2 lba 0x10", "lba"), Some(16));
    assert_eq!(value("pci_nvme_read cid 2 lba 0x10", "slba"), None);
}
