//! Guests that run the store on QEMU's controllers through VFIO: the tests of a shard that run on every path,
//! and `adit kv` with a killed fill.

use super::{Case, good, refused, usage};

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
];
