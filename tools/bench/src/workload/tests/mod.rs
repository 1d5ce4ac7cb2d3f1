//! Tests whole passes against a model that records everything.

pub(crate) mod sample;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::generator::Generator;
use super::*;
use crate::options::{BlockSizes, JobOptions, RandomOptions, VerifyKind};
use crate::way::{PerWay, Way};
use adit_load::Distribution;
use sample::{job, verify, workload};

const LBA: u32 = 512;
const REGION: JobRegion = JobRegion { start: 1 << 20, bytes: 64 << 10 };

fn of(rw: &str) -> JobOptions {
    JobOptions { rw: workload(rw), verify: Some(verify(VerifyKind::Crc32c)), ..job() }
}

fn generator(job: &JobOptions) -> Generator {
    Generator::new(job, REGION, LBA, 7).expect("a plan")
}

fn steps(generator: &mut Generator) -> Vec<Step> {
    std::iter::from_fn(|| generator.next_step()).collect()
}

/// Returns all steps' offsets in KiB from the start of the region.
fn offsets(generator: &mut Generator) -> Vec<u64> {
    steps(generator).iter().map(|step| (step.offset - REGION.start) >> 10).collect()
}

/// Counts how many times each unit of 512 bytes was touched.
fn touched(steps: &[Step]) -> Vec<u64> {
    let mut counts = vec![0; (REGION.bytes / 512) as usize];
    for step in steps {
        let from = (step.offset - REGION.start) / 512;
        (from..from + step.bytes / 512).for_each(|unit| counts[unit as usize] += 1);
    }
    counts
}

fn any_sizes() -> impl Strategy<Value = BlockSizes> {
    prop_oneof![
        Just(BlockSizes::Fixed(4096)),
        Just(BlockSizes::Fixed(1536)),
        Just(BlockSizes::Range(1024, 8192)),
        Just(BlockSizes::Split(vec![(512, 30), (4096, 50), (16384, 20)])),
        Just(BlockSizes::Split(vec![(1024, 50), (1536, 50)])),
    ]
}

fn any_distribution() -> impl Strategy<Value = Distribution> {
    prop_oneof![
        3 => Just(Distribution::Uniform),
        1 => Just(Distribution::Zipf { theta: 0.9, center: None }),
        1 => Just(Distribution::Pareto { power: 0.2, center: Some(0.5) }),
        1 => Just(Distribution::Normal { deviation: 20.0, center: None }),
        1 => Just(Distribution::Zoned(vec![(70.0, 40.0), (30.0, 60.0)])),
    ]
}

prop_compose! {
    /// Generates arbitrary jobs.
    fn any_job()(
        rw in prop::sample::select(vec![
            "read", "write", "trim", "rw", "trimwrite", "randread", "randwrite", "randtrim", "randrw", "randtrimwrite",
        ]),
        step in prop_oneof![Just(0i64), Just(4i64), Just(-4i64), Just(8)],
        sizes in [any_sizes(), any_sizes()],
        distribution in any_distribution(),
        align in prop_oneof![3 => Just(None), 1 => Just(Some(2048u64))],
        (norandommap, lfsr) in any::<(bool, bool)>(),
        random_percent in prop_oneof![Just(100u8), Just(0), Just(60)],
        rwmixread in 0u8..=100,
    ) -> JobOptions {
        let mut job = of(rw);
        job.rw.step = if job.rw.random { step.abs() } else { step * 512 };
        let [reads, writes] = sizes;
        job.bs = PerWay([reads, writes.clone(), writes]);
        job.random.random_distribution = PerWay::all(distribution);
        job.random.blockalign = PerWay::all(align);
        job.random.norandommap = norandommap;
        job.random.is_lfsr = lfsr;
        job.random.percentage_random = PerWay::all(random_percent);
        job.rwmixread = rwmixread;
        job
    }
}

