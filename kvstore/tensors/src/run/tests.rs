use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::{Component, Extent, Knob, Model, ModelGpu, Spread};
use proptest::prelude::*;

const LAYERS: u32 = 6;
const PROMPT: u32 = 40;
const GENERATED: u32 = 5;
/// Number of portions of a tensor after prefill.
const PORTIONS: u64 = 4;

/// Returns a shape with 8 KiB per token of a tensor, and 344 KiB per tensor.
fn shape() -> Shape {
    let model = Model { name: "small", layers: LAYERS, heads: 4, head_elements: 128 };
    Shape::new(model, 8, PROMPT, GENERATED).expect("a shape")
}

fn soft() -> Extent {
    Extent {
        first_lba: 16,
        ..Extent::new("soft:mem=16M,lba=4096,mdts=4".parse().expect("a target"))
    }
}

/// Options whose budget never moves a layer by itself, with `cached` cached layers. A portion is 12 tokens.
fn options(extent: Option<Extent>, cached: u32) -> RunOptions {
    RunOptions {
        extent,
        knob: Knob::Bytes(u64::from(cached) * shape().pair_bytes()),
        headroom_bytes: Some(0),
        rebudget_every: Duration::ZERO,
        portion_bytes: 100 << 10,
        checksums: true,
        ..RunOptions::new(shape())
    }
}

fn open(options: RunOptions) -> Tensors<ModelGpu> {
    Tensors::open(options, ModelGpu::new(0, true)).expect("a run")
}

fn prefill(run: &mut Tensors<ModelGpu>) {
    (0..LAYERS).for_each(|layer| run.write_layer(layer, 0..PROMPT).expect("a write"));
    run.next_iteration().expect("no failure");
}

/// Reads all layers, the next one while the GPU would compute, and appends a token to each.
fn decode(run: &mut Tensors<ModelGpu>, tokens: u32) {
    let mut next = Some(run.begin_read(0, tokens).expect("a read"));
    while let Some(reading) = next.take() {
        let layer = reading.layer();
        if layer + 1 < LAYERS {
            next = Some(run.begin_read(layer + 1, tokens).expect("a read"));
        }
        run.finish_read(reading).expect("right bytes");
        run.write_layer(layer, tokens..tokens + 1).expect("a write");
    }
    run.next_iteration().expect("no failure");
}

fn rest(run: &mut Tensors<ModelGpu>) {
    (PROMPT..shape().tokens_max()).for_each(|tokens| decode(run, tokens));
}

#[test]
fn every_division_gives_the_bytes_back() {
    let cases = [
        (None, 0),
        (Some(soft()), 0),
        (None, 2),
        (Some(soft()), 2),
        (None, LAYERS),
        (Some(soft()), LAYERS),
    ];
    let rooms = [(Some(0), 0), (Some(shape().pair_bytes()), 100 << 10), (None, u64::MAX)];
    for (extent, cached) in cases {
        for (dirty_bytes, portion_bytes) in rooms {
            for threads in [1, 2, 3, 2 * LAYERS as u16 + 1] {
                let has_lbas = extent.is_some() && cached < LAYERS;
                let base = options(extent.clone(), cached);
                let base = RunOptions { dirty_bytes, portion_bytes, ..base };
                let mut run = open(RunOptions { copy_threads: threads, ..base });
                assert_eq!(run.plan().cached(), cached, "{extent:?}");
                assert_eq!(run.extent_bytes(TensorId::pair(LAYERS - 1)[1]).is_some(), has_lbas);
                prefill(&mut run);
                rest(&mut run);
                let expected: u64 =
                    (PROMPT..shape().tokens_max()).map(|tokens| shape().bytes(tokens)).sum();
                assert_eq!(run.gpu().taken_bytes(), 2 * u64::from(LAYERS) * expected);
                let stats = run.close().expect("no failure");
                let reads = stats.cached.decode_read.latency.count()
                    + stats.direct.decode_read.latency.count();
                let steps = u64::from(shape().decode_steps());
                assert_eq!(reads, 2 * u64::from(LAYERS) * steps);
                let first = stats.cached.decode_read.bytes;
                assert_eq!(
                    first,
                    2 * u64::from(cached) * expected,
                    "cached layers have their share"
                );
            }
        }
    }
}

