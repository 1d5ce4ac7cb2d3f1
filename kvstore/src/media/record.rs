//! Records: the entries of journals and checkpoints.
//!
//! They are little-endian, of variable length and without padding; `docs/design/disk-format.md` specifies the bytes.
//! Decoding borrows, allocates nothing and checks every field: an accepted record encodes to the same bytes again.
//! Records have no checksum, because their block has one.
//!
//! This module does not judge which records still hold: the shard replays them in order.

use std::fmt;
use std::ops::Range;

use crate::media::bytes::{Reader, Writer};
use crate::model::key::KEY_BYTES_MAX;
use crate::model::layout::Piece;
use crate::model::object::{CHECKSUMS_MAX, LayoutId, Object, TenantId, Version};
use crate::model::options::{Quota, WhenReached};
use crate::model::place::{Place, units};
use crate::policy::age::Ages;

/// Maximum length of a tenant's name, in bytes of UTF-8.
pub const TENANT_NAME_BYTES_MAX: usize = 64;
/// Maximum length of an encoded layout, in bytes.
pub const LAYOUT_BYTES_MAX: usize = 64;
/// Length of the longest record, a put with all options, in bytes.
pub const RECORD_BYTES_MAX: usize = record_bytes(KEY_BYTES_MAX, CHECKSUMS_MAX);

const PUT: u8 = 1;
const DELETE: u8 = 2;
const TENANT: u8 = 3;
const LAYOUT: u8 = 4;

const PUT_BYTES: usize = 19;
const SLAB_BASE_BYTES: usize = 5;
const EXPIRES_BYTES: usize = 8;
const AGE_BYTES: usize = 1;
const VERSION_BYTES: usize = 8;
const DELETE_BYTES: usize = 10;
const NAMED_BYTES: usize = 4;
const QUOTA_BYTES: usize = 8;

const HAS_SLAB_BASE: u8 = 1;
const HAS_EXPIRY: u8 = 2;
const HAS_AGE: u8 = 4;
/// [`Put::is_provisional`].
const PROVISIONAL: u8 = 8;
const HAS_VERSION: u8 = 16;
const HAS_QUOTA: u8 = 1;
const EVICTS_OWN: u8 = 2;

/// Returns the maximum bytes of an object's record, with a slab, an expiry, an age and a version. Used for accounting:
/// a checkpoint holds one record per object.
pub const fn record_bytes(key_bytes: usize, checksums: usize) -> usize {
    let optional = SLAB_BASE_BYTES + EXPIRES_BYTES + AGE_BYTES + VERSION_BYTES;
    PUT_BYTES + optional + key_bytes + 4 * checksums
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no record: {0}")]
pub struct Malformed(pub &'static str);

/// One change of the store, or one item of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Adds this object, replacing any other with its key.
    Put(Put<'a>),
    /// Removes the object with this key if it lies at this place, so that an eviction never undoes a newer put.
    Delete {
        /// Its key: 1 to 512 bytes.
        key: &'a [u8],
        /// Its place.
        place: Place,
    },
    /// Adds this tenant, replacing any other with its id.
    Tenant {
        /// Its id.
        id: TenantId,
        /// Its name: 1 to 64 bytes.
        name: &'a str,
        /// Its quota; unlimited if `None`. Only shard 0's records of quotas count.
        quota: Option<Quota>,
    },
    /// Adds this layout, replacing any other with its id.
    Layout {
        /// Its id.
        id: LayoutId,
        /// Its encoding, opaque here: up to 64 bytes.
        bytes: &'a [u8],
    },
}

/// An object in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// Its key: 1 to 512 bytes.
    pub key: &'a [u8],
    /// Its place, length, tenant, layout and version.
    pub object: Object,
    /// The first unit of its slab, if it lies in one; at or before its own place.
    pub slab_base: Option<u64>,
    /// Its time of expiry, in seconds of the store's clock.
    pub expires_s: Option<u64>,
    /// Time from its last use to the checkpoint, in 128ths of a turnover, up to 191. `None` in a journal: a put is a
    /// use.
    pub age: Option<u8>,
    /// Whether it replaces an older object, and its data was not flushed when it was recorded. If a power cut took the
    /// data, the older object counts.
    pub is_provisional: bool,
    /// The checksum of each piece: 1 to 512.
    pub checksums: Checksums<'a>,
}

/// Checksums, in memory or in a record.
#[derive(Clone, Copy)]
pub struct Checksums<'a>(Form<'a>);

