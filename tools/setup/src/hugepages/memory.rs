//! Limits how much memory hugepages may take.
//!
//! If asked for too much, the kernel evicts everything else first. So requests are compared beforehand with the
//! memory that is free or can be dropped: free pages, the file cache and reclaimable slabs, less a 32nd of all
//! memory, which programs need to continue.

use crate::inventory::pool;
use adit_guard::root::Root;

/// The divisor of the memory kept in reserve.
const RESERVE: u64 = 32;

/// Fields of `/proc/meminfo` for memory that is free or can be dropped.
const AVAILABLE: [&str; 4] = ["MemFree", "Active(file)", "Inactive(file)", "SReclaimable"];

/// Returns the bytes hugepages may take on a node, or on all; `None` if unknown.
pub(super) fn available(root: &Root, node: Option<u32>) -> Option<u64> {
    let nodes = pool::nodes(root);
    let places: Vec<Option<u32>> = match node {
        None if !nodes.is_empty() => nodes.into_iter().map(Some).collect(),
        place => vec![place],
    };
    let of_place = |place| parse(&root.text(pool::meminfo(place))?);
    places.into_iter().map(of_place).try_fold(0, |sum: u64, bytes| Some(sum.saturating_add(bytes?)))
}

/// Parses `MemFree:  123 kB`, or `Node 0 MemFree:  123 kB`.
fn parse(text: &str) -> Option<u64> {
    let field = |name: &str| text.lines().find_map(|line| value(line, name));
    let reserve = field("MemTotal")? / RESERVE;
    field("MemFree")?;
    let available = AVAILABLE.iter().filter_map(|name| field(name));
    Some(available.fold(0, u64::saturating_add).saturating_sub(reserve))
}

/// Returns the bytes in the line called `name`.
fn value(line: &str, name: &str) -> Option<u64> {
    let (title, value) = line.split_once(':')?;
    let title = title.split_whitespace().last()?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    (title == name).then(|| kib.checked_mul(1024))?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NODE: &str = "\
Node 1 MemTotal:       320 kB
Node 1 MemFree:        100 kB
Node 1 MemUsed:        220 kB
Node 1 Active:          70 kB
Node 1 Active(file):    20 kB
Node 1 Inactive(file):  10 kB
Node 1 SReclaimable:     5 kB
";

    #[test]
    fn caches_count_and_a_reserve_does_not() {
        assert_eq!(parse(NODE), Some((100 + 20 + 10 + 5 - 10) * 1024));
        let machine = NODE.replace("Node 1 ", "");
        assert_eq!(parse(&machine), parse(NODE));
        assert_eq!(parse("MemTotal: 64 kB\nMemFree: 1 kB\n"), Some(0));
        assert_eq!(parse("MemTotal: 64 kB\n"), None);
        assert_eq!(parse("MemFree: 64 kB\n"), None);
    }

    #[test]
    fn the_nodes_add_up_to_the_machine() {
        let root = Root::recorded(
            "/sys/devices/system/node/node0/meminfo:\n    Node 0 MemTotal: 64 kB\n    Node 0 MemFree: 12 kB\n\
             /sys/devices/system/node/node1/meminfo:\n    Node 1 MemTotal: 64 kB\n    Node 1 MemFree: 22 kB\n\
             /proc/meminfo:\n    MemTotal: 128 kB\n    MemFree: 1 kB\n",
        ).expect("a recording");
        assert_eq!(available(&root, Some(1)), Some(20 << 10));
        assert_eq!(available(&root, None), Some(30 << 10));
        assert_eq!(available(&root, Some(2)), None);
        let flat = Root::recorded("/proc/meminfo:\n    MemTotal: 64 kB\n    MemFree: 3 kB\n")
            .expect("a recording");
        assert_eq!(available(&flat, None), Some(1 << 10));
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "(.|\n|Mem(Total|Free): [0-9]{1,20} kB\n){0,20}") {
            let _ = parse(&text);
        }
    }
}
