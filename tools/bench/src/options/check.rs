//! Refuses job options that contradict each other, before anything is opened.

use super::{JobOptions, VerifyKind, targets};
use crate::units::Size;
use crate::way::Way;

/// Bytes of fio's header before the data of a verified block.
const HEADER_BYTES: u64 = 80;

/// Refuses contradictory options.
///
/// # Errors
/// A sentence that names the options and what to do.
pub(crate) fn job(job: &JobOptions) -> Result<(), String> {
    times(job)?;
    sizes(job)?;
    depths(job)?;
    rates(job)?;
    data(job)?;
    verification(job)?;
    targets::check(job)
}

/// Returns whether the job changes data on the device.
pub(crate) fn writes(job: &JobOptions) -> bool {
    let only_reads_back = job.verify.as_ref().is_some_and(|verify| verify.only);
    (job.rw.writes || job.rw.trims) && !only_reads_back && !job.files.create_only
}

fn refuse(is_wrong: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if is_wrong { Err(why()) } else { Ok(()) }
}

fn times(job: &JobOptions) -> Result<(), String> {
    refuse(job.time.thinktime.spin > job.time.thinktime.time, || {
        "thinktime_spin is a part of thinktime; give no more than it".into()
    })?;
    let has_pause = !job.time.thinktime.time.is_zero();
    refuse(!has_pause && !job.time.thinktime.iotime.is_zero(), || {
        "thinktime_iotime needs a thinktime; give both".into()
    })?;
    if let Some(target) = job.time.latency_target {
        refuse(target.window.is_zero(), || {
            "latency_target needs a latency_window; give latency_window=1s".into()
        })?;
        refuse(job.time.runtime.is_some_and(|runtime| runtime < target.window), || {
            "latency_window is longer than runtime; no depth could be tried".into()
        })?;
    }
    if let Some(steady) = job.time.steadystate {
        refuse(steady.duration.is_zero(), || {
            "steadystate needs a steadystate_duration; give steadystate_duration=10".into()
        })?;
    }
    Ok(())
}

fn sizes(job: &JobOptions) -> Result<(), String> {
    if let Some(Size::Bytes(bytes)) = job.amount.size {
        refuse(bytes == 0, || "size=0 leaves nothing to do; omit it for the whole device".into())?;
        for (way, sizes) in job.bs.iter() {
            let is_used = [job.rw.reads, job.rw.writes, job.rw.trims][way as usize];
            refuse(is_used && sizes.max() > bytes, || {
                format!(
                    "bs ({}) is more than size ({bytes}); make size larger or bs smaller",
                    sizes.max()
                )
            })?;
        }
    }
    refuse(job.amount.io_size == Some(Size::Bytes(0)), || {
        "io_size=0 leaves nothing to do; omit it".into()
    })?;
    let step = job.rw.step;
    refuse(
        !job.rw.random && step < 0 && job.amount.size.is_none() && job.files.filename.is_empty(),
        || "going backwards over files of the job's own needs their size; give size".into(),
    )
}

fn depths(job: &JobOptions) -> Result<(), String> {
    let depth = job.iodepth;
    let too_deep = |name: &str, value: u32| {
        format!("{name}={value} is more than iodepth={depth}; give at most {depth}")
    };
    let minimum = job.batch.iodepth_batch_complete_min;
    refuse(minimum > depth, || too_deep("iodepth_batch_complete_min", minimum))?;
    if let Some(low) = job.batch.iodepth_low {
        refuse(low > depth, || too_deep("iodepth_low", low))?;
    }
    if let Some(maximum) = job.batch.iodepth_batch_complete_max {
        refuse(maximum < minimum, || {
            format!(
                "iodepth_batch_complete_max={maximum} is less than iodepth_batch_complete_min={minimum}; swap them"
            )
        })?;
    }
    Ok(())
}

fn rates(job: &JobOptions) -> Result<(), String> {
    let rates = &job.rates;
    for way in Way::ALL {
        refuse(rates.rate[way].is_some() && rates.rate_iops[way].is_some(), || {
            format!("rate and rate_iops are both given for {}s; one of them decides", way.name())
        })?;
        for (name, least, most) in [
            ("rate", rates.rate_min[way], rates.rate[way]),
            ("rate_iops", rates.rate_iops_min[way], rates.rate_iops[way]),
        ] {
            refuse(least.zip(most).is_some_and(|(least, most)| least > most), || {
                format!("{name}_min is more than {name}; it could never be met")
            })?;
        }
    }
    Ok(())
}

fn data(job: &JobOptions) -> Result<(), String> {
    refuse(job.buffers.zero_buffers && job.buffers.buffer_pattern.is_some(), || {
        "zero_buffers and buffer_pattern are both given; one of them decides".into()
    })?;
    refuse(job.buffers.zero_buffers && job.buffers.refill_buffers, || {
        "zero_buffers and refill_buffers are both given; one of them decides".into()
    })
}

