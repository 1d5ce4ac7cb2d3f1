//! Guests that run `adit bench` on every path to the same kind of drive: an ext4 file, io_uring, NVMe
//! passthrough and VFIO, side by side; its refusals to overwrite; its end when a drive disappears, the user
//! interrupts or a disk is full; and fio on the same kernel paths, alternating with it.
//!
//! Timings in a guest are ratios at best, so no case fails for being slow.

use super::case::{Case, good, interrupted, refused, usage};

/// Provides file systems and job files.
macro_rules! guest {
    ($($more:expr),*) => {
        &["--module", "ext4", "--module", "crc32c_generic", "--with", "mkfs.ext4", $($more),*]
    };
}

/// Runs `$job` in the background until it has completed I/Os, runs `$then`, waits for the job's end, and shows
/// its output.
macro_rules! under_way {
    ($job:expr, $then:literal) => {
        concat!(
            // Clear an earlier step's output.
            ": >/tmp/said; ",
            $job,
            " --time_based --runtime=60 --eta=always >/tmp/said 2>&1 & job=$!\n",
            "until grep -q '\\[r=' /tmp/said; do kill -0 $job || break; sleep 0.1; done\n",
            $then,
            "\nwait $job; code=$?; cat /tmp/said; exit $code"
        )
    };
}

/// Random writes that are read back and verified.
macro_rules! verified {
    ($target:literal) => {
        good(
            concat!(
                "adit bench --name=verified --filename=",
                $target,
                " --rw=randrw --bs=16k --iodepth=16 --size=16M --verify=crc32c"
            ),
            &["err= 0", "read:", "write:"],
        )
    };
}

/// A job that writes 1 MiB.
macro_rules! writes {
    ($target:literal) => {
        writes!($target, "")
    };
    ($target:literal, $more:literal) => {
        concat!(
            "adit bench --name=overwrites --filename=",
            $target,
            " --rw=write --bs=64k --size=1M ",
            $more
        )
    };
}

/// Runs fio and `adit bench` alternately, three times; both must run, and their results are shown.
macro_rules! in_turn {
    ($target:literal, $fio:literal) => {
        good(
            concat!(
                "job='--name=j --rw=randread --bs=4k --iodepth=32 --size=256M --time_based --runtime=1 --minimal --eta=never'\n",
                "set -o pipefail; for round in 1 2 3; do\n",
                "fio $job ",
                // fio accepts an engine's options only after the engine.
                $fio,
                " --fixedbufs --registerfiles --norandommap | cut -d';' -f8 >>/tmp/fio.iops || exit\n",
                "adit bench $job --norandommap --filename=",
                $target,
                " | cut -d';' -f8 >>/tmp/adit.iops || exit\n",
                "done\n",
                "median() { sort -n $1 | sed -n 2p; }; fio=$(median /tmp/fio.iops); adit=$(median /tmp/adit.iops)\n",
                "rm /tmp/fio.iops /tmp/adit.iops\n",
                "echo TOLD ",
                $target,
                ": fio $fio IOPS, adit $adit IOPS, ratio $(awk \"BEGIN { print $adit / $fio }\")\n",
                "[ $fio -gt 0 ] && [ $adit -gt 0 ]"
            ),
            &["ratio "],
        )
    };
}

/// The refusal because of the first drive's file system.
const EXT4: &[&str] = &["nvme0n1 holds a signature of ext4", "--allow-destroy"];
/// The refusal while that is mounted.
const MOUNTED: &[&str] = &["nvme0n1 is mounted at /mnt (ext4)", "--allow-destroy"];

pub(super) const CASES: &[Case] = &[PATHS, REFUSALS, ENDS, FIO];