/// Returns the steps that were the last to change all their units, in order.
fn last_writers(steps: &[Step]) -> Vec<Step> {
    let mut last = BTreeMap::new();
    let units = |step: &Step| step.offset / 512..(step.offset + step.bytes) / 512;
    for step in steps.iter().filter(|step| step.way != Way::Read) {
        units(step).for_each(|unit| {
            last.insert(unit, step.number);
        });
    }
    let is_last =
        |step: &&Step| step.way == Way::Write && units(step).all(|unit| last[&unit] == step.number);
    steps.iter().filter(is_last).copied().collect()
}

proptest! {
    #[test]
    fn every_step_is_aligned_and_inside_the_region(job in any_job(), seed: u64) {
        let mut generator = Generator::new(&job, REGION, LBA, seed).expect("a plan");
        let mut number = None;
        for _ in 0..3 {
            let steps = steps(&mut generator);
            prop_assert!(!steps.is_empty());
            for step in steps {
                prop_assert!(step.offset >= REGION.start && step.offset + step.bytes <= REGION.start + REGION.bytes);
                prop_assert!(step.bytes > 0 && step.bytes % 512 == 0 && step.offset % 512 == 0);
                let sizes = &job.bs[step.way];
                prop_assert!(step.bytes >= sizes.min() && step.bytes <= sizes.max(), "{:?}", step);
                prop_assert!(Some(step.number) > number, "numbers grow");
                number = Some(step.number);
            }
            generator.next_pass();
        }
    }

    #[test]
    fn what_was_written_is_what_the_last_writers_wrote(job in any_job(), seed: u64, taken in 0usize..200) {
        let mut generator = Generator::new(&job, REGION, LBA, seed).expect("a plan");
        for _ in 0..2 {
            let steps: Vec<Step> = std::iter::from_fn(|| generator.next_step()).take(taken).collect();
            prop_assert_eq!(generator.written().collect::<Vec<_>>(), last_writers(&steps));
            while generator.next_step().is_some() {}
            generator.next_pass();
        }
    }

    #[test]
    fn skipping_is_taking_as_many_steps(job in any_job(), seed: u64, pass in 0u64..3, position in 0u64..100) {
        let mut walked = Steps::new(&job, &[(REGION, LBA)], seed).expect("a plan");
        let mut skipped = walked.clone();
        (0..pass).for_each(|_| walked.next_pass());
        for _ in 0..position {
            walked.next_step();
        }
        skipped.skip_to(pass, position);
        prop_assert_eq!((skipped.pass(), skipped.position()), (walked.pass(), walked.position()));
        prop_assert_eq!(skipped.written().collect::<Vec<_>>(), walked.written().collect::<Vec<_>>());
        prop_assert!(std::iter::from_fn(|| skipped.next_step()).eq(std::iter::from_fn(|| walked.next_step())));
    }

    #[test]
    fn a_pass_that_says_it_does_not_overlap_changes_nothing_twice(job in any_job(), seed: u64) {
        let mut generator = Generator::new(&job, REGION, LBA, seed).expect("a plan");
        let mut changes = steps(&mut generator);
        changes.retain(|step| step.way != Way::Read);
        prop_assert!(generator.may_overlap || touched(&changes).iter().all(|count| *count <= 1));
    }

    #[test]
    fn a_random_pass_touches_each_block_of_a_way_once(
        sizes in [any_sizes(), any_sizes()],
        rw in prop::sample::select(vec!["randread", "randwrite", "randrw"]),
        rwmixread in 0u8..=100,
        seed: u64,
    ) {
        let [reads, writes] = sizes;
        let job = JobOptions { bs: PerWay([reads, writes.clone(), writes]), rwmixread, ..of(rw) };
        let mut generator = Generator::new(&job, REGION, LBA, seed).expect("a plan");
        let used = generator.ways.all();
        let share_blocks = used.iter().all(|way| job.bs[*way].min() == job.bs[used[0]].min());
        // Blocks of 1536 bytes leave holes in a map of 1024.
        let are_multiples = |way: &Way| job.bs[*way].listed().iter().all(|x| x % job.bs[*way].min() == 0);
        for _ in 0..2 {
            let steps = steps(&mut generator);
            let of_ways = |ways: &[Way]| {
                touched(&steps.iter().filter(|step| ways.contains(&step.way)).copied().collect::<Vec<_>>())
            };
            for way in &used {
                prop_assert!(of_ways(&[*way]).iter().all(|count| *count <= 1));
            }
            if share_blocks && used.iter().all(are_multiples) {
                let whole = (REGION.bytes / job.bs[used[0]].min() * job.bs[used[0]].min() / 512) as usize;
                let counts = of_ways(&used);
                prop_assert!(counts[..whole].iter().all(|count| *count == 1), "{:?}", counts);
            } else if used.iter().all(are_multiples) {
                let moved: u64 = steps.iter().map(|step| step.bytes).sum();
                let longest = used.iter().map(|way| job.bs[*way].max()).max().unwrap_or(0);
                prop_assert!(moved + longest > generator.pass_bytes, "{} of {}", moved, generator.pass_bytes);
            }
            generator.next_pass();
        }
    }
}

