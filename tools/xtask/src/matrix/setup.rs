//! Guests that use `adit setup` like an operator on a real kernel: what it takes, what it refuses and why, and
//! that everything is as before once given back, whatever interrupted it.
//!
//! The guests have busybox's modprobe and no udev. Users come by `su`, so the limits that a login would take
//! from limits.d are set by hand from that file.

use super::case::{Case, good, interrupted, refused, usage, verified};

/// Provides arrays and file systems, and finds their signatures.
macro_rules! guest {
    ($($more:literal),*) => {
        &[
            "--module", "ext4", "--module", "crc32c_generic", "--module", "raid1", "--module", "dm_mod", "--with", "mkfs.ext4",
            "--with", "mdadm", "--with", "lvm", "--with", "wipefs", "--with", "strace", $($more),*
        ]
    };
}

/// Runs `$shell` as the user who may lock memory according to limits.d, with that right.
macro_rules! as_user {
    ($shell:literal) => {
        concat!(
            "limit=$(awk '$1 == \"user\" && $3 == \"memlock\" { print $4 }' /etc/security/limits.d/*)\n",
            "su user -c \"ulimit -l $limit && ",
            $shell,
            "\""
        )
    };
}

/// Starts `$shell`, waits until it runs a slow modprobe, and runs `$then`.
macro_rules! while_it_waits {
    ($shell:literal, $then:literal) => {
        concat!(
            "modprobe -r vfio-pci; mkdir -p /usr/sbin\n",
            "printf '#!/bin/sh\\ntouch /tmp/waits; sleep 2; exec /bin/modprobe \"$@\"\\n' >/usr/sbin/modprobe\n",
            "chmod +x /usr/sbin/modprobe; rm -f /tmp/waits\n",
            $shell,
            " & setup=$!\nuntil [ -e /tmp/waits ] || ! kill -0 $setup; do usleep 20000; done\n",
            $then,
            "\nwait $setup; code=$?; rm /usr/sbin/modprobe; exit $code"
        )
    };
}

/// Checks that nothing of `adit setup` is left: the kernel's driver has the first device, and there are no
/// additional files or hugepages.
const AS_BEFORE: &str = "\
basename $(readlink /sys/bus/pci/devices/0000:00:18.0/driver)
cat /sys/bus/pci/devices/0000:00:18.0/driver_override
ls {k0}
find /var/lib/adit /etc/udev /run/udev /etc/security /etc/tmpfiles.d ! -type d 2>/dev/null; echo nothing else";
/// The output if nothing is left.
const NOTHING_LEFT: &[&str] = &["nvme\n(null)\n/dev/nvme0n1\nnothing else\n"];

pub(super) const CASES: &[Case] = &[KILLED, OPERATOR, REFUSED, GROUPS, NO_IOMMU, VIRTUAL];