/// Four equal drives, each reached by another path.
const PATHS: Case = Case {
    name: "bench-paths",
    guest: guest!(
        "--copy",
        "benches/jobs",
        "--kernel-nvme",
        "mdts=7",
        "--kernel-nvme",
        "mdts=7",
        "--kernel-nvme",
        "mdts=7",
        "--nvme",
        "mdts=7"
    ),
    steps: &[
        good(
            "modprobe ext4 && mkfs.ext4 -q {k0} && mkdir /mnt && mount -t ext4 {k0} /mnt && dd if=/dev/zero of=/mnt/file bs=1M count=64 2>/dev/null && ls {k1} {g2}",
            &["/dev/nvme", "/dev/ng"],
        ),
        good(
            "sed -e 's/^runtime=.*/runtime=1/' -e 's/^ramp_time=.*/ramp_time=0/' -e 's/^size=.*/size=64m/' jobs/paths.fio >/tmp/short.fio\n\
             adit bench /tmp/short.fio --targets uring:/mnt/file,uring:{k1},uring-cmd:{g2},{0} --rounds 2 \
             --output-format=normal,json --output=/tmp/out; code=$?; cat /tmp/out | head -c 6000; exit $code",
            &["uring:/mnt/file", "uring:/dev/nvme", "uring-cmd:/dev/ng", "vfio:0000:00:10.0"],
        ),
        good(
            "echo $(grep -c '\"error\"' /tmp/out) results, $(grep '\"error\"' /tmp/out | grep -vc ': *0,') with an error\n\
             for target in uring:/mnt/file uring:{k1} uring-cmd:{g2} {0}; do grep -q \"\\\"$target\\\"\" /tmp/out || echo no $target; done",
            &[" results, 0 with an error\n"],
        ),
        verified!("uring:/mnt/file"),
        verified!("uring:{k1}"),
        verified!("uring-cmd:{g2}"),
        verified!("psync:{k1}"),
        verified!("mmap:{k1}"),
        verified!("{0}"),
    ],
};

/// A file system, mounted and unmounted, seen by each path; a read-only drive; contradictory options.
const REFUSALS: Case = Case {
    name: "bench-refusals",
    guest: guest!("--kernel-nvme", "", "--kernel-nvme", "", "--nvme", ""),
    steps: &[
        good(
            "modprobe ext4 && mkfs.ext4 -q {k0} && mkdir /mnt && mount -t ext4 {k0} /mnt &&\n\
             dd if=/dev/urandom of=/mnt/kept bs=1M count=8 2>/dev/null && sha256sum /mnt/kept >/tmp/sum",
            &[],
        ),
        usage(writes!("uring:{k0}"), MOUNTED),
        usage(writes!("psync:{k0}"), MOUNTED),
        usage(writes!("mmap:{k0}"), MOUNTED),
        usage(writes!("uring-cmd:{g0}"), MOUNTED),
        usage(
            "adit bench --name=t --filename=uring:{k0} --rw=randtrim --bs=64k --size=1M",
            MOUNTED,
        ),
        good("adit bench --name=r --filename=uring:{k0} --rw=read --bs=64k --size=1M", &["err= 0"]),
        usage(writes!("uring:/mnt/new", "--readonly"), &["--readonly"]),
        good(
            "umount /mnt && mount -t ext4 {k0} /mnt && sha256sum -c /tmp/sum && ls /mnt/new; umount /mnt",
            &["/mnt/kept: OK", "/mnt/new: No such file"],
        ),
        usage(writes!("uring:{k0}"), EXT4),
        usage(writes!("uring-cmd:{g0}"), EXT4),
        good(
            "B=0000:00:18.0; modprobe vfio-pci; echo $B >/sys/bus/pci/devices/$B/driver/unbind\n\
             echo vfio-pci >/sys/bus/pci/devices/$B/driver_override; echo $B >/sys/bus/pci/drivers_probe",
            &[],
        ),
        usage(
            writes!("vfio:0000:00:18.0"),
            &["vfio:0000:00:18.0", "holds a signature of ext4", "--allow-destroy"],
        ),
        good(writes!("vfio:0000:00:18.0", "--allow-destroy"), &["ext4", "OVERWRITTEN", "err= 0"]),
        good(writes!("vfio:0000:00:18.0"), &["err= 0"]),
        usage(
            "blockdev --setro {k1}; adit bench --name=v --filename=uring:{k1} --rw=randwrite --bs=4k --size=1M --verify=md5",
            &["read-only"],
        ),
        usage(
            concat!("blockdev --setrw {k1}; ", writes!("uring:{k1}", "--offset=2G")),
            &["offset=2147483648"],
        ),
        usage("adit bench --name=odd --filename={0} --rw=write --bs=1000 --size=1M", &["512"]),
        // A fresh drive of the kernel's, and of ours, takes a store, which a benchmark does not overwrite, open or not.
        good(
            "for drive in uring:{k1} {0}; do adit kv format $drive && echo hi | adit kv put $drive greeting - || exit 1; done",
            &["uring:/dev/nvme1n1: a store of", "vfio:0000:00:10.0: a store of"],
        ),
        good(
            "adit setup status && adit setup bind --dry-run $(basename $(readlink -f /sys/class/block/nvme1n1/device/device))",
            &["a device of a store of Adit\n", "which stays as it is", "would be bound"],
        ),
        usage(writes!("uring:{k1}"), &["it is a device of a store of Adit", "--allow-destroy"]),
        usage(writes!("uring-cmd:{g1}"), &["it is a device of a store of Adit"]),
        usage(writes!("{0}"), &["it is a device of a store of Adit"]),
        refused(
            "adit kv serve --store uring:{k1} --socket /tmp/kv.sock & server=$!; until [ -S /tmp/kv.sock ]; do usleep 100000; done\n\
             adit bench --name=w --filename=uring:{k1} --rw=write --bs=64k --size=1M --allow-destroy; code=$?\n\
             kill $server; wait $server; exit $code",
            &["another process has it for itself"],
        ),
        good("adit kv get uring:{k1} greeting; adit kv get {0} greeting", &["hi\nhi"]),
        good(
            writes!("uring:{k1}", "--allow-destroy"),
            &["a store of Adit", "OVERWRITTEN", "err= 0"],
        ),
    ],
};

