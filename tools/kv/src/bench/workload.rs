//! The workloads by name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::dual_blade::Task;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// Formats, then puts objects in order.
    Fill,
    /// Gets objects at random.
    Get,
    /// Gets and puts objects at random.
    Mixed,
    /// One of YCSB's core workloads.
    Ycsb(Ycsb),
    /// Formats, puts sequences of a model's KV blocks, and restores them layer by layer.
    Layers,
    /// Formats, then replays a trace.
    Trace(PathBuf),
    /// Keeps the KV tensors of an inference run, without a store.
    Tensors(Task),
}

/// YCSB's core workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ycsb {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads of recent objects, 5 % inserts.
    D,
    /// 95 % scans of up to 100 neighbours, 5 % inserts.
    E,
    /// Half reads, half reads followed by a write of the object.
    F,
}

impl Ycsb {
    const ALL: [Ycsb; 6] = [Ycsb::A, Ycsb::B, Ycsb::C, Ycsb::D, Ycsb::E, Ycsb::F];

    fn name(self) -> String {
        format!("ycsb-{}", char::from(b'a' + self as u8))
    }
}

impl Workload {
    /// Returns whether it starts with a newly formatted store.
    pub(super) fn formats(&self) -> bool {
        matches!(self, Workload::Fill | Workload::Layers | Workload::Trace(_))
    }

    /// Returns whether it has no end of its own.
    pub(super) fn is_endless(&self) -> bool {
        matches!(self, Workload::Get | Workload::Mixed | Workload::Ycsb(_))
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        if let Some(path) = text.strip_prefix("trace:") {
            return match path {
                "" => Err("'trace:' names no file; write trace:FILE".to_owned()),
                path => Ok(Workload::Trace(path.into())),
            };
        }
        match text {
            "fill" => Ok(Workload::Fill),
            "get" => Ok(Workload::Get),
            "mixed" => Ok(Workload::Mixed),
            "layers" => Ok(Workload::Layers),
            _ => {
                let ycsb = Ycsb::ALL.into_iter().find(|ycsb| ycsb.name() == text);
                let task = || Task::named(text).map(Workload::Tensors);
                ycsb.map(Workload::Ycsb).or_else(task).ok_or_else(|| {
                    let tasks = Task::ALL.map(|task| task.name).join(", ");
                    format!(
                        "'{text}' is not a workload: use fill, get, mixed, ycsb-a to ycsb-f, layers, \
                         trace:FILE, {tasks}"
                    )
                })
            }
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::Fill => f.write_str("fill"),
            Workload::Get => f.write_str("get"),
            Workload::Mixed => f.write_str("mixed"),
            Workload::Layers => f.write_str("layers"),
            Workload::Ycsb(ycsb) => f.write_str(&ycsb.name()),
            Workload::Trace(path) => write!(f, "trace:{}", path.display()),
            Workload::Tensors(task) => f.write_str(task.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prints_parses_to_the_same() {
        for text in [
            "fill",
            "get",
            "mixed",
            "ycsb-a",
            "ycsb-f",
            "layers",
            "trace:a b.jsonl",
            "dual-blade",
            "di-buy",
        ] {
            assert_eq!(text.parse::<Workload>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_workload_is_refused_with_all_that_are() {
        for text in ["", "ycsb", "ycsb-g", "ycsb-ab", "ycsb-", "Fill"] {
            let why = text.parse::<Workload>().expect_err(text);
            assert!(why.contains("ycsb-a to ycsb-f"), "{why}");
        }
        assert!("trace:".parse::<Workload>().expect_err("no file").contains("trace:FILE"));
    }
}