#[derive(Clone, Copy)]
enum Form<'a> {
    Words(&'a [u32]),
    Bytes(&'a [u8]),
}

impl<'a> From<&'a [u32]> for Checksums<'a> {
    fn from(words: &'a [u32]) -> Checksums<'a> {
        Checksums(Form::Words(words))
    }
}

impl<'a> Checksums<'a> {
    /// Returns the number of checksums.
    #[allow(clippy::len_without_is_empty)] // There is always one.
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Words(words) => words.len(),
            Form::Bytes(bytes) => bytes.len() / 4,
        }
    }

    /// Iterates over the checksums in the order of the pieces.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        let (words, bytes): (&[u32], &[u8]) = match self.0 {
            Form::Words(words) => (words, &[]),
            Form::Bytes(bytes) => (&[], bytes),
        };
        words.iter().copied().chain(read_words(bytes))
    }

    /// Copies the checksums into `words`, replacing its contents.
    pub fn copy_into(&self, words: &mut Vec<u32>) {
        words.clear();
        match self.0 {
            Form::Words(own) => words.extend_from_slice(own),
            Form::Bytes(bytes) => words.extend(read_words(bytes)),
        }
    }
}

fn read_words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

impl PartialEq for Checksums<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Checksums<'_> {}

impl fmt::Debug for Checksums<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Record<'a> {
    /// Returns the encoded length in bytes.
    pub fn encoded_bytes(&self) -> usize {
        match self {
            Record::Put(put) => put.encoded_bytes(),
            Record::Delete { key, .. } => DELETE_BYTES + key.len(),
            Record::Tenant { name, quota, .. } => {
                NAMED_BYTES + quota.map_or(0, |_| QUOTA_BYTES) + name.len()
            }
            Record::Layout { bytes, .. } => NAMED_BYTES + bytes.len(),
        }
    }

    /// Encodes the record to the front of `into` and returns its length. Returns `None` and writes nothing if it does
    /// not fit.
    ///
    /// # Panics
    /// If a field is out of range.
    #[inline]
    pub fn encode(&self, into: &mut [u8]) -> Option<usize> {
        let bytes = self.encoded_bytes();
        let mut writer = Writer::new(into.get_mut(..bytes)?);
        match self {
            Record::Put(put) => put.encode(&mut writer),
            Record::Delete { key, place } => {
                writer.put(&[DELETE, 0]).put(&key_len(key)).u48(place.pack()).put(key);
            }
            Record::Tenant { id, name, quota } => {
                assert!((1..=TENANT_NAME_BYTES_MAX).contains(&name.len()), "tenant '{name}'");
                let flags = quota.map_or(0, |quota| match quota.when_reached {
                    WhenReached::Refuse => HAS_QUOTA,
                    WhenReached::EvictOwn => HAS_QUOTA | EVICTS_OWN,
                });
                writer.put(&[TENANT, flags, id.0, name.len() as u8]);
                quota.inspect(|quota| _ = writer.put(&quota.bytes.to_le_bytes()));
                writer.put(name.as_bytes());
            }
            Record::Layout { id, bytes } => {
                assert!(bytes.len() <= LAYOUT_BYTES_MAX, "a layout has {} bytes", bytes.len());
                writer.put(&[LAYOUT, 0, id.0, bytes.len() as u8]).put(bytes);
            }
        }
        assert_eq!(writer.len(), bytes, "a record is as long as was counted");
        Some(bytes)
    }

    /// Decodes the record at the front of `bytes`; returns it and the rest.
    ///
    /// # Errors
    /// [`Malformed`] if there is none.
    #[inline(always)] // An opening decodes millions of records; a call would mostly move the result.
    pub fn decode(bytes: &'a [u8]) -> Result<(Record<'a>, &'a [u8]), Malformed> {
        let mut reader = Reader(bytes);
        let kind = reader.u8().ok_or(Malformed("nothing is there"))?;
        let record = match kind {
            PUT => Put::decode(&mut reader).map(Record::Put),
            DELETE => decode_delete(&mut reader),
            TENANT => decode_tenant(&mut reader),
            LAYOUT => decode_layout(&mut reader),
            _ => Err(Malformed("its kind is unknown")),
        };
        Ok((record?, reader.0))
    }
}

