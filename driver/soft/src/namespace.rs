//! Namespaces: runs of the storage with an LBA size.

use super::options::{NAMESPACES_MAX, Options};
use super::protection::{Protection, TUPLE_BYTES};
use crate::error::{Error, Result};
use adit_spec::Nsid;

/// All shares are multiples of this, so that either LBA size fits.
const GRAIN: u64 = 4096;

#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub(super) nsid: Nsid,
    /// First byte in the storage.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// log2 of the LBA size.
    pub(super) lba_shift: u8,
    pub(super) is_attached: bool,
    /// The protection of its data; the tuples lie behind the data.
    pub(super) protection: Option<Protection>,
}

impl Namespace {
    /// Returns the size in LBAs.
    pub(super) fn lba_count(&self) -> u64 {
        self.bytes >> self.lba_shift
    }

    /// Bytes of storage it occupies: data and tuples.
    fn extent_bytes(&self) -> u64 {
        let data = self.bytes.next_multiple_of(GRAIN);
        data + self.protection.map_or(0, |_| tuples_bytes(self.bytes, self.lba_shift))
    }

    /// Returns the storage run of `count` LBAs from `first`, if all exist.
    #[inline]
    pub(super) fn range(&self, first: u64, count: u64) -> Option<(u64, u64)> {
        let end = first.checked_add(count)?;
        (end <= self.lba_count())
            .then(|| (self.offset + (first << self.lba_shift), count << self.lba_shift))
    }
}

/// Returns the bytes of tuples for `bytes` of data.
fn tuples_bytes(bytes: u64, lba_shift: u8) -> u64 {
    ((bytes >> lba_shift) * TUPLE_BYTES as u64).next_multiple_of(GRAIN)
}

/// Returns the most data bytes, a multiple of [`GRAIN`], that fit into `share` with their tuples.
fn protected_bytes(share: u64, lba_shift: u8) -> u64 {
    let lba_count = share / ((1 << lba_shift) + TUPLE_BYTES as u64);
    let most = (lba_count << lba_shift) / GRAIN * GRAIN;
    let fits = most + tuples_bytes(most, lba_shift) <= share;
    if fits { most } else { most.saturating_sub(GRAIN) }
}

/// Creates a namespace of the initial configuration.
fn at_start(options: &Options, index: u32, share: u64) -> Namespace {
    let lba_shift = options.lba_bytes_of(index as usize).ilog2() as u8;
    let offset = u64::from(index) * share;
    let bytes = match options.protection {
        0 => share,
        _ => protected_bytes(share, lba_shift),
    };
    let tuples = offset + bytes;
    let kind = options.protection;
    let protection = (kind > 0).then_some(Protection { kind, tuples });
    Namespace { nsid: Nsid(index + 1), offset, bytes, lba_shift, is_attached: true, protection }
}

#[derive(Debug)]
pub(super) struct Namespaces {
    list: Vec<Namespace>,
    capacity: u64,
}

impl Namespaces {
    /// Creates the initial namespaces with equal shares of `capacity` bytes.
    pub(super) fn new(options: &Options, capacity: u64) -> Result<Namespaces> {
        let count = options.namespace_count;
        let share = capacity / u64::from(count) / GRAIN * GRAIN;
        if share == 0 {
            let why =
                format!("{capacity} bytes are too few for {count} namespaces of 4096 or more");
            return Err(Error::invalid("size of the storage", why));
        }
        let list: Vec<Namespace> =
            (0..count).map(|index| at_start(options, index, share)).collect();
        if list.iter().any(|namespace| namespace.bytes == 0) {
            let why =
                format!("{share} bytes are too few for a namespace and its protection information");
            return Err(Error::invalid("size of the storage", why));
        }
        Ok(Namespaces { list, capacity })
    }

    /// Returns all existing namespaces, in order of their identifiers.
    pub(super) fn all(&self) -> &[Namespace] {
        &self.list
    }

    pub(super) fn find(&self, nsid: u32) -> Option<&Namespace> {
        self.list.iter().find(|namespace| namespace.nsid.0 == nsid)
    }

    /// Returns the namespace if it exists and is attached.
    #[inline]
    pub(super) fn active(&self, nsid: u32) -> Option<&Namespace> {
        self.find(nsid).filter(|namespace| namespace.is_attached)
    }

