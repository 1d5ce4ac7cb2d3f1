//! Generates a job's steps over all its files: one generator per file, and the order of files.
//!
//! A pass ends after it has ended on each file. Step numbers are interleaved over the files, so each is unique
//! in the job and identifies its file.

use adit_load::{Stream, below, mix};

use super::generator::{Generator, JobRegion, Step};
use crate::options::{FileOrder, FileService, JobOptions};
use crate::way::Way;

/// The purpose of the stream that chooses files; the purposes of [`super::Streams`] are below it.
const PURPOSE: u64 = 5;

/// Generates the steps of consecutive passes over all files of a job; all follow from the seed.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// By file.
    generators: Vec<Generator>,
    service: FileService,
    seed: u64,
    turn: Turn,
}

/// Which file is served.
#[derive(Clone, Debug)]
struct Turn {
    /// Files whose pass has not ended, in order.
    open: Vec<u32>,
    /// Index in `open` of the current or last file.
    at: usize,
    /// I/Os before the next file is chosen.
    left: u32,
    /// Files chosen so far in this pass.
    chosen: u64,
}

impl Turn {
    fn new(files: usize) -> Turn {
        // The first choice is the file after the last.
        Turn { open: (0..files as u32).collect(), at: files.saturating_sub(1), left: 0, chosen: 0 }
    }

    /// Returns the file of the next I/O; `None` after the pass has ended on all.
    fn next(&mut self, service: FileService, choice: impl Fn(u64) -> u64) -> Option<u32> {
        if self.open.is_empty() {
            return None;
        }
        if self.left == 0 {
            self.left = service.ios.max(1);
            self.at = match service.order {
                FileOrder::RoundRobin => (self.at + 1) % self.open.len(),
                FileOrder::Sequential => 0,
                FileOrder::Random => below(choice(self.chosen), self.open.len() as u64) as usize,
            };
            self.chosen += 1;
        }
        self.left -= 1;
        Some(self.open[self.at])
    }

    /// Ends the pass on the current file.
    fn end(&mut self) {
        self.open.remove(self.at);
        self.left = 0;
        // The next file moved to this index.
        self.at = self.at.checked_sub(1).unwrap_or(self.open.len().saturating_sub(1));
    }
}

impl Steps {
    /// Starts the first pass of `job` over its files, each given by region and block size in bytes; without files there
    /// are no steps.
    ///
    /// # Errors
    /// As [`Generator::new`].
    pub(crate) fn new(
        job: &JobOptions,
        files: &[(JobRegion, u32)],
        seed: u64,
    ) -> Result<Steps, String> {
        let generator = |(file, (region, lba_bytes)): (u64, &(JobRegion, u32))| {
            let seed = if file == 0 { seed } else { mix(seed.wrapping_add(file)) };
            Generator::new(job, *region, *lba_bytes, seed)
        };
        let generators = (0..).zip(files).map(generator).collect::<Result<Vec<_>, _>>()?;
        let turn = Turn::new(generators.len());
        Ok(Steps { generators, service: job.files.file_service, seed, turn })
    }

