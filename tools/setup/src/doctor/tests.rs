//! Tests that every link is the first broken one somewhere: on the recorded machines in `tests/trees-broken`,
//! and, for links that touch the device, with a software controller.

use std::collections::BTreeSet;
use std::fs;
use std::sync::LazyLock;

use adit_driver::Target;

use super::patient::Reach;
use super::*;

/// Links that only inform.
const INFORM: [&str; 2] = ["memory", "hugepages"];

/// A recorded machine with one problem.
struct Broken {
    name: String,
    text: String,
}

impl Broken {
    fn all() -> Vec<Broken> {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/trees-broken");
        let files = fs::read_dir(directory).expect("the directory is there").flatten();
        let trees = files.filter(|file| file.path().extension().is_some_and(|end| end == "tree"));
        trees
            .map(|file| Broken {
                name: file.file_name().to_string_lossy().into_owned(),
                text: fs::read_to_string(file.path()).expect("a file that was listed"),
            })
            .collect()
    }

    /// Returns the value of `key` in its header.
    fn says(&self, key: &str) -> &str {
        let line = self.text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("{}: no line '{key}'", self.name)).trim()
    }

    fn first_broken(&self) -> &str {
        self.says("# first broken:")
    }

    fn findings(&self, target: Reach) -> Vec<Finding> {
        let root = Root::recorded(&self.text).expect("a recording");
        let inventory = Inventory::read(&root);
        let device = self.says("# adit setup doctor");
        let device = (!device.is_empty()).then(|| device.parse().expect("an address"));
        walk(&Scene { root: &root, inventory: &inventory, target }, device)
    }
}

/// All such machines with their findings.
static WALKED: LazyLock<Vec<(Broken, Vec<Finding>)>> = LazyLock::new(|| {
    let walked = |tree: Broken| {
        let findings = tree.findings(none);
        (tree, findings)
    };
    Broken::all().into_iter().map(walked).collect()
});

fn whole() -> Broken {
    Broken::all().into_iter().find(|tree| tree.first_broken() == "none").expect("there is one")
}

fn none(_: &Root, _: &str) -> Option<Target> {
    None
}

fn soft(options: &str) -> Option<Target> {
    Some(format!("soft:mem=8M{options}").parse().expect("a target"))
}

/// Faults that make each link that touches the device the first broken one; the fault plan lets earlier
/// commands pass.
const TOUCHING: [(&str, Reach); 3] = [
    ("open", |_, _| soft(",faults=status(0:6)@identify:n=1")),
    // The list of namespaces is the first Identify after the controller's own.
    ("identify", |_, _| soft(",faults=status(0:6)@identify:n=2")),
    ("read", |_, _| soft(",faults=status(2:81)@read:lba=0")),
];

#[test]
fn each_machine_is_told_its_first_broken_link_and_nothing_after_it() {
    for (tree, findings) in WALKED.iter() {
        let broken = first_broken(findings).map_or("none", |finding| finding.name);
        assert_eq!(broken, tree.first_broken(), "{}: {findings:?}", tree.name);
        let count = findings.iter().filter(|finding| finding.outcome.is_broken()).count();
        let last = findings.last().expect("at least one link");
        assert!(count == 0 || (count == 1 && last.outcome.is_broken()), "{}", tree.name);
    }
}

#[test]
fn whatever_is_broken_has_a_remedy() {
    for (tree, findings) in WALKED.iter() {
        for finding in findings {
            if let LinkState::Broken { why, remedy } = &finding.outcome {
                assert!(!why.is_empty() && !remedy.advice.is_empty(), "{}", tree.name);
                // No command fixes what only the firmware can.
                let by_hand = tree.name == "behind-vmd.tree";
                assert_eq!(remedy.commands.is_empty(), by_hand, "{}", tree.name);
            }
        }
    }
}

#[test]
fn each_link_is_somewhere_the_first_that_is_broken() {
    let trees = Broken::all();
    let mut seen: BTreeSet<&str> = trees.iter().map(Broken::first_broken).collect();
    seen.extend(TOUCHING.map(|(name, _)| name));
    let host = host::links().map(|link| link.name);
    let device = device::links().map(|link| link.name);
    for name in host.into_iter().chain([device::DEVICE]).chain(device) {
        assert!(seen.contains(name) != INFORM.contains(&name), "{name}");
    }
}

#[test]
fn a_device_that_does_not_do_its_part_is_told_by_the_link() {
    let tree = whole();
    for (name, target) in TOUCHING {
        let findings = tree.findings(target);
        let broken = first_broken(&findings).map(|finding| finding.name);
        assert_eq!(broken, Some(name), "{findings:?}");
    }
}

#[test]
fn a_device_that_does_is_walked_to_the_read() {
    let findings = whole().findings(|_, _| soft(",lba=4096"));
    let last = findings.last().expect("links");
    let read = LinkState::Holds("LBA 0 of namespace 1, 4096 bytes".to_owned());
    assert_eq!((last.name, &last.outcome), ("read", &read));
    assert!(findings.iter().all(|finding| matches!(finding.outcome, LinkState::Holds(_))));
}

#[test]
fn each_bound_device_is_walked_when_none_is_named() {
    let mut tree = whole();
    tree.text = tree.text.replace("# adit setup doctor 0000:01:00.0", "# adit setup doctor");
    let findings = tree.findings(none);
    let devices: BTreeSet<&str> =
        findings.iter().filter_map(|finding| finding.device.as_deref()).collect();
    assert_eq!(devices, BTreeSet::from(["0000:01:00.0"]), "the one that vfio-pci has");
}

#[test]
fn no_command_is_given_for_a_broken_link_twice() {
    for (_, findings) in WALKED.iter() {
        let text = as_text(findings);
        let commands: Vec<&str> =
            text.lines().filter(|line| line.starts_with("         ")).collect();
        let unique: BTreeSet<&&str> = commands.iter().collect();
        assert_eq!(unique.len(), commands.len(), "{text}");
    }
}
