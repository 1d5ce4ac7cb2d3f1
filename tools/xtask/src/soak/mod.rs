//! `cargo xtask soak`: example servers under load for a long time, killed again and again on a disk that fills up.
//!
//! Two servers run on one disk. The *cache* is too small for what is asked of it, so that it evicts; the *ledger* holds
//! all its objects, so that each miss is a loss. Clients own their keys and check every byte they read:
//!
//! - A read returns the last version that was acknowledged. After `kill -9` it may be an earlier one, but nothing that
//!   was acknowledged more than a second before, committed, or acknowledged by a `durable` server is lost or undone;
//!   after a clean stop, nothing is.
//! - A server ends only when it is asked to, and answers.
//!
//! Meanwhile a neighbour keeps a CPU busy, a second model's KV blocks come and go, and other files fill the disk.
//! `soak.csv` has a row for each ten seconds, `soak.svg` is its picture.
//!
//! | file | holds |
//! |---|---|
//! | `ledger`, `body` | what a key may hold, and contents that tell their key and version |
//! | `client`, `http` | requests, and the checks |
//! | `server`, `disk` | what is killed, and where it keeps its data |
//! | `figures`, `chart` | rows, and the picture |

mod body;
mod chart;
mod client;
mod disk;
mod figures;
mod http;
mod ledger;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use self::body::Random;
use self::client::{Client, Role, Shared};
use self::disk::Disk;
use self::figures::{Around, HEADING, Row};
use self::server::{Lives, Server};
use crate::deps;
use crate::failure::{Context, Failure, Result};
use crate::interrupt;
use crate::progress::StatusLine;
use crate::workspace;

const EXAMPLES: &str = "\
Examples:
  cargo xtask soak --minutes 120
  cargo xtask soak --minutes 5 --seed 42
  cargo xtask soak --canary lost      # a store that forgets: the check must find it";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SoakArgs {
    /// How long to run
    #[arg(long, default_value_t = 120)]
    minutes: u64,

    /// Repeats the requests and the times of an earlier run [default: by the clock]
    #[arg(long)]
    seed: Option<u64>,

    /// Seconds between kills, about
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=3600))]
    kill_every: u64,

    /// Where the stores, the texts and the results go [default: soak/ in cargo's target directory]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,

    /// Breaks a promise on purpose; the run succeeds if that is found
    #[arg(long, value_enum)]
    canary: Option<Canary>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Canary {
    /// The ledger is formatted anew when it is first killed
    Lost,
    /// A bit of one answer is flipped
    Wrong,
}

const STORE_BYTES: u64 = 1 << 30;
/// The length of a row.
const ROW: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);
/// Rows without an answer until the servers count as hanging.
const SILENT_ROWS_MAX: u32 = 6;
/// Clients of each role.
const CLIENTS: [(Role, u64); 3] = [(Role::Ledger, 3), (Role::Cache, 4), (Role::SecondModel, 1)];

/// Runs the soak; returns 0 if nothing was lost or wrong.
pub(crate) fn run(arguments: &SoakArgs) -> Result<u8> {
    deps::ensure(&deps::TO_BUILD)?;
    let program = workspace::build_server()?;
    let place = match &arguments.directory {
        Some(place) => place.clone(),
        None => workspace::target_directory()?.join("soak"),
    };
    fs::create_dir_all(&place).context(place.display())?;
    let by_clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seed = arguments.seed.unwrap_or_else(by_clock);
    println!("seed {seed}; stores, texts and results in {}", place.display());
    let disk = Disk::mount(&place, 2 * STORE_BYTES)?;
    let lives = [Lives::default(), Lives::default()];
    let [cache, ledger] = &lives;
    let server =
        |name, lives| Server::new((name, STORE_BYTES), &program, (disk.directory(), &place), lives);
    let servers = [server("cache", cache)?, server("ledger", ledger)?];
    let mut soak = Soak::new(arguments, (&place, &disk), servers, seed);
    let outcome = soak.run(&Shared::new());
    let saved = soak.save();
    drop(soak);
    saved?;
    verdict(arguments, outcome, (seed, &place), disk)
}

