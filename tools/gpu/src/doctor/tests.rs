//! Reports of machines with everything, something and nothing.

use std::fs;

use super::*;
use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::Nsid;
use adit_driver::{Controller, ControllerOptions};
use adit_gpu::internals::{Endless, Runner};

use super::fake_sysfs::Tree;

fn verdict(report: &Report, name: &str) -> Verdict {
    report.row(name).unwrap_or_else(|| panic!("no row {name} in {report:?}")).verdict
}

/// The emulated GPU, and a software controller.
struct Rig {
    gpu: Arc<Gpu>,
    bus: Arc<SoftBus>,
    device: Device,
}

impl Rig {
    fn new() -> Rig {
        let options = "mem=16M,dbbuf=off".parse().expect("options");
        let bus = SoftBus::new(options, Drive::Thread).expect("a bus");
        let raw = ControllerOptions { shadow_doorbells: false, ..Default::default() };
        let attached = Controller::attach(Arc::<SoftBus>::clone(&bus), &raw);
        let controller = Arc::new(attached.expect("attached"));
        let namespace = controller.namespace(Nsid(1)).expect("a namespace");
        let gpu = Gpu::open(0).expect("the emulated GPU");
        Rig { gpu, bus, device: Device { controller, namespace } }
    }

    /// Checks that no unmapped memory was accessed and nothing stays mapped.
    fn finish(self) {
        drop(self.device);
        assert_eq!((self.bus.dma_faults(), self.bus.mapped_bytes()), (0, 0));
    }
}

#[test]
fn a_machine_with_everything_rings_by_itself() {
    let name = concat!(module_path!(), "::a_machine_with_everything_rings_by_itself");
    adit_gpu_emulated::alone("driver=13030,ordering=100", name, || {
        let rig = Rig::new();
        let report = examine(0, Some(&rig.device));
        assert_eq!((report.path, report.doorbells), (MemoryPath::DmaBufIommufd, Some("mapped")));
        assert_eq!(report.usual(), Some(Usual::Rings));
        let good = [
            "GPU",
            "driver",
            "compute capability",
            "green contexts",
            "NVRTC",
            "dma-buf",
            "dma-buf mapping",
            "gdrdrv",
            "host registration",
            "write ordering",
            "doorbells",
        ];
        for row in good {
            assert_eq!(verdict(&report, row), Verdict::Good, "{row}: {report:?}");
        }
        rig.finish();
    });
}

#[test]
fn each_thing_that_is_missing_has_its_reason_and_its_remedy() {
    let name =
        concat!(module_path!(), "::each_thing_that_is_missing_has_its_reason_and_its_remedy");
    adit_gpu_emulated::alone("no-dma-buf,gdr=absent,no-green,nvrtc=error", name, || {
        let rig = Rig::new();
        let report = examine(0, Some(&rig.device));
        assert_eq!((report.path, report.doorbells), (MemoryPath::PinnedHost, None));
        for row in ["dma-buf", "dma-buf mapping", "gdrdrv", "NVRTC", "doorbells"] {
            assert_eq!(verdict(&report, row), Verdict::Missing, "{row}");
        }
        assert_eq!(verdict(&report, "green contexts"), Verdict::Warning);
        assert_eq!(verdict(&report, "write ordering"), Verdict::Warning);
        let rows = report.sections.iter().flat_map(|section| &section.rows);
        for row in rows.filter(|row| row.verdict != Verdict::Good) {
            assert!(row.reason.is_some() && row.fix.is_some(), "{row:?}");
        }
        rig.finish();
    });
}

#[test]
fn without_a_way_to_gpu_memory_cpu_threads_stage_unless_rings_in_host_memory_are_asked_for() {
    let name = concat!(
        module_path!(),
        "::without_a_way_to_gpu_memory_cpu_threads_stage_unless_rings_in_host_memory_are_asked_for"
    );
    adit_gpu_emulated::alone("no-dma-buf,gdr=absent", name, || {
        let rig = Rig::new();
        let report = examine(0, Some(&rig.device));
        assert_eq!((report.path, report.doorbells), (MemoryPath::PinnedHost, Some("mapped")));
        assert_eq!((report.obstacle(), report.usual()), (None, Some(Usual::Staged)));
        assert_eq!(examine(0, None).usual(), None);
        rig.finish();
    });
}

