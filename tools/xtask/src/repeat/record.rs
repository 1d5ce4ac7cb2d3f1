//! Records the runs so far, and how many times each test failed.

use super::binaries::Binary;
use super::outcome::Failed;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Alone, and side by side.
const PASSES: usize = 2;

/// Runs and failures of each binary.
pub(super) struct Record {
    names: Vec<String>,
    times: u32,
    /// Passes begun.
    begun: usize,
    /// Finished runs, by binary and pass.
    runs: Vec<[u32; PASSES]>,
    /// Failed runs, by binary, name and pass.
    failed: BTreeMap<(usize, String), [u32; PASSES]>,
}

impl Record {
    /// Creates an empty record of `binaries`, each to run `times` times per pass.
    pub(super) fn new(binaries: &[Binary], times: u32) -> Record {
        let names = binaries.iter().map(Binary::name).collect();
        let runs = vec![[0; PASSES]; binaries.len()];
        Record { names, times, begun: 0, runs, failed: BTreeMap::new() }
    }

    /// Starts counting runs of the next pass.
    pub(super) fn begin_pass(&mut self) {
        self.begun += 1;
        assert!(self.begun <= PASSES, "there are two passes");
    }

    /// Counts a run; returns what to print about it: each failure at its first occurrence.
    pub(super) fn count(&mut self, binary: usize, failures: Vec<Failed>) -> String {
        let (pass, mut news) = (self.begun - 1, String::new());
        self.runs[binary][pass] += 1;
        for Failed { name, said } in failures {
            let run = self.runs[binary][pass];
            let counts = self.failed.entry((binary, name.clone())).or_insert_with(|| {
                let title = format!("FAIL {}: {name} (run {run})", self.names[binary]);
                news += &format!("{title}\n    {}\n", said.replace('\n', "\n    "));
                [0; PASSES]
            });
            counts[pass] += 1;
        }
        news
    }

    pub(super) fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Describes the current state in a few words.
    pub(super) fn state(&self) -> String {
        let pass = self.begun - 1;
        let runs: u32 = self.runs.iter().map(|runs| runs[pass]).sum();
        let all = self.times as usize * self.names.len();
        let how = ["alone", "side by side"][pass];
        format!("{how}: {runs} of {all} runs, {} failures so far", self.failed.len())
    }

    /// Returns the failures with the number of runs, then a verdict.
    pub(super) fn summary(&self) -> String {
        let mut text = String::new();
        for ((binary, name), failed) in &self.failed {
            let runs = self.runs[*binary];
            let counts = format!(
                "{} of {} alone, {} of {} side by side",
                failed[0], runs[0], failed[1], runs[1]
            );
            writeln!(text, "{}: {name}\n    failed in {counts}", self.names[*binary])
                .expect("a string grows");
        }
        let verdict = if self.has_failures() { "FAILED" } else { "ok" };
        let [alone, beside] =
            [0, 1].map(|pass| self.runs.iter().map(|runs| runs[pass]).sum::<u32>());
        text + &format!(
            "repeat: {verdict}. {} binaries, {alone} runs alone and {beside} side by side; {} tests failed by chance or always; ",
            self.names.len(),
            self.failed.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn failed(name: &str) -> Vec<Failed> {
        vec![Failed { name: name.into(), said: "seed 17\nlate".into() }]
    }

    #[test]
    fn a_failure_is_shown_once_and_counted_in_each_pass() {
        let nowhere = PathBuf::new;
        let binary = Binary {
            package: "a".into(),
            target: "lib".into(),
            program: nowhere(),
            directory: nowhere(),
        };
        let mut record = Record::new(&[binary], 3);
        record.begin_pass();
        assert_eq!(record.count(0, vec![]), "");
        assert!(
            !record.has_failures()
                && record.summary().starts_with("repeat: ok. 1 binaries, 1 runs")
        );
        let news = record.count(0, failed("t"));
        assert_eq!(news, "FAIL a lib: t (run 2)\n    seed 17\n    late\n");
        assert_eq!(record.count(0, failed("t")), "", "known");
        record.begin_pass();
        assert_eq!(record.state(), "side by side: 0 of 3 runs, 1 failures so far");
        assert_eq!(record.count(0, failed("t")), "");
        let summary = record.summary();
        assert!(
            summary.contains("a lib: t\n    failed in 2 of 3 alone, 1 of 1 side by side"),
            "{summary}"
        );
        assert!(
            summary.contains("repeat: FAILED. 1 binaries, 3 runs alone and 1 side by side; 1 ")
        );
    }
}
