//! Chooses the cores of pollers, and pins threads to them.

use core_affinity::CoreId;

use crate::bus::Locality;
use crate::error::{Error, Result};
use crate::locality::cores_of_node;

/// The cores that poller threads are pinned to, one thread each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// This many of those allowed to the thread that chooses: first those near the device
    /// ([`crate::reactor::ReactorOptions::near`]), and whole cores before second hyperthreads.
    Count(usize),
    /// These, by the number that the kernel gives them; the thread that chooses has to
    /// be allowed on them.
    List(Vec<usize>),
}

impl Cores {
    /// Picks the cores, in the kernel's numbering.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more cores than available, a core forbidden to the calling thread, a core named
    /// twice, and none.
    pub fn choose(&self, near: &Locality) -> Result<Vec<usize>> {
        let allowed: Vec<usize> =
            core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        let node = near.numa_node.and_then(cores_of_node);
        pick(self, &allowed, &node.unwrap_or_default(), is_second_thread)
    }
}

fn pick(
    cores: &Cores,
    allowed: &[usize],
    near: &[usize],
    is_second: impl Fn(usize) -> bool,
) -> Result<Vec<usize>> {
    let refuse = |what: String| {
        let listed = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        Err(Error::invalid(
            "the cores of poller threads",
            format!("{what}; the calling thread may use {listed}"),
        ))
    };
    match cores {
        Cores::Count(0) => refuse("none asked for".to_owned()),
        Cores::List(list) if list.is_empty() => refuse("none asked for".to_owned()),
        Cores::Count(count) if *count > allowed.len() => refuse(format!("{count} asked for")),
        Cores::Count(count) => {
            let mut order = allowed.to_vec();
            order.sort_by_key(|core| (!near.contains(core), is_second(*core), *core));
            order.truncate(*count);
            Ok(order)
        }
        Cores::List(list) => {
            for (index, core) in list.iter().enumerate() {
                if !allowed.contains(core) {
                    return refuse(format!("core {core} asked for"));
                }
                if list[..index].contains(core) {
                    return refuse(format!("core {core} asked for twice"));
                }
            }
            Ok(list.clone())
        }
    }
}

/// Returns whether a core is a hyperthread of one with a lower number; `false` if unknown.
fn is_second_thread(core: usize) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let siblings = std::fs::read_to_string(path).ok();
    siblings.is_some_and(|list| crate::locality::core_list(&list).iter().any(|other| *other < core))
}

/// Pins the calling thread, or logs a warning if the system refuses.
pub fn pin(core: usize) {
    if !core_affinity::set_for_current(CoreId { id: core }) {
        tracing::warn!(
            "a thread cannot be pinned to core {core} and runs where the system puts it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: [usize; 6] = [0, 1, 2, 4, 5, 6];
    /// Cores 4 and up are the second threads of 0 and up.
    fn is_second(core: usize) -> bool {
        core >= 4
    }

    #[test]
    fn near_cores_come_first_and_whole_cores_before_second_threads() {
        let pick = |count, near: &[usize]| {
            pick(&Cores::Count(count), &ALLOWED, near, is_second).expect("enough")
        };
        assert_eq!(pick(6, &[]), [0, 1, 2, 4, 5, 6]);
        assert_eq!(pick(4, &[1, 2, 3, 5, 6]), [1, 2, 5, 6]);
        assert_eq!(pick(2, &[9]), [0, 1], "a node without a core that may be used");
    }

    #[test]
    fn a_list_is_taken_as_it_is() {
        let list = Cores::List(vec![5, 0]);
        assert_eq!(pick(&list, &ALLOWED, &[], is_second).expect("allowed"), [5, 0]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_there_is() {
        let refusals = [
            (Cores::Count(0), "none asked for"),
            (Cores::Count(7), "7 asked for; the calling thread may use 0, 1, 2, 4, 5, 6"),
            (Cores::List(vec![]), "none asked for"),
            (Cores::List(vec![0, 3]), "core 3 asked for"),
            (Cores::List(vec![1, 1]), "core 1 asked for twice"),
        ];
        for (cores, says) in refusals {
            let error = pick(&cores, &ALLOWED, &[], is_second).expect_err("refused").to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn this_machine_has_a_core_and_a_thread_goes_there() {
        let core = Cores::Count(1).choose(&Locality::default()).expect("one core")[0];
        std::thread::spawn(move || {
            pin(core);
            let left = core_affinity::get_core_ids().expect("a mask");
            assert_eq!(left, [CoreId { id: core }]);
        })
        .join()
        .expect("pinned");
    }
}
