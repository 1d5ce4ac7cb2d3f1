//! Guests with devices that fail, hang or disappear, and with processes that do. The driver reports what
//! happened and why, ends or continues as requested, and frees memory only once the device cannot reach it.
//! QEMU completes transfers that its IOMMU refused with success, so every case checks the guest's kernel log
//! for refusals.

use super::case::{Case, good, interrupted, refused, verified};
use super::shapes::BY_SGL;

/// A port from which a controller can be unplugged.
const PORT: &str = "-device pcie-root-port,id=rp0,slot=1,chassis=1";
/// A separate block device, to be put under another.
const FILE: &str = r#"-blockdev {"driver":"file","node-name":"file","filename":"{image}"}"#;

/// Reads and writes until it is ended, and shows progress.
macro_rules! load {
    ($target:literal, $more:expr) => {
        concat!(
            "adit bench --filename=",
            $target,
            " --rw=randrw --bs=16k --iodepth=8 --size=64M --time_based --eta=always ",
            // Of an option given twice the last counts.
            $more
        )
    };
}

/// Starts `$load` in the background, runs `$then` once I/Os have completed, and waits for its end.
macro_rules! under_load {
    ($load:expr, $then:literal) => {
        concat!(
            // Clear an earlier step's output.
            ": >/tmp/said; ",
            $load,
            " >/tmp/said 2>&1 & load=$!\n",
            "until grep -q '\\[r=' /tmp/said; do sleep 0.1; done\n",
            $then,
            "\nwait $load; code=$?; cat /tmp/said; exit $code"
        )
    };
}