/// Three drives, one of them free: it goes to a user and back, without effect on the others.
const OPERATOR: Case = Case {
    name: "setup",
    guest: guest!("--kernel-nvme", "", "--kernel-nvme", "", "--kernel-nvme", ""),
    steps: &[
        good(
            "mkfs.ext4 -q {k0} && mkdir /mnt && mount -t ext4 {k0} /mnt || exit\n\
             dd if=/dev/urandom of=/mnt/data bs=1M count=8 2>/dev/null\n\
             sha256sum /mnt/data | tee /root/sum\n\
             MDADM_NO_UDEV=1 mdadm --create /dev/md0 --run --metadata=1.2 --level=1 --raid-devices=2 {k1} missing || exit\n\
             # A process works on the mounted drive and on the array for as long as this guest runs.\n\
             while cp /mnt/data /mnt/copy && sync && echo 1 >/proc/sys/vm/drop_caches && cmp /mnt/data /mnt/copy &&\n\
                 dd if=/mnt/data of=/dev/md0 bs=1M conv=fsync 2>/dev/null && echo copied >>/tmp/copies; do sleep 0.5; done \
                 >/tmp/work 2>&1 &",
            &["array /dev/md0 started"],
        ),
        good(
            "adit setup status",
            &[
                "IOMMU          on: dmar0",
                "kernel0  no",
                "in use: nvme0n1 is mounted at /mnt (ext4)",
                "kernel1  no",
                "in use: nvme1n1 is part of MD raid1 md0",
                "signature: nvme1n1 holds a signature of linux_raid_member",
                "kernel2  yes",
            ],
        ),
        good(
            "adit setup status --json",
            &["\"at\": \"/mnt\"", "\"what\": \"MD raid1 md0\"", "\"obstacles\": []"],
        ),
        refused(
            "adit setup bind 0000:00:18.0",
            &[
                "nvme0n1 is mounted at /mnt (ext4); umount /mnt",
                "nvme0n1 holds a signature of ext4",
            ],
        ),
        refused(
            "adit setup bind 0000:00:19.0 --force-erase-signature",
            &["nvme1n1 is part of MD raid1 md0"],
        ),
        refused(
            "adit setup bind 0000:00:1a.0 0000:00:18.0 0000:00:19.0",
            &[
                "nothing was changed",
                "nvme0n1 is mounted at /mnt",
                "nvme1n1 is part of MD raid1 md0",
            ],
        ),
        good(
            "for device in 18 19 1a; do basename $(readlink /sys/bus/pci/devices/0000:00:$device.0/driver); done\n\
             lsmod | grep -q vfio || echo no vfio; find /var/lib/adit -type f 2>/dev/null; echo no record",
            &["nvme\nnvme\nnvme\nno vfio\nno record\n"],
        ),
        good(
            "adit setup bind 0000:00:1a.0 --user user",
            &[
                "modprobe vfio-pci\n",
                "echo vfio-pci > /sys/bus/pci/devices/0000:00:1a.0/driver_override\n",
                "chown 1000 /dev/vfio/",
                "0000:00:1a.0 is bound to vfio-pci: use it as vfio:0000:00:1a.0",
            ],
        ),
        good("adit setup status", &["kernel2  is taken", "in use: nvme0n1 is mounted"]),
        good("adit setup bind 0000:00:1a.0", &["was bound already"]),
        good(
            as_user!(
                "id -u; adit bench --filename=vfio:0000:00:1a.0 --rw=randrw --bs=16k --iodepth=32 --size=64M --verify=crc32c"
            ),
            &["1000\n", "err= 0", "violations=0"],
        ),
        good(as_user!("adit setup doctor 0000:00:1a.0"), &["ok   rights", "ok   read: LBA 0"]),
        refused(
            "su other -c 'adit identify vfio:0000:00:1a.0'",
            &["permission denied", "adit setup grant 0000:00:1a.0 --user"],
        ),
        refused(
            "su user -c 'ulimit -l 64; adit setup doctor 0000:00:1a.0'",
            &["ok   rights", "BAD  locked memory"],
        ),
        good("adit setup doctor", &["ok   identify: QEMU NVMe Ctrl, serial kernel2", "ok   read"]),
        refused(
            "adit bench --filename=vfio:0000:00:1a.0 --time_based --runtime=60 --eta=always >/tmp/said 2>&1 & bench=$!\n\
             until grep -q '\\[r=' /tmp/said; do usleep 100000; done\n\
             adit setup unbind 0000:00:1a.0 || adit setup doctor 0000:00:1a.0 || adit setup restore; code=$?\n\
             kill -INT $bench; wait $bench; cat /tmp/said; echo $bench was the bench; exit $code",
            &["in use by adit (pid ", "BAD  other users", "err= 0"],
        ),
        good(
            "adit setup restore; basename $(readlink /sys/bus/pci/devices/0000:00:1a.0/driver)\n\
             dd if={k2} of=/dev/null bs=1M count=1 2>&1",
            &["0000:00:1a.0 is back: driver nvme, nvme2n1\nnvme\n", "1+0 records in"],
        ),
        good(AS_BEFORE, NOTHING_LEFT),
        good(
            "copies=$(wc -l </tmp/copies); until [ $(wc -l </tmp/copies) -gt $copies ]; do sleep 0.1; done; cat /tmp/work\n\
             sha256sum -c /root/sum; grep -A1 md0 /proc/mdstat; echo $(dmesg | grep -c 'error') errors in the log",
            &["/mnt/data: OK", "active raid1 nvme1n1[0]", "\n0 errors in the log"],
        ),
    ],
};