#[test]
fn a_read_of_another_run_is_refused() {
    let mut runs = [0, 1].map(|_| open(options(Some(soft()), 0)));
    runs.iter_mut().for_each(prefill);
    let [first, second] = &mut runs;
    // Both runs count their jobs from the same number.
    let reading = first.begin_read(3, PROMPT).expect("a read");
    let other = second.begin_read(4, PROMPT).expect("a read");
    let text = second.finish_read(reading).expect_err("it is the first run's").to_string();
    assert!(text.contains("another run's of layer 3") && text.contains("the run that began it"));
    second.finish_read(other).expect("right bytes");
    first.read_layer(3, PROMPT).expect("right bytes");
    runs.into_iter().for_each(|run| drop(run.close().expect("no failure")));
}

#[test]
fn a_drive_with_short_boundaries_and_queues_gives_the_bytes_back() {
    for limits in ["noiob=1,mqes=3", "noiob=3,mdts=1,mqes=2", "noiob=8,mqes=5"] {
        let target = format!("soft:mem=16M,lba=4096,{limits}").parse().expect("a target");
        let extent = Extent { first_lba: 16, ..Extent::new(target) };
        let mut run = open(options(Some(extent), 0));
        prefill(&mut run);
        rest(&mut run);
        run.close().expect("no failure");
    }
}

#[test]
fn portions_that_end_within_a_page_are_whole() {
    let model = Model { name: "narrow", layers: LAYERS, heads: 3, head_elements: 256 };
    let shape = Shape::new(model, 1, PROMPT, GENERATED).expect("1536 bytes for a token");
    let extent = Extent::new("soft:mem=16M,lba=512".parse().expect("a target"));
    for folder in [None, Some(std::env::temp_dir())] {
        let base = options(Some(extent.clone()), 0);
        let mut run = open(RunOptions { shape, folder, portion_bytes: 2 * 1536, ..base });
        prefill(&mut run);
        rest(&mut run);
        assert!(run.gpu().taken_bytes() > 0, "with its stamps and checksums");
        run.close().expect("no failure");
    }
}

#[test]
fn what_prefill_leaves_in_the_page_cache_is_not_read_from_the_drive() {
    let base = options(None, LAYERS);
    let mut run = open(RunOptions { dirty_bytes: Some(u64::MAX), ..base });
    prefill(&mut run);
    rest(&mut run);
    let stats = run.close().expect("no failure");
    assert_eq!(stats.cached.prefill_write.cost.commands, 0, "no command of the drive's");
    assert_eq!(stats.hit_ratio().unwrap_or(1.0), 1.0);
}

#[test]
fn reads_and_prefill_past_the_page_cache_are_sequential() {
    for extent in [None, Some(soft())] {
        let mut run = open(options(extent, 0));
        prefill(&mut run);
        rest(&mut run);
        let stats = run.close().expect("no failure");
        let read = &stats.direct.decode_read;
        // Each tensor is followed by room for its later tokens, which costs one jump.
        assert!(read.cost.commands - read.cost.sequential <= read.latency.count(), "{read:?}");
        assert!(stats.direct.prefill_write.cost.commands > 0 && read.busy_share().is_some());
        assert_eq!(stats.hit_ratio(), Some(0.0));
    }
}

#[test]
fn layers_change_their_group_without_a_copy_in_the_same_files() {
    let mut run = open(options(None, 3));
    prefill(&mut run);
    decode(&mut run, PROMPT);
    run.resize(1);
    assert_eq!(run.homes[..3], [Home::Cached, Home::Direct, Home::Direct]);
    decode(&mut run, PROMPT + 1);
    run.resize(5);
    assert_eq!(run.homes[1..], [[Home::Cached; 4].as_slice(), &[Home::Direct]].concat());
    decode(&mut run, PROMPT + 2);
    let stats = run.close().expect("no failure");
    assert_eq!((stats.demoted_layers, stats.promoted_layers, stats.moved_bytes), (2, 4, 0));
}

