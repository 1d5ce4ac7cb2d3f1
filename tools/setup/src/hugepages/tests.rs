//! Tests setting and releasing hugepages on a simulated kernel with two nodes.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use super::*;
use crate::args::ChangeArgs;
use crate::change::{Change, Claim, Hands};

const MEBI2: u64 = 2 << 20;
const NODES: usize = 2;
const GLOBAL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// A kernel with 2 MiB pages on two nodes.
struct Kernel {
    base: PathBuf,
    /// The most pages it finds on each node.
    room: [u64; NODES],
    used: [u64; NODES],
    asked: [u64; NODES],
    /// Kills the process at this change: after it if true, else before.
    kill: Option<(usize, bool)>,
    refuses: bool,
    made: Vec<String>,
}

/// A process that was killed.
struct Killed;

struct World {
    root: Root,
    kernel: RefCell<Kernel>,
}

impl Kernel {
    fn at(&self, path: &Path) -> PathBuf {
        self.base.join(path.strip_prefix("/").expect("absolute"))
    }

    fn put(&self, path: &str, value: &str) {
        let place = self.at(Path::new(path));
        fs::create_dir_all(place.parent().expect("a directory")).expect("directory");
        fs::write(place, value).expect("file");
    }

    /// Returns the existing pages; pages in use stay.
    fn total(&self, node: usize) -> u64 {
        self.asked[node].max(self.used[node])
    }

    fn show(&self) {
        for node in 0..NODES {
            let directory =
                format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
            let total = self.total(node);
            self.put(&format!("{directory}/nr_hugepages"), &total.to_string());
            let free = total - self.used[node];
            self.put(&format!("{directory}/free_hugepages"), &free.to_string());
            let surplus = total - self.asked[node];
            self.put(&format!("{directory}/surplus_hugepages"), &surplus.to_string());
        }
        self.put(GLOBAL, &(0..NODES).map(|node| self.total(node)).sum::<u64>().to_string());
    }

    /// Adds pages one by one, alternating between nodes while there is room.
    fn spread(&mut self, pages: u64) {
        while self.asked.iter().sum::<u64>() > pages {
            let fullest = if self.asked[0] > self.asked[1] { 0 } else { 1 };
            self.asked[fullest] -= 1;
        }
        while self.asked.iter().sum::<u64>() < pages {
            let has_room = |node: &usize| self.asked[*node] < self.room[*node];
            let emptiest = (0..NODES).filter(has_room).min_by_key(|node| self.asked[*node]);
            let Some(node) = emptiest else { break };
            self.asked[node] += 1;
        }
    }

    fn carry_out(&mut self, change: &Change) -> io::Result<()> {
        match change {
            Change::Write { .. } if self.refuses => return Err(Errno::EINVAL.into()),
            Change::Write { path, value } => {
                let pages: u64 = value.parse().expect("a number");
                match Pool::of_file(path).expect("a pool's file").node {
                    None => self.spread(pages),
                    Some(node) => {
                        let node = node as usize;
                        self.asked[node] = pages.min(self.room[node]);
                    }
                }
                self.show();
            }
            Change::File { path, content, .. } => self.put(&path.to_string_lossy(), content),
            Change::Remove { path } => fs::remove_file(self.at(path))?,
            other => panic!("{other} has nothing to do with hugepages"),
        }
        Ok(())
    }
}

impl Hands for Kernel {
    fn apply(&mut self, change: &Change) -> io::Result<()> {
        let kill = self.kill.filter(|(at, _)| *at == self.made.len()).map(|(_, after)| after);
        self.made.push(change.to_string());
        if kill == Some(false) {
            resume_unwind(Box::new(Killed));
        }
        let done = self.carry_out(change);
        if kill == Some(true) {
            resume_unwind(Box::new(Killed));
        }
        done
    }

    fn claim(&mut self, _: &Path) -> io::Result<Claim> {
        Err(Errno::ENODEV.into())
    }

    fn pause(&mut self, _: Duration) {}
}

