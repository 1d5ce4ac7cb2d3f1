//! The store a trace reads from: KV blocks of a model, put and committed, on a controller shared with the GPU's
//! rings.
//!
//! The store drives a queue pair of its own from this thread, the rings have others. So the controller is
//! opened as rings need it, with doorbells in registers.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::{Controller, Device, DeviceOptions, Namespace, Target};
use adit_kvstore::layout::{BlockShape, Layout};
use adit_kvstore::shard::Part;
use adit_kvstore::store::{LocalLease, Transfers};
use adit_kvstore::{FormatStore, OpenOptions, Store, UNIT_BYTES};

use crate::failure::{Failure, INTERRUPTED, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::options::no_queues;
use adit_tools_common::blocks::Blocks;
use adit_tools_common::session::Session;

/// Requested I/O queues: one for the store, the others for the rings.
pub(super) const QUEUES: u16 = 64;
/// Minimum objects a store is formatted for.
const OBJECTS_MIN: u64 = 4096;
/// Bytes of metadata on the device per object: its part of the journal and of two checkpoints.
const OBJECT_BYTES: u64 = 256;
/// Bytes of the device for everything else.
const OWN_BYTES: u64 = 256 << 20;
/// The sequence whose blocks are put.
const SEQUENCE: u64 = 0;
/// How long a plan may hold its objects: longer than its commands may take.
const LEASE: Duration = Duration::from_secs(60);

/// The blocks to put, and where.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    /// The device to format.
    pub(super) target: &'a Target,
    /// Whether to overwrite data.
    pub(super) force: bool,
    /// The blocks' layout.
    pub(super) layout: Layout,
    /// Number of KV blocks.
    pub(super) blocks: u32,
}

/// The room a store needs for the blocks alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Objects it is formatted for.
    pub(super) objects: u64,
    /// Bytes of its device.
    pub(super) bytes: u64,
}

impl Room {
    /// Computes the room for `blocks` of a layout: their data twice, the usual metadata of each object, and the
    /// store's own.
    pub(super) fn of(layout: &Layout, blocks: u32) -> Room {
        // A block's record has a checksum per tensor; half of the objects are for puts in progress.
        let objects = u64::from(blocks) * (4 + u64::from(layout.tensors()) / 8);
        let objects = objects.max(OBJECTS_MIN);
        let data = u64::from(blocks) * layout.block_units() * UNIT_BYTES;
        Room { objects, bytes: 2 * data + objects * OBJECT_BYTES + OWN_BYTES }
    }

    /// Adds advice to a failure on a device of `bytes`, if that is too small.
    fn explain(self, failure: Failure, bytes: u64) -> Failure {
        if bytes >= self.bytes || failure.code() == INTERRUPTED {
            return failure;
        }
        let (there, enough) = (human::capacity(bytes), human::capacity(self.bytes));
        failure.and(format!("{there} may not hold the KV blocks: {enough} do; name a larger TARGET or fewer --blocks"))
    }
}

/// A store with KV blocks.
pub(super) struct Shelf {
    pub(super) controller: Arc<Controller>,
    pub(super) namespace: Namespace,
    pub(super) layout: Layout,
    blocks: u32,
    session: Session,
}

impl Shelf {
    /// Formats the device and puts the blocks.
    ///
    /// # Errors
    /// Data that must not be overwritten, or an error of the device; an interrupt by the user.
    pub(super) fn fill(wanted: &Wanted, interrupt: &Interrupt) -> Result<Shelf> {
        let options = DeviceOptions {
            queue_count: QUEUES,
            exclusive: true,
            shadow_doorbells: false,
            ..DeviceOptions::default()
        };
        let device = Device::open(wanted.target, &options)?;
        let controller = device.controller().cloned().ok_or_else(|| no_queues(wanted.target))?;
        let namespace = controller.namespace_of(wanted.target)?;
        adit_guard::check_format(
            std::slice::from_ref(wanted.target),
            std::slice::from_ref(&device),
            wanted.force,
        )?;
        let (devices, label) = (vec![device], "adit gpu trace".to_owned());
        let room = Room::of(&wanted.layout, wanted.blocks);
        let format = FormatStore {
            devices: devices.clone(),
            objects_max: Some(room.objects),
            label,
            overwrite: wanted.force,
            ..FormatStore::default()
        };
        Store::format(&format)?;
        let open = OpenOptions { devices, ..OpenOptions::default() };
        let mut session = Session::of(Store::open_local(&open)?);
        let mut blocks = Blocks::define(&mut session, wanted.layout)?;
        let put = blocks.put(&mut session, SEQUENCE, u64::from(wanted.blocks), &mut |_| {
            if interrupt.requested() {
                return Err(Failure::stopped("interrupted; the store has a part of the KV blocks"));
            }
            Ok(())
        });
        let bytes = namespace.lba_count() * u64::from(namespace.lba_bytes());
        put.map_err(|failure| room.explain(failure, bytes))?;
        session.commit()?;
        let controller = Arc::new(controller);
        Ok(Shelf { controller, namespace, layout: wanted.layout, blocks: wanted.blocks, session })
    }

    /// Plans the reads of one layer of all blocks, which are held until [`Shelf::release`]. Items are numbered
    /// like blocks.
    ///
    /// # Errors
    /// When a block is missing.
    pub(super) fn plan(&mut self, layer: u32) -> Result<Transfers<LocalLease>> {
        let asked: Vec<_> = (0..u64::from(self.blocks))
            .map(|block| (Blocks::key(SEQUENCE, block), Part::Layer(layer)))
            .collect();
        let local = self.session.local_mut();
        let now = local.now();
        let plan = local.plan(now, &asked, now + LEASE).map_err(Failure::failed)?;
        let missing = (0..self.blocks).find(|block| plan.item(*block).is_none());
        match missing {
            None => Ok(plan),
            Some(block) => Err(Failure::failed(format!(
                "KV block {block} is not in the store any more; name a larger TARGET or fewer --blocks"
            ))),
        }
    }

    /// Releases what a plan holds.
    pub(super) fn release(&mut self, lease: LocalLease) {
        self.session.local_mut().release(lease).expect("a plan of this store's");
    }

    /// Makes everything durable and releases the device.
    ///
    /// # Errors
    /// Why the store failed.
    pub(super) fn close(self) -> Result<()> {
        self.session.close()
    }
}

/// Returns the layout of a model's blocks with fewer layers: a trace reads one layer, and the others only take
/// space.
///
/// # Errors
/// A usage failure that lists the models' names.
pub(super) fn layout(model: &str, layers: u32) -> Result<Layout> {
    let whole = Blocks::layout(model)?;
    let layers = layers.min(whole.block().layers);
    Ok(Layout::new(BlockShape { layers, ..*whole.block() }, whole.order())?)
}
