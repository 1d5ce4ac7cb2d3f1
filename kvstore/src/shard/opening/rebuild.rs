//! Enters the records on the media into a shard's tables.

use super::renewed::Renewed;
use super::replaced::Replaced;
use super::tables::{Tables, new_index};
use crate::catalog::expiry::Expiry;
use crate::error::Result;
use crate::media::record::Put;
use crate::media::recovery::Rebuild;
use crate::model::layout::{ENCODED_BYTES, Layout, Piece, pieces};
use crate::model::object::{LayoutId, ObjectId, TenantId, Version};
use crate::model::options::Quota;
use crate::model::place::Place;
use crate::policy::age::Ages;

impl Rebuild for Tables {
    fn clear(&mut self) {
        self.index = new_index(self.entries, self.hasher).expect("one was made before");
        self.expiry = Expiry::new();
        self.ages = Ages::new(self.index.index().capacity());
        self.tenants.clear();
        self.replaced = Replaced::default();
        self.spaces.layouts_mut().clear();
        self.slab_bases.clear();
        self.renewed = Renewed::default();
        self.dropped = 0;
    }

    fn expect(&mut self, objects: u64) {
        self.index.expect(objects);
    }

    fn put(&mut self, put: &Put<'_>) -> Result<()> {
        self.note(put.object.version);
        if !self.is_possible(put) {
            self.dropped += 1;
            if let Some(id) = self.find(put.key) {
                self.remove(id);
            }
            return Ok(());
        }
        let Some(id) = self.insert(put) else {
            self.dropped += 1;
            return Ok(());
        };
        // The id has no earlier expiry: that was forgotten with its object.
        if let Some(at_s) = put.expires_s {
            self.expiry.set(id, at_s);
        }
        if let Some(base) = put.slab_base {
            self.slab_bases.insert(id, base);
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8], place: Place) -> Result<()> {
        let found = self.find(key);
        let goes = |tables: &Tables, id: ObjectId| {
            tables.index.index().object(id).place == place || tables.renewed.is_outdated(id)
        };
        if let Some(id) = found.filter(|id| goes(self, *id)) {
            self.remove(id);
        }
        Ok(())
    }

    fn lose_block(&mut self) {
        // Objects put since are recognized by id, so enter the waiting ones, which later records may replace.
        self.link();
        self.renewed.lose_block();
    }

    fn pass_over(&mut self, version: Version) {
        // The next put must be younger even than a void one, which a later opening may enter before it.
        self.note(version);
    }

    fn drop_superseded(&mut self, key: &[u8]) {
        if let Some(id) = self.find(key) {
            self.remove(id);
        }
    }

    fn pieces(&self, put: &Put<'_>) -> Option<Vec<Piece>> {
        let layout = self.spaces.layouts().get(put.object.layout);
        self.is_possible(put).then(|| pieces(&put.object, layout))
    }

    fn tenant(&mut self, id: TenantId, name: &str, quota: Option<Quota>) -> Result<()> {
        let known = self.tenants.iter().position(|(known, _)| &**known == name);
        let Some(at) = usize::from(id.0).checked_sub(1) else { return Ok(()) };
        if known == Some(at) {
            self.tenants[at].1 = quota;
        } else if known.is_none() && at == self.tenants.len() {
            self.tenants.push((name.into(), quota));
        } else if known.is_none() && at < self.tenants.len() {
            self.tenants[at] = (name.into(), quota);
            self.replaced.tenant(id);
        }
        Ok(())
    }

    fn layout(&mut self, id: LayoutId, bytes: &[u8]) -> Result<()> {
        let bytes: Option<&[u8; ENCODED_BYTES]> = bytes.try_into().ok();
        let Some(layout) = bytes.and_then(|bytes| Layout::decode(bytes).ok()) else {
            return Ok(());
        };
        if self.spaces.layouts_mut().restore(id, layout) {
            self.replaced.layout(id);
        }
        Ok(())
    }
}

impl Tables {
    /// Records the version of a put, so that future versions are younger.
    fn note(&mut self, version: Version) {
        self.newest = self.newest.max(version);
        self.replaced.put(version);
    }
}