    /// Returns the next step of this pass; `None` at its end.
    #[inline]
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        self.step_of(None)
    }

    /// Returns the next step; in a mixed workload, the caller may choose the way. Such a pass cannot be replayed.
    #[inline]
    pub(crate) fn step_of(&mut self, way: Option<Way>) -> Option<Step> {
        match &mut self.generators[..] {
            [only] => only.step_of(way),
            _ => self.step_in_turn(way),
        }
    }

    fn step_in_turn(&mut self, way: Option<Way>) -> Option<Step> {
        let stream = Stream::new(self.seed, self.pass(), PURPOSE);
        while let Some(file) = self.turn.next(self.service, |index| stream.at(index)) {
            if let Some(step) = self.generators[file as usize].step_of(way) {
                return Some(self.of_file(step, file));
            }
            self.turn.end();
        }
        None
    }

    /// Converts a step of a file's generator to one of the job.
    fn of_file(&self, step: Step, file: u32) -> Step {
        Step { file, number: step.number * self.generators.len() as u64 + u64::from(file), ..step }
    }

    /// Starts the next pass, in another order.
    pub(crate) fn next_pass(&mut self) {
        self.generators.iter_mut().for_each(Generator::next_pass);
        self.turn = Turn::new(self.generators.len());
    }

    /// Returns the number of this pass, from zero.
    pub(crate) fn pass(&self) -> u64 {
        self.generators.first().map_or(0, |generator| generator.pass)
    }

    /// Returns how many steps of this pass were taken, on all files.
    pub(crate) fn position(&self) -> u64 {
        self.generators.iter().map(|generator| generator.position).sum()
    }

    /// Returns whether two writes or trims of one pass may overlap.
    pub(crate) fn may_overlap(&self) -> bool {
        self.generators.iter().any(|generator| generator.may_overlap)
    }

    /// Returns whether no later step has changed what this one wrote.
    pub(crate) fn is_intact(&self, step: &Step) -> bool {
        let number = step.number / self.generators.len() as u64;
        self.generators[step.file as usize].is_intact(&Step { number, ..*step })
    }

    /// Moves to the state after `position` steps of `pass`, in time proportional to `position`.
    pub(crate) fn skip_to(&mut self, pass: u64, position: u64) {
        self.generators.iter_mut().for_each(|generator| generator.start_pass(pass));
        self.turn = Turn::new(self.generators.len());
        for _ in 0..position {
            if self.next_step().is_none() {
                return;
            }
        }
    }

    /// Lists this pass's writes so far, file by file, as [`Generator::written`] does.
    pub(crate) fn written(&self) -> impl Iterator<Item = Step> + Send + 'static {
        let files: Vec<_> = self.generators.iter().map(Generator::written).collect();
        let count = files.len() as u64;
        (0..).zip(files).flat_map(move |(file, written)| {
            written.map(move |step| Step {
                file,
                number: step.number * count + u64::from(file),
                ..step
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::FileOptions;
    use crate::workload::tests::sample::{job, workload};

    const LBA: u32 = 512;
    const BLOCK: u64 = 4096;

    fn service(order: FileOrder, ios: u32) -> FileService {
        FileService { order, ios }
    }

    /// Creates steps over files with the given numbers of blocks.
    fn steps(rw: &str, service: FileService, blocks: &[u64]) -> Steps {
        let job = JobOptions {
            rw: workload(rw),
            files: FileOptions { file_service: service, ..job().files },
            ..job()
        };
        let regions: Vec<_> = blocks
            .iter()
            .map(|count| (JobRegion { start: 0, bytes: count * BLOCK }, LBA))
            .collect();
        Steps::new(&job, &regions, 7).expect("steps")
    }

    fn all(steps: &mut Steps) -> Vec<Step> {
        std::iter::from_fn(|| steps.next_step()).collect()
    }

    fn files(rw: &str, service: FileService, blocks: &[u64]) -> Vec<u32> {
        all(&mut steps(rw, service, blocks)).iter().map(|step| step.file).collect()
    }

    #[test]
    fn files_take_turns_until_each_has_come_to_its_end() {
        let of = |order, ios| files("read", service(order, ios), &[3, 1, 2]);
        assert_eq!(of(FileOrder::RoundRobin, 1), [0, 1, 2, 0, 2, 0]);
        assert_eq!(of(FileOrder::RoundRobin, 2), [0, 0, 1, 2, 2, 0]);
        assert_eq!(of(FileOrder::Sequential, 1), [0, 0, 0, 1, 2, 2]);
        let mut random = of(FileOrder::Random, 1);
        random.sort_unstable();
        assert_eq!(random, [0, 0, 0, 1, 2, 2]);
        assert_ne!(
            files("read", service(FileOrder::Random, 1), &[20, 20])[..6],
            [0, 1, 0, 1, 0, 1]
        );
    }

    #[test]
    fn random_runs_are_as_long_as_asked() {
        let files = files("read", service(FileOrder::Random, 5), &[50, 50, 50]);
        // While all files are open, a file is left only after a multiple of five I/Os.
        let runs: Vec<_> = files[..50].chunks(5).collect();
        assert!(runs.iter().all(|run| run.iter().all(|file| *file == run[0])), "{files:?}");
    }

    #[test]
    fn each_block_of_each_file_comes_once_in_a_pass_and_numbers_are_unique() {
        for order in [FileOrder::RoundRobin, FileOrder::Sequential, FileOrder::Random] {
            let mut steps = steps("randwrite", service(order, 1), &[16, 8, 24]);
            let mut numbers = Vec::new();
            for pass in 0..2 {
                let taken = all(&mut steps);
                let mut places: Vec<_> =
                    taken.iter().map(|step| (step.file, step.offset)).collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!((places.len(), steps.position(), steps.pass()), (48, 48, pass));
                numbers.extend(taken.iter().map(|step| step.number));
                steps.next_pass();
            }
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), 96, "{order:?}");
        }
    }

    #[test]
    fn what_was_written_is_listed_with_its_file_and_number() {
        let mut steps = steps("randwrite", service(FileOrder::Random, 2), &[16, 16]);
        steps.next_pass();
        let mut taken: Vec<Step> = (0..20).filter_map(|_| steps.next_step()).collect();
        let mut written: Vec<Step> = steps.written().collect();
        let key = |step: &Step| (step.file, step.offset, step.number);
        taken.sort_unstable_by_key(key);
        written.sort_unstable_by_key(key);
        assert_eq!(written, taken);
        assert!(taken.iter().all(|step| steps.is_intact(step)));
    }

    #[test]
    fn a_pass_goes_on_from_where_it_is_skipped_to() {
        let from_start = || steps("randwrite", service(FileOrder::Random, 3), &[16, 16, 5]);
        let mut straight = from_start();
        straight.next_pass();
        assert!((0..11).all(|_| straight.next_step().is_some()));
        let mut skipped = from_start();
        skipped.skip_to(1, 11);
        assert_eq!(all(&mut skipped), all(&mut straight));
    }
}
