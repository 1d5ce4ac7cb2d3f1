//! Facts that CUDA and the system report.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use adit_driver::Controller;
use adit_driver::bus::vfio::HAS_IOMMUFD;
use adit_gpu::internals::{
    self, Doorbells, PartitionKind, Program, ProxyThread, check_dma_buf, check_dma_buf_mapping,
    gdr_is_present, self_test,
};
use adit_gpu::{Device, DoorbellChoice, Gpu, GpuInfo, ProxyOptions, Result, compiler_version};

use super::report::{Row, Verdict};
use crate::human;

/// The number of hardware queues for streams in a GPU.
const STREAM_QUEUES_MAX: u32 = 32;
const IOMMUFD: &str = "/dev/iommu";

/// Rows about the GPU and its driver.
pub(super) fn gpu(gpu: &Result<Arc<Gpu>>) -> Vec<Row> {
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(error) => return vec![Row::missing("GPU", error)],
    };
    let info = gpu.info();
    let (major, minor) = info.compute_capability;
    let version = info.driver_version;
    vec![
        Row::good("GPU", &info.name),
        Row::good("driver", format!("for CUDA {}.{}", version / 1000, version % 1000 / 10)),
        capability((major, minor)),
        Row::good("memory", human::capacity(info.memory_bytes)),
        Row::good("multiprocessors", info.sm_count),
        stream_queues(info),
        partitions(gpu),
        compiler(gpu),
    ]
}

fn capability((major, minor): (u32, u32)) -> Row {
    let value = format!("{major}.{minor}");
    if major >= 8 {
        return Row::good("compute capability", value);
    }
    let why = "the device code is made for 8.0 and later";
    Row::bad("compute capability", Verdict::Missing, value, why, "use an A100 or a later GPU")
}

/// Describes the hardware queues that streams share: two streams of one queue wait for each other's kernels.
fn stream_queues(info: &GpuInfo) -> Row {
    let name = "stream queues";
    let count = info.attributes.connections;
    if count >= STREAM_QUEUES_MAX {
        return Row::good(name, count);
    }
    let why = "with more streams than these, one may wait behind a kernel that does not end";
    let fix = "start the program with CUDA_DEVICE_MAX_CONNECTIONS=32";
    Row::bad(name, Verdict::Warning, count, why, fix)
}

fn partitions(gpu: &Arc<Gpu>) -> Row {
    let name = "green contexts";
    match internals::partition(gpu, 8).kind {
        PartitionKind::Green => Row::good(name, "yes"),
        PartitionKind::Priority { why } => {
            let value = "no: I/O and computing share multiprocessors by priority";
            Row::warning(
                name,
                value,
                &why,
                "use a GPU and a driver with green contexts (CUDA 12.5)",
            )
        }
    }
}

/// Describes NVRTC, and whether it compiles the device code for this GPU.
fn compiler(gpu: &Arc<Gpu>) -> Row {
    let made = compiler_version().and_then(|version| Program::load(gpu).map(|_| version));
    Row::of("NVRTC", &made, |(major, minor)| {
        format!("{major}.{minor}, compiles the device code for this GPU")
    })
}

/// Rows about sharing memory and registers.
pub(super) fn system(gpu: Option<&Arc<Gpu>>, controller: Option<&Arc<Controller>>) -> Vec<Row> {
    let is_there = |_: &()| "yes".to_owned();
    let mut rows = Vec::new();
    if let Some(gpu) = gpu {
        let info = gpu.info();
        rows.extend([
            Row::of("dma-buf", &check_dma_buf(&info.attributes), is_there),
            Row::of("dma-buf mapping", &check_dma_buf_mapping(&info.attributes), is_there),
            host_register(info),
            ordering(info),
            peer_access(info),
            flushing(info),
            has(
                info.attributes.unified_addressing,
                "unified addressing",
                "the GPU has addresses of its own",
                "use a GPU and a driver for 64-bit Linux, which share the process's",
            ),
        ]);
    }
    rows.push(Row::of("gdrdrv", &gdr_is_present(), is_there));
    rows.push(match controller {
        Some(controller) if !is_vfio(controller) => {
            Row::good("iommufd", format!("not needed for {}", controller.info().device))
        }
        _ => iommufd(Path::new(IOMMUFD), HAS_IOMMUFD),
    });
    rows
}

fn has(has: bool, name: &'static str, why: &str, fix: &str) -> Row {
    if has { Row::good(name, "yes") } else { Row::bad(name, Verdict::Missing, "no", why, fix) }
}

