//! What a seed decides before the first action: the controller, its queues, its faults.

use std::time::Duration;

use adit_driver::soft::{Options, SglSupport, TimingModel};
use adit_driver::{ControllerOptions, Placement, QueuePairOptions};

use crate::faults::Swarm;
use crate::random::Random;

/// The controller of a run and how it is used.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) soft: Options,
    pub(crate) options: ControllerOptions,
    /// Whether the controller polls shadow doorbells unasked.
    pub(crate) polls_shadow: bool,
    /// Only this many LBAs at the start of the namespace are used.
    pub(crate) lbas: u64,
    pub(crate) swarm: Swarm,
    pub(crate) actions: u64,
    /// Maximum queue pairs at a time.
    pub(crate) lanes_max: usize,
    /// How long a command may take before it is aborted.
    pub(crate) timeout: Duration,
    /// How long it may then take to end.
    pub(crate) abort_timeout: Duration,
    /// Whether the bus can cut off a device that nothing else stops.
    pub(crate) can_cut_off: bool,
    /// Maximum LBAs of a request.
    pub(crate) lbas_max: u64,
}

impl Shape {
    pub(crate) fn draw(random: &mut Random) -> Shape {
        let lba_bytes = random.pick(&[512, 512, 512, 4096]);
        let lbas = random.pick(&[8, 16, 40]);
        let soft = controller(random, lba_bytes, lbas);
        let options = ControllerOptions {
            io_queues: random.between(1, 3) as u16,
            sgl: random.chance(80),
            shadow_doorbells: random.chance(60),
            cmb: soft.cmb_bytes > 0,
            interrupts: random.one_in(16),
            subsystem_reset: random.chance(80),
            admin_timeout: random.pick(&[Duration::from_secs(1), Duration::from_secs(10)]),
            ..ControllerOptions::default()
        };
        Shape {
            polls_shadow: random.one_in(2),
            lbas,
            swarm: Swarm::draw(random),
            actions: random.between(30, 80),
            lanes_max: usize::from(soft.io_queue_count.min(options.io_queues)),
            timeout: random.pick(&[Duration::from_millis(100), Duration::from_secs(10)]),
            abort_timeout: random.pick(&[Duration::from_millis(50), Duration::from_secs(2)]),
            can_cut_off: random.one_in(2),
            lbas_max: random.pick(&[1, 4, 4, 16, 40]).min(lbas),
            soft,
            options,
        }
    }

    pub(crate) fn queue(&self, random: &mut Random) -> QueuePairOptions {
        let in_cmb = self.soft.cmb_bytes > 0 && random.one_in(2);
        QueuePairOptions {
            depth: random.pick(&[2, 4, 8, 8, 16, 16]).min(self.soft.queue_entries_max),
            placement: if in_cmb { Placement::Cmb } else { Placement::Host },
            timeout: self.timeout,
            abort_timeout: self.abort_timeout,
            latencies: random.one_in(4),
            bounce_pages: random.between(1, 2) as usize,
            ..QueuePairOptions::default()
        }
    }
}

fn controller(random: &mut Random, lba_bytes: u32, lbas: u64) -> Options {
    let bytes = (lbas * u64::from(lba_bytes)).next_multiple_of(4096);
    Options {
        lba_bytes: vec![lba_bytes],
        mdts: random.pick(&[1, 2, 5, 0]),
        sgl: random.pick(&[SglSupport::Off, SglSupport::Byte, SglSupport::Dword]),
        cmb_bytes: random.pick(&[0, 0, 0, 16 << 10]),
        dbbuf: random.chance(70),
        io_queue_count: random.between(1, 3) as u16,
        queue_entries_max: random.pick(&[8, 64]),
        noiob_lbas: random.pick(&[0, 0, 0, 5, 8]),
        dstrd: random.pick(&[0, 0, 0, 1]),
        vwc_bytes: random.pick(&[0, 16 << 10]),
        nssr: random.one_in(2),
        model: random.one_in(4).then(|| random.pick(&TimingModel::ALL)),
        seed: random.next(),
        ..Options::memory(bytes)
    }
}
