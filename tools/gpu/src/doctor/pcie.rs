//! PCIe facts: the GPU's window, what lies between it and the controller, links and IOMMU groups.

use std::path::Path;

use adit_driver::Controller;
use adit_gpu::Gpu;

use super::report::Row;
use super::topology::{Relation, Site, bar1_bytes};
use crate::human;

/// Returns everything that sysfs says about the two.
pub(super) fn rows(
    root: &Path,
    gpu: &Gpu,
    controller: Option<&std::sync::Arc<Controller>>,
) -> Vec<Row> {
    let info = gpu.info();
    let mut rows = vec![window(root, &info.pci_address, info.memory_bytes)];
    let ours = Site::find(root, &info.pci_address);
    rows.extend(ours.as_ref().and_then(|site| link("GPU link", site)));
    let Some(controller) = controller else { return rows };
    let Some(address) = controller.locality().pci_address else {
        let device = &controller.info().device;
        rows.push(Row::good("GPU and SSD", format!("{device} is not on this machine's PCIe")));
        return rows;
    };
    rows.extend(pair(ours, Site::find(root, &address)));
    rows
}

/// Returns the rows for a GPU and a drive on PCIe, one of which sysfs may hide.
fn pair(ours: Option<Site>, theirs: Option<Site>) -> Vec<Row> {
    let mut rows: Vec<Row> =
        theirs.as_ref().and_then(|site| link("SSD link", site)).into_iter().collect();
    let hidden = if ours.is_none() { "GPU" } else { "SSD" };
    match ours.zip(theirs) {
        Some((ours, theirs)) => rows.extend([between(&ours, &theirs), translation(&ours, &theirs)]),
        None => rows.push(Row::warning(
            "GPU and SSD",
            "unknown",
            &format!("sysfs does not show the {hidden}"),
            "in a virtual machine or container, look on the host",
        )),
    }
    rows
}

/// Describes how much of the GPU's memory devices can access at a time.
fn window(root: &Path, address: &str, memory_bytes: u64) -> Row {
    let value = |shown| format!("{} of {}", human::capacity(shown), human::capacity(memory_bytes));
    match bar1_bytes(root, address) {
        Some(shown) if shown >= memory_bytes => Row::good("BAR1", value(shown)),
        Some(shown) => Row::warning(
            "BAR1",
            value(shown),
            "devices reach no more of the GPU's memory than that at a time",
            "enable Resizable BAR and 'Above 4G decoding' in the firmware, or keep pools smaller",
        ),
        None => Row::warning(
            "BAR1",
            "unknown",
            "sysfs does not show the GPU's regions",
            "in a virtual machine or container, look on the host",
        ),
    }
}

fn link(name: &'static str, site: &Site) -> Option<Row> {
    let (now, best) = (site.link.as_ref()?, site.link_max.as_ref()?);
    if !site.is_link_degraded() {
        return Some(Row::good(name, now));
    }
    let why = format!("it could be {best}");
    let fix = "an idle GPU lowers its link; under load, look at the slot and the firmware";
    Some(Row::warning(name, now, &why, fix))
}

fn between(ours: &Site, theirs: &Site) -> Row {
    let relation = ours.relation(theirs);
    match relation {
        Relation::Switch | Relation::RootPort => Row::good("GPU and SSD", relation),
        Relation::HostBridge | Relation::Node => Row::warning(
            "GPU and SSD",
            relation,
            "what one sends the other crosses the root complex, which is slower for reads",
            "keep submission rings in host memory, or put both below one switch",
        ),
        Relation::Sockets => Row::warning(
            "GPU and SSD",
            relation,
            "what one sends the other crosses the link between the sockets, which may not carry it at all",
            "use an SSD of the GPU's socket",
        ),
    }
}

fn translation(ours: &Site, theirs: &Site) -> Row {
    let groups =
        |site: &Site| site.iommu_group.map_or("none".to_owned(), |group| group.to_string());
    let value = format!("groups {} and {}", groups(ours), groups(theirs));
    if !theirs.is_translated() || ours.relation(theirs) > Relation::RootPort {
        return Row::good("IOMMU", value);
    }
    let why = "with an IOMMU in between, what the two send each other goes up to the root port all the same (ACS redirect)";
    Row::warning(
        "IOMMU",
        value,
        why,
        "accept the root port's rate, or allow it in the switch's ACS control",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use crate::doctor::fake_sysfs::Tree;

    #[test]
    fn what_lies_between_is_unknown_where_sysfs_hides_one_of_the_two() {
        let tree = Tree::new();
        tree.function("pci0000:00/0000:01:00.0", &[]);
        let site = || Site::find(&tree.0, "0000:01:00.0");
        for (ours, theirs, hidden) in [(None, site(), "GPU"), (site(), None, "SSD")] {
            let rows = pair(ours, theirs);
            let row = rows.last().expect("a row");
            assert_eq!((row.verdict, row.value.as_str()), (Verdict::Warning, "unknown"));
            assert!(row.reason.as_deref().is_some_and(|why| why.ends_with(hidden)), "{row:?}");
        }
    }
}
