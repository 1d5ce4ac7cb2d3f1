//! A software controller served over vfio-user by a thread of the test.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adit_driver::Time;
use adit_driver::serve::{DoorbellAccess, Event, Options, Server};
use adit_driver::soft;

type Job = Box<dyn FnOnce(&mut Server) + Send>;

/// A running server; its socket is removed with it.
pub(crate) struct Served {
    socket: PathBuf,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Lets the test connect to its servers.
pub(crate) fn trust() {
    // SAFETY: our own controller accesses memory as commands let it; those that lie do so in messages, and touch none.
    unsafe { adit_driver::bus::vfio_user::trust_servers() };
}

impl Served {
    /// Serves a controller made of `options` at a fresh socket.
    pub(crate) fn start(options: soft::Options, doorbells: DoorbellAccess) -> Served {
        Served::start_with(options, Options { doorbells, ..Options::default() })
    }

    pub(crate) fn start_with(controller: soft::Options, options: Options) -> Served {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("adit-served-{}-{number}.sock", std::process::id());
        Served::start_at(std::env::temp_dir().join(name), controller, options)
    }

    /// Serves at `socket`, possibly in place of an earlier server.
    pub(crate) fn start_at(socket: PathBuf, controller: soft::Options, options: Options) -> Served {
        trust();
        let controller = soft::Controller::new(controller).expect("controller");
        let server = Server::bind(&socket, controller, options).expect("socket");
        let (jobs, queue) = channel();
        let thread = Some(thread::spawn(move || serve(server, &queue)));
        Served { socket, jobs: Some(jobs), thread }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Calls `f` with the server, between two of its turns.
    pub(crate) fn with<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Server) -> R + Send + 'static,
    ) -> R {
        let (sender, receiver) = channel();
        let job: Job = Box::new(move |server| drop(sender.send(f(server))));
        self.jobs.as_ref().expect("running").send(job).expect("the server's thread lives");
        receiver.recv().expect("the server's thread lives")
    }

    /// Returns the events since the last call.
    #[allow(dead_code, reason = "not every test that includes this file needs it")]
    pub(crate) fn events(&self) -> Vec<Event> {
        self.with(|server| std::iter::from_fn(|| server.take_event()).collect())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.jobs = None;
        // After a failure the server may wait forever, which must not hide the failure.
        if !thread::panicking() {
            let ended = self.thread.take().map(JoinHandle::join);
            assert!(ended.is_none_or(|ended| ended.is_ok()), "the server panicked");
        }
    }
}

fn serve(mut server: Server, jobs: &Receiver<Job>) {
    let origin = Instant::now();
    loop {
        match jobs.try_recv() {
            Ok(job) => job(&mut server),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        if !server.turn(Time::ZERO + origin.elapsed()) {
            thread::sleep(Duration::from_micros(10));
        }
    }
}
