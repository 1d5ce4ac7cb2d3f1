//! Splits the output of the guest's second serial port into the command's output and the guest's report.
//!
//! The port carries `MARKER start`, the command's bytes unchanged, `MARKER` again, and the report. The marker
//! is random, so the command cannot print it by chance. The command's bytes are passed on as they arrive,
//! except for a possible beginning of the marker.
//!
//! The report consists of lines: `exit N` or `error WHY`, then `fault LINE` for each DMA fault in the kernel's
//! log, then `end`.

/// A complete report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// The command's exit code, or why it never ran.
    pub result: Result<u8, String>,
    /// The kernel's messages about DMA refused by the IOMMU.
    pub faults: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Boot,
    Command,
    Report,
}

/// The splitter; feed it everything that arrives.
pub(crate) struct Splitter {
    marker: Vec<u8>,
    part: Part,
    held: Vec<u8>,
}

impl Splitter {
    pub(crate) fn new(marker: &str) -> Self {
        Self { marker: marker.as_bytes().to_vec(), part: Part::Boot, held: Vec::new() }
    }

    /// Takes bytes and returns the command's output among them.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        if self.part == Part::Boot {
            self.end_boot();
        }
        if self.part == Part::Command { self.command_bytes() } else { Vec::new() }
    }

    /// Returns whether the guest has started the command.
    pub(crate) fn booted(&self) -> bool {
        self.part != Part::Boot
    }

    /// Returns the report; `None` if the guest died before its end.
    pub(crate) fn report(&self) -> Option<Report> {
        let text = String::from_utf8_lossy(&self.held);
        let (text, _) = text.split_once("\nend\n").filter(|_| self.part == Part::Report)?;
        let mut lines = text.lines().map(str::trim);
        let first = lines.next()?;
        let result = match first.strip_prefix("exit ") {
            Some(code) => Ok(code.parse().ok()?),
            None => Err(first.strip_prefix("error ")?.to_owned()),
        };
        let faults =
            lines.filter_map(|line| line.strip_prefix("fault ")).map(str::to_owned).collect();
        Some(Report { result, faults })
    }

    fn end_boot(&mut self) {
        let Some(at) = find(&self.held, &self.marker) else {
            return;
        };
        let after = &self.held[at + self.marker.len()..];
        if let Some(line) = after.iter().position(|&byte| byte == b'\n') {
            let started = after[..line] == *b"start";
            self.part = if started { Part::Command } else { Part::Report };
            self.held.drain(..at + self.marker.len() + if started { line + 1 } else { 0 });
        }
    }

    fn command_bytes(&mut self) -> Vec<u8> {
        if let Some(at) = find(&self.held, &self.marker) {
            let output = self.held[..at].to_vec();
            self.held.drain(..at + self.marker.len());
            self.part = Part::Report;
            return output;
        }
        let possible = (0..self.marker.len())
            .rev()
            .find(|&length| self.held.ends_with(&self.marker[..length]));
        let keep = possible.unwrap_or_default();
        self.held.drain(..self.held.len() - keep).collect()
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"noise\n<mm>start\nhello <m\xff>\n<m no newline<mm>exit 3\nfault DMAR: fault addr 0x0\nend\n";

    #[test]
    fn any_way_of_cutting_the_stream_gives_the_same() {
        for size in 1..STREAM.len() {
            let mut splitter = Splitter::new("<mm>");
            let output: Vec<u8> =
                STREAM.chunks(size).flat_map(|chunk| splitter.feed(chunk)).collect();
            assert_eq!(output, b"hello <m\xff>\n<m no newline", "in pieces of {size}");
            let report = splitter.report().unwrap();
            assert_eq!(
                report,
                Report { result: Ok(3), faults: vec!["DMAR: fault addr 0x0".into()] }
            );
        }
    }

    #[test]
    fn output_is_not_held_back_longer_than_needed() {
        let mut splitter = Splitter::new("<mm>");
        assert!(!splitter.booted());
        splitter.feed(b"<mm>start\n");
        assert!(splitter.booted());
        assert_eq!(splitter.feed(b"abc<"), b"abc");
        assert_eq!(splitter.feed(b"d"), b"<d");
    }

    #[test]
    fn a_guest_that_never_reaches_the_command_says_why() {
        let mut splitter = Splitter::new("<mm>");
        assert!(splitter.feed(b"<mm>error no disk\nend\n").is_empty());
        assert_eq!(splitter.report().unwrap().result, Err("no disk".into()));
    }

    #[test]
    fn a_report_without_its_end_is_none() {
        let mut splitter = Splitter::new("<mm>");
        splitter.feed(b"<mm>start\n<mm>exit 0\nfau");
        assert_eq!(splitter.report(), None);
    }
}