/// One drive in every kind of use, and everything else that can be wrong.
const REFUSED: Case = Case {
    name: "setup-refused",
    guest: guest!("--kernel-nvme", ""),
    steps: &[
        refused(
            "mkswap {k0} >/dev/null; swapon {k0}; adit setup bind 0000:00:18.0; code=$?; swapoff {k0}; exit $code",
            &["nvme0n1 is used for swap; swapoff /dev/nvme0n1"],
        ),
        good(
            "swapon {k0}; adit setup status --record /tmp/tree >/tmp/live\n\
             adit setup status --sysroot /tmp/tree | diff /tmp/live - && echo replayed; swapoff {k0}",
            &["recorded in /tmp/tree", "\nreplayed\n"],
        ),
        refused(
            "wipefs -qa {k0}; sleep 60 <{k0} & holder=$!\n\
             adit setup bind 0000:00:18.0; code=$?; kill $holder; exit $code",
            &["nvme0n1 is open in process", "(sleep)"],
        ),
        // Through a device node elsewhere, as in a container.
        refused(
            "mknod /root/raw b $(cat /sys/class/block/nvme0n1/dev | tr : ' '); sleep 60 </root/raw & holder=$!\n\
             usleep 100000; adit setup bind 0000:00:18.0; code=$?; kill $holder; rm /root/raw; exit $code",
            &["nvme0n1 is open in process", "(sleep)"],
        ),
        refused(
            "mkfs.ext4 -q {k0} && mkdir /mnt && mount -t ext4 {k0} /mnt && echo kept >/mnt/file && umount /mnt\n\
             unshare -m sh -c 'mount -t ext4 {k0} /mnt; sleep 60' & holder=$!\n\
             until grep -q /mnt /proc/$holder/mounts; do usleep 20000; done\n\
             adit setup bind 0000:00:18.0 --force-erase-signature; code=$?; kill $holder; wait $holder; exit $code",
            &["nvme0n1 is mounted at /mnt (ext4) in the mount namespace of process"],
        ),
        refused(
            "adit setup bind 0000:00:18.0",
            &[
                "nvme0n1 holds a signature of ext4 (filesystem); if its contents are not needed, add --force-erase-signature",
            ],
        ),
        refused(
            "sleep 60 <{g0} & holder=$!\n\
             adit setup bind 0000:00:18.0 --force-erase-signature; code=$?; kill $holder; exit $code",
            &["ng0n1 is open in process", "(sleep)"],
        ),
        // Nothing is erased if later steps are impossible.
        refused(
            "mv /lib/modules /lib/gone; adit setup bind 0000:00:18.0 --force-erase-signature; code=$?\n\
             adit setup doctor; mv /lib/gone /lib/modules; wipefs --no-act {k0}; exit $code",
            &[
                "has no module vfio-pci",
                "linux-modules-extra",
                "everything is as it was before",
                "BAD  modules",
                "ext4",
            ],
        ),
        // The file beside the copies restores what was erased.
        good(
            "adit setup bind 0000:00:18.0 --force-erase-signature && adit setup restore && wipefs --no-act {k0}\n\
             echo it had no signature; grep -h ^dd /var/lib/adit/setup/erased/*/README | sh; rm -r /var/lib/adit\n\
             mount -t ext4 {k0} /mnt && cat /mnt/file && umount /mnt && wipefs -qa {k0}",
            &["is back: driver nvme, nvme0n1\nit had no signature\n", "\nkept\n"],
        ),
        good(AS_BEFORE, NOTHING_LEFT),
        refused(
            "adit setup bind 0000:00:1f.2",
            &["0000:00:1f.2", "no NVMe controller", "adit setup status"],
        ),
        refused("adit setup bind 0000:00:0f.0", &["no such PCI device", "adit setup status"]),
        usage("adit setup bind 00:18", &["00:18", "0000:01:00.0"]),
        usage("adit setup bind", &["BDF", "--help"]),
        refused("adit setup unbind 0000:00:18.0", &["has not bound it"]),
        refused("su user -c 'adit setup bind 0000:00:18.0'", &["this needs root", "--dry-run"]),
        good(
            "su user -c 'adit setup status'",
            &["kernel0  no", "cannot be inspected", "cannot be seen; run this as root"],
        ),
        refused(
            "echo other >/sys/bus/pci/devices/0000:00:18.0/driver_override; adit setup bind 0000:00:18.0; code=$?\n\
             echo >/sys/bus/pci/devices/0000:00:18.0/driver_override; exit $code",
            &["its driver_override says 'other'", "another tool"],
        ),
        refused(
            "mkdir -p /var/lib/adit; mount -t tmpfs -o size=64k tmpfs /var/lib/adit; dd if=/dev/zero of=/var/lib/adit/full 2>/dev/null\n\
             adit setup bind 0000:00:18.0; code=$?; umount /var/lib/adit; exit $code",
            &[
                "No space left on device",
                "make room on that file system",
                "everything is as it was before",
            ],
        ),
        refused(
            "mount -o remount,ro /sys; adit setup bind 0000:00:18.0; code=$?; mount -o remount,rw /sys; exit $code",
            &["mounted read only", "everything is as it was before"],
        ),
        good(AS_BEFORE, NOTHING_LEFT),
        interrupted(
            while_it_waits!("adit setup bind 0000:00:18.0", "kill -INT $setup"),
            &["interrupted; everything is as it was before"],
        ),
        good(AS_BEFORE, NOTHING_LEFT),
        good(
            while_it_waits!(
                "adit setup bind 0000:00:18.0",
                "adit setup restore; adit setup bind 0000:00:18.0 || echo second refused"
            ),
            &[
                "another 'adit setup' (process ",
                "is running",
                "second refused",
                "is bound to vfio-pci",
            ],
        ),
        good("adit setup unbind --all", &["is back: driver nvme, nvme0n1"]),
        // The printed lines set what they say, on all nodes and on one.
        good(
            "adit setup hugepages --count 280 | sh; adit setup hugepages --bytes 600M --node 0 | sh; cat /proc/sys/vm/nr_hugepages",
            &["280\n300\n300\n"],
        ),
        refused("adit setup hugepages --bytes 64G", &["there is memory for", "at most"]),
        usage("adit setup hugepages --count 1 --node 7", &["there is no node 7; there are: 0"]),
        good("adit setup hugepages --count 256 | sh", &["256\n"]),
        refused("adit setup persist", &["nothing is recorded as bound"]),
        good(AS_BEFORE, NOTHING_LEFT),
        good("adit setup restore", &["nothing is recorded"]),
    ],
};

