//! Options of the workloads of KV tensors.

use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use adit_driver::Target;
use adit_tensors::{Extent, Knob, Model, RunOptions, Shape};
use clap::Args;

use super::configuration::{Configuration, listed};
use crate::bench::kept;
use crate::failure::{Failure, Result};
use crate::{human, store, units};

/// Memory of a run beside what it pins.
const PROCESS_BYTES: u64 = 32 << 20;
/// The rest before a run lasts as long as its set takes at this rate, in bytes per second, and at most REST_MAX.
const REST_RATE: f64 = 1e9;
const REST_MAX: Duration = Duration::from_secs(2);

/// Options of dual-blade and of the tasks of its table VI
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "KV tensors (dual-blade and its tasks)")]
pub(in crate::bench) struct TensorArgs {
    /// Tokens of each prompt
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    prompt: Option<u32>,

    /// Tokens to generate for each prompt
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    r#gen: Option<u32>,

    /// Sequences that are computed together
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,

    /// Shortens the prompt so that the set of tensors has about this share of its bytes
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = scale)]
    scale: f64,

    /// Memory of a run, its page cache included: sizes or shares of the set, as 1g or 50%; none by default
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    pub(super) memory_limit: Vec<Limit>,

    /// all, or some of mmap, fadvise, direct, dual
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "dual", value_parser = listed)]
    config: Vec<&'static [Configuration]>,

    /// Bandwidth between pinned memory and the GPU, which is a model: bytes per second in each direction
    #[arg(long, value_name = "SIZE", default_value = "12g", value_parser = units::bytes)]
    pub(super) h2d: u64,

    /// Copies to and from this GPU, numbered from 0, instead of the model
    #[arg(long, value_name = "N", conflicts_with = "h2d")]
    pub(super) gpu: Option<u32>,

    /// Copy threads, each with pinned memory and a file of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    copy_threads: u16,

    /// Layers that are read ahead of the one that is computed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(super) ahead: u32,

    /// Runs of each configuration at each limit, in turn; the report has their medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,

    /// Halves the memory limit after this decode iteration
    #[arg(long, value_name = "ITERATION", requires = "memory_limit")]
    pub(super) halve_after: Option<u32>,

    /// Where files go: all tensors, or with --store those of cached layers; the system's folder for temporary files by default
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,

    /// Writes a picture of latency and hit ratio over the memory limit, as SVG
    #[arg(long, value_name = "FILE")]
    pub(super) picture: Option<PathBuf>,

    /// The configuration to run in this process, which was started for it
    #[arg(long, hide = true, value_parser = listed)]
    pub(super) child: Option<&'static [Configuration]>,
}

/// A task: its name, and the tokens of its prompt and answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) struct Task {
    pub(in crate::bench) name: &'static str,
    prompt: u32,
    answer: u32,
}

impl Task {
    /// The evaluation's own set, and the tasks of Dual-Blade's table VI. The table gives the bytes of a task's KV cache
    /// with OPT-6.7B: at a batch of 32, which has 16 MiB a token, they are these many tokens. Answers have 3 to 10.
    pub(in crate::bench) const ALL: [Task; 5] = [
        Task { name: "dual-blade", prompt: 512, answer: 32 },
        Task { name: "em-fodors-zagats", prompt: 345, answer: 4 },
        Task { name: "em-walmart-amazon", prompt: 347, answer: 4 },
        Task { name: "di-buy", prompt: 223, answer: 10 },
        Task { name: "ed-hospital", prompt: 91, answer: 4 },
    ];

    /// Finds a task by its name.
    pub(in crate::bench) fn named(name: &str) -> Option<Task> {
        Task::ALL.into_iter().find(|task| task.name == name)
    }
}

/// A memory limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    Bytes(u64),
    /// Of the set of tensors.
    Percent(f64),
}