#[test]
fn without_registered_memory_nothing_is_staged() {
    let name = concat!(module_path!(), "::without_registered_memory_nothing_is_staged");
    adit_gpu_emulated::alone("host-register=refused", name, || {
        let rig = Rig::new();
        for device in [None, Some(&rig.device)] {
            let report = examine(0, device);
            let obstacle = report.obstacle().map(|row| row.name);
            assert_eq!(
                (obstacle, report.usual()),
                (Some("host registration"), Some(Usual::CpuOnly))
            );
        }
        rig.finish();
    });
}

#[test]
fn nothing_is_tried_beside_rings_whose_persistent_kernel_runs() {
    let name =
        concat!(module_path!(), "::nothing_is_tried_beside_rings_whose_persistent_kernel_runs");
    adit_gpu_emulated::alone("", name, || {
        let rig = Rig::new();
        let running = Endless::begin(&rig.gpu, Runner::Rings).expect("nothing is made");
        let report = examine(0, Some(&rig.device));
        for row in ["dma-buf through iommufd", "pinned host memory", "doorbells"] {
            let row = report.row(row).expect("a row for each");
            assert!(row.reason.as_deref().is_some_and(|why| why.contains("persistent")), "{row:?}");
            assert_eq!(row.fix.as_deref(), Some("stop the other rings first"));
        }
        drop(running);
        let report = examine(0, Some(&rig.device));
        assert_eq!(verdict(&report, "doorbells"), Verdict::Good);
    });
}

#[test]
fn a_machine_with_nothing_has_the_cpu() {
    let name = concat!(module_path!(), "::a_machine_with_nothing_has_the_cpu");
    adit_gpu_emulated::alone("gpus=0", name, || {
        let report = examine(0, None);
        assert_eq!((report.path, report.doorbells), (MemoryPath::CpuOnly, None));
        assert_eq!(verdict(&report, "GPU"), Verdict::Missing);
    });
}

#[test]
fn a_controller_with_shadow_doorbells_says_how_to_open_it() {
    adit_gpu_emulated::load();
    let target: adit_driver::Target = "soft:mem=16M,dbbuf=on".parse().expect("a target");
    let controller = Arc::new(Controller::open(&target, &Default::default()).expect("open"));
    let namespace = controller.namespace_of(&target).expect("it has one");
    let report = examine(0, Some(&Device { controller, namespace }));
    let row = report.row("doorbells").expect("a row");
    assert_eq!((row.verdict, report.doorbells), (Verdict::Missing, None));
    let said = row.reason.as_deref().expect("a reason");
    assert!(said.contains("dbbuf=off"), "{said}");
}