impl<'a> Put<'a> {
    /// Returns whether these pieces of the object lie within the devices' data areas.
    pub(crate) fn is_inside(&self, pieces: &[Piece], data: &[Vec<Range<u64>>]) -> bool {
        let Place { device, unit } = self.object.place;
        let areas = data.get(usize::from(device)).map_or(&[][..], Vec::as_slice);
        pieces.iter().all(|(offset, bytes)| {
            let (start, end) = (unit + offset, unit + offset + units(*bytes));
            areas.iter().any(|area| area.start <= start && end <= area.end)
        })
    }

    fn encoded_bytes(&self) -> usize {
        let slab = self.slab_base.map_or(0, |_| SLAB_BASE_BYTES);
        let expiry = self.expires_s.map_or(0, |_| EXPIRES_BYTES);
        let age = self.age.map_or(0, |_| AGE_BYTES);
        let version = if self.object.version == Version::NONE { 0 } else { VERSION_BYTES };
        PUT_BYTES + slab + expiry + age + version + self.key.len() + 4 * self.checksums.len()
    }

    fn flags(&self) -> u8 {
        let slab = if self.slab_base.is_some() { HAS_SLAB_BASE } else { 0 };
        let expiry = if self.expires_s.is_some() { HAS_EXPIRY } else { 0 };
        let age = if self.age.is_some() { HAS_AGE } else { 0 };
        let version = if self.object.version == Version::NONE { 0 } else { HAS_VERSION };
        slab | expiry | age | version | if self.is_provisional { PROVISIONAL } else { 0 }
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        let Object { place, bytes, layout, tenant, version } = self.object;
        let checksums = self.checksums.len();
        assert!((1..=CHECKSUMS_MAX).contains(&checksums), "an object has {checksums} checksums");
        writer.put(&[PUT, self.flags(), tenant.0, layout.0]).put(&key_len(self.key));
        writer.put(&(checksums as u16).to_le_bytes()).u48(place.pack()).u40(bytes);
        self.slab_base.inspect(|base| {
            assert!(*base <= place.unit, "a slab starts no later than what is in it");
            writer.u40(*base);
        });
        self.expires_s.inspect(|at_s| _ = writer.put(&at_s.to_le_bytes()));
        self.age.inspect(|age| {
            assert!(*age <= Ages::MAX, "an age saturates");
            writer.put(&[*age]);
        });
        if version != Version::NONE {
            writer.put(&version.0.to_le_bytes());
        }
        writer.put(self.key);
        for checksum in self.checksums.iter() {
            writer.put(&checksum.to_le_bytes());
        }
    }

