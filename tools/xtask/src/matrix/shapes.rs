//! Guests with many shapes of controllers and several kinds of IOMMUs, and refusals.

use super::case::{Case, good, refused, usage, verified};

/// Output of a run with SGLs: transfers of more than two pages without a PRP list.
pub(super) const BY_SGL: &[&str] =
    &["read", "write", "prp lists=0 built+0 prebuilt", "violations=0"];
/// Output of a run with PRPs.
const BY_PRP: &[&str] = &["read", "write", "sgl=0,", "violations=0"];

pub(super) const CASES: &[Case] = &[
    Case {
        name: "identify",
        guest: &["--nvme", "mdts=7,serial=first-flight"],
        steps: &[
            good("adit identify {0}", &["QEMU NVMe Ctrl", "first-flight"]),
            good("adit identify {0} --json", &["{", "QEMU NVMe Ctrl", "first-flight"]),
            good(
                "adit log {0}",
                &[
                    "SMART / Health Information",
                    "Critical Warning",
                    "Firmware Slot Information",
                    "slot 1, 1.0",
                ],
            ),
        ],
    },
    Case {
        name: "mdts-1",
        guest: &["--nvme", "mdts=1"],
        steps: &[
            verified!("{0}", BY_SGL),
            verified!("{0},sgl=off", BY_PRP),
            good(
                "dd if=/dev/urandom of=/tmp/v bs=1000 count=1000 2>/dev/null\n\
                 adit kv format --force {0} && adit kv put {0} k /tmp/v && adit kv get {0} k | cmp - /tmp/v || exit 1\n\
                 for command in check scrub stat tenant info ls; do adit kv $command {0} || exit 1; done\n\
                 adit kv export {0} /tmp/x && adit kv rm {0} k && adit kv import {0} /tmp/x &&\n\
                 adit kv get {0} k | cmp - /tmp/v && echo it came back",
                &["1 object", "it came back"],
            ),
        ],
    },
    Case {
        name: "mdts-5",
        guest: &["--nvme", "mdts=5"],
        steps: &[verified!("{0}", BY_SGL), verified!("{0},sgl=off", BY_PRP)],
    },
    Case {
        name: "mdts-7",
        guest: &["--nvme", "mdts=7"],
        steps: &[
            verified!("{0}", BY_SGL),
            verified!("{0},sgl=off", BY_PRP),
            verified!("{0}", "--bs=512 --iodepth=1 --runtime=2", BY_SGL),
            verified!("{0}", "--bs=1m --iodepth=8", BY_SGL),
        ],
    },
    Case {
        name: "lba-4096",
        guest: &["--nvme", "mdts=7;logical_block_size=4096,physical_block_size=4096"],
        steps: &[verified!("{0}", BY_SGL), verified!("{0},sgl=off", BY_PRP)],
    },
    Case {
        name: "chained-lists",
        guest: &["--nvme", "mdts=0"],
        steps: &[
            verified!("{0},sgl=off", "--bs=4m --iodepth=4", BY_PRP),
            verified!("{0}", "--bs=4m --iodepth=4", BY_SGL),
        ],
    },
    Case {
        name: "cmb-queues",
        guest: &["--nvme", "mdts=7,cmb_size_mb=64"],
        steps: &[
            good("adit identify {0},queues=cmb | grep CMB", &["64.0MiB, in use"]),
            verified!("{0},queues=cmb", BY_SGL),
            verified!("{0}", BY_SGL),
        ],
    },
    Case {
        name: "doorbells",
        guest: &["--nvme", "mdts=7"],
        steps: &[
            good("adit identify {0} | grep Shadow | grep -v not", &["in use"]),
            good("adit identify {0},dbbuf=off | grep Shadow", &["not in use"]),
            verified!("{0}", BY_SGL),
            verified!("{0},dbbuf=off", BY_SGL),
            verified!("{0}", BY_SGL),
        ],
    },
    Case {
        name: "one-io-queue",
        guest: &["--nvme", "max_ioqpairs=1,msix_qsize=2"],
        steps: &[
            verified!("{0}", BY_SGL),
            refused(
                "adit bench --filename={0} --rw=randread --bs=4k --size=1M --numjobs=2",
                &["queue"],
            ),
        ],
    },
    Case {
        name: "two-controllers",
        guest: &["--nvme", "mdts=7", "--nvme", "mdts=5"],
        steps: &[good(
            "adit bench --filename={0} --rw=randrw --bs=16k --iodepth=32 --size=64M --verify=crc32c & first=$!\n\
                 adit bench --filename={1} --rw=randrw --bs=16k --iodepth=32 --size=64M --verify=crc32c & second=$!\n\
                 wait $first && wait $second",
            &["read", "write"],
        )],
    },
    Case {
        name: "namespaces",
        guest: &[
            "--nvme",
            "mdts=7;nsid=1;nsid=2,logical_block_size=4096,physical_block_size=4096;nsid=9,logical_block_size=4096,physical_block_size=4096",
        ],
        steps: &[
            good("adit identify {0}", &["512", "4096", "9"]),
            verified!("{0},ns=1", BY_SGL),
            verified!("{0},ns=2", BY_SGL),
            verified!("{0},ns=9", BY_SGL),
            refused(
                "adit bench --filename={0},ns=5 --rw=read --bs=4k --size=1M",
                &["namespace", "5"],
            ),
        ],
    },
    Case {
        name: "iommu-39-bit",
        guest: &[
            "--iommu",
            "intel-iommu,intremap=on,caching-mode=on,aw-bits=39",
            "--nvme",
            "mdts=7",
        ],
        steps: &[verified!("{0}", BY_SGL), verified!("{0},sgl=off", BY_PRP)],
    },
    Case {
        name: "iommu-amd",
        guest: &["--iommu", "amd-iommu", "--nvme", "mdts=7"],
        steps: &[verified!("{0}", BY_SGL)],
    },
    Case {
        name: "no-hugepages",
        guest: &["--nvme", "mdts=7"],
        steps: &[
            good(
                "echo 0 >/proc/sys/vm/nr_hugepages && grep HugePages_Total /proc/meminfo",
                &[" 0"],
            ),
            verified!("{0}", BY_SGL),
        ],
    },
    Case {
        name: "refused-devices",
        guest: &["--nvme", "mdts=7", "--kernel-nvme", ""],
        steps: &[
            refused("adit identify vfio:0000:00:18.0", &["0000:00:18.0", "nvme", "vfio-pci"]),
            good(
                "basename $(readlink /sys/bus/pci/devices/0000:00:18.0/driver); ls {k0}",
                &["nvme", "/dev/nvme0n1"],
            ),
            refused("adit identify vfio:0000:00:1f.2", &["0000:00:1f.2", "NVMe"]),
            refused("adit identify vfio:0000:00:0f.0", &["0000:00:0f.0"]),
            good(
                "group=$(basename $(readlink /sys/bus/pci/devices/0000:00:10.0/iommu_group))\n\
                 chown user /dev/vfio/$group\n\
                 su user -c 'id -u; adit identify {0}'",
                &["1000", "QEMU NVMe Ctrl"],
            ),
            refused(
                "group=$(basename $(readlink /sys/bus/pci/devices/0000:00:10.0/iommu_group))\n\
                 chown user /dev/vfio/$group\n\
                 su user -c 'ulimit -l 16; adit identify {0}'",
                &["memlock"],
            ),
            good("adit identify {0}", &["QEMU NVMe Ctrl"]),
        ],
    },
    Case {
        name: "usage-errors",
        guest: &["--nvme", "mdts=7"],
        steps: &[
            usage("adit identify vfoi:0000:00:10.0", &["vfoi"]),
            usage("adit identify vfio:0000:00:10", &["0000:00:10"]),
            usage("adit identify {0},sgll=off", &["sgll"]),
            usage("adit identify", &["TARGET", "--help"]),
            usage("adit bench --filename={0} --rw=sideways", &["sideways"]),
            good("adit identify {0}", &["QEMU NVMe Ctrl"]),
        ],
    },
    Case {
        name: "shared-iommu-group",
        guest: &["--nvme", "addr=0x12.0,multifunction=on", "--kernel-nvme", "addr=0x12.1"],
        steps: &[refused("adit identify {0}", &["group", "0000:00:12.1"])],
    },
    Case {
        name: "no-namespace",
        guest: &["--nvme", "mdts=7;none"],
        steps: &[refused("adit bench --filename={0} --rw=read --bs=4k --size=1M", &["namespace"])],
    },
    // Protection information of each type, in separate buffers and at the end of the data, through VFIO and the
    // kernel's passthrough.
    Case {
        name: "protected",
        guest: &[
            "--nvme",
            "mdts=7;nsid=1,logical_block_size=4096,physical_block_size=4096,ms=8,pi=1;\
             nsid=2,logical_block_size=4096,physical_block_size=4096,ms=8,mset=1,pi=2,pil=1;nsid=3,ms=8,pi=3",
            "--kernel-nvme",
            "mdts=7;logical_block_size=4096,physical_block_size=4096,ms=8,pi=1",
        ],
        steps: &[
            good(
                "adit identify {0}",
                &[
                    "8 metadata",
                    "type 1, the controller checks the guard and reference tag",
                    "type 2",
                    "type 3",
                ],
            ),
            good(
                "adit identify {0},ns=2 --json",
                &["\"protection_type\": 2", "\"unusable\": null"],
            ),
            verified!("{0},ns=1", BY_SGL),
            verified!("{0},ns=1,sgl=off", "--bs=1m --iodepth=4", BY_PRP),
            verified!("{0},ns=2", BY_SGL),
            verified!("{0},ns=2,sgl=off", BY_PRP),
            verified!("{0},ns=3", BY_SGL),
            good(
                "adit bench --filename={0},ns=1 --rw=trim --bs=64k --size=16M &&\n\
                 adit bench --filename={0},ns=1 --rw=read --bs=64k --size=32M",
                &["read", "violations=0"],
            ),
            good(
                "adit bench --filename=uring-cmd:{g0} --rw=randrw --bs=16k --iodepth=16 --size=16M --verify=crc32c",
                &["read", "write"],
            ),
            good(
                "adit kv format {0},ns=1 --force && echo hello | adit kv put {0},ns=1 greeting &&\n\
                 adit kv get {0},ns=1 greeting && adit kv check {0},ns=1",
                &["hello"],
            ),
        ],
    },
    Case {
        name: "metadata-format",
        guest: &["--nvme", "mdts=7;logical_block_size=4096,physical_block_size=4096,ms=8,mset=1"],
        steps: &[refused(
            "adit bench --filename={0} --rw=read --bs=4k --size=1M",
            &["metadata", "nvme format", "--pi=1"],
        )],
    },
];