#[test]
fn a_layer_of_the_extent_is_copied_once_when_it_enters_the_page_cache() {
    let mut run = open(options(Some(soft()), 1));
    prefill(&mut run);
    run.resize(3);
    assert_eq!(run.stats().moved_bytes, 0, "nothing moves before the next read");
    decode(&mut run, PROMPT);
    let moved = 2 * 2 * shape().bytes(PROMPT);
    assert_eq!((run.stats().promoted_layers, run.stats().moved_bytes), (2, moved));
    run.resize(0);
    decode(&mut run, PROMPT + 1);
    run.resize(3);
    decode(&mut run, PROMPT + 2);
    let stats = run.close().expect("no failure");
    assert_eq!(stats.moved_bytes, moved, "what is in the file stays there");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn bytes_are_right_however_the_budget_moves(
        begins in 0u32..=LAYERS,
        sizes in prop::collection::vec(0u32..=LAYERS, 4 * LAYERS as usize),
        in_extent in any::<bool>(),
    ) {
        let extent = in_extent.then(soft);
        let bytes = u64::from(begins) * shape().pair_bytes();
        // One more byte, because a bound of 0 would rule caching out.
        let knob = Knob::Bytes(bytes + 1);
        let mut run = open(RunOptions { knob, ..options(extent, begins) });
        let mut sizes = sizes.into_iter();
        for layer in 0..LAYERS {
            run.write_layer(layer, 0..PROMPT).expect("a write");
            run.resize(sizes.next().expect("one for each"));
        }
        run.next_iteration().expect("no failure");
        for tokens in PROMPT..PROMPT + 3 {
            for layer in 0..LAYERS {
                run.resize(sizes.next().expect("one for each"));
                run.read_layer(layer, tokens).expect("right bytes");
                run.write_layer(layer, tokens..tokens + 1).expect("a write");
            }
            run.next_iteration().expect("no failure");
        }
        run.read_layer(2, PROMPT + 3).expect("right bytes");
        run.close().expect("no failure");
    }
}

#[test]
fn hits_of_an_extent_behind_the_page_cache_are_measured() {
    let path = std::env::temp_dir().join(format!("adit-mapped-{}.img", std::process::id()));
    let target = format!("mmap:{}", path.display()).parse().expect("a target");
    let extent = Extent { file_bytes: Some(shape().set_bytes()), ..Extent::new(target) };
    let mut run = open(RunOptions { folder: None, ..options(Some(extent), 0) });
    std::fs::remove_file(&path).expect("the run has it open");
    prefill(&mut run);
    rest(&mut run);
    let stats = run.close().expect("no failure");
    // The kernel may not report hits, or may have evicted bytes just written.
    assert!(stats.hit_ratio().is_none_or(|hits| hits > 0.5), "{stats:?}");
    assert_eq!(stats.cached.decode_read.bytes, 0, "no layer is cached by the run");
}

#[test]
fn damage_on_the_drive_is_an_error_never_wrong_bytes() {
    let path = std::env::temp_dir().join(format!("adit-damage-{}.img", std::process::id()));
    let target = format!("soft:file={},size=16M,lba=4096", path.display());
    let extent = Extent::new(target.parse().expect("a target"));
    let mut run = open(options(Some(extent), 0));
    prefill(&mut run);
    let tensor = TensorId { layer: 3, component: Component::V };
    // Damage token 20, in the second portion.
    let at = run.extent_bytes(tensor).expect("bound").start + shape().bytes(20);
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the drive's file");
    // The bytes lie between two of the GPU's stamps, so that only the checksum detects them.
    file.write_all_at(&[0x5a; 64], at + 1000).expect("a write");
    run.read_layer(2, PROMPT).expect("another layer");
    let error = run.read_layer(3, PROMPT).expect_err("damaged").to_string();
    drop(run);
    std::fs::remove_file(&path).expect("it was made");
    assert!(
        error.contains("V of layer 3") && error.contains("the bytes of token 20 are not those"),
        "{error}"
    );
}

