//! The client beside the hostile ones: it puts, reads and checks objects, and comes anew again and again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adit_kvshare::{Client, ClientOptions, Error, KvStore, PendingAnswer, RefusalKind};
use adit_kvstore::Key;

use crate::Random;

const PATIENCE: Duration = Duration::from_secs(60);
const OBJECTS: u64 = 48;
const BYTES_MAX: u64 = 200_000;

/// What it did.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) puts: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) connections: u64,
    /// Tries that the server refused, as hostile clients that were gone still had their places.
    pub(crate) refused: u64,
}

fn key(number: u64) -> Key {
    Key::new(format!("honest/{number}").as_bytes()).expect("a key")
}

/// Returns version `version` of object `number`, which says so in each word.
pub(crate) fn contents(number: u64, version: u64) -> Vec<u8> {
    let bytes = 16 + (number * 7919 + version * 104_729) % BYTES_MAX;
    let word = |at: u64| (number << 48 ^ version << 24).wrapping_add(at).wrapping_mul(0x9e37_79b9);
    let words = (0..bytes.div_ceil(8)).flat_map(|at| word(at).to_le_bytes());
    words.take(bytes as usize).collect()
}

/// # Errors
/// If these are other bytes.
pub(crate) fn check(number: u64, version: u64, bytes: &[u8]) -> Result<(), String> {
    match bytes == contents(number, version) {
        true => Ok(()),
        false => Err(format!("object {number} has not the bytes of version {version}")),
    }
}

/// Connects, and again while there are too many clients, but not forever.
fn connect(socket: &Path, timeout: Duration, figures: &mut Figures) -> Result<Client, String> {
    let options = ClientOptions {
        tenant: Some("honest".to_owned()),
        depth: 16,
        pool_bytes: 1 << 20,
        timeout,
    };
    let begin = Instant::now();
    loop {
        match Client::connect(socket, &options) {
            Ok(client) => {
                figures.connections += 1;
                return Ok(client);
            }
            // Its allowance comes back as soon as the server has let go of those that left.
            Err(Error::Refused { kind: RefusalKind::Limit, .. }) if begin.elapsed() < PATIENCE => {
                figures.refused += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(why) => return Err(format!("cannot connect: {why}")),
        }
    }
}

/// Puts, reads and checks objects until `ends`.
pub(crate) fn work(
    socket: &Path,
    timeout: Duration,
    mut random: Random,
    ends: &AtomicBool,
) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut client = connect(socket, timeout, &mut figures)?;
    let mut versions = [None; OBJECTS as usize];
    let mut version = 0;
    while !ends.load(Ordering::Relaxed) {
        let number = random.below(OBJECTS);
        match random.below(10) {
            0..4 => {
                version += 1;
                let put = client.put(key(number), &contents(number, version)).wait();
                let put = put.map_err(|why| format!("cannot put: {why}"))?;
                if !put.is_stored() {
                    return Err("a put was declined".to_owned());
                }
                versions[number as usize] = Some(version);
                figures.puts += 1;
            }
            4..9 => {
                let value = client.get(key(number)).wait();
                let value = value.map_err(|why| format!("cannot get: {why}"))?;
                match (value, versions[number as usize]) {
                    (Some(value), Some(version)) => {
                        check(number, version, &value.to_vec())?;
                        figures.hits += 1;
                    }
                    (Some(_), None) => return Err(format!("object {number} was never put")),
                    // Evicted, or removed with a prefix by one of the others, who may.
                    (None, _) => figures.misses += 1,
                }
            }
            _ => {
                let info = client.info(key(number)).wait();
                let info = info.map_err(|why| format!("cannot ask: {why}"))?;
                if let Some(info) = info.filter(|info| &*info.tenant != "honest") {
                    return Err(format!("object {number} is {}'s", info.tenant));
                }
                drop(client);
                client = connect(socket, timeout, &mut figures)?;
            }
        }
    }
    Ok(figures)
}

/// Checks that the hostile clients have left nothing.
pub(crate) fn check_nothing_is_left(socket: &Path) -> Result<(), String> {
    let mut figures = Figures::default();
    let client = connect(socket, PATIENCE, &mut figures)?;
    let (_, own) = client.stats().map_err(|why| why.to_string())?;
    let begin = Instant::now();
    loop {
        let (stats, now) = client.stats().map_err(|why| why.to_string())?;
        let left = (now.clients_now, now.requests_now, now.leases_now, stats.leased);
        // The rings of this client are all that is mapped.
        if left == (1, 0, 0, 0) && now.mapped_bytes_now < 1 << 20 {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("something is left: {now:?}, {} leased, {own:?}", stats.leased));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
