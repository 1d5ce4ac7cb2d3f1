//! A decode loop over [`adit_tensors`], as an inference engine runs it, with a model GPU.
//!
//! ```sh
//! cargo run --release -p adit-tensors --example decode -- --model opt-1.3b --batch 8 --generate 16 --cache-mib 200
//! ```
//!
//! Prefill writes the keys and values of the prompt, layer by layer, as an engine computes them. Each decode step then
//! needs all of them again: while the GPU computes with one layer, the next one is read. The model GPU stamps the bytes
//! that it hands out and checks them when they return.

use std::collections::VecDeque;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use adit_tensors::{
    Extent, Figures, Group, Knob, Model, ModelGpu, Overlap, RunOptions, RunStats, Shape, Spread,
    Tensors,
};
use clap::{Parser, ValueEnum};

#[derive(Clone, Copy, ValueEnum)]
enum Overlapping {
    Intra,
    Cross,
}

impl From<Overlapping> for Overlap {
    fn from(overlapping: Overlapping) -> Overlap {
        match overlapping {
            Overlapping::Intra => Overlap::Intra,
            Overlapping::Cross => Overlap::Cross,
        }
    }
}

/// Decode with KV tensors that exceed memory
#[derive(Parser)]
struct Arguments {
    /// The model: opt-1.3b, opt-6.7b or opt-13b
    #[arg(long, default_value = "opt-1.3b")]
    model: String,
    /// Sequences computed together
    #[arg(long, default_value_t = 8)]
    batch: u32,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 512)]
    prompt: u32,
    /// Tokens to generate
    #[arg(long, default_value_t = 16)]
    generate: u32,
    /// Maximum MiB of the page cache; by default as much as the budget allows; with 0, all layers are read past it
    #[arg(long)]
    cache_mib: Option<u64>,
    /// The folder of files
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The target of direct layers, such as 'vfio:0000:01:00.0'; by default the files
    #[arg(long)]
    extent: Option<adit_driver::Target>,
    /// Maximum MiB that prefill writes into the page cache; by default as much as the kernel keeps without writeback
    #[arg(long)]
    dirty_mib: Option<u64>,
    /// Overlap of the copy threads; chosen by measurement by default
    #[arg(long)]
    overlap: Option<Overlapping>,
    /// Copy threads
    #[arg(long, default_value_t = 2)]
    threads: u16,
    /// Layers whose reads begin before the GPU needs them
    #[arg(long, default_value_t = 1)]
    ahead: u32,
    /// Spread the cached layers over all instead of taking the first ones
    #[arg(long)]
    spread: bool,
    /// Bandwidth to and from the GPU in MiB/s; with 0, copies take no time
    #[arg(long, default_value_t = 12_000)]
    h2d_mib: u64,
    /// Microseconds that the GPU computes with a layer
    #[arg(long, default_value_t = 0)]
    compute_us: u64,
    /// Do not check the bytes
    #[arg(long)]
    unchecked: bool,
    /// Print each iteration
    #[arg(long)]
    verbose: bool,
}

impl Arguments {
    fn options(&self) -> Result<RunOptions, Box<dyn Error>> {
        let model = Model::named(&self.model)?;
        let base = RunOptions::new(Shape::new(model, self.batch, self.prompt, self.generate)?);
        Ok(RunOptions {
            folder: self.folder.clone().or(base.folder),
            extent: self.extent.clone().map(Extent::new),
            knob: self.cache_mib.map_or(Knob::Measured, |mib| Knob::Bytes(mib << 20)),
            dirty_bytes: self.dirty_mib.map(|mib| mib << 20),
            overlap: self.overlap.map(Overlap::from),
            copy_threads: self.threads,
            ..base
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let options = arguments.options()?;
    let shape = options.shape;
    let layers = shape.model.layers;
    let compute = Duration::from_micros(arguments.compute_us);
    let gpu = ModelGpu::new(arguments.h2d_mib << 20, !arguments.unchecked);
    let mut run = match arguments.spread {
        true => Tensors::open_ranked(options, gpu, &Spread)?,
        false => Tensors::open(options, gpu)?,
    };
    println!(
        "{} MiB of tensors, {} of {layers} layers are cached",
        shape.set_bytes() >> 20,
        run.plan().cached()
    );

    let begun = Instant::now();
    for layer in 0..layers {
        std::thread::sleep(compute);
        run.write_layer(layer, 0..shape.prompt_tokens)?;
    }
    run.next_iteration()?;
    let prefill = begun.elapsed();

    let begun = Instant::now();
    for tokens in shape.prompt_tokens..shape.tokens_max() {
        let iteration = Instant::now();
        step(&mut run, tokens, arguments.ahead, compute)?;
        if arguments.verbose {
            let rate = |group| run.chooser(group).rate() / 1e9;
            let (cached_rate, direct_rate) = (rate(Group::Cached), rate(Group::Direct));
            let seconds = iteration.elapsed().as_secs_f64();
            let cached = run.plan().cached();
            println!(
                "{tokens}: {seconds:.3} s, {cached} cached at {cached_rate:.2} GB/s, direct at {direct_rate:.2} GB/s"
            );
        }
    }
    let decode = begun.elapsed();
    let overlap = [Group::Cached, Group::Direct].map(|group| run.chooser(group).overlap());
    println!("overlap {overlap:?}");
    report(&run.close()?, prefill, decode);
    Ok(())
}

/// Generates one token: reads every layer, some layers before the GPU computes with them, and appends the token's keys
/// and values to each.
fn step(
    run: &mut Tensors<ModelGpu>,
    tokens: u32,
    ahead: u32,
    compute: Duration,
) -> Result<(), adit_tensors::Error> {
    let layers = run.shape().model.layers;
    let mut begun = VecDeque::new();
    for layer in 0..layers + ahead {
        if layer < layers {
            begun.push_back(run.begin_read(layer, tokens)?);
        }
        if layer >= ahead
            && let Some(reading) = begun.pop_front()
        {
            let layer = reading.layer();
            run.finish_read(reading)?;
            std::thread::sleep(compute);
            run.write_layer(layer, tokens..tokens + 1)?;
        }
    }
    run.next_iteration()
}

fn report(stats: &RunStats, prefill: Duration, decode: Duration) {
    let percent = |share: Option<f64>| {
        share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0))
    };
    println!("prefill {:.3} s, decode {:.3} s", prefill.as_secs_f64(), decode.as_secs_f64());
    println!("hits {}, refaults {}", percent(stats.hit_ratio()), percent(stats.refault_ratio()));
    let line = |name: &str, figures: &Figures| {
        if figures.latency.count() > 0 {
            println!(
                "{name}: {} of {} MiB, avg {:?}, p99 {:?}, sequential {}, busy {}",
                figures.latency.count(),
                figures.bytes >> 20,
                figures.latency.average(),
                figures.latency.quantile(0.99),
                percent(figures.sequentiality()),
                percent(figures.busy_share())
            );
        }
    };
    for (name, group) in [("cached", &stats.cached), ("direct", &stats.direct)] {
        line(&format!("{name}, prefill writes"), &group.prefill_write);
        line(&format!("{name}, decode reads"), &group.decode_read);
        line(&format!("{name}, decode writes"), &group.decode_write);
    }
    println!(
        "left the page cache: {} layers, entered: {}, moved {} MiB",
        stats.demoted_layers,
        stats.promoted_layers,
        stats.moved_bytes >> 20
    );
}