/// Returns how many steps a pass of a random job over 1 GiB takes in a way, and their mean length in bytes.
fn pass_of(job: &JobOptions, way: Way) -> (u64, f64) {
    let region = JobRegion { start: 0, bytes: 1 << 30 };
    let mut generator = Generator::new(job, region, LBA, 7).expect("a plan");
    let bytes: Vec<u64> = steps(&mut generator)
        .iter()
        .filter(|step| step.way == way)
        .map(|step| step.bytes)
        .collect();
    (bytes.len() as u64, bytes.iter().sum::<u64>() as f64 / bytes.len() as f64)
}

#[test]
fn random_blocks_of_several_sizes_are_as_long_as_fios() {
    // fio --ioengine=null --size=1g, releases 3.33 and 3.41: the mean of io_bytes / total_ios of both.
    let split = |sizes: &[(u64, u8)]| BlockSizes::Split(sizes.to_vec());
    let (range, halves) = (BlockSizes::Range(4096, 65536), split(&[(4096, 50), (65536, 50)]));
    let cases = [
        ("randread", split(&[(4096, 50), (16384, 30), (65536, 20)]), 100, 0, 11_765.0),
        ("randwrite", range.clone(), 100, 0, 25_056.0),
        ("randtrimwrite", halves.clone(), 100, 0, 20_905.0),
        // Sequential I/Os are not cut: percentage_random=50 and rw=randwrite:8.
        ("randwrite", range, 50, 0, 32_466.0),
        ("randwrite", halves, 100, 8, 34_518.0),
    ];
    for (rw, sizes, random_percent, run, fios) in cases {
        let mut job = JobOptions { bs: PerWay::all(sizes), verify: None, ..of(rw) };
        job.random.percentage_random = PerWay::all(random_percent);
        job.rw.step = run;
        let way = if rw == "randread" { Way::Read } else { Way::Write };
        let (_, mean) = pass_of(&job, way);
        assert!((mean / fios - 1.0).abs() < 0.02, "{rw}: {mean} and not {fios}");
    }
}

#[test]
fn a_way_of_one_size_never_gets_a_shorter_block() {
    // fio --rw=randrw --bs=4k,128k --rwmixread=70
    let sizes = [4096, 131_072, 4096].map(BlockSizes::Fixed);
    let job = JobOptions { bs: PerWay(sizes), rwmixread: 70, verify: None, ..of("randrw") };
    let ((reads, short), (writes, long)) = (pass_of(&job, Way::Read), pass_of(&job, Way::Write));
    assert_eq!((short, long), (4096.0, 131_072.0));
    let share = reads as f64 / (reads + writes) as f64;
    assert!((share - 0.7).abs() < 0.01, "{share}");
    let moved = reads * 4096 + writes * 131_072;
    assert!((1 << 30..(1 << 30) + 131_072).contains(&moved), "a pass moves its region: {moved}");
}