/// Runs that do not reach their end.
const ENDS: Case = Case {
    name: "bench-ends",
    guest: guest!(
        "--qemu-arg",
        "-device pcie-root-port,id=rp0,slot=1,chassis=1",
        "--kernel-nvme",
        "",
        "--kernel-nvme",
        "bus=rp0",
        "--qmp",
        "pull it => device_del kernel1",
        "--qmp",
        r#"event DEVICE_DELETED "device":"kernel1""#
    ),
    steps: &[
        interrupted(
            under_way!(
                "adit bench --name=i --filename=uring:{k0} --rw=randread --bs=4k --iodepth=8",
                "kill -INT $job"
            ),
            &["err= 0", "read: IOPS="],
        ),
        interrupted(
            under_way!(
                "adit bench --name=i --filename=psync:{k0},direct=off --rw=randread --bs=4k",
                "kill -INT $job"
            ),
            &["err= 0", "read: IOPS="],
        ),
        refused(
            "mkdir /full && mount -t tmpfs -o size=64k tmpfs /full && cd /full && adit bench --name=l --filename=uring:{k0} --rw=randread \
             --bs=4k --iodepth=8 --time_based --runtime=2 --write_lat_log=l",
            &["read: IOPS=", "l_lat.1.log", "No space left on device"],
        ),
        refused(
            // The kernel's hot-plug driver waits a second before it lets QEMU remove the device, which must
            // happen while the guest runs.
            under_way!(
                "adit bench --name=g --filename=uring-cmd:{g1} --rw=randrw --bs=4k --iodepth=8",
                "echo pull it; while [ -e {k1} ]; do sleep 0.1; done; sleep 3"
            ),
            &["read: IOPS=", "write: IOPS="],
        ),
        refused(
            under_way!(
                "adit bench --name=s --filename=uring:{k0} --rw=randrw --bs=4k --iodepth=8",
                "echo 1 >/sys/bus/pci/devices/0000:00:18.0/remove"
            ),
            &["read: IOPS=", "write: IOPS="],
        ),
    ],
};

/// fio and `adit bench` alternating on the same path of the same drive; compares the eighth field of terse
/// reports, the IOPS of reads.
const FIO: Case = Case {
    name: "bench-fio",
    guest: guest!("--kernel-nvme", "", "--with", "fio"),
    steps: &[
        good(
            "fio --name=fill --filename={k0} --rw=write --bs=1M --iodepth=8 --ioengine=io_uring --direct=1 --size=256M --output=/dev/null",
            &[],
        ),
        in_turn!(
            "uring:{k0},polled=off",
            "--filename={k0} --direct=1 --ioengine=io_uring --hipri=0"
        ),
        in_turn!(
            "uring:{k0},polled=on",
            "--filename={k0} --direct=1 --ioengine=io_uring --hipri=1"
        ),
        in_turn!(
            "uring-cmd:{g0},polled=off",
            "--filename={g0} --ioengine=io_uring_cmd --cmd_type=nvme --hipri=0"
        ),
        in_turn!(
            "uring-cmd:{g0},polled=on",
            "--filename={g0} --ioengine=io_uring_cmd --cmd_type=nvme --hipri=1"
        ),
    ],
};
