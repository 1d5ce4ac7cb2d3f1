//! The store in an async server: all clients on one thread, which no call parks.
//!
//! Each client is a task. It stores an object and reads it back, as a handler of requests would; there are more of them
//! than the store has memory for.

use std::process::ExitCode;
use std::time::Duration;

use adit_kvstore::{Error, FormatStore, Key, OpenOptions, Result, Store, Target};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

const CLIENTS: u64 = 1000;
/// Length of each object in bytes.
const BYTES: usize = 128 << 10;
/// The store's memory: for one client in eight.
const POOL_BYTES: usize = 16 << 20;
/// How long a client waits for its object.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let Some(target) = std::env::args().nth(1) else {
        eprintln!("usage: tokio TARGET, such as uring:/var/tmp/objects.img, which is formatted");
        return ExitCode::FAILURE;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serve(target))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tokio: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(target: String) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let target: Target = target.parse()?;
    // Formatting and opening wait for the device, so they have a thread that may.
    let store = spawn_blocking(move || open(target)).await??;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(store.clone(), number));
    }
    let mut served = 0;
    while let Some(client) = clients.join_next().await {
        served += u64::from(client??);
    }
    println!("served {served} of {CLIENTS} clients");
    // Dropping the last handle would close the store, too, but the process would not wait for it.
    let stats = store.close().await?;
    println!("closed with {} objects", stats.objects);
    Ok(())
}

fn open(target: Target) -> Result<Store> {
    let file_bytes = Some(512 << 20);
    Store::format(&FormatStore { file_bytes, ..FormatStore::new([target.clone()]) })?;
    Store::open(&OpenOptions { pool_bytes: POOL_BYTES, ..OpenOptions::new([target]) })
}

/// Serves a client; returns whether it had its object back in time.
async fn client(store: Store, number: u64) -> Result<bool> {
    let key = Key::new(format!("client/{number}").as_bytes())?;
    // The buffer comes when there is memory, so the server takes in no more than it has memory for.
    let mut buffer = store.buffer(BYTES).await?;
    // A server would read the request's body into it.
    buffer.fill(number as u8);
    store.put(key.clone(), buffer).await?;
    // When its time is over the get is dropped: its place in line and its memory go to the next.
    match timeout(PATIENCE, store.get(key)).await {
        Ok(value) => Ok(value?.is_some_and(|value| value.iter().all(|byte| *byte == number as u8))),
        Err(_) => Ok::<bool, Error>(false),
    }
}
