//! Saves a verifying job's progress when it is interrupted, so that its data can still be read back.
//!
//! Written data follows from the job, the seed and the position. The file stores these, and the I/Os in flight,
//! which may or may not have been written. Its name is like that of fio's state file, but its format differs.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::options::{BlockSizes, JobOptions};
use crate::way::Way;
use crate::whole_file::WholeFile;
use crate::workload::JobRegion;

/// The version written; others are refused.
const VERSION: u32 = 3;

/// The progress of one thread of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerifyState {
    version: u32,
    job: String,
    thread: u32,
    /// The options that determine the written data.
    options: Vec<(String, String)>,
    /// The generator's seed.
    pub(crate) seed: u64,
    /// Distinguishes its writes from those of other runs.
    pub(crate) stamp: u64,
    /// The current pass.
    pub(crate) pass: u64,
    /// Steps taken in it.
    pub(crate) position: u64,
    /// Steps that were taken but had not completed, and may or may not have been written.
    pub(crate) in_flight: Vec<u64>,
}

impl VerifyState {
    /// Creates the state of a thread of `job` before its start, on these regions of its files.
    pub(crate) fn new(
        job: &JobOptions,
        thread: u32,
        files: &[JobRegion],
        seed: u64,
    ) -> VerifyState {
        VerifyState {
            version: VERSION,
            job: job.name.clone(),
            thread,
            options: options_of(job, files),
            seed,
            stamp: 0,
            pass: 0,
            position: 0,
            in_flight: Vec::new(),
        }
    }

    /// Returns the path of a thread's state file.
    pub(crate) fn path(directory: &Path, job: &JobOptions, thread: u32) -> PathBuf {
        directory.join(file_name(&job.name, thread))
    }

    /// Writes the state to its file in `directory` atomically; returns the path.
    ///
    /// # Errors
    /// It cannot be written; says where and why.
    pub(crate) fn save(&self, directory: &Path) -> Result<PathBuf, String> {
        let path = directory.join(file_name(&self.job, self.thread));
        self.write(&path).map_err(|error| {
            format!(
                "the verify state cannot be written to {}: {error}; make room there, or use verify_state_save=0",
                path.display()
            )
        })?;
        Ok(path)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = WholeFile::create(path)?;
        serde_json::to_writer_pretty(&mut file, self)?;
        file.write_all(b"\n")?;
        file.finish()
    }

    /// Loads the state an earlier run of the same thread and job saved in `directory`.
    ///
    /// # Errors
    /// There is none, or it is another job's; says what to do.
    pub(crate) fn load(
        directory: &Path,
        job: &JobOptions,
        thread: u32,
        files: &[JobRegion],
    ) -> Result<VerifyState, String> {
        let path = VerifyState::path(directory, job, thread);
        let state = VerifyState::read(&path)?;
        if (&*state.job, state.thread) != (&*job.name, thread) {
            return Err(format!(
                "{} is the state of thread {} of job '{}', not of thread {thread} of '{}': run the job under its name",
                path.display(),
                state.thread,
                state.job,
                job.name
            ));
        }
        let here = options_of(job, files);
        match state.options.iter().zip(&here).find(|(then, now)| then != now) {
            Some(((name, then), (_, now))) => Err(format!(
                "{} was saved with {name}={then}, and this job has {now}: run it as it was, or use verify_state_load=0",
                path.display()
            )),
            None => Ok(state),
        }
    }

    fn read(path: &Path) -> Result<VerifyState, String> {
        let text = fs::read_to_string(path).map_err(|error| {
            format!(
                "the verify state cannot be read from {}: {error}; run where it was saved, or use verify_state_load=0",
                path.display()
            )
        })?;
        let state: VerifyState = serde_json::from_str(&text).map_err(|error| {
            format!(
                "{} is no verify state of adit: {error}; use verify_state_load=0",
                path.display()
            )
        })?;
        match state.version {
            VERSION => Ok(state),
            other => Err(format!(
                "{} has version {other}, and this program reads {VERSION}: use the one that saved it",
                path.display()
            )),
        }
    }
}

fn file_name(job: &str, thread: u32) -> String {
    format!("local-{}-{thread}-verify.state", job.replace('/', "_"))
}