#[test]
fn bad_options_get_a_sentence_each() {
    let refused = |options: RunOptions| {
        Tensors::open(options, ModelGpu::new(0, false)).expect_err("refused").to_string()
    };
    let base = || options(Some(soft()), 1);
    let large = Shape { batch: 1 << 20, prompt_tokens: 1 << 12, ..shape() };
    let text = refused(RunOptions { shape: large, ..base() });
    assert!(text.contains("2 copy threads pin") && text.contains("raise the limit"), "{text}");
    let text = refused(RunOptions { folder: None, extent: None, ..base() });
    assert!(text.contains("the folder is 'none': give a folder"), "{text}");
    let small = Extent { bytes: Some(1 << 20), ..soft() };
    let text = refused(RunOptions { extent: Some(small), ..base() });
    assert!(
        text.contains("the extent is '1048576 bytes'") && text.contains("take 3604480 bytes"),
        "{text}"
    );
    let odd = Shape { model: Model { layers: 2, ..Model::OPT_13B }, batch: 1, ..shape() };
    let text = refused(RunOptions { shape: odd, ..base() });
    assert!(text.contains("use an even batch"), "{text}");
    let text = refused(RunOptions { copy_threads: 0, ..base() });
    assert!(text.contains("use 1 to 64"), "{text}");
    let text = refused(RunOptions { folder: Some("/nonexistent".into()), ..base() });
    assert!(text.contains("/nonexistent"), "{text}");
    let vast = Shape { prompt_tokens: 1 << 28, ..shape() };
    let folder = Some("/dev/shm".into());
    let text = refused(RunOptions { shape: vast, folder, extent: None, ..base() });
    assert!(text.contains("/dev/shm") && text.contains("in memory (tmpfs)"), "{text}");
    let text = refused(RunOptions { timeout: Duration::MAX, ..base() });
    assert!(text.contains("use a day at most"), "{text}");
}

#[test]
fn memory_that_shrinks_to_nothing_leaves_a_working_run() {
    let mut run = open(options(Some(soft()), 4));
    prefill(&mut run);
    decode(&mut run, PROMPT);
    // The bound now leaves no room for cached layers.
    run.options.knob = Knob::Bytes(0);
    assert_eq!(run.rebudget(), 0);
    decode(&mut run, PROMPT + 1);
    let stats = run.close().expect("no failure");
    assert_eq!((stats.demoted_layers, stats.moved_bytes), (4, 0));
}