#[test]
fn an_lfsr_of_several_sizes_cuts_none() {
    // As fio, which has no random map for it.
    let mut job = JobOptions {
        bs: PerWay::all(BlockSizes::Split(vec![(4096, 50), (16384, 30), (65536, 20)])),
        verify: None,
        ..of("randread")
    };
    job.random.is_lfsr = true;
    let (_, mean) = pass_of(&job, Way::Read);
    assert!((mean / 20_234.0 - 1.0).abs() < 0.02, "{mean}");
}

#[test]
fn passes_differ_in_order_unless_they_are_in_order() {
    for (rw, differ) in [("randread", true), ("read", false)] {
        let mut generator = generator(&of(rw));
        let first = offsets(&mut generator);
        generator.next_pass();
        assert_eq!(first != offsets(&mut generator), differ, "{rw}");
    }
}

#[test]
fn the_mix_is_near_its_percentage() {
    for rw in ["rw", "randrw"] {
        let job = JobOptions { rwmixread: 70, bs: PerWay::all(BlockSizes::Fixed(512)), ..of(rw) };
        let region = JobRegion { start: 0, bytes: 512 * 100_000 };
        let mut generator = Generator::new(&job, region, LBA, 1).expect("a plan");
        let reads = steps(&mut generator).iter().filter(|step| step.way == Way::Read).count();
        assert!((69_000..71_000).contains(&reads), "{reads}");
    }
}

#[test]
fn a_mix_in_order_has_two_streams() {
    let steps = steps(&mut generator(&of("rw")));
    for way in [Way::Read, Way::Write] {
        let of_way: Vec<u64> =
            steps.iter().filter(|step| step.way == way).map(|step| step.offset).collect();
        let expected: Vec<u64> =
            (0..of_way.len() as u64).map(|i| REGION.start + i * 4096).collect();
        assert_eq!(of_way, expected);
    }
    assert_eq!(steps.len(), 16);
}

#[test]
fn a_step_leaves_holes_and_comes_again_from_the_start() {
    let mut job = of("write");
    job.rw.step = 4096;
    let expected: Vec<u64> = (0..64).step_by(8).chain((0..64).step_by(8)).collect();
    assert_eq!(offsets(&mut generator(&job)), expected);
}

#[test]
fn a_negative_step_goes_backwards_from_the_end() {
    // fio --ioengine=null --size=64k --bs=4k --rw=read:-8k --write_iolog=log
    let mut job = of("read");
    job.rw.step = -8192;
    let fios = [0, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0];
    assert_eq!(offsets(&mut generator(&job)), fios);
}

#[test]
fn a_run_goes_on_sequentially() {
    let mut job = of("randread");
    job.rw.step = 4;
    job.random.norandommap = true;
    let region = JobRegion { start: 0, bytes: 1 << 30 };
    let mut generator = Generator::new(&job, region, LBA, 7).expect("a plan");
    let first: Vec<u64> =
        steps(&mut generator).iter().take(8).map(|step| step.offset / 4096).collect();
    assert_eq!(first[..4], [0, 1, 2, 3].map(|i| first[0] + i));
    assert_eq!(first[4..], [0, 1, 2, 3].map(|i| first[4] + i));
    assert_ne!(first[4], first[0] + 4);
}

