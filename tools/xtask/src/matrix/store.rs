//! Guests that run the store on QEMU's controllers through VFIO: the tests of a shard that run on every path,
//! `adit kv` with a killed fill, and KV tensors of which a part is on a drive of the kernel's.

use super::case::{Case, good, refused, usage};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "store-shard",
        guest: &["--nvme", "mdts=5", "--disk-size", "48M", "--test", "adit-kvstore:shard"],
        steps: &[good(
            "ADIT_TARGETS={0} shard --ignored --test-threads=1 named::",
            &["what_is_durable_is_there_without_a_commit ... ok", "test result: ok"],
        )],
    },
    Case {
        name: "store-kill",
        guest: &["--nvme", "mdts=7;logical_block_size=4096,physical_block_size=4096", "--nvme", ""],
        steps: &[
            good("adit kv format {0} {1} --shards 2", &["a store of"]),
            refused("adit kv format {0} {1}", &["store", "--force"]),
            refused("adit kv ls {1} {0}", &["order"]),
            refused("adit kv ls {0}", &["device"]),
            good("echo hello | adit kv put {0} --with {1} greeting", &[]),
            good("adit kv get {0} --with {1} greeting", &["hello"]),
            good("adit kv check {0} {1}", &[]),
            usage("adit kv bench --store {0} --workload fill", &["of a store", "--force"]),
            good(
                "adit kv bench --store {0} --workload fill --object-bytes 64k --objects 400 --force",
                &["put"],
            ),
            // A killed process leaves a store that opens without errors.
            good(
                "adit kv bench --store {0} --workload mixed --object-bytes 64k --durability durable --runtime 60 & job=$!\n\
                 sleep 5; kill -9 $job; wait $job\n\
                 adit kv check {0} && adit kv scrub {0} && adit kv bench --store {0} --workload get --object-bytes 64k --runtime 1",
                &["get"],
            ),
        ],
    },
    // Cached layers in files of the kernel's, direct layers on a drive that this process drives; every page is checked.
    Case {
        name: "store-tensors",
        guest: &[
            "--module",
            "ext4",
            "--module",
            "crc32c_generic",
            "--module",
            "loop",
            "--with",
            "mkfs.ext4",
            "--kernel-nvme",
            "mdts=7",
            "--nvme",
            "mdts=5;logical_block_size=4096,physical_block_size=4096",
        ],
        steps: &[
            good(
                "modprobe ext4 && mkfs.ext4 -q {k0} && mkdir -p /mnt && mount -t ext4 {k0} /mnt &&\n\
                 mkdir -p /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup &&\n\
                 echo +memory >/sys/fs/cgroup/cgroup.subtree_control",
                &[],
            ),
            good(
                "adit kv bench --workload dual-blade --model opt-1.3b --batch 4 --prompt 60 --gen 4 --verify \
                 --config dual,direct --store {0} --folder /mnt --memory-limit 48m --json >/tmp/told; code=$?\n\
                 grep -E '\"(config|hit_ratio|sequentiality|cached_layers|memory_limit_bytes)\"' -A1 /tmp/told\n\
                 echo \"runs without hits: $(grep -c '\"hit_ratio\": 0.0' /tmp/told)\"; exit $code",
                &[
                    "\"config\": \"dual\"",
                    "\"config\": \"direct\"",
                    "50331648",
                    "runs without hits: 1",
                ],
            ),
            good(
                "ls -d /sys/fs/cgroup/adit-bench-* && exit 1\n\
                 test \"$(ls -A /mnt)\" = lost+found && umount /mnt && echo clean",
                &["clean"],
            ),
            // A drive that the kernel cannot write back to: it has 200 MB, and room for 24 of them.
            good(
                "modprobe loop && mkdir -p /small /lost && mount -t tmpfs -o size=24m none /small &&\n\
                 truncate -s 200M /small/disk && losetup /dev/loop0 /small/disk &&\n\
                 mkfs.ext4 -q -O ^has_journal -E nodiscard,lazy_itable_init=1 /dev/loop0 && mount -t ext4 /dev/loop0 /lost",
                &[],
            ),
            refused(
                "adit kv bench --workload dual-blade --model opt-1.3b --batch 4 --prompt 60 --gen 4 --verify \
                 --config fadvise --folder /lost --memory-limit 48m",
                &["write back what was written", "check its drive"],
            ),
            refused(
                "adit kv bench --workload dual-blade --model opt-13b --batch 1 --prompt 8 --gen 2 --config direct --store {0}",
                &["even"],
            ),
        ],
    },
];