    pub(super) fn find_mut(&mut self, nsid: u32) -> Option<&mut Namespace> {
        self.list.iter_mut().find(|namespace| namespace.nsid.0 == nsid)
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that belong to no namespace.
    pub(super) fn unallocated(&self) -> u64 {
        self.capacity - self.list.iter().map(Namespace::extent_bytes).sum::<u64>()
    }

    /// Creates a namespace, unattached, in the first gap of `lba_count` LBAs; the caller zeroes it. Returns `None`
    /// without a gap.
    pub(super) fn create(&mut self, lba_count: u64, lba_shift: u8) -> Option<&Namespace> {
        let nsid = self.free_nsid()?;
        let bytes = lba_count.checked_shl(u32::from(lba_shift))?.checked_next_multiple_of(GRAIN)?;
        if bytes >> lba_shift < lba_count {
            return None;
        }
        let offset = self.gap(bytes)?;
        let at = self.list.partition_point(|other| other.nsid < nsid);
        let bytes = lba_count << lba_shift;
        let (is_attached, protection) = (false, None);
        self.list.insert(at, Namespace { nsid, offset, bytes, lba_shift, is_attached, protection });
        self.list.get(at)
    }

    pub(super) fn remove(&mut self, nsid: u32) -> Option<Namespace> {
        let at = self.list.iter().position(|namespace| namespace.nsid.0 == nsid)?;
        Some(self.list.remove(at))
    }

    /// Resizes a namespace to `lba_count` LBAs if the storage behind it is free; returns the run that it gained or
    /// lost.
    pub(super) fn resize(&mut self, nsid: u32, lba_count: u64) -> Result<(u64, u64)> {
        let refused = |why: String| Error::invalid(format!("namespace {nsid}"), why);
        let found = self.find(nsid).ok_or_else(|| refused("there is none".to_owned()))?;
        if found.protection.is_some() {
            return Err(refused("a protected namespace keeps its size".to_owned()));
        }
        let Namespace { offset, bytes: before, lba_shift, .. } = *found;
        let behind = self.list.iter().map(|other| other.offset).filter(|start| *start > offset);
        let room = behind.min().unwrap_or(self.capacity) - offset;
        let bytes =
            lba_count.checked_mul(1 << lba_shift).filter(|bytes| (1..=room).contains(bytes));
        let bytes = bytes.ok_or_else(|| {
            refused(format!(
                "{lba_count} LBAs are not 1 to {}, for which there is room",
                room >> lba_shift
            ))
        })?;
        if let Some(namespace) = self.find_mut(nsid) {
            namespace.bytes = bytes;
        }
        Ok((offset + bytes.min(before), bytes.abs_diff(before)))
    }

    /// Returns the lowest free identifier.
    pub(super) fn free_nsid(&self) -> Option<Nsid> {
        (1..=NAMESPACES_MAX).map(Nsid).find(|nsid| self.find(nsid.0).is_none())
    }

    fn gap(&self, bytes: u64) -> Option<u64> {
        let mut taken: Vec<(u64, u64)> =
            self.list.iter().map(|n| (n.offset, n.extent_bytes())).collect();
        taken.sort_unstable();
        let mut at = 0;
        for (offset, len) in taken {
            if offset - at >= bytes {
                return Some(at);
            }
            at = offset + len;
        }
        (self.capacity.saturating_sub(at) >= bytes).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Namespaces {
        let options =
            Options { namespace_count: 2, lba_bytes: vec![512, 4096], ..Options::memory(1 << 20) };
        Namespaces::new(&options, 1 << 20).expect("fits")
    }

    #[test]
    fn shares_are_equal_and_apart() {
        let namespaces = two();
        let [a, b] = namespaces.all() else { panic!("two namespaces") };
        assert_eq!((a.offset, a.bytes, a.lba_count()), (0, 1 << 19, 1024));
        assert_eq!((b.offset, b.bytes, b.lba_count()), (1 << 19, 1 << 19, 128));
        assert_eq!(b.range(127, 1), Some(((1 << 19) + 127 * 4096, 4096)));
        assert_eq!(b.range(127, 2), None);
        assert_eq!(b.range(u64::MAX, 2), None);
    }

    #[test]
    fn a_deleted_share_can_be_made_anew() {
        let mut namespaces = two();
        assert!(namespaces.create(1, 12).is_none());
        assert!(namespaces.remove(1).is_some() && namespaces.remove(1).is_none());
        assert_eq!(namespaces.unallocated(), 1 << 19);
        assert!(namespaces.create(u64::MAX, 12).is_none());
        assert!(namespaces.create(1025, 9).is_none());
        let made = namespaces.create(1024, 9).expect("the gap");
        assert_eq!((made.nsid, made.offset, made.is_attached), (Nsid(1), 0, false));
    }

    #[test]
    fn a_namespace_takes_what_is_free_behind_it() {
        let mut namespaces = two();
        assert_eq!(namespaces.resize(1, 1000).expect("smaller"), (512_000, 12_288));
        assert_eq!(namespaces.resize(1, 1024).expect("as before"), (512_000, 12_288));
        assert!(namespaces.resize(1, 1025).expect_err("taken").to_string().contains("1 to 1024"));
        assert!(namespaces.resize(2, 0).is_err() && namespaces.resize(3, 1).is_err());
        assert!(namespaces.resize(2, u64::MAX).is_err());
        namespaces.remove(2);
        assert_eq!(namespaces.resize(1, 2048).expect("all"), (1 << 19, 1 << 19));
    }

    #[test]
    fn what_protects_the_data_lies_behind_them_inside_the_share() {
        for share in [8 << 10, 1 << 20, (1 << 20) + 4096, 64 << 20] {
            for lba in [512, 4096] {
                let start = Options::memory(2 * share);
                let options =
                    Options { namespace_count: 2, lba_bytes: vec![lba], protection: 1, ..start };
                let namespaces = Namespaces::new(&options, 2 * share).expect("fits");
                let [a, b] = namespaces.all() else { panic!("two namespaces") };
                assert_eq!(a.protection.map(|p| (p.kind, p.tuples)), Some((1, a.bytes)));
                assert!(a.extent_bytes() <= share && b.offset == share, "{share} of {lba}");
                assert!(share - a.extent_bytes() <= 2 * GRAIN, "{share} of {lba} is used");
            }
        }
        let options = Options { protection: 3, ..Options::memory(4096) };
        assert!(Namespaces::new(&options, 4096).is_err(), "no room for the tuples");
    }

    #[test]
    fn too_many_shares_are_refused() {
        let options = Options { namespace_count: 200, ..Options::memory(4096) };
        assert!(Namespaces::new(&options, 4096).is_err());
    }
}