#[test]
fn part_of_a_random_workload_is_sequential() {
    let job = JobOptions {
        random: RandomOptions { percentage_random: PerWay::all(30), ..of("randread").random },
        ..of("randread")
    };
    let region = JobRegion { start: 0, bytes: 1 << 28 };
    let mut generator = Generator::new(&job, region, LBA, 7).expect("a plan");
    // To the end of the pass, where most next blocks were used before.
    let all = steps(&mut generator);
    let goes_on = |pair: &&[Step]| pair[1].offset == pair[0].offset + pair[0].bytes;
    let share = all.windows(2).filter(goes_on).count() as f64 / all.len() as f64;
    assert!((share - 0.7).abs() < 0.02, "{share}");
}

#[test]
fn each_block_is_trimmed_then_written() {
    for rw in ["trimwrite", "randtrimwrite"] {
        let steps = steps(&mut generator(&of(rw)));
        assert_eq!(steps.len(), 32);
        for pair in steps.chunks(2) {
            assert_eq!((pair[0].way, pair[1].way), (Way::Trim, Way::Write));
            assert_eq!(pair[0].offset, pair[1].offset);
        }
        assert!(touched(&steps).iter().all(|count| *count == 2));
    }
}

#[test]
fn what_was_trimmed_and_not_yet_written_counts_as_not_written() {
    let job = JobOptions {
        random: RandomOptions { norandommap: true, ..of("randtrimwrite").random },
        ..of("randtrimwrite")
    };
    let mut generator = generator(&job);
    let mut all = Vec::new();
    // Continues until a place is trimmed that was written before.
    loop {
        let step = generator.next_step().expect("16 draws of 16 have a place twice");
        let again =
            step.way == Way::Trim && all.iter().any(|other: &Step| other.offset == step.offset);
        all.push(step);
        if again {
            break;
        }
    }
    let trimmed = all[all.len() - 1].offset;
    assert!(generator.written().all(|step| step.offset != trimmed));
    assert_eq!(generator.written().count(), (all.len() - 1) / 2 - 1);
}

#[test]
fn places_are_multiples_of_the_alignment() {
    let job = JobOptions {
        random: RandomOptions { blockalign: PerWay::all(Some(8192)), ..of("randread").random },
        ..of("randread")
    };
    let mut generator = generator(&job);
    assert!(offsets(&mut generator).iter().all(|offset| offset % 8 == 0));
    assert!(!generator.may_overlap, "reads do not matter");
    assert!(
        Generator::new(&JobOptions { rw: workload("randwrite"), ..job }, REGION, LBA, 7)
            .expect("a plan")
            .may_overlap
    );
}

#[test]
fn numbers_count_all_steps_where_blocks_have_one_size() {
    let mut generator = generator(&of("randrw"));
    for pass in 0..3 {
        let numbers: Vec<u64> = steps(&mut generator).iter().map(|step| step.number).collect();
        assert_eq!(numbers, (16 * pass..16 * (pass + 1)).collect::<Vec<_>>());
        generator.next_pass();
    }
}

#[test]
fn only_what_may_be_overwritten_is_kept_track_of() {
    let plain = of("randwrite");
    let drawn = JobOptions {
        random: RandomOptions { norandommap: true, ..plain.clone().random },
        ..plain.clone()
    };
    assert!(generator(&plain).latest.is_none());
    assert!(generator(&drawn).latest.is_some());
    assert!(generator(&JobOptions { verify: None, ..drawn }).latest.is_none());
}

#[test]
fn what_does_not_fit_is_refused_with_what_does() {
    let refused = |job: &JobOptions| Generator::new(job, REGION, LBA, 1).expect_err("refused");
    let sized = |bytes| JobOptions { bs: PerWay::all(BlockSizes::Fixed(bytes)), ..of("randwrite") };
    assert!(refused(&sized(1 << 20)).contains("smaller bs or a larger size"));
    let aligned = JobOptions {
        random: RandomOptions { blockalign: PerWay::all(Some(100)), ..sized(4096).random },
        ..sized(4096)
    };
    assert!(refused(&aligned).contains("blockalign"));
    let mut stepped = of("read");
    stepped.rw.step = -100;
    assert!(refused(&stepped).contains("colon"));
}
