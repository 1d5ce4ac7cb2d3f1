//! Chooses the cores of poller threads, and remembers which are taken.
//!
//! All pollers of a process share one register of taken cores, so that two stores, or a store and a reactor, that do
//! not know of each other get different ones.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::bus::Locality;
use crate::error::{Error, Result};
use crate::locality::cores_of_node;

/// How many poller threads there are, and the cores they run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// This many threads, which the system moves among the cores of the thread that starts them. For devices reached
    /// through the kernel: a busy neighbour then takes no thread's only core.
    Unpinned(usize),
    /// This many threads, which the system moves among the cores of the device's NUMA node; as [`Cores::Unpinned`]
    /// if the node is unknown.
    Near(usize),
    /// This many threads, each pinned to a core of its own, of those allowed to the thread that chooses: first cores
    /// that no other poller of this process is pinned to, then those near the device, and whole cores before second
    /// hyperthreads. For devices that are polled: a core does nothing else then.
    Count(usize),
    /// A thread pinned to each of these, by the number that the kernel gives it; the thread that chooses has to
    /// be allowed on them.
    List(Vec<usize>),
}

impl Cores {
    /// Chooses a place for each thread, for a device at `near`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no threads, more pinned threads than cores, a core forbidden to the calling thread, and a
    /// core named twice.
    pub fn choose(&self, near: &Locality) -> Result<Vec<Pinning>> {
        let node = near.numa_node.and_then(cores_of_node);
        let machine = Machine {
            allowed: &allowed(),
            near: &node.unwrap_or_default(),
            is_second: &is_second_thread,
        };
        self.choose_on(&machine, &TAKEN)
    }

    fn choose_on(
        &self,
        machine: &Machine<'_>,
        register: &'static Register,
    ) -> Result<Vec<Pinning>> {
        let refuse = |what: String| Err(machine.refusal(&what));
        match self {
            Cores::Unpinned(0) | Cores::Near(0) | Cores::Count(0) => {
                refuse("none asked for".to_owned())
            }
            Cores::List(list) if list.is_empty() => refuse("none asked for".to_owned()),
            Cores::Unpinned(count) => Ok((0..*count).map(|_| Pinning::default()).collect()),
            Cores::Near(count) => {
                let among = machine.allowed_near();
                let place = |_| Pinning { among: among.clone(), taken: None };
                Ok((0..*count).map(place).collect())
            }
            Cores::Count(count) if *count > machine.allowed.len() => {
                refuse(format!("{count} asked for"))
            }
            Cores::Count(count) => Ok(register.take_best(*count, machine)),
            Cores::List(list) => {
                for (index, core) in list.iter().enumerate() {
                    if !machine.allowed.contains(core) {
                        return refuse(format!("core {core} asked for"));
                    }
                    if list[..index].contains(core) {
                        return refuse(format!("core {core} asked for twice"));
                    }
                }
                Ok(list.iter().map(|core| register.take(*core)).collect())
            }
        }
    }
}

/// The cores to choose from.
struct Machine<'a> {
    allowed: &'a [usize],
    /// Those of the device's node, allowed or not; none if it is unknown.
    near: &'a [usize],
    is_second: &'a dyn Fn(usize) -> bool,
}

impl Machine<'_> {
    fn allowed_near(&self) -> Vec<usize> {
        self.allowed.iter().copied().filter(|core| self.near.contains(core)).collect()
    }

    fn refusal(&self, what: &str) -> Error {
        let listed = self.allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let why = format!("{what}; the calling thread may use {listed}");
        Error::invalid("the cores of poller threads", why)
    }
}

/// Where a poller thread runs. While this exists, the process counts a core that it is pinned to as taken.
#[derive(Debug, Default)]
pub struct Pinning {
    /// The cores among which the system may move the thread; all that the starting thread may use if empty.
    among: Vec<usize>,
    taken: Option<Taken>,
}

impl Pinning {
    /// Pins a thread to `core`, by the number that the kernel gives it.
    pub fn on(core: usize) -> Pinning {
        TAKEN.take(core)
    }

    /// Returns the core that the thread is pinned to, if it is.
    pub fn core(&self) -> Option<usize> {
        self.taken.as_ref().map(|taken| taken.core)
    }

    /// Moves the calling thread here, or logs a warning if the system refuses.
    pub(super) fn enter(&self) {
        if self.among.is_empty() {
            return;
        }
        let mut set = CpuSet::new();
        let placed = self.among.iter().try_for_each(|core| set.set(*core));
        let placed = placed.and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
        if let Err(why) = placed {
            tracing::warn!(
                "a thread cannot be placed on core {:?} ({}) and runs where the system puts it",
                self.among,
                why.desc()
            );
        }
    }
}

/// How many pollers are pinned to each core.
struct Register(Mutex<BTreeMap<usize, usize>>);

/// That of this process.
static TAKEN: Register = Register(Mutex::new(BTreeMap::new()));

impl Register {
    fn take(&'static self, core: usize) -> Pinning {
        *self.lock().entry(core).or_default() += 1;
        self.place(core)
    }