/// Drives that share an IOMMU group: functions of one device, and devices behind a bridge to conventional PCI.
const GROUPS: Case = Case {
    name: "setup-shared-group",
    guest: guest!(
        "--qemu-arg",
        "-device pcie-root-port,id=rp0,slot=1,chassis=1,addr=0x4",
        "--qemu-arg",
        "-device pcie-pci-bridge,id=bridge,bus=rp0",
        "--kernel-nvme",
        "addr=0x18.0,multifunction=on",
        "--kernel-nvme",
        "addr=0x18.1",
        "--kernel-nvme",
        "bus=bridge,addr=1",
        "--kernel-nvme",
        "bus=bridge,addr=2"
    ),
    steps: &[
        refused(
            "adit setup bind 0000:00:18.0",
            &["it shares IOMMU group", "with 0000:00:18.1 (nvme)"],
        ),
        refused("adit setup bind 0000:02:01.0", &["it shares IOMMU group", "0000:02:02.0 (nvme)"]),
        good(
            "adit setup bind 0000:00:18.0 0000:00:18.1",
            &["vfio:0000:00:18.0", "vfio:0000:00:18.1"],
        ),
        good("adit identify vfio:0000:00:18.1", &["kernel1"]),
        // Their group is open, so the kernel would not give one of them to another driver.
        refused(
            "adit bench --filename=vfio:0000:00:18.1 --time_based --runtime=60 --eta=always >/tmp/said 2>&1 & bench=$!\n\
             until grep -q '\\[r=' /tmp/said; do usleep 100000; done\n\
             adit setup unbind 0000:00:18.0; code=$?\n\
             kill -INT $bench; wait $bench; cat /tmp/said; exit $code",
            &["0000:00:18.0: in use by adit (pid ", "err= 0"],
        ),
        good("adit setup unbind 0000:00:18.1", &["0000:00:18.1 is back: driver nvme"]),
        refused(
            "adit identify vfio:0000:00:18.0",
            &["it shares IOMMU group", "0000:00:18.1 (nvme)"],
        ),
        refused("adit setup doctor 0000:00:18.0", &["BAD  IOMMU group", "0000:00:18.1"]),
        good(
            "adit setup bind 0000:02:01.0 0000:02:02.0; adit identify vfio:0000:02:02.0",
            &["kernel3"],
        ),
        good(
            "adit setup restore",
            &["0000:00:18.0 is back", "0000:02:01.0 is back", "0000:02:02.0 is back"],
        ),
    ],
};

