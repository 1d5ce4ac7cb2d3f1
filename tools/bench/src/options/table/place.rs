//! Job options: place.

use super::super::grammar::{Parsed, numbers, switch, whole, within_u32, word};
use super::super::{CpusPolicy, FileOrder, FileService, draft::Draft, targets, workload};
use crate::units::KbBase;

use super::Group::Place;
use super::Kind::{Bool, Switch, Value};
use super::OptionSpec;

pub(super) const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "name",
        aliases: &[],
        value: "NAME",
        help: "Name of the job; on the command line it starts one, and --name=global gives defaults to those after it",
        kind: Value,
        group: Place,
        set: name,
    },
    OptionSpec {
        name: "description",
        aliases: &[],
        value: "TEXT",
        help: "What the job is about",
        kind: Value,
        group: Place,
        set: |draft, text| {
            draft.job.description = Some(text.to_owned());
            Ok(())
        },
    },
    OptionSpec {
        name: "filename",
        aliases: &[],
        value: "TARGET",
        help: "Targets as in vfio:0000:01:00.0, or paths that --ioengine reaches; several by colon",
        kind: Value,
        group: Place,
        set: |draft, text| targets::split(text).map(|names| draft.job.filename = names),
    },
    OptionSpec {
        name: "directory",
        aliases: &[],
        value: "DIR",
        help: "Where the job's own files lie, when no filename is given",
        kind: Value,
        group: Place,
        set: |draft, text| {
            draft.job.directory = Some(text.replace("\\:", ":").into());
            Ok(())
        },
    },
    OptionSpec {
        name: "filename_format",
        aliases: &[],
        value: "FORMAT",
        help: "Names of the job's own files, of $jobname, $jobnum, $filenum and $clientuid",
        kind: Value,
        group: Place,
        set: filename_format,
    },
    OptionSpec {
        name: "nrfiles",
        aliases: &["nr_files"],
        value: "N",
        help: "How many files of its own the job has; size is divided among them",
        kind: Value,
        group: Place,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 1, 65536).map(|value| draft.job.nrfiles = value)
        },
    },
    OptionSpec {
        name: "file_service_type",
        aliases: &[],
        value: "ORDER",
        help: "Which of several files is next: roundrobin, random (each with :N for N I/Os before the next) or \
               sequential [default: roundrobin]",
        kind: Value,
        group: Place,
        set: file_service_type,
    },
    OptionSpec {
        name: "filesize",
        aliases: &[],
        value: "SIZE",
        help: "Bytes of each file of the job's own; size is then how much is moved",
        kind: Value,
        group: Place,
        set: filesize,
    },
    OptionSpec {
        name: "ioengine",
        aliases: &[],
        value: "ENGINE",
        help: "How a plain path is reached: psync, io_uring (libaio), io_uring_cmd, mmap or null",
        kind: Value,
        group: Place,
        set: |draft, text| workload::engine(text).map(|value| draft.job.ioengine = value),
    },
    OptionSpec {
        name: "direct",
        aliases: &["odirect"],
        value: "0|1",
        help: "Past the page cache",
        kind: Bool,
        group: Place,
        set: |draft, text| switch(text).map(|value| draft.job.direct = value),
    },
    OptionSpec {
        name: "buffered",
        aliases: &[],
        value: "0|1",
        help: "Through the page cache: the opposite of direct",
        kind: Bool,
        group: Place,
        set: |draft, text| switch(text).map(|value| draft.job.direct = !value),
    },
    OptionSpec {
        name: "invalidate",
        aliases: &[],
        value: "0|1",
        help: "Drops what the page cache holds of the file before the job starts",
        kind: Bool,
        group: Place,
        set: |draft, text| switch(text).map(|value| draft.job.invalidate = value),
    },
    OptionSpec {
        name: "hipri",
        aliases: &[],
        value: "0|1",
        help: "Polls for completions (io_uring, io_uring_cmd)",
        kind: Switch,
        group: Place,
        set: |draft, text| switch(text).map(|value| draft.job.hipri = value),
    },
    OptionSpec {
        name: "fixedbufs",
        aliases: &[],
        value: "0|1",
        help: "Registers the memory with io_uring",
        kind: Switch,
        group: Place,
        set: |draft, text| switch(text).map(|value| draft.job.fixedbufs = value),
    },
    OptionSpec {
        name: "unlink",
        aliases: &[],
        value: "0|1",
        help: "Removes the job's own files afterwards",
        kind: Bool,
        group: Place,
        set: |draft, text| switch(text).map(|value| draft.job.unlink = value),
    },
    OptionSpec {
        name: "allow_file_create",
        aliases: &[],
        value: "0|1",
        help: "Makes files that are missing or too short; with 0 they have to be there",
        kind: Bool,
        group: Place,
        set: |draft, text| switch(text).map(|value| draft.job.allow_file_create = value),
    },
    OptionSpec {
        name: "fallocate",
        aliases: &[],
        value: "HOW",
        help: "Space for files that are made: native, posix or keep sets it aside, none or truncate does not",
        kind: Value,
        group: Place,
        set: fallocate,
    },
    OptionSpec {
        name: "create_only",
        aliases: &[],
        value: "0|1",
        help: "Makes the job's files and does nothing else",
        kind: Bool,
        group: Place,
        set: |draft, text| switch(text).map(|value| draft.job.create_only = value),
    },
    OptionSpec {
        name: "overwrite",
        aliases: &[],
        value: "0|1",
        help: "Fills files that are made before they are written",
        kind: Bool,
        group: Place,
        set: |draft, text| switch(text).map(|value| draft.job.overwrite = value),
    },
    OptionSpec {
        name: "kb_base",
        aliases: &[],
        value: "1024|1000",
        help: "What k means in sizes",
        kind: Value,
        group: Place,
        set: kb_base,
    },
    OptionSpec {
        name: "cpus_allowed",
        aliases: &[],
        value: "CPUS",
        help: "Cores the job may run on, as in 0-2,5",
        kind: Value,
        group: Place,
        set: |draft, text| numbers(text, "cores").map(|cores| draft.job.cpus_allowed = Some(cores)),
    },
    OptionSpec {
        name: "cpus_allowed_policy",
        aliases: &[],
        value: "POLICY",
        help: "shared: all threads of the job on all of them; split: each on one of its own",
        kind: Value,
        group: Place,
        set: |draft, text| {
            word(text, &[("shared", CpusPolicy::Shared), ("split", CpusPolicy::Split)])
                .map(|value| draft.job.cpus_allowed_policy = value)
        },
    },
    OptionSpec {
        name: "numa_cpu_nodes",
        aliases: &[],
        value: "NODES",
        help: "NUMA nodes on whose cores the job may run, as in 0-1, or all",
        kind: Value,
        group: Place,
        set: numa_cpu_nodes,
    },
];

