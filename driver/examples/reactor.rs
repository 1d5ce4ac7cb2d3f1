//! Runs many tasks on one executor, and threads that block, through one reactor.
//!
//! ```text
//! cargo run --release -p adit-driver --example reactor -- soft:mem=64M
//! cargo run --release -p adit-driver --example reactor -- vfio:0000:01:00.0 --write
//! ```
//!
//! Reads the namespace's first mebibytes; with `--write`, overwrites them first and checks what it reads. The
//! executor is a dozen lines over the standard library; any runtime works.
#![forbid(unsafe_code)]

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};

use adit_driver::reactor::{Client, Reactor, ReactorOptions};
use adit_driver::spec::Lba;
use adit_driver::{Completion, Controller, ControllerOptions, Target};

const TASKS: u64 = 64;
const ROUNDS: u64 = 100;
const THREADS: u64 = 4;

/// Sends a task's number when the task can continue.
struct Ready(Sender<usize>, usize);

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        // The receiver is gone once all tasks are done.
        let _ = self.0.send(self.1);
    }
}

type Task = Pin<Box<dyn Future<Output = adit_driver::Result<()>>>>;

/// Runs all tasks to completion on this thread.
fn run_all(tasks: Vec<Task>) -> adit_driver::Result<()> {
    let (sender, receiver): (Sender<usize>, Receiver<usize>) = channel();
    let waker = |task| Waker::from(Arc::new(Ready(sender.clone(), task)));
    let wakers: Vec<Waker> = (0..tasks.len()).map(waker).collect();
    let mut tasks: Vec<Option<Task>> = tasks.into_iter().map(Some).collect();
    (0..tasks.len()).try_for_each(|task| sender.send(task)).expect("the receiver is here");
    let mut left = tasks.len();
    while left > 0 {
        let number = receiver.recv().expect("a sender is here");
        let Some(task) = &mut tasks[number] else { continue };
        if let Poll::Ready(ended) = task.as_mut().poll(&mut Context::from_waker(&wakers[number])) {
            ended?;
            tasks[number] = None;
            left -= 1;
        }
    }
    Ok(())
}

/// Repeatedly reads a page of its own, writing it first if `writes`.
async fn task(client: Client, number: u64, writes: bool) -> adit_driver::Result<()> {
    let lbas = 4096 / u64::from(client.namespace().lba_bytes());
    let lba = Lba(number * lbas);
    let mut buffer = client.controller().allocate(4096)?;
    for round in 0..ROUNDS {
        if writes {
            buffer.fill((number + round) as u8);
            let write = client.namespace().write(lba, buffer);
            let Completion { buffer: back, result } = client.submit_async(write).await?.await?;
            result.map_err(|why| adit_driver::Error::invalid("a write", why))?;
            buffer = back;
            buffer.fill(0);
        }
        let read = client.namespace().read(lba, buffer);
        let Completion { buffer: back, result } = client.submit_async(read).await?.await?;
        result.map_err(|why| adit_driver::Error::invalid("a read", why))?;
        buffer = back;
        let is_right = buffer.iter().all(|byte| *byte == (number + round) as u8);
        assert!(!writes || is_right, "task {number} read what it did not write");
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let target: Target = arguments.next().unwrap_or_else(|| "soft:mem=64M".to_owned()).parse()?;
    let writes = arguments.next().is_some_and(|flag| flag == "--write");
    let controller = Controller::open(&target, &ControllerOptions::default())?;
    let namespace = controller.namespace_of(&target)?;
    let reactor = Reactor::start(ReactorOptions::near(&controller))?;
    let client = reactor.attach(&controller, &namespace)?;

    let tasks = (0..TASKS).map(|number| Box::pin(task(client.clone(), number, writes)) as Task);
    run_all(tasks.collect())?;

    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let client = client.clone();
            std::thread::spawn(move || -> adit_driver::Result<()> {
                let mut buffer = client.controller().allocate(4096)?;
                for _ in 0..ROUNDS {
                    (buffer, _) = client.execute(client.namespace().read(Lba(thread), buffer))?;
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic")?;
    }
    println!("{target}: {:?} on cores {:?}", client.stats(), reactor.cores());
    Ok(())
}
