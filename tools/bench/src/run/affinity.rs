//! Chooses and sets the cores a thread runs on.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::failure::{Failure, Result};
use crate::options::{CpusPolicy, JobOptions, numbers};

/// Returns the cores thread `number` of a job may use; `None` if the job does not restrict them.
///
/// # Errors
/// A NUMA node that does not exist.
pub(crate) fn cores(job: &JobOptions, number: u32) -> Result<Option<Vec<usize>>> {
    let all = match (&job.cpus.cpus_allowed, &job.cpus.numa_cpu_nodes) {
        (Some(cores), _) => cores.clone(),
        (None, Some(nodes)) => {
            let of_nodes = nodes.iter().map(|node| of_node(*node)).collect::<Result<Vec<_>>>()?;
            of_nodes.concat()
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(match job.cpus.cpus_allowed_policy {
        CpusPolicy::Shared => all,
        CpusPolicy::Split if all.is_empty() => all,
        CpusPolicy::Split => vec![all[number as usize % all.len()]],
    }))
}

fn of_node(node: usize) -> Result<Vec<usize>> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let list = std::fs::read_to_string(&path).map_err(|error| {
        Failure::usage(format!("numa_cpu_nodes={node}: {path}: {error}; 'lscpu' lists the nodes"))
    })?;
    // A node may have memory only.
    if list.trim().is_empty() {
        Ok(Vec::new())
    } else {
        numbers(list.trim(), "cores").map_err(Failure::failed)
    }
}

/// Pins the calling thread to these cores.
///
/// # Errors
/// Cores that do not exist or that this process may not use.
pub(crate) fn pin(cores: &[usize]) -> Result<()> {
    let refused = |error: nix::errno::Errno| {
        Failure::usage(format!(
            "cpus_allowed={cores:?}: {}; 'nproc' prints how many cores there are",
            error.desc()
        ))
    };
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core).map_err(refused)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::CpuOptions;

    #[test]
    fn a_split_gives_each_thread_one_core() {
        let job = JobOptions {
            cpus: CpuOptions {
                cpus_allowed: Some(vec![1, 3, 5]),
                cpus_allowed_policy: CpusPolicy::Split,
                ..JobOptions::usual().cpus
            },
            ..JobOptions::usual()
        };
        assert_eq!(cores(&job, 4).expect("cores"), Some(vec![3]));
        let shared = JobOptions {
            cpus: CpuOptions { cpus_allowed_policy: CpusPolicy::Shared, ..job.cpus },
            ..job
        };
        assert_eq!(cores(&shared, 4).expect("cores"), Some(vec![1, 3, 5]));
        assert_eq!(cores(&JobOptions::usual(), 0).expect("none"), None);
    }

    #[test]
    fn a_thread_stays_where_it_is_put() {
        std::thread::spawn(|| {
            pin(&[0]).expect("core 0 is there");
            let set = nix::sched::sched_getaffinity(Pid::from_raw(0)).expect("affinity");
            assert!(
                set.is_set(0).expect("a core")
                    && !(1..64).any(|core| set.is_set(core).expect("a core"))
            );
            assert!(pin(&[1000]).expect_err("no such core").to_string().contains("nproc"));
        })
        .join()
        .expect("ends");
    }

    #[test]
    fn a_node_that_is_not_there_is_told() {
        assert!(
            of_node(9999).expect_err("no such node").to_string().contains("numa_cpu_nodes=9999")
        );
    }
}