    /// Takes the best `count` cores, of which there are enough.
    fn take_best(&'static self, count: usize, machine: &Machine<'_>) -> Vec<Pinning> {
        let mut pollers = self.lock();
        let mut order = machine.allowed.to_vec();
        order.sort_by_cached_key(|core| {
            let taken = pollers.get(core).copied().unwrap_or(0);
            (taken, !machine.near.contains(core), (machine.is_second)(*core), *core)
        });
        order.truncate(count);
        order.iter().for_each(|core| *pollers.entry(*core).or_default() += 1);
        order.into_iter().map(|core| self.place(core)).collect()
    }

    /// Makes the place of a core that was counted.
    fn place(&'static self, core: usize) -> Pinning {
        Pinning { among: vec![core], taken: Some(Taken { core, register: self }) }
    }

    fn release(&self, core: usize) {
        let mut pollers = self.lock();
        let count = pollers.get_mut(&core).expect("a core that is released was taken");
        *count -= 1;
        if *count == 0 {
            pollers.remove(&core);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A core counted as taken until this is dropped.
struct Taken {
    core: usize,
    register: &'static Register,
}

impl std::fmt::Debug for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Taken({})", self.core)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.register.release(self.core);
    }
}

/// Returns the cores that the calling thread may use.
fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect()
}

/// Returns whether a core is a hyperthread of one with a lower number; `false` if unknown.
fn is_second_thread(core: usize) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let siblings = std::fs::read_to_string(path).ok();
    siblings.is_some_and(|list| crate::locality::core_list(&list).iter().any(|other| *other < core))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cores 4 and up are the second threads of 0 and up.
    fn machine(near: &[usize]) -> Machine<'_> {
        Machine { allowed: &[0, 1, 2, 4, 5, 6], near, is_second: &|core| core >= 4 }
    }

    fn register() -> &'static Register {
        Box::leak(Box::new(Register(Mutex::new(BTreeMap::new()))))
    }

    fn cores(places: &[Pinning]) -> Vec<usize> {
        places.iter().filter_map(Pinning::core).collect()
    }

    fn chosen(cores: &Cores, near: &[usize], register: &'static Register) -> Vec<Pinning> {
        cores.choose_on(&machine(near), register).expect("enough")
    }

    #[test]
    fn near_cores_come_first_and_whole_cores_before_second_threads() {
        let pick = |count, near: &[usize]| cores(&chosen(&Cores::Count(count), near, register()));
        assert_eq!(pick(6, &[]), [0, 1, 2, 4, 5, 6]);
        assert_eq!(pick(4, &[1, 2, 3, 5, 6]), [1, 2, 5, 6]);
        assert_eq!(pick(2, &[9]), [0, 1], "a node without a core that may be used");
    }

    #[test]
    fn a_core_that_is_taken_comes_last_until_it_is_released() {
        let register = register();
        let first = chosen(&Cores::Count(1), &[], register);
        let second = chosen(&Cores::Count(1), &[], register);
        assert_eq!((cores(&first), cores(&second)), (vec![0], vec![1]));
        let named = chosen(&Cores::List(vec![2]), &[], register);
        assert_eq!(cores(&chosen(&Cores::Count(6), &[], register)), [4, 5, 6, 0, 1, 2]);
        drop((first, named));
        assert_eq!(cores(&chosen(&Cores::Count(2), &[], register)), [0, 2]);
        drop(second);
        assert!(register.lock().is_empty(), "what was taken is released");
    }

    #[test]
    fn a_list_is_taken_as_it_is_also_if_others_have_it() {
        let register = register();
        let list = Cores::List(vec![5, 0]);
        let [one, other] = [(); 2].map(|()| chosen(&list, &[], register));
        assert_eq!((cores(&one), cores(&other)), (vec![5, 0], vec![5, 0]));
    }

    #[test]
    fn threads_that_are_not_pinned_take_no_core() {
        let register = register();
        let free = chosen(&Cores::Unpinned(3), &[1], register);
        assert!(free.len() == 3 && free.iter().all(|place| place.among.is_empty()));
        let near = chosen(&Cores::Near(2), &[1, 3, 5], register);
        assert!(near.len() == 2 && near.iter().all(|place| place.among == [1, 5]));
        let nowhere = chosen(&Cores::Near(1), &[9], register);
        assert!(nowhere[0].among.is_empty(), "no core of the node may be used");
        assert!(register.lock().is_empty());
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_there_is() {
        let refusals = [
            (Cores::Unpinned(0), "none asked for"),
            (Cores::Near(0), "none asked for"),
            (Cores::Count(0), "none asked for"),
            (Cores::Count(7), "7 asked for; the calling thread may use 0, 1, 2, 4, 5, 6"),
            (Cores::List(vec![]), "none asked for"),
            (Cores::List(vec![0, 3]), "core 3 asked for"),
            (Cores::List(vec![1, 1]), "core 1 asked for twice"),
        ];
        let register = register();
        for (cores, says) in refusals {
            let error = cores.choose_on(&machine(&[]), register).expect_err("refused").to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(register.lock().is_empty(), "a refusal takes nothing");
    }

    #[test]
    fn a_thread_goes_where_its_place_is() {
        let before = allowed();
        let pinned = Cores::Count(1).choose(&Locality::default()).expect("one core");
        let free = Cores::Unpinned(1).choose(&Locality::default()).expect("any core");
        for (place, expected) in [(&pinned[0], cores(&pinned)), (&free[0], before)] {
            let now = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    place.enter();
                    allowed()
                });
                thread.join().expect("no panic")
            });
            assert_eq!(now, expected);
        }
    }
}