impl World {
    fn new() -> World {
        let root = Root::recorded("/run/systemd/system/\n/etc/\n/var/lib/\n");
        let kernel = Kernel {
            base: root.path("/"),
            room: [u64::MAX; NODES],
            used: [0; NODES],
            asked: [3, 5],
            kill: None,
            refuses: false,
            made: Vec::new(),
        };
        for node in 0..NODES {
            let free = "MemTotal: 2097152 kB\nMemFree: 1114112 kB\n".replace("Mem", "Node 0 Mem");
            kernel.put(&format!("/sys/devices/system/node/node{node}/meminfo"), &free);
        }
        kernel.put("/proc/sys/kernel/random/boot_id", "boot-1\n");
        kernel.show();
        World { root, kernel: RefCell::new(kernel) }
    }

    /// Runs one process; `None` if it was killed.
    fn run<T>(
        &self,
        dry: bool,
        body: impl FnOnce(&mut Operation) -> Result<T>,
    ) -> Option<Result<T>> {
        let mut kernel = self.kernel.borrow_mut();
        kernel.made.clear();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            body(&mut Operation::new(&self.root, &mut *kernel, &|| false, dry, true))
        }));
        ended.map(Some).unwrap_or_else(|why| {
            assert!(why.is::<Killed>(), "a panic");
            None
        })
    }

    fn set(&self, node: Option<u32>, pages: u64, persist: bool) -> Option<Result<Vec<Outcome>>> {
        let target = Pool { node, page_bytes: MEBI2 };
        self.run(false, |operation| set(operation, Request { target, pages, persist }))
    }

    fn release(&self) -> Vec<Outcome> {
        self.run(false, release_all).expect("not killed").expect("no failure")
    }

    fn asked(&self) -> [u64; NODES] {
        self.kernel.borrow().asked
    }

    fn made(&self) -> Vec<String> {
        self.kernel.borrow().made.clone()
    }

    fn boot(&self, asked: [u64; NODES]) {
        let mut kernel = self.kernel.borrow_mut();
        kernel.put("/proc/sys/kernel/random/boot_id", "boot-2\n");
        (kernel.asked, kernel.used) = (asked, [0; NODES]);
        kernel.show();
    }
}

fn done(ended: Option<Result<Vec<Outcome>>>) -> Vec<Outcome> {
    ended.expect("not killed").expect("no failure")
}

fn failure(ended: Option<Result<Vec<Outcome>>>) -> String {
    ended.expect("not killed").expect_err("a failure").to_string()
}

fn now(outcomes: &[Outcome]) -> Vec<(Option<u32>, u64, Option<u64>)> {
    outcomes.iter().map(|outcome| (outcome.pool.node, outcome.before, outcome.after)).collect()
}

#[test]
fn pages_are_set_after_a_record_and_released_again() {
    let world = World::new();
    let outcomes = done(world.set(None, 100, false));
    assert_eq!(
        world.made(),
        ["write /var/lib/adit/setup/hugepages.json", &format!("echo 100 > {GLOBAL}")]
    );
    assert_eq!(now(&outcomes), [(Some(0), 3, Some(50)), (Some(1), 5, Some(50))]);
    assert_eq!(outcomes[0].free, Some(50));
    done(world.set(Some(1), 7, false));
    assert_eq!(world.made().len(), 1, "the record is about the first change");
    assert_eq!(world.asked(), [50, 7]);
    let outcomes = world.release();
    assert_eq!(now(&outcomes), [(Some(0), 50, Some(3)), (Some(1), 7, Some(5))]);
    assert_eq!(world.asked(), [3, 5]);
    assert!(!world.root.exists(kept::file()));
    assert_eq!(now(&world.release()), []);
    assert_eq!(world.made(), [""; 0]);
}

#[test]
fn what_is_there_already_is_not_set() {
    let world = World::new();
    let outcomes = done(world.set(Some(1), 5, false));
    assert_eq!(now(&outcomes), [(Some(1), 5, Some(5))]);
    assert_eq!(world.made(), [""; 0]);
}

