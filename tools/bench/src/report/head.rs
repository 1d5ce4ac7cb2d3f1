//! The lines the normal format prints before the jobs run.

use super::figures::VERSION;
use crate::human::{bytes, plural};
use crate::options::{JobOptions, Request, Workload, name_of, targets};
use crate::way::Way;

/// Formats fio's lines before the run: one per job, the version, and the number of threads.
pub(crate) fn head(request: &Request) -> String {
    let (mut text, mut group) = (String::new(), 0);
    for (index, section) in request.sections.iter().enumerate() {
        let job = &section.job;
        group += u32::from(index > 0 && (job.order.new_group || job.order.stonewall));
        text += &job_line(job, group, request);
        if job.order.numjobs > 1 {
            text.push_str("...\n");
        }
    }
    let threads: u32 = request.sections.iter().map(|section| section.job.order.numjobs).sum();
    let plural = plural(threads.into());
    text + &format!("{VERSION}\nStarting {threads} thread{plural}\n")
}

fn job_line(job: &JobOptions, group: u32, request: &Request) -> String {
    let sizes = Way::ALL.map(|way| {
        let (name, sizes) = (["R", "W", "T"][way as usize], &job.bs[way]);
        format!("({name}) {}-{}", bytes(sizes.min() as f64), bytes(sizes.max() as f64))
    });
    format!(
        "{}: (g={group}): rw={}, bs={}, ioengine={}, iodepth={}\n",
        job.name,
        workload(job.rw),
        sizes.join(", "),
        path(job, request),
        job.iodepth
    )
}

/// Returns fio's name of a workload, without the part after the colon.
fn workload(rw: Workload) -> String {
    let name = match (rw.reads, rw.writes, rw.trims) {
        (true, true, true) => "readwritetrim",
        (true, true, false) => "rw",
        (true, false, true) => "readtrim",
        (false, true, true) => "trimwrite",
        (false, true, false) => "write",
        (false, false, true) => "trim",
        (_, false, false) => "read",
    };
    if rw.random { format!("rand{name}") } else { name.to_owned() }
}

/// Returns the schemes of the job's targets, or the path to its files, where fio prints its engine.
fn path(job: &JobOptions, request: &Request) -> String {
    let targets = request.run.side.targets.iter().map(ToString::to_string);
    let names: Vec<String> = match request.run.side.targets.is_empty() {
        true => job.files.filename.clone(),
        false => targets.collect(),
    };
    let mut schemes: Vec<&str> = names.iter().filter_map(|name| scheme(name)).collect();
    schemes.dedup();
    if schemes.is_empty() { name_of(job.files.ioengine) } else { schemes.join("+") }
}

fn scheme(target: &str) -> Option<&str> {
    let (scheme, _) = target.split_once(':')?;
    targets::is_target(target).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Engine, RunOptions, Section};

    fn request(job: JobOptions) -> Request {
        let section = Section { job, given: Vec::new() };
        Request { run: RunOptions::default(), global: Vec::new(), sections: vec![section] }
    }

    #[test]
    fn the_path_stands_where_fio_names_its_engine() {
        for (filenames, engine, named) in [
            (&["vfio:0000:01:00.0"][..], Engine::Psync, "ioengine=vfio,"),
            (&["uring:/a", "uring:/b"], Engine::Psync, "ioengine=uring,"),
            (&["soft:mem=1G", "null:"], Engine::Psync, "ioengine=soft+null,"),
            (&["/tmp/disk"], Engine::UringCmd, "ioengine=io_uring_cmd,"),
            (&[], Engine::Mmap, "ioengine=mmap,"),
        ] {
            let filename = filenames.iter().map(ToString::to_string).collect();
            let job = JobOptions {
                files: crate::options::FileOptions {
                    filename,
                    ioengine: engine,
                    ..JobOptions::usual().files
                },
                ..JobOptions::usual()
            };
            let text = head(&request(job));
            assert!(text.contains(named), "{text}");
        }
    }

    #[test]
    fn targets_of_the_run_stand_for_the_jobs() {
        let mut request = request(JobOptions::usual());
        request.run.side.targets = vec!["soft:mem=1G".parse().expect("a target")];
        assert!(head(&request).contains("ioengine=soft,"));
    }

    #[test]
    fn a_workload_has_fios_name() {
        let named = [
            ("read", [true, false, false]),
            ("write", [false, true, false]),
            ("rw", [true, true, false]),
            ("trim", [false, false, true]),
            ("trimwrite", [false, true, true]),
        ];
        for (name, [reads, writes, trims]) in named {
            let rw = Workload { random: false, reads, writes, trims, step: 0 };
            assert_eq!(workload(rw), name);
            assert_eq!(workload(Workload { random: true, ..rw }), format!("rand{name}"));
        }
    }
}
