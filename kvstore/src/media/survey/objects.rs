//! The objects of a shard according to its records.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::Fault;
use crate::error::Result;
use crate::media::record::Put;
use crate::media::recovery::Rebuild;
use crate::model::key::Key;
use crate::model::layout::{ENCODED_BYTES, Layout, Piece, pieces};
use crate::model::object::{LayoutId, Object, TenantId, piece_count};
use crate::model::options::Quota;
use crate::model::place::{Place, UNIT_BYTES};

/// An object found in the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedObject {
    /// Its key.
    pub key: Key,
    /// Its place, length, tenant and layout.
    pub object: Object,
    /// The first unit of its slab, if it lies in one.
    pub slab_base: Option<u64>,
    /// Its time of expiry, in seconds of Unix time.
    pub expires_s: Option<u64>,
    /// The age of its last use, from its record (`Put::age`).
    pub age: Option<u8>,
    /// The checksums of its pieces, in order.
    pub checksums: Box<[u32]>,
    /// The position of its record among those read. Of two objects, the later one is the younger.
    pub order: u64,
}

impl SurveyedObject {
    /// Returns its record.
    pub(crate) fn put(&self) -> Put<'_> {
        let checksums = self.checksums.as_ref().into();
        let SurveyedObject { object, slab_base, expires_s, age, .. } = *self;
        let (key, is_provisional) = (self.key.as_bytes(), false);
        Put { key, object, slab_base, expires_s, age, is_provisional, checksums }
    }
}

/// The contents of all records.
#[derive(Debug)]
pub(super) struct Objects {
    /// The ranges of units of the data on each device.
    data: Vec<Vec<Range<u64>>>,
    objects: HashMap<Key, SurveyedObject>,
    /// Objects read so far, including those that later records removed.
    read: u64,
    /// The value of `read` at the last lost block.
    read_at_loss: u64,
    tenants: BTreeMap<u8, (String, Option<Quota>)>,
    /// `None` for a layout that cannot be decoded.
    layouts: BTreeMap<u8, Option<Layout>>,
}

impl Rebuild for Objects {
    fn clear(&mut self) {
        *self = Objects::new(std::mem::take(&mut self.data));
    }

    fn pieces(&self, put: &Put<'_>) -> Option<Vec<Piece>> {
        let layout = self.layout_of(&put.object);
        let is_known = layout.is_some() || put.object.layout == LayoutId::PLAIN;
        let pieces = is_known.then(|| pieces(&put.object, layout))?;
        let is_whole = pieces.len() == put.checksums.len() && put.is_inside(&pieces, &self.data);
        is_whole.then_some(pieces)
    }

    fn put(&mut self, put: &Put<'_>) -> Result<()> {
        let key = Key::new(put.key)?;
        let found = SurveyedObject {
            key: key.clone(),
            object: put.object,
            slab_base: put.slab_base,
            expires_s: put.expires_s,
            age: put.age,
            checksums: put.checksums.iter().collect(),
            order: self.read,
        };
        self.read += 1;
        self.objects.insert(key, found);
        Ok(())
    }

    fn delete(&mut self, key: &[u8], place: Place) -> Result<()> {
        let key = Key::new(key)?;
        let goes =
            |found: &SurveyedObject| found.object.place == place || found.order < self.read_at_loss;
        if self.objects.get(&key).is_some_and(goes) {
            self.objects.remove(&key);
        }
        Ok(())
    }

    fn lose_block(&mut self) {
        self.read_at_loss = self.read;
    }

    fn drop_superseded(&mut self, key: &[u8]) {
        self.objects.retain(|other, _| other.as_bytes() != key);
    }

    fn tenant(&mut self, id: TenantId, name: &str, quota: Option<Quota>) -> Result<()> {
        self.tenants.insert(id.0, (name.to_owned(), quota));
        Ok(())
    }

    fn layout(&mut self, id: LayoutId, bytes: &[u8]) -> Result<()> {
        let bytes: Option<&[u8; ENCODED_BYTES]> = bytes.try_into().ok();
        self.layouts.insert(id.0, bytes.and_then(|bytes| Layout::decode(bytes).ok()));
        Ok(())
    }
}

impl Objects {
    /// Creates an empty list of objects in these ranges of units of each device.
    pub(super) fn new(data: Vec<Vec<Range<u64>>>) -> Objects {
        let (objects, tenants, layouts) = Default::default();
        Objects { data, objects, read: 0, read_at_loss: 0, tenants, layouts }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SurveyedObject> {
        self.objects.values()
    }

    /// Returns all objects by key.
    pub(super) fn into_list(self) -> Vec<SurveyedObject> {
        let mut list: Vec<SurveyedObject> = self.objects.into_values().collect();
        list.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        list
    }

    /// Removes the objects that missing records may have superseded, as an opening does. Returns their number.
    pub(super) fn drop_outdated(&mut self) -> u64 {
        let (before, first) = (self.objects.len(), self.read_at_loss);
        self.objects.retain(|_, found| found.order >= first);
        (before - self.objects.len()) as u64
    }

    /// Returns the tenants: id, name, quota.
    pub(super) fn tenants(&self) -> Vec<(u8, String, Option<Quota>)> {
        let each = self.tenants.iter();
        each.map(|(id, (name, quota))| (*id, name.clone(), *quota)).collect()
    }

    /// Returns the layouts that could be decoded.
    pub(super) fn layouts(&self) -> BTreeMap<u8, Layout> {
        let each = self.layouts.iter();
        each.filter_map(|(id, layout)| Some((*id, *layout.as_ref()?))).collect()
    }

    /// Returns the layout of an object; `None` if the object is plain, or its layout is missing.
    pub(super) fn layout_of(&self, object: &Object) -> Option<&Layout> {
        self.layouts.get(&object.layout.0)?.as_ref()
    }

    /// Returns the faults of each object by itself.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (id, layout) in &self.layouts {
            if layout.is_none() {
                let text = format!("layout {id} cannot be read; its objects are lost");
                faults.push(Fault::new("layout", 0, text));
            }
        }
        faults.extend(self.iter().filter_map(|found| self.fault(found)));
        faults
    }

    fn fault(&self, found: &SurveyedObject) -> Option<Fault> {
        let object = &found.object;
        let lost = |code, text: String| Some(Fault::new(code, 1, text));
        let pieces = if object.layout == LayoutId::PLAIN {
            piece_count(object.bytes)
        } else {
            let Some(layout) = self.layout_of(object) else {
                let text = format!(
                    "object '{}' has layout {}, which does not exist",
                    found.key, object.layout.0
                );
                return lost("object-layout", text);
            };
            // A KV block counts with the padding of its tensors.
            let block_bytes = layout.block_units() * UNIT_BYTES;
            if block_bytes != object.bytes {
                let text = format!(
                    "object '{}' has {} bytes, and blocks of its layout {}",
                    found.key, object.bytes, block_bytes
                );
                return lost("object-layout", text);
            }
            u64::from(layout.tensors())
        };
        if pieces != found.checksums.len() as u64 {
            let text = format!(
                "object '{}' has {} checksums for {pieces} pieces",
                found.key,
                found.checksums.len()
            );
            return lost("object-checksums", text);
        }
        if object.tenant != TenantId(0) && !self.tenants.contains_key(&object.tenant.0) {
            let text = format!(
                "object '{}' belongs to tenant {}, which does not exist",
                found.key, object.tenant.0
            );
            return Some(Fault::new("object-tenant", 0, text));
        }
        None
    }
}
