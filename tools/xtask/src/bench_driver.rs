//! `cargo xtask bench-driver`: measures the driver's cost per I/O, in instructions and relative to the minimum.
//!
//! callgrind counts instructions on `hotpath`. Rates are measured over `adit softnvme` on core 0 with the
//! initiator on core 1, alternating between `adit bench` and `ring_floor`, which only moves ring entries and
//! checks nothing. Prints the medians of the rounds and their ratio; absolute rates mean little, because they
//! depend on the distance of the two cores.

use crate::deps;
use crate::failure::{Context, Failure, Result};
use crate::process::run_quietly;
use crate::progress::Progress;
use crate::workspace;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const DEPTHS: [u32; 3] = [1, 32, 128];
/// The server's media: none, and enough to exceed the caches.
const MEDIA: [&str; 2] = ["null,size=1G", "mem=256M"];
/// Bursts counted by callgrind, and their depth.
const BURSTS: u32 = 200;
const BURST_DEPTH: u32 = 32;
/// Empty polls after each burst, where they are counted.
const IDLE_POLLS: u32 = 100;
/// How long the server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// `cargo xtask bench-driver`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench-driver --rounds 7 --json > driver.json")]
pub(crate) struct BenchDriverArgs {
    /// Number of rounds, of which the medians are taken
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,

    /// Seconds of each measurement
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    seconds: u8,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Counts, measures and prints; returns the exit code.
pub(crate) fn run(arguments: &BenchDriverArgs) -> Result<u8> {
    deps::ensure(&deps::TO_BUILD)?;
    deps::ensure(&[deps::VALGRIND, deps::TASKSET])?;
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err(Failure::new(
            "the server and the initiator need a core each; this machine has one",
        ));
    }
    let bins = Bins {
        adit: workspace::build_release("adit", "adit")?,
        hotpath: workspace::build_release("adit-benches", "hotpath")?,
        floor: workspace::build_release("adit-benches", "ring_floor")?,
    };
    let counts = count(&bins)?;
    let rates = rates(&bins, arguments)?;
    if arguments.json {
        println!("{:#}", json!({ "instructions": counts, "rates": rates }));
        return Ok(0);
    }
    print_counts(&counts);
    print_rates(&rates);
    Ok(0)
}

struct Bins {
    adit: PathBuf,
    hotpath: PathBuf,
    floor: PathBuf,
}

/// Counts the instructions of an I/O by shape, and of an empty poll.
fn count(bins: &Bins) -> Result<Vec<Value>> {
    let _progress = Progress::start("counting instructions");
    let mut counts = Vec::new();
    for bs in ["4096", "131072"] {
        for pointer in ["prp", "sgl"] {
            let shape = ["--bs", bs, "--pointer", pointer, "--idle-polls", "0"];
            let ios = f64::from(BURSTS * BURST_DEPTH);
            let submit = collected(bins, "hot_submit", &shape)? / ios;
            let reap = collected(bins, "hot_reap", &shape)? / ios;
            counts.push(json!({
                "what": format!("{bs} bytes, {pointer}"), "submit": submit, "reap": reap, "total": submit + reap,
            }));
        }
    }
    let polls = f64::from(BURSTS * IDLE_POLLS);
    let idle = collected(bins, "hot_idle", &["--idle-polls", &IDLE_POLLS.to_string()])? / polls;
    counts.push(json!({ "what": "empty poll", "total": idle }));
    Ok(counts)
}

/// Returns callgrind's count for the function `name`.
fn collected(bins: &Bins, name: &str, shape: &[&str]) -> Result<f64> {
    let (depth, bursts) = (BURST_DEPTH.to_string(), BURSTS.to_string());
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{name}*"))
        .arg(&bins.hotpath)
        .args(["--depth", &depth, "--bursts", &bursts])
        .args(shape);
    let output = run_quietly(&mut command)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    parse_collected(&said)
        .ok_or_else(|| Failure::new(format!("callgrind did not say what it counted:\n{said}")))
}