impl Limit {
    /// Returns its bytes for a set of tensors.
    pub(super) fn of(self, set_bytes: u64) -> u64 {
        match self {
            Limit::Bytes(bytes) => bytes,
            Limit::Percent(percent) => (set_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Limit, String> {
        let Some(number) = text.strip_suffix('%') else {
            return units::block_bytes(text).map(Limit::Bytes).map_err(|why| why.to_string());
        };
        let percent = number.parse().ok().filter(|percent| (1.0..=1000.0).contains(percent));
        percent
            .map(Limit::Percent)
            .ok_or_else(|| format!("'{text}' is not a share from 1% to 1000%"))
    }
}

fn scale(text: &str) -> std::result::Result<f64, String> {
    let scale = text.parse().ok().filter(|scale| (0.001..=10.0).contains(scale));
    scale.ok_or_else(|| format!("'{text}' is not a share from 0.001 to 10"))
}

/// What to run: a task with the options applied.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) configurations: Vec<Configuration>,
    folder: Option<PathBuf>,
    target: Option<Target>,
    copy_threads: u16,
}

impl Plan {
    /// Applies the options to a task.
    ///
    /// # Errors
    /// A usage failure.
    pub(super) fn of(
        args: &TensorArgs,
        task: Task,
        model: Option<&str>,
        targets: &[Target],
    ) -> Result<Plan> {
        let model = Model::named(model.unwrap_or(Model::OPT_6_7B.name)).map_err(Failure::usage)?;
        let answer = args.r#gen.unwrap_or(task.answer);
        let prompt = scaled(args.prompt.unwrap_or(task.prompt), answer, args.scale);
        let mut configurations: Vec<Configuration> = Vec::new();
        for one in args.config.iter().copied().flatten() {
            if !configurations.contains(one) {
                configurations.push(*one);
            }
        }
        let target = match targets {
            [] => None,
            [one] => Some(one.clone()),
            _ => return Err(Failure::usage("direct layers lie on one device; give --store once")),
        };
        let shape = Shape::new(model, args.batch, prompt, answer).map_err(Failure::usage)?;
        let (folder, copy_threads) = (args.folder.clone(), args.copy_threads);
        let plan = Plan { shape, configurations, folder, target, copy_threads };
        plan.check_halving(args)?;
        Ok(plan)
    }

    /// Refuses a halving that never comes, and one that leaves less than the run pins: the kernel would kill it.
    fn check_halving(&self, args: &TensorArgs) -> Result<()> {
        let Some(after) = args.halve_after else { return Ok(()) };
        let steps = self.shape.decode_steps();
        if after >= steps {
            return Err(Failure::usage(format!(
                "--halve-after {after}: there are {steps} decode iterations; use less, or a larger --gen"
            )));
        }
        let needed = self.options(Configuration::Dual, None).reserve_bytes() + PROCESS_BYTES;
        let set = self.shape.set_bytes();
        match args.memory_limit.iter().map(|limit| limit.of(set)).min() {
            Some(least) if least / 2 < needed => Err(Failure::usage(format!(
                "half of a limit of {} is less than the {} that a run pins; raise --memory-limit or use fewer --copy-threads",
                human::bytes(least as f64),
                human::bytes(needed as f64),
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a target with data that a run would destroy.
    ///
    /// # Errors
    /// What is there, and that --force overwrites it.
    pub(super) fn check_target(&self, file_bytes: Option<u64>, force: bool) -> Result<()> {
        let targets: Vec<Target> = self.target.iter().cloned().collect();
        if targets.iter().all(store::is_made_for_the_run) {
            return Ok(());
        }
        let devices = store::open_devices(&targets, file_bytes)?;
        adit_guard::check_format(&targets, &devices, force)?;
        if force { Ok(()) } else { kept::refuse(&store::name(&targets), &devices) }
    }

    /// Waits until the file system has written and freed what the last run left.
    pub(super) fn rest(&self) {
        let folder = self.folder.clone().unwrap_or_else(std::env::temp_dir);
        // Without it, the rest alone must do.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        let time = Duration::from_secs_f64(self.shape.set_bytes() as f64 / REST_RATE);
        std::thread::sleep(time.min(REST_MAX));
    }

    /// Returns the options of a run. Those of `mmap` and `fadvise` lack the file that takes the place of the target
    /// ([`super::baseline`]).
    pub(super) fn options(
        &self,
        configuration: Configuration,
        file_bytes: Option<u64>,
    ) -> RunOptions {
        let defaults = RunOptions::new(self.shape);
        let target = self.target.clone().filter(|_| configuration.is_direct());
        let all_direct = matches!(configuration, Configuration::Direct | Configuration::Mmap);
        RunOptions {
            folder: self.folder.clone().or(defaults.folder.clone()),
            copy_threads: self.copy_threads,
            extent: target.map(|target| Extent { file_bytes, ..Extent::new(target) }),
            knob: if all_direct { Knob::Bytes(0) } else { defaults.knob },
            ..defaults
        }
    }
}

/// Returns the prompt that makes the tokens of a set `scale` times as many.
fn scaled(prompt: u32, answer: u32, scale: f64) -> u32 {
    let tokens = f64::from(prompt) + f64::from(answer);
    (tokens * scale - f64::from(answer)).round().max(1.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_bytes_or_shares_of_the_set() {
        let of = |text: &str| text.parse::<Limit>().map(|limit| limit.of(1000));
        assert_eq!(of("1k"), Ok(1024));
        assert_eq!((of("50%"), of("115%"), of("2.5%")), (Ok(500), Ok(1150), Ok(25)));
        for text in ["", "0", "0%", "-5%", "1001%", "x%", "NaN%", "many"] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_scale_shortens_the_prompt_alone() {
        assert_eq!(scaled(512, 32, 1.0), 512);
        assert_eq!(scaled(512, 32, 0.25), 104);
        assert_eq!(scaled(512, 32, 0.01), 1);
        assert!(scale("0").is_err() && scale("inf").is_err() && scale("0.25") == Ok(0.25));
    }

    #[test]
    fn the_tasks_have_the_sets_of_the_paper() {
        for (name, gigabytes) in [
            ("em-fodors-zagats", 5.84),
            ("em-walmart-amazon", 5.87),
            ("di-buy", 3.89),
            ("ed-hospital", 1.58),
        ] {
            let task = Task::named(name).expect(name);
            let shape = Shape::new(Model::OPT_6_7B, 32, task.prompt, task.answer).expect("a shape");
            let set = shape.set_bytes() as f64 / 1e9;
            assert!((set / gigabytes - 1.0).abs() < 0.01, "{name}: {set}");
        }
        assert_eq!(Task::named("dual"), None);
    }
}
