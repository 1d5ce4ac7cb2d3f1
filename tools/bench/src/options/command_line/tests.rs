use super::super::run::RUN;
use super::super::{OutputFormat, Sweep};
use super::*;
use crate::options::JobOptions;
use clap::{CommandFactory, Parser};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Parser)]
struct ParsedLine {
    #[command(flatten)]
    args: BenchArgs,
}

fn args(words: &[&str]) -> BenchArgs {
    parsed(words).expect("a command line")
}

fn parsed(words: &[&str]) -> std::result::Result<BenchArgs, String> {
    let line = ParsedLine::try_parse_from(["bench"].iter().chain(words));
    line.map(|line| line.args).map_err(|error| error.to_string())
}

fn jobs(words: &[&str]) -> Vec<JobOptions> {
    let request = args(words).request().expect("jobs");
    request.sections.into_iter().map(|section| section.job).collect()
}

fn refusal(words: &[&str]) -> String {
    match parsed(words) {
        Ok(args) => args.request().expect_err("must be refused").to_string(),
        Err(said) => said,
    }
}

/// A job file that is removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let path = std::env::temp_dir().join(format!("adit-{}-{name}.fio", std::process::id()));
        std::fs::write(&path, text).expect("writable");
        File(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn the_command_is_well_formed() {
    ParsedLine::command().debug_assert();
    let mut command = ParsedLine::command();
    let help = command.render_long_help().to_string();
    for heading in table::options().map(|spec| spec.heading).chain([RUN]) {
        assert!(help.contains(&format!("\n{heading}:\n")), "{heading}");
    }
    assert!(help.contains("--thread") && !help.contains("--uid"));
    let short = command.render_help().to_string();
    assert!(!short.contains("--thread") && short.contains("--iodepth <N>"));
}

#[test]
fn without_a_name_the_options_are_one_job() {
    let all = jobs(&[
        "--filename=soft:null",
        "--rw=randrw",
        "--bs",
        "16k",
        "--rwmixread=30",
        "--time_based",
        "--runtime=2m",
    ]);
    assert_eq!(all.len(), 1);
    let job = &all[0];
    assert_eq!(
        (&*job.name, job.bs.0[0].max(), job.rwmixread, job.time.time_based),
        ("adit", 16384, 30, true)
    );
}

#[test]
fn defaults_are_those_of_fio() {
    let all = jobs(&["--name=x"]);
    assert_eq!(all[0], JobOptions { name: "x".into(), ..JobOptions::usual() });
    let run = args(&["--name=x"]).request().expect("a job").run;
    assert_eq!(run, RunOptions::default());
}

#[test]
fn each_name_starts_a_job_and_global_gives_defaults() {
    let line = [
        "--bs=8k",
        "--name=a",
        "--rw=write",
        "--name=global",
        "--iodepth=4",
        "--name=b",
        "--rw=randread",
        "--bs=1m",
    ];
    let request = args(&line).request().expect("jobs");
    let seen: Vec<_> = request
        .sections
        .iter()
        .map(|s| (&*s.job.name, s.job.bs.0[0].max(), s.job.iodepth))
        .collect();
    assert_eq!(seen, [("a", 8192, 1), ("b", 1 << 20, 4)]);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(request.global, [pair("bs", "8k"), pair("iodepth", "4")]);
    assert_eq!(request.sections[0].given, [pair("name", "a"), pair("rw", "write")]);
}

#[test]
fn both_spellings_and_all_aliases_are_known() {
    let all = jobs(&[
        "--time-based=1",
        "--timeout=5",
        "--group-reporting",
        "--readwrite=readwrite",
        "--iodepth-batch-submit=1",
    ]);
    assert!(
        all[0].time.time_based
            && all[0].order.group_reporting
            && all[0].rw.reads
            && all[0].rw.writes
    );
    assert!(args(&["--name=x", "--output_format=json,json+", "--parse_only"]).run.parse_only);
}

#[test]
fn values_of_switches_may_follow_by_blank_only_where_fio_wants_one() {
    assert!(jobs(&["--direct", "1", "--name=x"])[0].files.direct);
    assert!(jobs(&["--direct", "--name=x"])[0].files.direct);
    assert!(!jobs(&["--time_based=0", "--name=x"])[0].time.time_based);
    assert!(jobs(&["--name=x", "--hipri", "--write_bw_log"])[0].files.hipri);
    assert_eq!(jobs(&["--name=x", "--write_bw_log"])[0].logs.bw, Some("x".into()));
}

#[test]
fn what_only_fio_has_says_what_to_use_instead() {
    assert!(refusal(&["--name=x", "--uid=5"]).contains("as with setpriv --reuid"));
    assert!(refusal(&["--name=x", "--bs-unaligned"]).contains("smaller least"));
    assert!(refusal(&["--name=x", "--server"]).contains("as with ssh"));
    assert!(refusal(&["--name=x", "--terse-version=5"]).contains("possible values: 3"));
    assert!(refusal(&["--name=x", "--iodpeth=5"]).contains("--iodepth"));
    assert!(
        refusal(&["--name=x", "--ioengine=rbd"])
            .starts_with("--ioengine: there is no engine 'rbd'")
    );
    assert!(refusal(&[]).contains("there are no jobs"));
}

#[test]
fn a_read_only_run_has_no_jobs_that_write() {
    assert_eq!(jobs(&["--name=x", "--rw=read", "--readonly"]).len(), 1);
    for rw in ["--rw=write", "--rw=randtrim", "--rw=rw"] {
        assert!(refusal(&["--name=x", rw, "--readonly"]).contains("'x' writes or trims"), "{rw}");
    }
    assert_eq!(
        jobs(&["--name=x", "--rw=write", "--verify=md5", "--verify_only", "--readonly"]).len(),
        1
    );
}

#[test]
fn files_follow_each_other_and_defaults_of_the_line_apply_to_all() {
    let first = File::new("first", "[global]\nrw=randwrite\n[a]\n[b]\n");
    let second = File::new("second", "[c]\n[d]\n");
    let all = jobs(&["--iodepth=2", first.name(), second.name()]);
    let seen: Vec<_> = all
        .iter()
        .map(|job| (&*job.name, job.rw.writes, job.iodepth, job.order.stonewall))
        .collect();
    assert_eq!(
        seen,
        [
            ("a", true, 2, false),
            ("b", true, 2, false),
            ("c", false, 2, true),
            ("d", false, 2, false)
        ]
    );
}

#[test]
fn only_sections_that_are_asked_for_run() {
    let file = File::new("sections", "[global]\nbs=8k\n[a]\n[b]\n");
    let all = jobs(&[file.name(), "--section=b"]);
    assert_eq!(
        all.iter().map(|job| (&*job.name, job.bs.0[0].max())).collect::<Vec<_>>(),
        [("b", 8192)]
    );
    assert!(refusal(&[file.name(), "--section=x"]).contains("there are a, b"));
}

#[test]
fn what_is_wrong_in_a_file_is_told_with_its_place() {
    let file = File::new("wrong", "[a]\n  bs=4x\n");
    let said = refusal(&[file.name()]);
    assert!(said.contains("wrong.fio:2:3: bs: '4x'"), "{said}");
    let file = File::new("against", "\n[a]\niodepth_low=5\n");
    let said = refusal(&[file.name()]);
    assert!(said.contains("against.fio:2:1: job 'a': iodepth_low=5 is more"), "{said}");
}

#[test]
fn a_shown_command_line_describes_the_same_jobs() {
    let first = File::new(
        "show1",
        "[global]\nrw=randwrite\nthread\n[a]\ndescription=it's a b\nbs=$pagesize*2\n[global]\niodepth=8\n[b]\nname=c\n",
    );
    let second = File::new("show2", "[d]\ntime_based\nruntime=5\n");
    let original = args(&["--size=1m", first.name(), second.name()]);
    let said = original.read(&Surroundings::here()).expect("jobs");
    let words = said.job_words().collect::<Vec<_>>().concat();
    let shown = args(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let of = |args: &BenchArgs| {
        args.request().expect("jobs").sections.into_iter().map(|s| s.job).collect::<Vec<_>>()
    };
    assert_eq!(of(&shown), of(&original));
    let text = original.showcmd().expect("a command line");
    assert!(
        text.starts_with(
            "adit bench --name=a --size=1m --rw=randwrite --thread=1 '--description=it'\\''s a b' \
             --bs=8192 \\\n"
        ),
        "{text}"
    );
    assert!(
        text.ends_with("--name=d --size=1m --time_based=1 --runtime=5 --stonewall=1\n"),
        "{text}"
    );
}

#[test]
fn what_is_asked_of_the_run_is_understood() {
    let run = args(&[
        "--name=x",
        "--minimal",
        "--status-interval=2",
        "--eta=never",
        "--eta-interval=1",
        "--targets",
        "soft:mem=1G,ns=1,null:",
        "--rounds=3",
        "--sweep",
        "iodepth=1,2",
        "--sweep=blocksize=4k",
        "--ceiling",
        "--recover",
    ])
    .run;
    assert_eq!(
        (run.formats(), run.side.rounds, run.side.ceiling, run.recover),
        (vec![OutputFormat::Terse], 3, true, true)
    );
    assert_eq!(
        (run.status_interval, run.eta_interval),
        (Some(Duration::from_secs(2)), Duration::from_secs(1))
    );
    assert_eq!(
        run.side.targets.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["soft:mem=1G,ns=1", "null:"]
    );
    assert_eq!(run.side.sweep[1], Sweep { option: "bs".into(), values: vec!["4k".into()] });
    for words in [
        ["--sweep=iodepth=1,x"],
        ["--sweep=iodpeth=1"],
        ["--sweep=iodepth"],
        ["--rounds=0"],
        ["--targets=/dev/x"],
    ] {
        assert!(parsed(&words).is_err(), "{words:?}");
    }
}
