//! Job options: kind of I/O.

use super::super::grammar::{per_way, percent, switch, whole, word};
use super::super::{RandomGenerator, Sequencer, draft::Draft, grammar::Parsed, workload};
use crate::units::KbBase;

use super::Group::Work;
use super::Kind::{Bool, Switch, Value};
use super::OptionSpec;

pub(super) const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "rw",
        aliases: &["readwrite"],
        value: "WAY",
        help: "What is done: read, write, trim, randread, randwrite, randtrim, rw, randrw, trimwrite or \
               randtrimwrite; randread:8 chooses a new place after 8 I/Os, read:4k skips so much after each",
        kind: Value,
        group: Work,
        set: |draft, text| workload::rw(text, draft.kb_base).map(|value| draft.job.rw = value),
    },
    OptionSpec {
        name: "rw_sequencer",
        aliases: &[],
        value: "ORDER",
        help: "What I/Os between two new places do: sequential or identical",
        kind: Value,
        group: Work,
        set: |draft, text| {
            let words =
                [("sequential", Sequencer::Sequential), ("identical", Sequencer::Identical)];
            word(text, &words).map(|value| draft.job.rw_sequencer = value)
        },
    },
    OptionSpec {
        name: "rwmixread",
        aliases: &[],
        value: "PERCENT",
        help: "Share of reads in a mixed workload",
        kind: Value,
        group: Work,
        set: |draft, text| percent(text).map(|value| draft.mix_read = Some(value)),
    },
    OptionSpec {
        name: "rwmixwrite",
        aliases: &[],
        value: "PERCENT",
        help: "Share of writes in a mixed workload",
        kind: Value,
        group: Work,
        set: |draft, text| percent(text).map(|value| draft.mix_write = Some(value)),
    },
    OptionSpec {
        name: "bs",
        aliases: &["blocksize"],
        value: "SIZES",
        help: "Bytes of each I/O, a multiple of the LBA: for all ways, or reads,writes,trims",
        kind: Value,
        group: Work,
        set: |draft, text| {
            let base = draft.kb_base;
            per_way(text, &mut draft.job.bs, |part| workload::block(part, base))
        },
    },
    OptionSpec {
        name: "bsrange",
        aliases: &["blocksize_range"],
        value: "RANGES",
        help: "Bytes of each I/O from one to another, as in 4k-64k",
        kind: Value,
        group: Work,
        set: bsrange,
    },
    OptionSpec {
        name: "bssplit",
        aliases: &[],
        value: "SPLITS",
        help: "Sizes of I/Os with their shares, as in 4k/60:64k/40",
        kind: Value,
        group: Work,
        set: |draft, text| {
            let base = draft.kb_base;
            per_way(text, &mut draft.job.bs, |part| workload::block_split(part, base))
        },
    },
    OptionSpec {
        name: "blockalign",
        aliases: &["ba"],
        value: "SIZES",
        help: "Offsets of random I/Os are multiples of it",
        kind: Value,
        group: Work,
        set: |draft, text| {
            let base = draft.kb_base;
            per_way(text, &mut draft.job.blockalign, |part| {
                workload::block_bytes(part, base).map(Some)
            })
        },
    },
    OptionSpec {
        name: "random_distribution",
        aliases: &[],
        value: "HOW",
        help: "How often which place: random, zipf:THETA, pareto:H, normal:DEV (each with :CENTER), \
               zoned:ACCESS/SIZE:… or zoned_abs:…",
        kind: Value,
        group: Work,
        set: |draft, text| {
            let base = draft.kb_base;
            workload::distributions(text, &mut draft.job.random_distribution, base)
        },
    },
    OptionSpec {
        name: "percentage_random",
        aliases: &[],
        value: "PERCENT",
        help: "Share of I/Os at a random place, of a random workload",
        kind: Value,
        group: Work,
        set: |draft, text| per_way(text, &mut draft.job.percentage_random, percent),
    },
    OptionSpec {
        name: "norandommap",
        aliases: &[],
        value: "0|1",
        help: "Blocks may come twice before others come once",
        kind: Switch,
        group: Work,
        set: |draft, text| switch(text).map(|value| draft.job.norandommap = value),
    },
    OptionSpec {
        name: "random_generator",
        aliases: &[],
        value: "KIND",
        help: "tausworthe, tausworthe64 or lfsr",
        kind: Value,
        group: Work,
        set: |draft, text| {
            let words = [
                ("tausworthe", RandomGenerator::Permutation),
                ("tausworthe64", RandomGenerator::Permutation),
                ("lfsr", RandomGenerator::Lfsr),
            ];
            word(text, &words).map(|value| draft.job.random_generator = value)
        },
    },
    OptionSpec {
        name: "randseed",
        aliases: &[],
        value: "N",
        help: "Chooses the random order and the data, whatever randrepeat says",
        kind: Value,
        group: Work,
        set: |draft, text| {
            whole(text, KbBase::Binary).map(|value| draft.job.randseed = Some(value))
        },
    },
    OptionSpec {
        name: "randrepeat",
        aliases: &["allrandrepeat"],
        value: "0|1",
        help: "The same order in every run",
        kind: Bool,
        group: Work,
        set: |draft, text| switch(text).map(|value| draft.job.randrepeat = value),
    },
];

/// As in fio, `/` also separates the ways.
fn bsrange(draft: &mut Draft, text: &str) -> Parsed<()> {
    let base = draft.kb_base;
    per_way(&text.replace('/', ","), &mut draft.job.bs, |part| workload::block_range(part, base))
}