/// Returns everything that decides what is written where; the names are always the same.
fn options_of(job: &JobOptions, files: &[JobRegion]) -> Vec<(String, String)> {
    let of_files = |of: fn(&JobRegion) -> u64| {
        files.iter().map(|region| of(region).to_string()).collect::<Vec<_>>().join(",")
    };
    let ways = || Way::ALL.into_iter();
    let sizes: Vec<String> = ways().map(|way| sizes_text(&job.bs[way])).collect();
    let verify = job.verify.as_ref();
    let options = [
        ("offset", of_files(|region| region.start)),
        ("size", of_files(|region| region.bytes)),
        ("rw", workload_text(job)),
        ("rwmixread", job.rwmixread.to_string()),
        ("bs", sizes.join(",")),
        ("blockalign", format!("{:?}", job.random.blockalign.0)),
        ("random_distribution", format!("{:?}", job.random.random_distribution.0)),
        ("percentage_random", format!("{:?}", job.random.percentage_random.0)),
        ("norandommap", job.random.norandommap.to_string()),
        ("random_generator", if job.random.is_lfsr { "lfsr" } else { "Permutation" }.to_owned()),
        ("verify", verify.map_or_else(|| "none".to_owned(), |verify| format!("{:?}", verify.kind))),
        ("verify_interval", format!("{:?}", verify.and_then(|verify| verify.interval))),
        ("verify_pattern", format!("{:?}", verify.and_then(|verify| verify.pattern.as_ref()))),
        ("file_service_type", format!("{:?}", job.files.file_service)),
    ];
    options.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

fn workload_text(job: &JobOptions) -> String {
    let rw = job.rw;
    let parts = [(rw.random, "rand"), (rw.trims, "trim"), (rw.reads, "read"), (rw.writes, "write")];
    let name: String = parts.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    if rw.step == 0 { name } else { format!("{name}:{}", rw.step) }
}

fn sizes_text(sizes: &BlockSizes) -> String {
    match sizes {
        BlockSizes::Fixed(bytes) => bytes.to_string(),
        BlockSizes::Range(from, to) => format!("{from}-{to}"),
        BlockSizes::Split(sizes) => {
            let parts: Vec<String> =
                sizes.iter().map(|(bytes, percent)| format!("{bytes}/{percent}")).collect();
            parts.join(":")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::VerifyKind;
    use crate::way::PerWay;
    use crate::workload::tests::sample::{job, verify, workload};

    const REGION: JobRegion = JobRegion { start: 4096, bytes: 1 << 20 };

    /// A temporary directory of one test.
    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new(name: &str) -> TestFolder {
            let path = std::env::temp_dir()
                .join(format!("adit-verify-state-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("a directory");
            TestFolder(path)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).expect("what was created");
        }
    }

    fn writer() -> JobOptions {
        JobOptions { rw: workload("randwrite"), verify: Some(verify(VerifyKind::Crc32c)), ..job() }
    }

    fn saved(place: &TestFolder) -> VerifyState {
        let mut state = VerifyState::new(&writer(), 2, &[REGION], u64::MAX);
        (state.pass, state.position, state.in_flight) = (3, 17, vec![5, 9]);
        state.save(&place.0).expect("saved");
        state
    }

    #[test]
    fn what_was_saved_is_loaded_and_nothing_else_is_left() {
        let place = TestFolder::new("same");
        let state = saved(&place);
        assert_eq!(VerifyState::load(&place.0, &writer(), 2, &[REGION]), Ok(state.clone()));
        state.save(&place.0).expect("again");
        let names: Vec<_> = fs::read_dir(&place.0)
            .expect("there")
            .map(|entry| entry.expect("one").file_name())
            .collect();
        assert_eq!(names, ["local-sample-2-verify.state"]);
    }

    #[test]
    fn another_jobs_state_is_refused_with_what_differs() {
        let place = TestFolder::new("other");
        saved(&place);
        let refused = |job: JobOptions, region| {
            VerifyState::load(&place.0, &job, 2, &[region]).expect_err("refused")
        };
        let sized = JobOptions { bs: PerWay::all(BlockSizes::Range(4096, 8192)), ..writer() };
        assert!(refused(sized, REGION).contains("bs=4096,4096,4096, and this job has 4096-8192,"));
        let reads = JobOptions { rw: workload("randread"), ..writer() };
        assert!(refused(reads, REGION).contains("rw=randwrite, and this job has randread"));
        let shorter = JobRegion { bytes: 4096, ..REGION };
        assert!(refused(writer(), shorter).contains("size=1048576, and this job has 4096"));
    }

    #[test]
    fn a_file_that_is_no_state_is_refused_with_what_to_do() {
        let place = TestFolder::new("broken");
        let refused = |thread| {
            VerifyState::load(&place.0, &writer(), thread, &[REGION]).expect_err("refused")
        };
        assert!(refused(0).contains("run where it was saved"));
        let path = VerifyState::path(&place.0, &writer(), 0);
        fs::write(&path, "{\"version\": 1").expect("written");
        assert!(refused(0).contains("no verify state"));
        let text =
            serde_json::to_string(&VerifyState { version: 9, ..saved(&place) }).expect("JSON");
        fs::write(&path, text).expect("written");
        assert!(refused(0).contains("version 9"));
        fs::copy(VerifyState::path(&place.0, &writer(), 2), &path).expect("copied");
        assert!(refused(0).contains("thread 2 of job 'sample'"));
    }

    #[test]
    fn a_state_that_cannot_be_saved_says_where() {
        let place = TestFolder::new("gone");
        let error = VerifyState::new(&writer(), 0, &[REGION], 1)
            .save(&place.0.join("none"))
            .expect_err("nowhere");
        assert!(
            error.contains("none/local-sample-0-verify.state")
                && error.contains("verify_state_save=0"),
            "{error}"
        );
    }

    #[test]
    fn a_job_named_as_a_path_has_its_file_here() {
        let job = JobOptions { name: "a/b".to_owned(), ..job() };
        assert_eq!(
            VerifyState::path(Path::new("."), &job, 0),
            Path::new("./local-a_b-0-verify.state")
        );
    }
}