fn host_register(info: &GpuInfo) -> Row {
    let there = info.attributes.host_register && info.attributes.can_map_host_memory;
    let why = "the GPU does not register host memory";
    has(there, "host registration", why, "use a GPU and a driver that do; rings need it")
}

/// Describes whether the GPU sees a device's data before the completion that announces it.
fn ordering(info: &GpuInfo) -> Row {
    let value = info.attributes.rdma_writes_ordering;
    if info.attributes.orders_writes() {
        return Row::good("write ordering", "devices' writes are seen in order");
    }
    let why =
        "a completion may be seen before the data in the GPU's memory, wherever its ring lies";
    let fix = "let streams wait (wait_cqe), which flush; kernels that wait themselves need the pool in host memory";
    Row::warning("write ordering", format!("none ({value})"), why, fix)
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

/// Describes whether PCIe devices can access the GPU's memory, including memory allocated in granules.
fn peer_access(info: &GpuInfo) -> Row {
    let (name, attributes) = ("PCIe access", &info.attributes);
    let (all, granules) = (attributes.gpu_direct_rdma, attributes.vmm_rdma);
    let value = format!("gpu_direct_rdma {}, vmm_rdma {}", yes(all), yes(granules));
    if all && granules {
        return Row::good(name, value);
    }
    let why = "PCIe devices do not reach this GPU's memory, or none that can be exported";
    let fix = "use a data-centre or workstation GPU, on the machine itself or passed to it whole";
    Row::warning(name, value, why, fix)
}

/// Describes how devices' writes become visible to the GPU, if they are not by themselves.
fn flushing(info: &GpuInfo) -> Row {
    let (name, attributes) = ("flushing", &info.attributes);
    let how = ["none", "call", "stream", "call and stream"][attributes.flush_writes as usize & 3];
    let value = format!("stream_flush {}, flush_writes {how}", yes(attributes.stream_flush));
    if attributes.orders_writes() || (attributes.stream_flush && attributes.flush_writes & 1 != 0) {
        return Row::good(name, value);
    }
    let why = "data in the GPU's memory cannot be flushed behind their completions";
    let fix = "keep the pool in host memory";
    Row::warning(name, value, why, fix)
}

/// Returns whether a controller is a PCIe function behind an IOMMU; others need none.
pub(super) fn is_vfio(controller: &Controller) -> bool {
    controller.info().device.starts_with("vfio:")
}

/// Linux 6.19 has the first iommufd that takes dma-bufs (the kernel's drivers/vfio/pci/vfio_pci_dmabuf.c).
const DMA_BUFS: &str = "no stock kernel imports CUDA's dma-bufs: before 6.19 iommufd imports none, and from then on those of vfio-pci alone (EOPNOTSUPP)";
const ANOTHER_WAY: &str =
    "take the mapped dma-buf (CUDA driver 13.3) or gdrdrv, over a VFIO container";

/// Describes whether this process may use iommufd.
pub(super) fn iommufd(path: &Path, is_built_in: bool) -> Row {
    if !is_built_in {
        let why = format!("built without --features iommufd, and {DMA_BUFS}");
        return Row::bad("iommufd", Verdict::Missing, "no", why, ANOTHER_WAY);
    }
    let opened = File::options().read(true).write(true).open(path);
    let error = match opened {
        // Opening tells nothing of dma-bufs; the way to memory tries one.
        Ok(_) => return Row::warning("iommufd", "yes", DMA_BUFS, ANOTHER_WAY),
        Err(error) => error,
    };
    let fix = if path.exists() {
        format!("let this user open {}", path.display())
    } else {
        "use a kernel with CONFIG_IOMMUFD; a VFIO container does without".to_owned()
    };
    Row::bad("iommufd", Verdict::Missing, "no", format!("{}: {error}", path.display()), fix)
}

/// Describes how a device's doorbells would be rung.
pub(super) fn doorbells(gpu: &Arc<Gpu>, device: &Device) -> (Row, Option<&'static str>) {
    const NAME: &str = "doorbells";
    let chosen = Program::load(gpu).and_then(|program| {
        let proxy = || ProxyThread::start(gpu, &ProxyOptions::default());
        let mapped = Doorbells::mapped(gpu, &device.controller);
        self_test::choose(mapped, (gpu, &program), device, DoorbellChoice::Auto, proxy)
    });
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(error) => return (Row::missing(NAME, &error), None),
    };
    let way = chosen.doorbells.name();
    let row = match chosen.why_not_mapped {
        None => Row::good(NAME, "mapped for the GPU: a command that it rang came back"),
        Some(why) => Row::by(NAME, Verdict::Warning, "by proxy: a thread rings them", &why),
    };
    (row, Some(way))
}