/// Says how it ended. Keeps the stores if something was wrong.
fn verdict(
    arguments: &SoakArgs,
    outcome: Result<Vec<String>>,
    (seed, place): (u64, &Path),
    disk: Disk,
) -> Result<u8> {
    let violations = outcome?;
    violations.iter().for_each(|violation| println!("WRONG: {violation}"));
    match (violations.is_empty(), arguments.canary) {
        (true, None) => {
            disk.remove()?;
            println!("soak result: ok. Nothing acknowledged was lost, and nothing was wrong");
            Ok(0)
        }
        (false, Some(canary)) => {
            disk.remove()?;
            println!("soak result: ok. The canary '{canary:?}' was found");
            Ok(0)
        }
        (true, Some(canary)) => Err(Failure::new(format!("the canary '{canary:?}' was not found"))),
        (false, None) => {
            let image = place.join("disk.img");
            println!(
                "soak result: FAILED with seed {seed}. The stores are kept in {}",
                image.display()
            );
            println!(
                "  mount -o loop {} /mnt; adit kv check uring:/mnt/ledger.img",
                image.display()
            );
            Ok(1)
        }
    }
}

/// A run.
struct Soak<'a> {
    arguments: &'a SoakArgs,
    place: &'a Path,
    disk: &'a Disk,
    /// The cache, then the ledger.
    servers: [Server<'a>; 2],
    random: Random,
    seed: u64,
    begun: Instant,
    around: Around,
    neighbour: Option<Child>,
    rows: Vec<Row>,
    kills: u32,
    stops: u32,
    silent_rows: u32,
    line: StatusLine,
}

impl<'a> Soak<'a> {
    fn new(
        arguments: &'a SoakArgs,
        (place, disk): (&'a Path, &'a Disk),
        servers: [Server<'a>; 2],
        seed: u64,
    ) -> Soak<'a> {
        Soak {
            arguments,
            place,
            disk,
            servers,
            random: Random::new(seed),
            seed,
            begun: Instant::now(),
            around: Around::default(),
            neighbour: None,
            rows: Vec::new(),
            kills: 0,
            stops: 0,
            silent_rows: 0,
            line: StatusLine::new(),
        }
    }

    /// Returns what was lost or wrong.
    fn run(&mut self, shared: &Shared) -> Result<Vec<String>> {
        self.servers.iter_mut().try_for_each(|server| server.start(true, false))?;
        let [cache, ledger] = self.servers.each_ref().map(|server| server.lives);
        shared.flips.store(self.arguments.canary == Some(Canary::Wrong), Ordering::Relaxed);
        self.begun = Instant::now();
        std::thread::scope(|scope| {
            for (role, count) in CLIENTS {
                let lives = if role == Role::Ledger { ledger } else { cache };
                for number in 0..count {
                    let number = 1 + ((role as u64) << 8) + number;
                    let client = Client::new(shared, lives, role, number, self.seed);
                    scope.spawn(|| client.run());
                }
            }
            let outcome = self.supervise(shared);
            shared.stops.store(true, Ordering::Relaxed);
            outcome
        })?;
        self.line.clear();
        Ok(shared.violations())
    }

    /// Disturbs the servers until the time is over or something is wrong.
    fn supervise(&mut self, shared: &Shared) -> Result<()> {
        let end = self.begun + Duration::from_secs(60 * self.arguments.minutes);
        let (mut next_kill, mut next_row) = (self.begun + self.until_kill(), self.begun + ROW);
        while Instant::now() < end && shared.violations().is_empty() {
            interrupt::check()?;
            self.disturb(shared)?;
            self.servers.iter_mut().try_for_each(Server::check)?;
            if Instant::now() >= next_kill {
                self.restart()?;
                next_kill = Instant::now() + self.until_kill();
            }
            if Instant::now() >= next_row {
                self.add_row(shared)?;
                // After a stall, such as a slow start, the next row is a whole one again.
                next_row = (next_row + ROW).max(Instant::now() + ROW / 2);
            }
            std::thread::sleep(LOOK);
        }
        self.disk.free()
    }

    /// Returns how long the servers live: the asked time, a fifth more or less.
    fn until_kill(&mut self) -> Duration {
        Duration::from_secs(self.arguments.kill_every).mul_f64(0.8 + 0.4 * self.random.share())
    }

