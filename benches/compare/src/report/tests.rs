//! Tables from known figures.

use super::*;
use crate::options::Cli;
use crate::usage::OpenFiles;
use clap::Parser;

fn measured(phase: Phase, mb_per_second: f64, p99_us: f64, cpu: f64) -> Measured {
    Measured {
        phase,
        seconds: 1.0,
        gets: 10,
        puts: 0,
        misses: 1,
        wrong: 0,
        memory_hits: Some(2),
        mb_per_second,
        processor_user_seconds: 0.1,
        processor_system_seconds: 0.1,
        processor_seconds_per_gb: cpu,
        p50_us: p99_us / 2.0,
        p99_us,
        p99_9_us: p99_us * 2.0,
    }
}

fn turn(round: u32, engine: Kind, measured: Measured) -> Turn {
    let words = || "words".to_owned();
    let open_files = OpenFiles { all: 2, direct: 1 };
    let (setup, promise) = (words(), words());
    let ended = Ended { resident_bytes_max: 100 << 20, open_files, setup, promise };
    Turn { round, engine, phases: vec![measured], ended, peak_bytes: Some(200 << 20) }
}

fn report(turns: Vec<Turn>) -> Report {
    let arguments = [
        "adit-compare",
        "--engines",
        "raw,adit,files-direct,adit-tier,foyer-tier",
        "--phases",
        "uniform",
    ];
    let machine =
        Machine { memory_is_limited: true, load_before: "0.1".into(), load_after: "0.2".into() };
    Report::new(&Cli::parse_from(arguments).options, machine, turns)
}

fn uniform(engine: Kind, figures: [(f64, f64, f64); 3]) -> impl Iterator<Item = Turn> {
    let turns = figures.into_iter().zip(1..);
    turns.map(move |((mb, p99, cpu), round)| {
        turn(round, engine, measured(Phase::Uniform, mb, p99, cpu))
    })
}

#[test]
fn a_median_is_the_middle_or_the_mean_of_two() {
    assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
    assert_eq!(median(vec![7.0]), Some(7.0));
    assert_eq!(median(vec![]), None);
}

#[test]
fn a_ratio_is_the_median_of_those_of_the_rounds() {
    let mut turns: Vec<Turn> =
        uniform(Kind::Adit, [(100.0, 1.0, 1.0), (600.0, 1.0, 1.0), (300.0, 1.0, 1.0)]).collect();
    turns.extend(uniform(
        Kind::FilesDirect,
        [(100.0, 1.0, 0.0), (200.0, 1.0, 0.0), (150.0, 1.0, 0.0)],
    ));
    let report = report(turns);
    let ratio = |figure| report.ratio(Kind::Adit, Kind::FilesDirect, Phase::Uniform, figure);
    assert_eq!((ratio(MB), ratio(PROCESSOR)), (Some(2.0), None), "a ratio to nothing is none");
    assert_eq!(report.ratio(Kind::Adit, Kind::FilesDirect, Phase::Zipf, MB), None);
}

#[test]
fn a_row_has_the_share_of_the_disk_and_the_ratio_of_the_store_to_it() {
    let mut turns: Vec<Turn> = uniform(Kind::Raw, [(1000.0, 1.0, 1.0); 3]).collect();
    turns
        .extend(uniform(Kind::Adit, [(990.0, 40.0, 0.1), (100.0, 900.0, 9.0), (980.0, 50.0, 0.2)]));
    turns.extend(uniform(
        Kind::FilesDirect,
        [(900.0, 100.0, 0.4), (890.0, 200.0, 0.3), (895.0, 100.0, 0.5)],
    ));
    let text = report(turns).markdown();
    let adit = "| adit | 0 | 980 (100 to 990) | 0.98 | 25 | 50 | 0.200 | 0.20 | 3 |  |  |  |";
    assert!(text.contains(adit), "{text}");
    let files = "| files-direct | 0 | 895 (890 to 900) | 0.90 | 50 | 100 | 0.400 | 0.20 | 3 | 1.09 | 0.50 | 0.40 |";
    assert!(text.contains(files), "{text}");
    assert!(text.contains("| raw | 0 | 1000 (1000 to 1000) | 1.00 |"), "{text}");
}

#[test]
fn an_engine_with_a_tier_stands_beside_the_store_with_its_tier() {
    let mut turns: Vec<Turn> = uniform(Kind::Adit, [(400.0, 1.0, 1.0); 3]).collect();
    turns.extend(uniform(Kind::AditTier, [(900.0, 1.0, 1.0); 3]));
    turns.extend(uniform(Kind::FoyerTier, [(450.0, 2.0, 4.0); 3]));
    let text = report(turns).markdown();
    assert!(text.contains("| foyer-tier | 204 | 450 (450 to 450) | - |"), "{text}");
    assert!(text.contains("| 2.00 | 0.50 | 0.25 |"), "{text}");
}

#[test]
fn a_phase_that_an_engine_does_not_have_leaves_its_cells_empty() {
    let text = report(uniform(Kind::Adit, [(900.0, 60.0, 0.3); 3]).collect()).markdown();
    assert!(
        text.contains("| files-direct | 0 | - | - | - | - | - | - | 0 | - | - | - |"),
        "{text}"
    );
}

#[test]
fn wrong_bytes_are_a_failure_that_names_the_engine() {
    let mut wrong = turn(2, Kind::FilesDirect, measured(Phase::Uniform, 1.0, 1.0, 1.0));
    wrong.phases[0].wrong = 3;
    let why = report(vec![wrong]).check().expect_err("wrong bytes").to_string();
    assert!(why.contains("files-direct returned wrong bytes in round 2: 3 gets of 10"), "{why}");
}