#[test]
fn a_gpu_that_fails_is_reported() {
    struct Broken;
    impl Gpu for Broken {
        fn to_host(&self, _: TensorId, _: u64, _: &mut [u8]) -> std::io::Result<()> {
            Err(std::io::Error::other("it fell off the bus"))
        }
        fn to_device(&self, _: TensorId, _: u64, _: &[u8]) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut run = Tensors::open(options(Some(soft()), 0), Broken).expect("a run");
    run.write_layer(0, 0..PROMPT).expect("it is handed over");
    let text = run.settle().expect_err("it failed").to_string();
    assert!(text.contains("K of layer 0") || text.contains("V of layer 0"), "{text}");
    assert!(text.contains("fell off the bus"), "{text}");
}

#[test]
fn refaults_make_a_run_evaluate_its_budget() {
    let rebudget_every = Duration::from_secs(3600);
    let mut run = open(RunOptions { rebudget_every, ..options(None, 3) });
    prefill(&mut run);
    decode(&mut run, PROMPT);
    let evaluations = run.stats.budget_evaluations;
    run.stats.cached.decode_read.bytes += 300;
    run.weigh_groups(Instant::now());
    assert_eq!(run.stats.budget_evaluations, evaluations);
    // A third of the cached layers was evicted in the last iteration.
    run.stats.cached.decode_read.bytes += 300;
    run.stats.cached.decode_read.refault_bytes += 100;
    run.weigh_groups(Instant::now());
    assert_eq!(run.stats.budget_evaluations, evaluations + 1);
    // The iteration in which layers left does not count against the others.
    run.resize(2);
    run.stats.cached.decode_read.bytes += 300;
    run.stats.cached.decode_read.refault_bytes += 100;
    run.weigh_groups(Instant::now());
    assert_eq!(run.stats.budget_evaluations, evaluations + 1);
}

#[test]
fn caching_is_given_up_only_if_it_is_slower_while_in_memory() {
    let slower = |missed: u64| {
        let (knob, rebudget_every) = (Knob::Measured, Duration::from_secs(3600));
        let mut run = open(RunOptions { knob, rebudget_every, ..options(None, 0) });
        assert!(run.plan().cached() > 0, "this machine has memory for a layer");
        run.next_iteration().expect("no failure");
        let mut cached = Vec::new();
        for _ in 0..3 {
            for (group, seconds) in [(&mut run.stats.cached, 2), (&mut run.stats.direct, 1)] {
                group.decode_read.bytes += 1000;
                group.decode_read.latency.record(Duration::from_secs(seconds));
            }
            run.stats.cached.decode_read.missed_bytes += missed;
            run.weigh_groups(Instant::now());
            cached.push(run.plan().cached() > 0);
        }
        cached
    };
    assert_eq!(slower(30), [true; 3], "it was being filled");
    assert_eq!(slower(20), [true, true, false], "not by one iteration");
}

fn faulty(faults: &str) -> Option<Extent> {
    let target = format!("soft:mem=16M,lba=4096,mdts=4,seed=5,faults={faults}");
    Some(Extent::new(target.parse().expect("a target")))
}

#[test]
fn commands_that_fail_for_a_while_or_are_lost_are_sent_again() {
    for faults in
        ["status(0:82)@read:p=0.2:times=3", "lose@read:n=9", "status(0:82)@write:p=0.2:times=3"]
    {
        let timeout = Duration::from_secs(1);
        let base = options(faulty(faults), 0);
        let mut run = open(RunOptions { timeout, ..base });
        prefill(&mut run);
        rest(&mut run);
        let stats = run.close().expect("no failure");
        assert_eq!(stats.iterations, GENERATED, "{faults}");
    }
}

#[test]
fn a_token_that_is_not_written_is_an_error_of_a_later_call() {
    // Prefill has 84 commands: a tensor's portions of 96 KiB have two, and the rest of 32 KiB has one.
    let mut run = open(options(faulty("status(2:80:dnr)@write:n=85"), 0));
    prefill(&mut run);
    run.write_layer(0, PROMPT..PROMPT + 1).expect("it is handed over");
    let text = run.settle().expect_err("a token is missing").to_string();
    assert!(text.contains("write a token of K of") || text.contains("of V of layer 0"), "{text}");
    let closed = run.close().expect_err("the failure is the run's").to_string();
    assert_eq!(closed, text);
}

/// A GPU that fails once, at the copy with this number, counted from 0.
struct FailsOnce {
    copies: AtomicU64,
    at: u64,
}

impl FailsOnce {
    fn at(at: u64) -> FailsOnce {
        FailsOnce { copies: AtomicU64::new(0), at }
    }

    fn copy(&self) -> std::io::Result<()> {
        match self.copies.fetch_add(1, Ordering::Relaxed) == self.at {
            true => Err(std::io::Error::other("it fell off the bus")),
            false => Ok(()),
        }
    }
}

impl Gpu for FailsOnce {
    fn to_host(&self, _: TensorId, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        self.copy()
    }

    fn to_device(&self, _: TensorId, _: u64, _: &[u8]) -> std::io::Result<()> {
        self.copy()
    }
}

/// Asserts that all calls fail.
fn assert_failed(mut run: Tensors<FailsOnce>) {
    let expected = "it fell off the bus";
    let results = [
        run.read_layer(1, PROMPT),
        run.read_layer(0, PROMPT),
        run.write_layer(0, 0..PROMPT),
        run.settle(),
        run.next_iteration(),
        run.close().map(drop),
    ];
    for (index, result) in results.into_iter().enumerate() {
        let text = result.expect_err("the run has failed").to_string();
        assert!(text.contains(expected), "{index}: {text}");
    }
}

#[test]
fn a_failure_is_for_good() {
    for (extent, cached) in [(None, 0), (None, 2), (Some(soft()), 0), (Some(soft()), LAYERS)] {
        let options = RunOptions { checksums: false, ..options(extent, cached) };
        // A later portion of a tensor.
        let mut run = Tensors::open(options, FailsOnce::at(3)).expect("a run");
        // The failure may show in a later write.
        let written = (0..LAYERS).try_for_each(|layer| run.write_layer(layer, 0..PROMPT));
        assert!(written.and(run.settle()).is_err());
        assert_failed(run);
    }
}

#[test]
fn a_read_never_hides_the_failure_of_a_write_before_it() {
    let options = RunOptions { checksums: false, ..options(None, 2) };
    let mut run = Tensors::open(options, FailsOnce::at(0)).expect("a run");
    run.write_layer(0, 0..PROMPT).expect("it is handed over");
    assert!(run.read_layer(0, PROMPT).is_err(), "its bytes were never written");
    assert_failed(run);
}

#[test]
fn a_layer_that_fails_to_enter_the_page_cache_is_not_read_from_it() {
    let options = RunOptions { checksums: false, ..options(Some(soft()), 1) };
    for at in [0, 1, PORTIONS] {
        let written = 2 * u64::from(LAYERS) * PORTIONS;
        let mut run = Tensors::open(options.clone(), FailsOnce::at(written + at)).expect("a run");
        (0..LAYERS).for_each(|layer| run.write_layer(layer, 0..PROMPT).expect("a write"));
        run.next_iteration().expect("no failure");
        run.resize(3);
        assert!(run.read_layer(1, PROMPT).is_err(), "it is not copied");
        assert_failed(run);
    }
}

#[test]
fn a_layer_enters_the_page_cache_with_all_its_tokens() {
    let mut run = open(options(Some(soft()), 1));
    prefill(&mut run);
    run.resize(3);
    run.read_layer(1, PROMPT - 10).expect("some of its tokens");
    assert_eq!(run.stats().moved_bytes, 0);
    decode(&mut run, PROMPT);
    decode(&mut run, PROMPT + 1);
    assert_eq!(run.stats().promoted_layers, 2);
}

#[test]
fn a_token_left_behind_is_there_after_its_layer_changed_groups() {
    for extent in [None, Some(soft())] {
        let mut run = open(RunOptions { copy_threads: 3, ..options(extent, 3) });
        prefill(&mut run);
        for (tokens, sizes) in (PROMPT..).zip([[1, 4], [0, 3], [2, 6]]) {
            // Each token is written past the page cache, and read through it.
            run.resize(sizes[0]);
            decode(&mut run, tokens);
            run.resize(sizes[1]);
            (0..LAYERS).for_each(|layer| run.read_layer(layer, tokens + 1).expect("right bytes"));
        }
        run.close().expect("no failure");
    }
}

#[test]
fn tokens_that_were_never_written_are_refused() {
    let mut run = open(options(Some(soft()), 0));
    let text = run.read_layer(0, 1).expect_err("nothing was written").to_string();
    assert!(text.contains("layer 0 has 0 tokens"), "{text}");
    run.write_layer(0, 0..10).expect("a write");
    let text = run.write_layer(0, 11..12).expect_err("a gap").to_string();
    assert!(text.contains("layer 0 has 10 tokens: write token 10 before"), "{text}");
    let text = run.begin_read(0, 11).expect_err("it has 10").to_string();
    assert!(text.contains("the tokens of a read is '11'"), "{text}");
    run.write_layer(0, 5..6).expect("written again");
    run.read_layer(0, 10).expect("right bytes");
    assert!(run.write_layer(LAYERS, 0..1).is_err() && run.read_layer(0, 0).is_err());
    assert!(run.begin_read(0, shape().tokens_max() + 1).is_err());
    run.close().expect("a refusal is no failure");
}

#[test]
fn idle_threads_fill_the_page_cache_with_what_prefill_did_not_leave_there() {
    for dirty_bytes in [0, shape().pair_bytes(), u64::MAX] {
        let base = options(Some(soft()), 2);
        let mut run = open(RunOptions { dirty_bytes: Some(dirty_bytes), ..base });
        prefill(&mut run);
        let left = (dirty_bytes / shape().pair_bytes()).min(2);
        let expected = (2 - left) * 2 * shape().bytes(PROMPT);
        let deadline = Instant::now() + Duration::from_secs(20);
        while run.threads.filled_bytes() < expected {
            assert!(Instant::now() < deadline, "{} bytes", run.threads.filled_bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
        rest(&mut run);
        assert_eq!(run.close().expect("no failure").filled_bytes, expected);
    }
}

#[test]
fn direct_layers_lie_in_the_order_in_which_each_thread_reads_it() {
    for threads in 1..=5 {
        let base = options(Some(soft()), 2);
        let options = RunOptions { copy_threads: threads, ..base };
        let gpu = ModelGpu::new(0, true);
        let run = Tensors::open_ranked(options, gpu, &Spread).expect("a run");
        let mut ends = HashMap::new();
        for tensor in (0..LAYERS).flat_map(TensorId::pair) {
            let Some(bytes) = run.extent_bytes(tensor) else { continue };
            let thread = thread_of(tensor, threads.into());
            if let Some(end) = ends.insert(thread, bytes.end) {
                assert_eq!(bytes.start, end, "{threads} threads: {tensor}");
            }
        }
        assert!(!ends.is_empty(), "some layers are direct");
    }
}

#[test]
fn read_ahead_of_cached_layers_never_runs_into_direct_ones() {
    let gpu = ModelGpu::new(0, true);
    let mut run = Tensors::open_ranked(options(None, 2), gpu, &Spread).expect("a run");
    for cached in [2, 4, 3, 6, 1] {
        run.resize(cached);
        for tensor in run.plan.cached_layers().iter().copied().flat_map(TensorId::pair) {
            let Route { runs_on, .. } = run.route(tensor, Home::Cached, 0);
            let map = &run.file(tensor).map;
            let TensorLbas { lba_start, lbas } = map.lbas(tensor).expect("bound");
            let end = lba_start + lbas;
            let begins_there =
                |other: &TensorId| map.lbas(*other).is_some_and(|lbas| lbas.lba_start == end);
            let next = (0..LAYERS).flat_map(TensorId::pair).find(begins_there);
            let expected = next.is_some_and(|next| run.plan.is_cached(next.layer));
            assert_eq!(runs_on, expected, "{cached} layers: {tensor}");
        }
    }
}

#[test]
fn the_extent_is_deallocated_after_all_writes_and_after_a_failure() {
    let path = std::env::temp_dir().join(format!("adit-extent-{}.img", std::process::id()));
    for (faults, is_failed) in [("delay(50ms)@write", false), ("status(2:80:dnr)@write:n=85", true)]
    {
        let target =
            format!("soft:file={},size=16M,lba=4096,mdts=4,faults={faults}", path.display());
        let extent = Extent::new(target.parse().expect("a target"));
        let mut run = open(options(Some(extent), 0));
        prefill(&mut run);
        assert!(std::fs::read(&path).expect("a file").iter().any(|byte| *byte != 0));
        // The second thread leaves some writes behind; the first one deallocates.
        for layer in 0..LAYERS {
            let written = run.write_layer(layer, PROMPT..PROMPT + 1);
            assert!(is_failed || written.is_ok(), "{written:?}");
        }
        assert_eq!(run.close().is_err(), is_failed);
        let left = std::fs::read(&path).expect("a file");
        assert!(left.iter().all(|byte| *byte == 0), "bytes are left, failed: {is_failed}");
        std::fs::remove_file(&path).expect("it was made");
    }
}

#[test]
fn a_portion_is_whole_tokens_and_one_at_least() {
    let (unit, tensor) = (shape().unit_bytes(), shape().tensor_bytes());
    let of = |portion_bytes| RunOptions { portion_bytes, ..RunOptions::new(shape()) }.portion();
    assert_eq!([0, 1, unit, 2 * unit - 1].map(of), [unit; 4]);
    assert_eq!(of(3 * unit + 5), 3 * unit);
    assert_eq!([tensor - 1, tensor, u64::MAX].map(of), [tensor - unit, tensor, tensor]);
}

#[test]
fn the_reserve_of_the_largest_shape_is_refused() {
    let model = Model { name: "vast", layers: 1, heads: 1 << 20, head_elements: 1 << 20 };
    let shape = Shape::new(model, 1 << 17, 1, 1).expect("2^60 bytes with a token more");
    let options = RunOptions { shape, copy_threads: 64, ..options(None, 0) };
    assert_eq!(options.reserve_bytes(), (2 * 17) << 58, "two threads have a tensor");
    let error = Tensors::open(options, ModelGpu::new(0, false)).expect_err("refused");
    assert!(error.to_string().contains("raise the limit"), "{error}");
}

#[test]
fn a_drive_that_is_pulled_out_ends_the_run_with_an_error() {
    let timeout = Duration::from_secs(1);
    let base = options(faulty("remove@read:n=20"), 0);
    let mut run = open(RunOptions { timeout, ..base });
    prefill(&mut run);
    let read = (0..LAYERS).try_for_each(|layer| run.read_layer(layer, PROMPT));
    assert!(read.is_err(), "the drive is gone");
    assert!(
        run.read_layer(0, PROMPT).is_err()
            && run.write_layer(0, 0..PROMPT).and(run.settle()).is_err()
    );
}
