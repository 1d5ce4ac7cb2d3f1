//! Poller threads, and how other threads talk to them.
//!
//! An NVMe queue pair has one owner, so a program in which any thread may ask for I/O needs threads that own
//! queue pairs, and a way to them and back. The reactor, the store and the GPU crate's threads are built on
//! this module. A thread that drives a queue pair of its own needs none of it.
//!
//! ```text
//!  any thread, any async runtime                   a poller thread, pinned or not
//!
//!  Mailbox::send --- job (with a Reply) ---------> Worker::round: take jobs, move I/O
//!       |  full: want_room(waker), try again            |    |
//!       '--- Alarm::tell ---> sleep <--- idle: Idling --'    |
//!                                                            |
//!  Receipt::poll | wait_until <------- Reply::send ----------'
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `poller` | the thread: [`Poller`] starts, stops and joins it; [`Worker`] is what it does |
//! | `idle` | how an idle thread rests: spin, pause, sleep |
//! | `alarm` | its sleep, which a sender or an interrupt ends |
//! | `mailbox` | jobs on their way to it |
//! | `answer` | one answer on its way back |
//! | `wait` | waiters for room or memory; a blocking call, made from one that registers a waker |
//! | `cores` | where threads run: [`Cores`], [`Pinning`] |
//!
//! Invariants:
//!
//! - **A job that is sent is taken or refused**, also when its mailbox closes at that moment; a job that is not
//!   sent comes back. A mailbox has a fixed size, except for urgent jobs and for jobs that senders leave behind it.
//! - **An answer arrives once.** A [`Reply`] that is dropped says so, and no receiver waits for it any longer.
//! - **No wake-up is lost**: work left before [`Alarm::tell`] is seen before the thread sleeps, or ends its sleep.
//! - **Every sleep ends**: at the worker's next due time, or after a nap if it waits for something that wakes no
//!   thread.
//! - **A panic stays in its thread**: of a worker, which ends its thread; of a waker or of dropped memory, which is
//!   caught and logged.
//! - **Sending, taking and answering allocate nothing**, if cells come from [`Cells`], and make no system call
//!   while the thread is awake. An answer's lock is between its two ends, for a few instructions.
//!
//! Nothing here parks an executor: what waits for room or for an answer registers a waker, and blocking calls are
//! made from that by [`block_until`].
//!
//! This module knows neither devices nor requests, and does not choose which thread gets a job: its users do.

mod alarm;
mod answer;
mod cores;
mod idle;
mod mailbox;
mod poller;
mod wait;

pub use alarm::Alarm;
pub use answer::{Cells, Dropped, Receipt, Reply, pair};
pub use cores::{Cores, Pinning};
pub use idle::{Idle, Idling, Rest};
pub use mailbox::{Mailbox, Refusal};
pub use poller::{Poller, Round, Seat, Worker};
pub use wait::{Waiters, block_until, caught, lock, try_or_want, wake};