fn verification(job: &JobOptions) -> Result<(), String> {
    let Some(verify) = &job.verify else { return Ok(()) };
    refuse(!job.replay.logs.is_empty(), || {
        "verify cannot know what a log's I/Os left; replay it without verify".into()
    })?;
    refuse(job.rw.trims, || {
        "verify cannot know what a trimmed block holds; use a workload without trims".into()
    })?;
    refuse(verify.kind == VerifyKind::Pattern && verify.pattern.is_none(), || {
        "verify=pattern needs a verify_pattern; give verify_pattern=0xdeadbeef".into()
    })?;
    let shortest = if job.rw.writes { job.bs.0[1].min() } else { job.bs.0[0].min() };
    let has_header = verify.kind != VerifyKind::Pattern;
    refuse(has_header && shortest < HEADER_BYTES, || {
        format!(
            "verify puts a header of {HEADER_BYTES} bytes into each block; make bs at least as long"
        )
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::draft::Draft;
    use super::super::written;

    /// Returns why a job with these options is refused.
    fn refusal(options: &[(&str, &str)]) -> Option<String> {
        let mut draft = Draft::new();
        for (name, value) in options {
            written::set(&mut draft, name, Some(value)).expect(value);
        }
        draft.finish().err()
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_what_to_do() {
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[("rw", "rw"), ("rwmixread", "60"), ("rwmixwrite", "60")], "not 100 together"),
            (&[("bs", "64k"), ("size", "4k")], "make size larger"),
            (&[("size", "0")], "omit it"),
            (&[("iodepth", "4"), ("iodepth_low", "5")], "give at most 4"),
            (&[("iodepth_batch_complete_min", "2")], "give at most 1"),
            (
                &[
                    ("iodepth", "8"),
                    ("iodepth_batch_complete_min", "4"),
                    ("iodepth_batch_complete_max", "2"),
                ],
                "swap them",
            ),
            (&[("rate", "1m"), ("rate_iops", "100")], "one of them decides"),
            (&[("rate", "1m"), ("rate_min", "2m")], "could never be met"),
            (&[("latency_target", "10ms")], "give latency_window"),
            (
                &[("latency_target", "10ms"), ("latency_window", "5s"), ("runtime", "2")],
                "longer than runtime",
            ),
            (&[("steadystate", "iops:1%")], "give steadystate_duration"),
            (&[("thinktime", "10"), ("thinktime_spin", "20")], "no more than it"),
            (&[("thinktime_iotime", "1")], "give both"),
            (&[("zero_buffers", "1"), ("buffer_pattern", "1")], "one of them decides"),
            (&[("zero_buffers", "1"), ("refill_buffers", "1")], "one of them decides"),
            (&[("rw", "write"), ("verify", "pattern")], "give verify_pattern"),
            (&[("rw", "randtrim"), ("verify", "md5")], "without trims"),
            (&[("rw", "write"), ("verify", "md5"), ("bs", "64")], "header of 80 bytes"),
        ];
        for (options, expected) in cases {
            let said = refusal(options).unwrap_or_else(|| panic!("{options:?} was taken"));
            assert!(said.contains(expected), "{options:?}: {said}");
        }
    }

    #[test]
    fn what_only_looks_like_a_contradiction_is_taken() {
        let cases: &[&[(&str, &str)]] = &[
            &[("rw", "rw"), ("rwmixread", "60"), ("rwmixwrite", "40")],
            &[("rate", "1m,"), ("rate_iops", ",100")],
            &[("bs", "4k,64k"), ("size", "4k"), ("rw", "read")],
            &[("iodepth_batch_complete_min", "0")],
            &[("verify_fatal", "1")],
            &[("rw", "write"), ("verify", "md5"), ("bs", "4k"), ("verify_interval", "3k")],
            &[("time_based", "1"), ("runtime", "5")],
            &[("time_based", "1")],
            &[("steadystate", "iops:1%"), ("ss_dur", "20"), ("runtime", "10")],
        ];
        for options in cases {
            assert_eq!(refusal(options), None, "{options:?}");
        }
    }

    #[test]
    fn the_share_of_writes_is_what_reads_leave() {
        let mut draft = Draft::new();
        written::set(&mut draft, "rwmixwrite", Some("30")).expect("a share");
        assert_eq!(draft.finish().map(|job| job.rwmixread), Ok(70));
    }

    #[test]
    fn with_a_file_size_the_size_is_how_much_is_moved() {
        let mut draft = Draft::new();
        for (name, value) in [("size", "4m"), ("filesize", "1m"), ("nrfiles", "2")] {
            written::set(&mut draft, name, Some(value)).expect(value);
        }
        let job = draft.finish().expect("a job");
        assert_eq!(
            (job.amount.size, job.amount.io_size),
            (Some(crate::units::Size::Bytes(2 << 20)), Some(crate::units::Size::Bytes(4 << 20)))
        );
    }
}
