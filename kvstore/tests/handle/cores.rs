//! Where the store's threads run.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;

use adit_driver::runtime::Cores;
use adit_kvstore::{OpenOptions, Store};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(a_store_beside_a_busy_loop_is_not_confined_to_its_core);

/// Returns the cores that the calling thread may use.
fn cores() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).expect("a mask");
    (0..CpuSet::count()).filter(|core| set.is_set(*core).expect("a core")).collect()
}

/// A waker that sends the cores of the thread that calls it.
struct Asks(Mutex<Sender<Vec<usize>>>);

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        // The first answer suffices.
        let _ = self.0.lock().expect("not poisoned").send(cores());
    }
}

/// Returns the cores that the store's thread may use: it calls the waker of an answer.
fn cores_of(store: &Store) -> Vec<usize> {
    let (sender, heard) = channel();
    let waker = Waker::from(Arc::new(Asks(Mutex::new(sender))));
    loop {
        let mut pending = pin!(store.get(key(0)));
        if pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            return heard.recv().expect("the answer calls the waker");
        }
    }
}

/// A thread that computes on one core until this is dropped.
struct Busy {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    fn on(core: usize) -> Busy {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut set = CpuSet::new();
            set.set(core).expect("a core");
            sched_setaffinity(Pid::from_raw(0), &set).expect("an allowed core");
            while !ends.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Busy { is_over, thread: Some(thread) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().expect("it runs until now").join().expect("no panic");
    }
}

fn a_store_beside_a_busy_loop_is_not_confined_to_its_core(rig: &Rig) {
    let store = rig.format(1).open();
    let allowed = cores();
    for core in &allowed {
        let busy = Busy::on(*core);
        assert_eq!(cores_of(&store), allowed, "core {core} is busy");
        let puts: Vec<_> =
            (0..16).map(|number| store.put(key(number), data(number, 128 << 10))).collect();
        assert!(puts.into_iter().all(|put| put.wait().expect("put").is_stored()));
        for value in store.get_many((0..16).map(key)) {
            assert_eq!(value.wait().expect("got").expect("a hit").len(), 128 << 10);
        }
        drop(busy);
    }
}

#[test]
fn two_stores_that_pin_a_thread_each_get_different_cores() {
    if cores().len() < 2 {
        return;
    }
    let (rig, other) = (Rig::soft(), Rig::file());
    let open = |rig: &Rig| {
        let options = OpenOptions { cores: Some(Cores::Count(1)), ..rig.options() };
        Store::open(&options).expect("a store")
    };
    let (one, other) = (open(rig.format(1)), open(other.format(1)));
    let (first, second) = (cores_of(&one), cores_of(&other));
    assert_eq!((first.len(), second.len()), (1, 1), "{first:?} {second:?}");
    assert_ne!(first, second);
    one.close().wait().expect("closed");
    // A third store gets the core that is free again.
    let one = open(&rig);
    assert_eq!(cores_of(&one), first);
    other.close().wait().expect("closed");
}