    /// Kills both servers, or stops one time in six, and starts them again, `durable` one time in three.
    fn restart(&mut self) -> Result<()> {
        let is_clean = self.random.below(6) == 0;
        let is_durable = self.random.below(3) == 0;
        *if is_clean { &mut self.stops } else { &mut self.kills } += 1;
        self.around.ended = true;
        self.servers.iter_mut().try_for_each(|server| server.end(is_clean))?;
        let forgets = self.arguments.canary == Some(Canary::Lost);
        let [cache, ledger] = &mut self.servers;
        cache.start(false, is_durable)?;
        ledger.start(forgets, is_durable)
    }

    /// Switches what goes on around the servers, by the time: a busy neighbour in the middle of each minute, a second
    /// model every other minute, a full disk in the second half of every third one.
    fn disturb(&mut self, shared: &Shared) -> Result<()> {
        let second = self.begun.elapsed().as_secs();
        let (minute, second) = (second / 60, second % 60);
        let neighbour = (20..40).contains(&second);
        let second_model = minute % 2 == 0;
        let full_disk = minute % 3 == 1 && (30..50).contains(&second);
        if neighbour != self.around.neighbour {
            self.neighbour = self.switch_neighbour(neighbour)?;
        }
        if full_disk != self.around.full_disk {
            if full_disk { self.disk.fill()? } else { self.disk.free()? }
        }
        shared.second_model.store(second_model, Ordering::Relaxed);
        self.around = Around { ended: self.around.ended, neighbour, second_model, full_disk };
        Ok(())
    }

    /// Starts a loop that keeps a CPU busy, or ends it.
    fn switch_neighbour(&mut self, is_there: bool) -> Result<Option<Child>> {
        if let Some(mut neighbour) = self.neighbour.take() {
            neighbour.kill().context("cannot end the busy neighbour")?;
            neighbour.wait().context("cannot end the busy neighbour")?;
        }
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        is_there.then(|| command.spawn()).transpose().context("cannot run sh")
    }

    fn add_row(&mut self, shared: &Shared) -> Result<()> {
        let figures = shared.take_figures();
        let second = self.begun.elapsed().as_secs();
        let row = Row::new(second, figures, self.around);
        self.around.ended = false;
        self.silent_rows = if row.gets == 0 || row.ledger == 0 { self.silent_rows + 1 } else { 0 };
        if self.silent_rows > SILENT_ROWS_MAX {
            return Err(Failure::new("a server answers no request for a minute; see its log"));
        }
        self.line.show(&format!(
            "{second} s of {}: hits {:.0} %, p99 {:.1} ms, {} refused, {} kills, {} stops",
            60 * self.arguments.minutes,
            row.hit_ratio.unwrap_or_default() * 100.0,
            row.hit_p99_ms.unwrap_or_default(),
            row.refused,
            self.kills,
            self.stops
        ));
        self.rows.push(row);
        Ok(())
    }

    /// Writes the rows and the picture, and sums them up.
    fn save(&mut self) -> Result<()> {
        drop(self.switch_neighbour(false)?);
        let csv: String = self.rows.iter().map(Row::csv).collect();
        let (table, picture) = (self.place.join("soak.csv"), self.place.join("soak.svg"));
        fs::write(&table, HEADING.to_owned() + &csv).context(table.display())?;
        let minutes = self.begun.elapsed().as_secs() / 60;
        let (kills, stops, seed) = (self.kills, self.stops, self.seed);
        let title = format!("{minutes} minutes, {kills} x kill -9, {stops} x SIGTERM, seed {seed}");
        fs::write(&picture, chart::svg(&self.rows, &title)).context(picture.display())?;
        let sum = |count: fn(&Row) -> u64| self.rows.iter().map(count).sum::<u64>();
        println!(
            "{title}: {} reads and {} puts of the cache, {} requests of the ledger, {} refused",
            sum(|row| row.gets),
            sum(|row| row.puts),
            sum(|row| row.ledger),
            sum(|row| row.refused)
        );
        println!("{}\n{}", table.display(), picture.display());
        Ok(())
    }
}