#[test]
fn fewer_than_asked_for_are_put_back_and_told() {
    let world = World::new();
    world.kernel.borrow_mut().room = [60, 10];
    let why = failure(world.set(None, 100, false));
    assert!(why.contains("this machine could have only 70 of 100 pages of 2.0MiB"), "{why}");
    assert!(why.contains("(node 0: 60, node 1: 10)"), "{why}");
    assert!(why.contains("hugepagesz=2M hugepages=100"), "{why}");
    assert_eq!(world.asked(), [3, 5]);
    assert!(!world.root.exists(kept::file()), "nothing was changed in the end");
    // The pages set by an earlier run stay, with their record.
    done(world.set(Some(0), 20, false));
    let why = failure(world.set(Some(1), 11, true));
    assert!(why.contains("node 1 could have only 10 of 11 pages"), "{why}");
    assert_eq!(world.asked(), [20, 5]);
    assert!(!world.root.exists(kept::AT_BOOT));
    world.release();
    assert_eq!(world.asked(), [3, 5]);
}

#[test]
fn a_kernel_that_refuses_is_told_of_and_leaves_no_record() {
    let world = World::new();
    world.kernel.borrow_mut().refuses = true;
    let why = failure(world.set(None, 100, false));
    assert!(why.contains("Invalid argument"), "{why}");
    assert_eq!(world.asked(), [3, 5]);
    assert!(!world.root.exists(kept::file()));
}

#[test]
fn pages_in_use_are_the_kernels_to_take_back_later() {
    let world = World::new();
    done(world.set(Some(0), 100, false));
    world.kernel.borrow_mut().used = [40, 0];
    world.kernel.borrow().show();
    let outcomes = world.release();
    assert_eq!(now(&outcomes), [(Some(0), 100, Some(3))]);
    assert_eq!((outcomes[0].surplus, outcomes[0].free), (Some(37), Some(0)));
}

#[test]
fn more_than_there_is_memory_for_is_not_even_asked() {
    // 1088 MiB are free on each node, less a 32nd of its 2 GiB: 1 GiB, or 512 pages.
    let world = World::new();
    let why = failure(world.set(Some(0), 3 + 513, false));
    assert!(why.contains("node 0: 513 pages of 2.0MiB more than the 3 that there are"), "{why}");
    assert!(why.contains("ask for 515 at most"), "{why}");
    done(world.set(Some(0), 3 + 512, false));
    let world = World::new();
    failure(world.set(None, 8 + 1025, false));
    failure(world.set(None, u64::MAX, false));
    assert_eq!(world.made(), [""; 0]);
    world.kernel.borrow().put("/sys/devices/system/node/node1/meminfo", "?");
    let why = failure(world.set(Some(1), 6, false));
    assert!(why.contains("node1/meminfo does not tell"), "{why}");
    assert_eq!(world.made(), [""; 0]);
}

#[test]
fn what_the_kernel_does_not_have_is_refused() {
    let world = World::new();
    let why = failure(world.set(Some(2), 1, false));
    assert_eq!(why, "there is no node 2; there are: 0, 1");
    let target = Pool { node: None, page_bytes: 1 << 30 };
    let request = Request { target, pages: 1, persist: false };
    let why = failure(world.run(false, |operation| set(operation, request)));
    assert!(why.contains("no hugepages of 1.0GiB") && why.contains("pdpe1gb"), "{why}");
    let bare = Root::recorded("/sys/kernel/mm/\n");
    let why = pools_of(&bare, target).expect_err("nothing there").to_string();
    assert!(why.contains("CONFIG_HUGETLBFS"), "{why}");
    let why = pools_of(&bare, Pool { node: Some(0), ..target }).expect_err("no nodes").to_string();
    assert!(why.contains("leave --node out"), "{why}");
}