fn name(draft: &mut Draft, text: &str) -> Parsed<()> {
    if text.eq_ignore_ascii_case("global") {
        return Err(
            "a job cannot be called global, which stands for defaults; choose another name"
                .to_owned(),
        );
    }
    draft.job.name = text.to_owned();
    Ok(())
}

fn file_service_type(draft: &mut Draft, text: &str) -> Parsed<()> {
    let (name, ios) = text.split_once(':').unwrap_or((text, "1"));
    if ["zipf", "pareto", "normal", "gauss"].contains(&name) {
        return Err(format!("'{name}' is not for files here; take random, or jobs with shares"));
    }
    let order = word(
        name,
        &[
            ("roundrobin", FileOrder::RoundRobin),
            ("sequential", FileOrder::Sequential),
            ("random", FileOrder::Random),
        ],
    )?;
    let ios = within_u32(ios, draft.kb_base, 1, u32::MAX)?;
    draft.job.file_service = FileService { order, ios };
    Ok(())
}

fn filename_format(draft: &mut Draft, text: &str) -> Parsed<()> {
    if text.is_empty() {
        return Err("it names no file; write it as in $jobname.$jobnum.$filenum".to_owned());
    }
    draft.job.filename_format = text.to_owned();
    Ok(())
}

fn filesize(draft: &mut Draft, text: &str) -> Parsed<()> {
    if text.contains(['-', ':']) && !text.starts_with('(') {
        return Err(format!("'{text}': all files of a job are equally long; give one size"));
    }
    match whole(text, draft.kb_base)? {
        0 => Err("a file has at least one byte".to_owned()),
        bytes => {
            draft.file_bytes = Some(bytes);
            Ok(())
        }
    }
}

fn fallocate(draft: &mut Draft, text: &str) -> Parsed<()> {
    let words = [
        ("native", true),
        ("posix", true),
        ("keep", true),
        ("1", true),
        ("none", false),
        ("truncate", false),
        ("0", false),
    ];
    draft.job.fallocate = word(text, &words)?;
    Ok(())
}

fn kb_base(draft: &mut Draft, text: &str) -> Parsed<()> {
    draft.kb_base = word(text, &[("1024", KbBase::Binary), ("1000", KbBase::Decimal)])?;
    Ok(())
}

fn numa_cpu_nodes(draft: &mut Draft, text: &str) -> Parsed<()> {
    draft.job.numa_cpu_nodes = if text == "all" { None } else { Some(numbers(text, "nodes")?) };
    Ok(())
}