    #[inline(always)]
    fn decode(reader: &mut Reader<'a>) -> Result<Put<'a>, Malformed> {
        // One read, because an opening decodes millions of these.
        let head: [u8; PUT_BYTES - 1] = reader.array().ok_or(CUT)?;
        let [flags, tenant, layout, k0, k1, c0, c1, p0, p1, p2, p3, p4, p5, b0, b1, b2, b3, b4] =
            head;
        if flags & !(HAS_SLAB_BASE | HAS_EXPIRY | HAS_AGE | PROVISIONAL | HAS_VERSION) != 0 {
            return Err(Malformed("it has an unknown flag"));
        }
        let key_bytes = check_key_len(u16::from_le_bytes([k0, k1]))?;
        let checksums = usize::from(u16::from_le_bytes([c0, c1]));
        let place = Place::unpack(u64::from_le_bytes([p0, p1, p2, p3, p4, p5, 0, 0]));
        let bytes = u64::from_le_bytes([b0, b1, b2, b3, b4, 0, 0, 0]);
        if checksums == 0 || checksums > CHECKSUMS_MAX {
            return Err(Malformed("its object has no or too many checksums"));
        }
        let slab_base = optional(flags & HAS_SLAB_BASE != 0, || reader.u40())?;
        if slab_base.is_some_and(|base| base > place.unit) {
            return Err(Malformed("its slab starts behind it"));
        }
        let expires_s = optional(flags & HAS_EXPIRY != 0, || reader.u64())?;
        let age = optional(flags & HAS_AGE != 0, || reader.u8())?;
        if age.is_some_and(|age| age > Ages::MAX) {
            return Err(Malformed("its age is too high"));
        }
        let version = optional(flags & HAS_VERSION != 0, || reader.u64())?;
        if version == Some(Version::NONE.0) {
            return Err(Malformed("its version is none"));
        }
        let version = version.map_or(Version::NONE, Version);
        let key = reader.take(key_bytes).ok_or(CUT)?;
        let checksums = Checksums(Form::Bytes(reader.take(4 * checksums).ok_or(CUT)?));
        let (layout, tenant) = (LayoutId(layout), TenantId(tenant));
        let object = Object { place, bytes, layout, tenant, version };
        let is_provisional = flags & PROVISIONAL != 0;
        Ok(Put { key, object, slab_base, expires_s, age, is_provisional, checksums })
    }
}

const CUT: Malformed = Malformed("it ends before its time");

fn key_len(key: &[u8]) -> [u8; 2] {
    assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "a key has {} bytes", key.len());
    (key.len() as u16).to_le_bytes()
}

fn decode_key_len(reader: &mut Reader<'_>) -> Result<usize, Malformed> {
    check_key_len(reader.u16().ok_or(CUT)?)
}

fn check_key_len(bytes: u16) -> Result<usize, Malformed> {
    let bytes = usize::from(bytes);
    let fits = (1..=KEY_BYTES_MAX).contains(&bytes);
    fits.then_some(bytes).ok_or(Malformed("its key is empty or too long"))
}

fn optional<T>(is_there: bool, read: impl FnOnce() -> Option<T>) -> Result<Option<T>, Malformed> {
    if is_there { read().ok_or(CUT).map(Some) } else { Ok(None) }
}

fn decode_delete<'a>(reader: &mut Reader<'a>) -> Result<Record<'a>, Malformed> {
    if reader.u8().ok_or(CUT)? != 0 {
        return Err(Malformed("it has an unknown flag"));
    }
    let key_bytes = decode_key_len(reader)?;
    let place = Place::unpack(reader.u48().ok_or(CUT)?);
    Ok(Record::Delete { key: reader.take(key_bytes).ok_or(CUT)?, place })
}

fn decode_tenant<'a>(reader: &mut Reader<'a>) -> Result<Record<'a>, Malformed> {
    let [flags, id, len] = reader.array().ok_or(CUT)?;
    let is_name = (1..=TENANT_NAME_BYTES_MAX).contains(&usize::from(len));
    let when_reached = match flags {
        0 | HAS_QUOTA if is_name => WhenReached::Refuse,
        flags if is_name && flags == HAS_QUOTA | EVICTS_OWN => WhenReached::EvictOwn,
        _ => {
            let why = "it has an unknown flag, or its name is empty or too long";
            return Err(Malformed(why));
        }
    };
    let bytes = optional(flags & HAS_QUOTA != 0, || reader.u64())?;
    let quota = bytes.map(|bytes| Quota { bytes, when_reached });
    let name = reader.take(usize::from(len)).ok_or(CUT)?;
    let name = std::str::from_utf8(name).map_err(|_| Malformed("its name is not UTF-8"))?;
    Ok(Record::Tenant { id: TenantId(id), name, quota })
}

