//! What a command line and its job files request.

use std::collections::{BTreeMap, BTreeSet};

use super::job::Section;
use super::run::RunOptions;
use super::{check, iolog};
use crate::failure::Failure;
use crate::human::printable;

/// Everything a command line and its job files request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Options of the whole run.
    pub run: RunOptions,
    /// The options of `[global]` as written, for the JSON's `global options`.
    pub global: Vec<(String, String)>,
    /// The jobs, in order; at least one.
    pub sections: Vec<Section>,
}

/// Seeds the random order unless `randseed` or `randrepeat=0` is given; fio's value.
pub(crate) const RANDSEED: u64 = 0x89;

impl Request {
    /// Returns the ignored options, each once, with the reason.
    pub(crate) fn unheeded(&self) -> BTreeMap<&'static str, &'static str> {
        let of_jobs = self.sections.iter().flat_map(|section| &section.job.unheeded);
        of_jobs.copied().chain(self.run.unheeded()).collect()
    }

    /// Reads the logs that jobs replay, and sets these jobs' files and I/Os to theirs.
    ///
    /// # Errors
    /// As [`iolog::load`]; a usage failure if two threads would write to one log.
    pub(crate) fn with_iologs(mut self) -> Result<Request, Failure> {
        let mut written = BTreeSet::new();
        for section in &mut self.sections {
            iolog::load(&mut section.job)?;
            let Some(path) = &section.job.logs.iolog else { continue };
            if section.job.order.numjobs > 1 || !written.insert(path.clone()) {
                return Err(Failure::usage(format!(
                    "write_iolog={}: the threads that write to it would mix their I/Os; give each a job with a log of its \
                     own and numjobs=1",
                    path.display()
                )));
            }
        }
        Ok(self)
    }

    /// With `--readonly`, refuses jobs that write or trim.
    ///
    /// # Errors
    /// A usage failure that names the job.
    pub(crate) fn refuse_writes(&self) -> Result<(), Failure> {
        let writing = self.sections.iter().find(|section| check::writes(&section.job));
        match writing.filter(|_| self.run.readonly) {
            Some(section) => Err(Failure::usage(format!(
                "job '{}' writes or trims, which --readonly forbids; use rw=read or rw=randread, or \
                 omit --readonly",
                printable(&section.job.name)
            ))),
            None => Ok(()),
        }
    }

    /// Returns the request with `fresh` as the `randseed` of jobs that have none and set `randrepeat=0`.
    pub(crate) fn seeded(&self, fresh: u64) -> Request {
        let mut seeded = self.clone();
        for Section { job, .. } in &mut seeded.sections {
            job.random.randseed = job.random.randseed.or((!job.random.randrepeat).then_some(fresh));
        }
        seeded
    }

    /// Returns the request without targets, sweeps, rounds and ceilings.
    pub(crate) fn single(&self) -> Request {
        let mut one = self.clone();
        one.run.side.targets.clear();
        one.run.side.sweep.clear();
        one.run.side.rounds = 1;
        one.run.side.ceiling = false;
        one
    }
}