/// Resets the controller under a load that continues afterwards, and verifies everything the load wrote.
macro_rules! reset_under_load {
    ($target:literal, $more:literal) => {
        under_load!(
            load!($target, concat!("--runtime=4 --verify=crc32c --recover ", $more)),
            "echo 1 >/sys/bus/pci/devices/${TARGET_0#vfio:}/reset"
        )
    };
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "unplug",
        guest: &[
            "--qemu-arg",
            PORT,
            "--nvme",
            "bus=rp0",
            "--nvme",
            "mdts=7",
            "--qmp",
            "[r= => device_del nvme0",
            "--qmp",
            r#"event DEVICE_DELETED "device":"nvme0""#,
        ],
        steps: &[
            refused(
                load!("{0}", "--runtime=60 --recover --numjobs=2"),
                &["the system asks for the device to be released", "recoveries=0"],
            ),
            // The kernel repeats its request every ten seconds. Once the device is gone from the kernel, its
            // hot-plug driver cuts the slot's power and waits a second before it turns the slot's light off;
            // only that lets QEMU remove the device. A guest that ended earlier would lose the event.
            good(
                "while [ -e /sys/bus/pci/devices/${TARGET_0#vfio:} ]; do sleep 0.1; done; sleep 3\n\
                 echo asked $(dmesg | grep -c 'Relaying device request to user') time",
                &["asked 1 time"],
            ),
            refused("adit identify {0}", &["no such PCI device"]),
            verified!("{1}", BY_SGL),
        ],
    },
    Case {
        name: "link-loss",
        guest: &[
            "--qemu-arg",
            PORT,
            "--nvme",
            "bus=rp0",
            "--qmp",
            "[r= => pcie_aer_inject_error rp0 DLP",
            "--qmp",
            "(second): [ => pcie_aer_inject_error rp0 DLP",
        ],
        steps: &[
            good(
                load!(
                    "{0}",
                    "--runtime=4 --verify=crc32c --recover --numjobs=2 --offset_increment=64M --group_reporting"
                ),
                &["error that it cannot correct (AER)", "err= 0", "recoveries=1"],
            ),
            refused(
                "adit bench --name=second --filename={0} --rw=randread --iodepth=8 --time_based --runtime=60 --eta=always",
                &["out of service: the bus reported an error that it cannot correct (AER)"],
            ),
            verified!("{0}", BY_SGL),
        ],
    },
    Case {
        name: "reset-under-load",
        guest: &["--nvme", "mdts=7,cmb_size_mb=64"],
        steps: &[
            // The kernel first disables bus mastering. QEMU's controller then reads its shadow doorbells as 0
            // and processes the queue to its end; from a queue in its own memory it takes old commands again,
            // and writes zeroes for data it cannot read. So use either shadows or such a queue, not both.
            // One of these writes at a time has memory for its data: others wait for it, outlive the reset, and
            // overwrite what was sent again. So one command at a time is in such a queue.
            good(
                reset_under_load!("{0},queues=cmb,dbbuf=off", "--iodepth=1"),
                &["another agent reset it", "err= 0", "recoveries=1"],
            ),
            good(
                reset_under_load!("{0}", "--numjobs=2 --offset_increment=64M --group_reporting"),
                &["another agent reset it", "err= 0", "recoveries=1"],
            ),
            refused(
                under_load!(
                    load!("{0}", "--runtime=60"),
                    "echo 1 >/sys/bus/pci/devices/${TARGET_0#vfio:}/reset"
                ),
                &["out of service: it is no longer ready (CSTS.RDY): another agent reset it"],
            ),
            verified!("{0}", BY_SGL),
        ],
    },
    Case {
        name: "stuck-command",
        guest: &[
            "--qemu-arg",
            FILE,
            "--qemu-arg",
            r#"-blockdev {"driver":"blkdebug","node-name":"stops","image":"file"}"#,
            "--qemu-arg",
            r#"-blockdev {"driver":"raw","node-name":"disk","file":"stops"}"#,
            "--nvme",
            "mdts=7;drive=disk",
            "--qmp",
            r#"[r= => qemu-io disk "break read_aio A""#,
            // Deleting a queue with a suspended request would stop all of QEMU.
            "--qmp",
            r#"abort sent => qemu-io disk "resume A""#,
        ],
        // One read exceeds its deadline, completes late, and has the right data.
        steps: &[good(
            load!("{0}", "--runtime=12 --verify=crc32c --io_timeout=4"),
            &[
                "is overdue; abort sent",
                "err= 0",
                ">=2000=",
                "aborts=1",
                "recreated=0",
                "violations=0",
            ],
        )],
    },
    Case {
        name: "slow-command",
        guest: &[
            "--qemu-arg",
            "-blockdev driver=null-co,node-name=slow,size=1073741824,read-zeroes=on,latency-ns=4000000000",
            "--nvme",
            "mdts=7;nsid=1;drive=slow,nsid=2",
        ],
        steps: &[
            refused(
                "adit bench --filename={0},ns=2 --rw=randwrite --iodepth=4 --size=1M --io_timeout=1 --continue_on_error=io",
                &[
                    "is overdue; abort sent; CAP 0x",
                    "outlived its abort; deleting the queue; CAP 0x",
                    "out of service: a command on I/O queue 1 outlived its abort, though the queue had just been recreated; CAP 0x",
                    "data may have been written",
                    "Reset=",
                    "recreated=1",
                ],
            ),
            good(
                "adit bench --filename={0},ns=2 --rw=read --iodepth=4 --size=16k",
                &["err= 0", ">=2000=100.00%"],
            ),
            verified!("{0},ns=1", BY_SGL),
        ],
    },
    Case {
        name: "media-errors",
        guest: &[
            "--qemu-arg",
            FILE,
            "--qemu-arg",
            concat!(
                r#"-blockdev {"driver":"blkdebug","node-name":"ill","image":"file","inject-error":["#,
                r#"{"event":"none","iotype":"read","errno":5,"once":true,"sector":16},"#,
                r#"{"event":"none","iotype":"write","errno":28,"once":true,"sector":24},"#,
                r#"{"event":"none","iotype":"write","errno":5,"once":true,"sector":4096}]}"#
            ),
            "--nvme",
            "mdts=7;drive=ill",
        ],
        steps: &[
            good(
                "adit bench --filename={0} --rw=read --iodepth=4 --size=1M --continue_on_error=io",
                &[
                    "Read at offset 8192 failed: Unrecovered Read Error",
                    "errors    : total=1, first_error=5",
                    "Unrecovered Read Error=1",
                    "issued rwts: total=255,",
                ],
            ),
            refused(
                "adit bench --filename={0} --rw=write --size=1M",
                &["Write at offset 12288 failed: Write Fault"],
            ),
            good(
                "adit bench --filename={0} --rw=write --offset=2M --size=1M --verify=crc32c --retries=1",
                &["err= 0", "retries=1,", "issued rwts: total=256,256"],
            ),
            verified!("{0}", BY_SGL),
        ],
    },
    Case {
        name: "dma-fault",
        guest: &["--nvme", "mdts=7", "--example", "stray_dma", "--allow-dmar"],
        steps: &[
            // QEMU's controller reports success for a read that reached no memory.
            good(
                "stray_dma {0}",
                &[
                    "a read to the unmapped device address 0x40dead0000",
                    "a read to memory of our own",
                ],
            ),
            verified!("{0}", BY_SGL),
            good(
                // One transfer may be refused, and logged, in two pieces.
                "dmesg | grep 'DMAR:.*fault addr'\n\
                 echo $(dmesg | grep 'DMAR:.*fault addr' | grep -vc 0x40dead0000) other addresses",
                &[
                    "DMA Write",
                    "fault addr 0x40dead0000 [fault reason 0x05]",
                    "\n0 other addresses",
                ],
            ),
        ],
    },
    Case {
        name: "health-warnings",
        guest: &[
            "--nvme",
            "mdts=7",
            "--qmp",
            "first warning => qom-set /machine/peripheral/nvme0 smart_critical_warning 4",
            "--qmp",
            "second warning => qom-set /machine/peripheral/nvme0 smart_critical_warning 12",
        ],
        steps: &[
            interrupted(
                under_load!(
                    load!("{0}", "--runtime=60"),
                    "echo first warning; until grep -q 'reliability is degraded$' /tmp/said; do sleep 0.1; done\n\
                     echo second warning; until grep -q 'all media are read only$' /tmp/said; do sleep 0.1; done\n\
                     kill -INT $load"
                ),
                &["health: ", "reliability is degraded, all media are read only", "err= 0"],
            ),
            good("adit identify {0} | grep Warnings", &["0x0c"]),
        ],
    },
    Case {
        name: "namespace-events",
        guest: &[
            "--qemu-arg",
            "-device nvme-subsys,id=sub",
            "--nvme",
            "subsys=sub,serial=one;nsid=1;nsid=2",
            "--nvme",
            "subsys=sub,serial=one;none",
            "--example",
            "attach_namespace",
        ],
        steps: &[
            interrupted(
                under_load!(
                    load!("{0},ns=1", "--runtime=60"),
                    "attach_namespace {1} detach 2 0\n\
                     until grep -q 'namespace 2 is gone' /tmp/said; do sleep 0.1; done\n\
                     attach_namespace {1} attach 2 0\n\
                     until grep -q 'namespace 2 appeared' /tmp/said; do sleep 0.1; done\n\
                     kill -INT $load"
                ),
                &["namespace 2 is gone", "namespace 2 appeared", "err= 0"],
            ),
            refused(
                under_load!(
                    load!("{0},ns=2", "--runtime=60 --continue_on_error=io"),
                    "attach_namespace {1} detach 2 0"
                ),
                // Commands that the controller refuses before its notice arrives may be none.
                &["namespace 2 is gone", "was rejected: LBAs"],
            ),
            verified!("{0},ns=1", BY_SGL),
        ],
    },
    Case {
        name: "in-use-and-killed",
        guest: &["--nvme", "mdts=7"],
        steps: &[
            // The first process is killed with commands in flight; the next one finds the device usable.
            good(
                under_load!(
                    load!("{0}", "--runtime=60"),
                    "adit identify {0}; echo exit code $?; kill -9 $load; wait $load; echo killed; exit"
                ),
                &["in use", "exit code 1", "killed"],
            ),
            verified!("{0}", BY_SGL),
        ],
    },
];
