//! The parts of a shard that every request works on.
//!
//! Each part owns its state. A step that needs two of them borrows both from here.

use std::collections::VecDeque;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::Direction;

use super::answer::Answers;
use super::batch::{Batches, Boxes, Items};
use super::change::NewObject;
use super::effects::due::{DueEvents, Held};
use super::effects::key_order::KeyOrder;
use super::lanes::Lanes;
use super::log::Log;
use super::objects::Objects;
use super::request::Condition;
use super::room::{Room, RoomMaker, Rooms, Wanted};
use crate::catalog::index::Index;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::record::Record;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, Object, ObjectId, TenantId};
use crate::model::options::Quota;
use crate::model::place::UNIT_BYTES;

/// The parts of a shard below its requests.
pub(super) struct Parts<Q, R> {
    pub(super) lanes: Lanes<Q>,
    pub(super) objects: Objects,
    pub(super) log: Log,
    pub(super) room: Room,
    pub(super) batches: Batches<R>,
    pub(super) answers: Answers<R>,
    /// In which order changes of one key take effect.
    pub(super) order: KeyOrder<R>,
    /// Objects whose records wait for their data to be flushed, in the order in which their data was written.
    pub(super) held: VecDeque<Held<R>>,
    /// The effects of records once they are durable.
    pub(super) due: DueEvents<R>,
    /// For new objects, so that a put allocates no memory: each comes back once its object has taken effect.
    pub(super) boxes: Boxes<NewObject>,
}

impl<Q: CommandQueue<Load>, R> Parts<Q, R> {
    /// Joins parts, with no request in progress.
    pub(super) fn new(lanes: Lanes<Q>, objects: Objects, log: Log, room: Room) -> Parts<Q, R> {
        Parts {
            lanes,
            objects,
            log,
            room,
            batches: Batches::default(),
            answers: Answers::default(),
            order: KeyOrder::default(),
            held: VecDeque::new(),
            due: DueEvents::default(),
            boxes: Boxes::default(),
        }
    }

    /// Finds room for objects of these shapes, with `fresh` new index entries, and reserves journal room for their
    /// records. Returns `None` if room has to be made first, which this starts.
    pub(super) fn find_room(
        &mut self,
        now: Time,
        wanted: &mut [Wanted<'_>],
        fresh: &dyn Fn(&Index) -> usize,
        record_bytes: u64,
    ) -> Result<Option<Rooms>, Failure> {
        self.lanes.check_home()?;
        let working = self.lanes.working();
        for (shape, devices, _) in &mut *wanted {
            self.check_usable(shape, *devices)?;
            *devices &= working;
        }
        if !self.log.asks_room(record_bytes) {
            return Ok(None);
        }
        // Reserve first, so that the records of victims leave room for these.
        self.log.reserve(record_bytes);
        let rooms = self.room_maker(now).find_room(wanted, (fresh, record_bytes));
        if !matches!(rooms, Ok(Some(_))) {
            self.log.unreserve(record_bytes);
        }
        rooms
    }

    /// Returns the room with the parts that evictions change.
    pub(super) fn room_maker(&mut self, now: Time) -> RoomMaker<'_> {
        let Parts { room, objects, log, .. } = self;
        RoomMaker { room, objects, log, now }
    }

    /// Checks that some working device can hold the object at all. Nothing is evicted for an object that no device
    /// can hold.
    fn check_usable(&self, shape: &Object, devices: u64) -> Result<(), Failure> {
        let needs = self.objects.units_of(shape);
        let spaces = self.objects.spaces();
        let asked = || (0..self.lanes.len()).filter(|device| devices & 1 << device != 0);
        let mut able = asked().filter(|device| spaces.extent_units_on(*device) >= needs);
        let Some(first) = able.next() else {
            let most = asked().map(|device| spaces.extent_units_on(device)).max();
            let (needs, has) = (needs * UNIT_BYTES, most.unwrap_or(0) * UNIT_BYTES);
            return Err(Failure::TooLarge { needs, has });
        };
        let works = |device: usize| self.lanes[device].failure().is_none();
        if works(first) || able.any(works) { Ok(()) } else { Err(self.lanes.failure_of(first)) }
    }

    /// Returns the object of a key, if it has not expired and its device works.
    pub(super) fn lookup(&self, now: Time, hash: u64, key: &Key) -> Option<ObjectId> {
        let id = self.objects.find(hash, key)?;
        self.objects.is_live(&self.lanes, now, id).then_some(id)
    }

    /// Checks a condition against the object of a key that a get would find.
    pub(super) fn check_condition(
        &self,
        now: Time,
        (key, hash): (&Key, u64),
        condition: Condition,
    ) -> Result<(), Failure> {
        if condition == Condition::Always {
            return Ok(());
        }
        let found = self.lookup(now, hash, key);
        condition.check(found.map(|id| self.objects.index().object(id).version))
    }

    /// Queues the commands of items whose parts are in [`Batches::parts`].
    pub(super) fn launch(
        &mut self,
        now: Time,
        deadline: Time,
        direction: Direction,
        items: Items<R>,
    ) {
        self.batches.launch(&mut self.lanes, (now, deadline), direction, items);
    }

    /// Defines a layout that is new, perhaps with the number of another one.
    pub(super) fn define_layout(
        &mut self,
        now: Time,
        layout: Layout,
        may_replace: bool,
    ) -> Result<LayoutId, Failure> {
        self.check_definable()?;
        let added = self.objects.spaces_mut().layouts_mut().add(layout, may_replace);
        let id = added.map_err(|why| Failure::Layout(why.into()))?;
        self.log.append(now, &Record::Layout { id, bytes: &layout.encode() });
        Ok(id)
    }

    /// Defines a tenant that is new, perhaps with the number of another one.
    pub(super) fn define_tenant(
        &mut self,
        now: Time,
        name: &str,
        may_replace: bool,
    ) -> Result<TenantId, Failure> {
        self.check_definable()?;
        let added = self.objects.accounts_mut().tenants_mut().add(name, may_replace);
        let id = added.map_err(|why| Failure::Tenant(why.into()))?;
        self.record_tenant(now, id);
        Ok(id)
    }

    /// Sets a tenant's quota, or lifts it.
    pub(super) fn set_quota(
        &mut self,
        now: Time,
        id: TenantId,
        quota: Option<Quota>,
    ) -> Result<(), Failure> {
        if self.objects.tenants().name(id).is_none() {
            return Err(Failure::Undefined("tenant"));
        }
        if id == TenantId::default() {
            let why = "the default tenant cannot have a quota: put the objects for another one";
            return Err(Failure::Tenant(why.into()));
        }
        self.check_definable()?;
        self.objects.accounts_mut().tenants_mut().set_quota(id, quota);
        self.record_tenant(now, id);
        Ok(())
    }

    /// Records a tenant as it is now.
    fn record_tenant(&mut self, now: Time, id: TenantId) {
        let tenants = self.objects.tenants();
        let name = tenants.name(id).expect("a tenant has a name");
        self.log.append(now, &Record::Tenant { id, name, quota: tenants.quota(id) });
    }

    /// Checks that a definition can be written to the journal.
    fn check_definable(&mut self) -> Result<(), Failure> {
        self.lanes.check_home()?;
        if self.log.asks_small() { Ok(()) } else { Err(Failure::Full) }
    }
}