fn decode_layout<'a>(reader: &mut Reader<'a>) -> Result<Record<'a>, Malformed> {
    let [flags, id, len] = reader.array().ok_or(CUT)?;
    if flags != 0 || usize::from(len) > LAYOUT_BYTES_MAX {
        return Err(Malformed("it has an unknown flag, or its layout is too long"));
    }
    Ok(Record::Layout { id: LayoutId(id), bytes: reader.take(usize::from(len)).ok_or(CUT)? })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    /// An owned form of [`Record`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum Owned {
        Put {
            key: Vec<u8>,
            object: Object,
            flags: (bool, bool),
            expires_s: Option<u64>,
            age: Option<u8>,
            sums: Vec<u32>,
        },
        Delete {
            key: Vec<u8>,
            place: Place,
        },
        Tenant {
            id: u8,
            name: String,
            quota: Option<Quota>,
        },
        Layout {
            id: u8,
            bytes: Vec<u8>,
        },
    }

    impl Owned {
        pub(crate) fn record(&self) -> Record<'_> {
            match self {
                Owned::Put { key, object, flags, expires_s, age, sums } => Record::Put(Put {
                    key,
                    object: *object,
                    slab_base: flags.0.then_some(object.place.unit / 2),
                    is_provisional: flags.1,
                    expires_s: *expires_s,
                    age: *age,
                    checksums: sums.as_slice().into(),
                }),
                Owned::Delete { key, place } => Record::Delete { key, place: *place },
                Owned::Tenant { id, name, quota } => {
                    Record::Tenant { id: TenantId(*id), name, quota: *quota }
                }
                Owned::Layout { id, bytes } => Record::Layout { id: LayoutId(*id), bytes },
            }
        }

        pub(crate) fn of(record: &Record<'_>) -> Owned {
            match record {
                Record::Put(put) => Owned::Put {
                    key: put.key.to_vec(),
                    object: put.object,
                    flags: (put.slab_base.is_some(), put.is_provisional),
                    expires_s: put.expires_s,
                    age: put.age,
                    sums: put.checksums.iter().collect(),
                },
                Record::Delete { key, place } => Owned::Delete { key: key.to_vec(), place: *place },
                Record::Tenant { id, name, quota } => {
                    Owned::Tenant { id: id.0, name: (*name).into(), quota: *quota }
                }
                Record::Layout { id, bytes } => Owned::Layout { id: id.0, bytes: bytes.to_vec() },
            }
        }
    }

    fn places() -> impl Strategy<Value = Place> {
        (any::<u8>(), 0..Place::UNITS_MAX).prop_map(|(device, unit)| Place { device, unit })
    }

    prop_compose! {
        fn objects()(
            place in places(), bytes in 0..Object::BYTES_END, layout: u8, tenant: u8,
            version in prop_oneof![Just(0), any::<u64>()],
        ) -> Object {
            let (layout, tenant, version) = (LayoutId(layout), TenantId(tenant), Version(version));
            Object { place, bytes, layout, tenant, version }
        }
    }

    pub(crate) fn records() -> impl Strategy<Value = Owned> {
        let keys = || prop_oneof![vec(any::<u8>(), 1..40), vec(any::<u8>(), 1..=KEY_BYTES_MAX)];
        let sums = prop_oneof![vec(any::<u32>(), 1..4), vec(any::<u32>(), 1..=CHECKSUMS_MAX)];
        let ages = option::of(0..=Ages::MAX);
        let put = (keys(), objects(), any::<(bool, bool)>(), option::of(any::<u64>()), ages, sums);
        let when_reached = any::<bool>().prop_map(|evicts| match evicts {
            true => WhenReached::EvictOwn,
            false => WhenReached::Refuse,
        });
        let quota = (any::<u64>(), when_reached)
            .prop_map(|(bytes, when_reached)| Quota { bytes, when_reached });
        let tenant = (any::<u8>(), "[a-zé]{1,32}", option::of(quota));
        prop_oneof![
            4 => put.prop_map(|(key, object, flags, expires_s, age, sums)| {
                Owned::Put { key, object, flags, expires_s, age, sums }
            }),
            2 => (keys(), places()).prop_map(|(key, place)| Owned::Delete { key, place }),
            1 => tenant.prop_map(|(id, name, quota)| Owned::Tenant { id, name, quota }),
            1 => (any::<u8>(), vec(any::<u8>(), 0..=LAYOUT_BYTES_MAX))
                .prop_map(|(id, bytes)| Owned::Layout { id, bytes }),
        ]
    }

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = vec![0xee; record.encoded_bytes()];
        assert_eq!(record.encode(&mut bytes), Some(bytes.len()));
        bytes
    }

    proptest! {
        #[test]
        fn every_record_comes_back_and_no_part_of_it_does(owned in records()) {
            let record = owned.record();
            let mut bytes = encoded(&record);
            prop_assert!(bytes.len() <= RECORD_BYTES_MAX);
            for cut in 0..bytes.len() {
                prop_assert!(Record::decode(&bytes[..cut]).is_err(), "cut at {}", cut);
            }
            bytes.extend_from_slice(b"more");
            let (decoded, rest) = Record::decode(&bytes).expect("a record");
            prop_assert_eq!(decoded, record);
            prop_assert_eq!(rest, b"more");
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(kind in 0u8..6, mut bytes in vec(any::<u8>(), 0..80), small: bool) {
            if small {
                bytes.iter_mut().for_each(|byte| *byte &= 3);
            }
            bytes.insert(0, kind);
            if let Ok((record, rest)) = Record::decode(&bytes) {
                let used = bytes.len() - rest.len();
                prop_assert_eq!(encoded(&record), &bytes[..used]);
            }
        }

        #[test]
        fn a_record_that_does_not_fit_writes_nothing(owned in records()) {
            let record = owned.record();
            let mut bytes = vec![0xee; record.encoded_bytes() - 1];
            prop_assert_eq!(record.encode(&mut bytes), None);
            prop_assert!(bytes.iter().all(|byte| *byte == 0xee));
        }
    }

    fn small_put(key: &[u8]) -> Record<'_> {
        let place = Place { device: 1, unit: 2 };
        let (layout, tenant) = (LayoutId::PLAIN, TenantId(0));
        let object = Object { place, bytes: 131_072, layout, tenant, version: Version::NONE };
        let checksums = Checksums::from(&[7u32][..]);
        let (slab_base, expires_s, age, is_provisional) = (None, None, None, false);
        Record::Put(Put { key, object, slab_base, expires_s, age, is_provisional, checksums })
    }

    #[test]
    fn an_object_of_a_hash_and_one_piece_takes_39_bytes() {
        assert_eq!(small_put(&[1; 16]).encoded_bytes(), 39);
        assert_eq!(record_bytes(16, 1), 39 + 22, "accounted with all options");
    }

    #[test]
    fn each_field_out_of_its_range_is_refused() {
        let good = encoded(&small_put(b"key"));
        assert!(Record::decode(&good).is_ok());
        let cases: [(usize, u8); 5] = [(0, 9), (1, 32), (5, 0xff), (6, 0), (7, 3)];
        for (at, value) in cases {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(Record::decode(&bad).is_err(), "byte {at} is {value}");
        }
        let Record::Put(put) = small_put(b"key") else { unreachable!("it is one") };
        let aged = encoded(&Record::Put(Put { age: Some(Ages::MAX), ..put }));
        assert_eq!((aged.len(), aged[1], aged[19]), (good.len() + 1, HAS_AGE, Ages::MAX));
        let mut bad = aged.clone();
        bad[19] += 1;
        assert!(Record::decode(&bad).is_err(), "an age that is none");
        let object = Object { version: Version(7), ..put.object };
        let mut versioned = encoded(&Record::Put(Put { object, ..put }));
        assert_eq!((versioned.len(), versioned[1]), (good.len() + 8, HAS_VERSION));
        versioned[19] = 0;
        assert!(Record::decode(&versioned).is_err(), "a version that is none");
        assert!(Record::decode(&[TENANT, 0, 1, 2, 0xff, 0xff]).is_err(), "no UTF-8");
        assert!(Record::decode(&[LAYOUT, 0, 1, 65]).is_err(), "a long layout");
    }

    #[test]
    #[should_panic(expected = "a key has 513 bytes")]
    fn a_key_too_long_is_not_written() {
        small_put(&[0; 513]).encode(&mut [0; 4096]);
    }
}