#[test]
fn a_small_window_and_a_slow_link_are_warned_of() {
    adit_gpu_emulated::load();
    let gpu = Gpu::open(0).expect("the emulated GPU");
    let address = &gpu.info().pci_address;
    let (tree, none) = (Tree::new(), "0x0 0x0 0x0\n");
    let window = "0x00000000c0000000 0x00000000cfffffff 0x000000000014220c\n";
    let path = format!("pci0000:3a/{address}");
    tree.function(
        &path,
        &[
            ("resource", &[none, window, none].concat()),
            ("current_link_speed", "8.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("max_link_width", "16"),
        ],
    );
    let report = examine_below(&tree.0, 0, None);
    let row = report.row("BAR1").expect("a row");
    assert_eq!((row.value.as_str(), row.verdict), ("256MiB of 16GiB", Verdict::Warning));
    assert!(row.fix.as_deref().is_some_and(|fix| fix.contains("Resizable BAR")));
    assert_eq!(verdict(&report, "GPU link"), Verdict::Warning);
}

#[test]
fn a_kernel_without_iommufd_is_told_from_one_that_refuses() {
    let tree = Tree::new();
    let path = tree.0.join("iommu");
    let row = facts::iommufd(&path, true);
    assert!(row.fix.as_deref().is_some_and(|fix| fix.contains("CONFIG_IOMMUFD")), "{row:?}");
    fs::create_dir(&path).expect("a directory");
    let row = facts::iommufd(&path, true);
    assert!(row.fix.as_deref().is_some_and(|fix| fix.contains("let this user open")), "{row:?}");
    let file = tree.0.join("file");
    fs::write(&file, "").expect("a file");
    let row = facts::iommufd(&file, true);
    assert_eq!((row.value.as_str(), row.verdict), ("yes", Verdict::Warning));
    assert!(row.reason.as_deref().is_some_and(|why| why.contains("before 6.19")), "{row:?}");
    assert!(row.fix.as_deref().is_some_and(|fix| fix.contains("gdrdrv")), "{row:?}");
}

#[test]
fn iommufd_that_is_not_built_in_is_missing_whatever_the_kernel_has() {
    let tree = Tree::new();
    let file = tree.0.join("iommu");
    fs::write(&file, "").expect("a file");
    let row = facts::iommufd(&file, false);
    assert_eq!(row.verdict, Verdict::Missing);
    assert!(row.reason.as_deref().is_some_and(|why| why.contains("--features iommufd")), "{row:?}");
}

#[test]
fn iommufd_is_not_missed_where_the_drive_is_in_software() {
    let name = concat!(module_path!(), "::iommufd_is_not_missed_where_the_drive_is_in_software");
    adit_gpu_emulated::alone("", name, || {
        let rig = Rig::new();
        let report = examine(0, Some(&rig.device));
        let row = report.row("iommufd").expect("a row");
        assert!(row.verdict == Verdict::Good && row.value.contains("not needed"), "{row:?}");
        let row = report.row("dma-buf through iommufd").expect("a row");
        assert_eq!(row.value, "carried data; no IOMMU takes part");
        rig.finish();
    });
}

#[test]
fn what_the_gpu_says_of_itself_is_told_and_what_it_lacks_is_explained() {
    let name = concat!(
        module_path!(),
        "::what_the_gpu_says_of_itself_is_told_and_what_it_lacks_is_explained"
    );
    adit_gpu_emulated::alone("no-rdma", name, || {
        let report = examine(0, None);
        let row = report.row("PCIe access").expect("a row");
        let value = "gpu_direct_rdma no, vmm_rdma no";
        assert_eq!((row.verdict, row.value.as_str()), (Verdict::Warning, value));
        let row = report.row("flushing").expect("a row");
        let value = "stream_flush no, flush_writes none";
        assert_eq!((row.verdict, row.value.as_str()), (Verdict::Warning, value));
        assert_eq!(verdict(&report, "unified addressing"), Verdict::Good);
        adit_gpu_emulated::set("");
        let report = examine(0, None);
        let row = report.row("flushing").expect("a row");
        let value = "stream_flush yes, flush_writes call and stream";
        assert_eq!((row.verdict, row.value.as_str()), (Verdict::Good, value));
        assert_eq!(verdict(&report, "PCIe access"), Verdict::Good);
    });
}

#[test]
fn what_keeps_something_from_working_is_its_reason_and_what_would_change_it_its_remedy() {
    let name = concat!(
        module_path!(),
        "::what_keeps_something_from_working_is_its_reason_and_what_would_change_it_its_remedy"
    );
    adit_gpu_emulated::alone("no-green,nvrtc=error", name, || {
        let report = examine(0, None);
        let row = report.row("NVRTC").expect("a row");
        assert!(row.reason.as_deref().is_some_and(|why| why.contains("; kernels.cu")), "{row:?}");
        assert!(row.fix.as_deref().is_some_and(|fix| fix.starts_with("use NVRTC")), "{row:?}");
        let row = report.row("green contexts").expect("a row");
        assert!(row.fix.as_deref().is_some_and(|fix| fix.contains("CUDA 12.5")), "{row:?}");
    });
}

#[test]
fn doorbells_by_proxy_say_what_would_let_the_gpu_ring() {
    let refused = Error::refused("x", "not permitted", "run with CAP_SYS_ADMIN");
    let row = Row::by("doorbells", Verdict::Warning, "by proxy", &refused);
    assert_eq!(row.reason.as_deref(), Some("not permitted"));
    assert_eq!(row.fix.as_deref(), Some("run with CAP_SYS_ADMIN"));
}