fn parse_collected(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("Collected"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Returns a line for each media and depth.
fn rates(bins: &Bins, arguments: &BenchDriverArgs) -> Result<Vec<Value>> {
    let mut lines = Vec::new();
    for media in MEDIA {
        let server = Server::start(&bins.adit, media)?;
        let _progress = Progress::start(format!("measuring over softnvme, {media}"));
        for depth in DEPTHS {
            let (mut ours, mut floor) = (Vec::new(), Vec::new());
            for _ in 0..arguments.rounds {
                ours.push(ours_iops(bins, &server, depth, arguments.seconds)?);
                floor.push(floor_iops(bins, &server, depth, arguments.seconds)?);
            }
            let (ours, floor) = (median(ours), median(floor));
            lines.push(json!({
                "media": media, "depth": depth, "adit_iops": ours, "floor_iops": floor, "ratio": ours / floor,
            }));
        }
    }
    Ok(lines)
}

fn ours_iops(bins: &Bins, server: &Server, depth: u32, seconds: u8) -> Result<f64> {
    let mut command = on_core_1(&bins.adit);
    command
        .args(["bench", "--name=driver", "--rw=randread", "--bs=4k", "--time_based"])
        .args(["--norandommap", "--output-format=json"])
        .arg(format!("--filename={}", server.target()))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--runtime={seconds}"));
    figure(&mut command, |report| report["jobs"][0]["read"]["iops"].as_f64())
}

fn floor_iops(bins: &Bins, server: &Server, depth: u32, seconds: u8) -> Result<f64> {
    let mut command = on_core_1(&bins.floor);
    command.arg(server.target());
    command.args(["--depth", &depth.to_string(), "--seconds", &seconds.to_string()]);
    figure(&mut command, |report| report["iops"].as_f64())
}

fn on_core_1(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(program);
    command
}

fn figure(command: &mut Command, find: impl Fn(&Value) -> Option<f64>) -> Result<f64> {
    let output = run_quietly(command)?;
    let report = serde_json::from_slice(&output.stdout).context("the report is not JSON")?;
    find(&report).ok_or_else(|| Failure::new(format!("the report has no rate: {report}")))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// `adit softnvme` on core 0, killed on drop.
struct Server {
    child: Child,
    folder: PathBuf,
}

impl Server {
    fn start(adit: &Path, media: &str) -> Result<Server> {
        let folder = std::env::temp_dir().join(format!("adit-bench-driver-{}", std::process::id()));
        let mut command = Command::new(adit);
        command
            .arg("softnvme")
            .arg("--socket")
            .arg(&folder)
            .args(["--media", media, "--core", "0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("cannot start softnvme")?;
        let server = Server { child, folder };
        let start = Instant::now();
        while !server.folder.join("cntrl").exists() {
            if start.elapsed() > PATIENCE {
                return Err(Failure::new(format!("softnvme did not listen within {PATIENCE:?}")));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn target(&self) -> String {
        format!("vfio-user:{}/cntrl", self.folder.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A killed server leaves its socket behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn print_counts(counts: &[Value]) {
    println!("instructions per I/O, bursts of {BURST_DEPTH} (callgrind)");
    for count in counts {
        let part = |name: &str| count[name].as_f64().map_or(String::new(), |n| format!("{n:.1}"));
        let what = count["what"].as_str().unwrap_or_default();
        println!("  {what:20} {:>7} {:>7} {:>7}", part("submit"), part("reap"), part("total"));
    }
}

fn print_rates(rates: &[Value]) {
    println!("4 KiB random reads over softnvme, medians, in thousands a second");
    println!("  {:14} {:>5} {:>9} {:>9} {:>6}", "media", "depth", "adit", "floor", "ratio");
    for rate in rates {
        let thousands = |name: &str| rate[name].as_f64().unwrap_or_default() / 1e3;
        println!(
            "  {:14} {:>5} {:>9.0} {:>9.0} {:>6.2}",
            rate["media"].as_str().unwrap_or_default(),
            rate["depth"],
            thousands("adit_iops"),
            thousands("floor_iops"),
            rate["ratio"].as_f64().unwrap_or_default()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_the_last_word_of_its_line() {
        let said = "==1== Events    : Ir\n==1== Collected : 1062400\n==1==\n";
        assert_eq!(parse_collected(said), Some(1_062_400.0));
        assert_eq!(parse_collected("==1== Events : Ir"), None);
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 9.0]), 3.0);
    }
}
