//! `--debug`: fio's traces, of which only `random` is printed.

/// Names of fio's traces.
const TRACES: [&str; 20] = [
    "process",
    "file",
    "io",
    "mem",
    "blktrace",
    "verify",
    "random",
    "parse",
    "diskutil",
    "job",
    "mutex",
    "profile",
    "time",
    "net",
    "rate",
    "compress",
    "steadystate",
    "helperthread",
    "zbd",
    "sprandom",
];
const RANDOM: &str = "random";
const ALL: &str = "all";

/// Returns whether to print the jobs' seeds.
pub(super) fn shows_seeds(names: &[String]) -> bool {
    names.iter().any(|name| name == RANDOM || name == ALL)
}

/// Returns the requested traces that are not printed, with reasons.
///
/// # Errors
/// When fio has no trace of that name either.
pub(super) fn unheeded(names: &[String]) -> Result<Vec<(&'static str, &'static str)>, String> {
    if let Some(name) = names.iter().find(|name| *name != ALL && !TRACES.contains(&name.as_str())) {
        return Err(format!(
            "--debug={name}: fio has no such trace; there are {}",
            TRACES.join(", ")
        ));
    }
    let is_more = names.iter().any(|name| name != RANDOM);
    Ok(Vec::from_iter(is_more.then_some((
        "--debug",
        "only random is traced, which prints the seeds; --showcmd shows what a job file comes to",
    ))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_told_not_heeded_or_unknown() {
        let of = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        assert!(shows_seeds(&of("io,random")) && shows_seeds(&of("all")) && !shows_seeds(&[]));
        assert_eq!(unheeded(&of("random")), Ok(Vec::new()));
        assert_eq!(unheeded(&of("random,io")).map(|list| list.len()), Ok(1));
        assert!(unheeded(&of("sundial")).is_err_and(|why| why.contains("there are process,")));
    }
}