/// Without an IOMMU. Debian's kernel does not support VFIO without one.
const NO_IOMMU: Case = Case {
    name: "setup-no-iommu",
    guest: guest!("--iommu", "none", "--kernel-nvme", ""),
    steps: &[
        good("adit setup status", &["IOMMU          none", "kernel0  no", "no IOMMU is in use"]),
        refused("adit setup bind 0000:00:18.0", &["no IOMMU is in use", "adit setup doctor"]),
        refused("adit setup doctor", &["BAD  firmware", "IOMMU"]),
        refused(
            "adit setup bind 0000:00:18.0 --unsafe-no-iommu",
            &[
                "all memory of this machine",
                "CONFIG_VFIO_NOIOMMU",
                "everything is as it was before",
            ],
        ),
        good(AS_BEFORE, NOTHING_LEFT),
    ],
};

/// Killed at each step.
const KILLED: Case = Case {
    name: "setup-killed",
    guest: guest!("--kernel-nvme", ""),
    steps: &[good(include_str!("setup/killed.sh"), &["bind was killed at ", "unbind at "])],
};

/// A virtual function, which QEMU's physical function offers offline: the commands that `doctor` prints put it
/// online. A reset of the physical function takes it offline again.
const VIRTUAL: Case = Case {
    name: "virtual-function",
    guest: &[
        "--with",
        "nvme",
        "--qemu-arg",
        "-device pcie-root-port,id=rp0,slot=1,chassis=1,addr=0x4",
        "--qemu-arg",
        "-device nvme-subsys,id=ss0",
        "--kernel-nvme",
        "bus=rp0,subsys=ss0,sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2,max_ioqpairs=10,msix_qsize=11",
    ],
    steps: &[
        good(
            "echo 1 >/sys/bus/pci/devices/0000:01:00.0/sriov_numvfs || exit\n\
             until dmesg | grep -q 'nvme1: Removing after probe failure' &&\n\
                 [ ! -e /sys/bus/pci/devices/0000:01:00.1/driver ]; do usleep 100000; done\n\
             adit setup status --record /tmp/tree | tee /tmp/live\n\
             adit setup status --sysroot /tmp/tree | diff /tmp/live - && echo replayed",
            &[
                "virtual function 1 of 0000:01:00.0 (nvme0)\n",
                "a virtual function may not be online",
                "\nreplayed\n",
            ],
        ),
        good(
            "adit setup bind 0000:01:00.1 --force-erase-signature",
            &["0000:01:00.1 is bound to vfio-pci"],
        ),
        refused(
            "adit setup doctor 0000:01:00.1 >/tmp/doctor; code=$?; cat /tmp/doctor; exit $code",
            &[
                "BAD  open: it is a virtual function that is not online: its registers read as zero",
                "its physical function 0000:01:00.0",
            ],
        ),
        refused("adit identify vfio:0000:01:00.1", &["that is not online", "--act=9"]),
        good(
            "scid=$(nvme list-secondary /dev/nvme0 | awk '/SCID/ { scid = $NF } /VFN/ && $NF == \"0x0001\" { print scid }')\n\
             sed -n \"s/^ *sudo \\(nvme .*\\)/\\1/p\" /tmp/doctor | sed \"s/=C /=$scid /\" >/tmp/commands\n\
             wc -l </tmp/commands; sh -e /tmp/commands && adit setup doctor 0000:01:00.1",
            &["4\n", "(Offline)", "(NRM):0x2", "ok   read: LBA 0"],
        ),
        verified!("vfio:0000:01:00.1", &["err= 0", "violations=0"]),
        refused(
            "nvme reset /dev/nvme0; adit identify vfio:0000:01:00.1",
            &["it is a virtual function that is not online"],
        ),
    ],
};