#[test]
fn a_boot_sets_what_it_was_told_and_release_ends_that() {
    let world = World::new();
    done(world.set(None, 100, true));
    done(world.set(Some(1), 60, true));
    let told: Vec<(Option<u32>, u64)> =
        kept::at_boot(&world.root).into_iter().map(|(pool, pages)| (pool.node, pages)).collect();
    assert_eq!(told, [(Some(0), 50), (Some(1), 60)]);
    // Not reported again.
    done(world.set(Some(1), 60, true));
    assert_eq!(world.made(), [""; 0]);
    world.boot([50, 60]);
    done(world.set(Some(1), 70, false));
    world.release();
    assert_eq!(world.asked(), [3, 5], "the numbers from before the first boot's change");
    assert!(!world.root.exists(kept::AT_BOOT) && !world.root.exists(kept::file()));
}

#[test]
fn another_boot_has_its_own_numbers() {
    let world = World::new();
    done(world.set(None, 100, false));
    world.boot([1, 2]);
    assert_eq!(now(&world.release()), []);
    assert_eq!(world.asked(), [1, 2]);
    assert!(!world.root.exists(kept::file()));
    let world = World::new();
    done(world.set(Some(0), 100, true));
    world.boot([100, 2]);
    done(world.set(Some(1), 9, false));
    world.release();
    assert_eq!(world.asked(), [3, 2], "node 1 was never told to a boot");
}

#[test]
fn without_systemd_nothing_can_be_told_to_a_boot() {
    let world = World::new();
    fs::remove_dir(world.root.path(SYSTEMD)).expect("removed");
    let why = failure(world.set(None, 10, true));
    assert!(why.contains("--persist needs systemd"), "{why}");
    assert_eq!(world.made(), [""; 0]);
}

#[test]
fn whatever_kills_it_release_puts_everything_back() {
    for at in 0..3 {
        for after in [false, true] {
            let world = World::new();
            world.kernel.borrow_mut().kill = Some((at, after));
            assert!(world.set(None, 100, true).is_none(), "{at} did not strike");
            world.kernel.borrow_mut().kill = None;
            world.release();
            assert_eq!(world.asked(), [3, 5], "setting, {at} {after}");
            done(world.set(None, 100, true));
            world.kernel.borrow_mut().kill = Some((at, after));
            assert!(world.run(false, release).is_none(), "{at} did not strike");
            world.kernel.borrow_mut().kill = None;
            world.release();
            assert_eq!(world.asked(), [3, 5], "releasing, {at} {after}");
            assert!(!world.root.exists(kept::AT_BOOT) && !world.root.exists(kept::file()));
        }
    }
}

#[test]
fn a_dry_run_tells_and_does_nothing() {
    let world = World::new();
    let target = Pool { node: None, page_bytes: MEBI2 };
    let request = Request { target, pages: 101, persist: true };
    let outcomes = world.run(true, |operation| set(operation, request));
    assert_eq!(now(&done(outcomes)), [(Some(0), 3, None), (Some(1), 5, None)]);
    assert_eq!((world.asked(), world.made()), ([3, 5], vec![]));
    let pools = [0, 1].map(|node| (Pool { node: Some(node), ..target }, Pages::default()));
    let shares: Vec<u64> = spread(101, &pools).into_iter().map(|(_, pages)| pages).collect();
    assert_eq!(shares, [51, 50]);
}

#[test]
fn bytes_are_rounded_up_to_pages() {
    let args = |size, count, bytes| HugepagesArgs {
        size,
        count,
        bytes,
        node: Some(1),
        persist: false,
        release: false,
        change: ChangeArgs::default(),
    };
    let asked = request(&args(PageSize::Mebi2, None, Some(4 * MEBI2 + 1))).expect("a request");
    assert_eq!((asked.target, asked.pages), (Pool { node: Some(1), page_bytes: MEBI2 }, 5));
    let asked = request(&args(PageSize::Gibi1, Some(8), None)).expect("a request");
    assert_eq!((asked.target.page_bytes, asked.pages), (1 << 30, 8));
}
