use super::*;
use crate::layout::{BlockShape, Dtype, Order};
use proptest::prelude::*;

/// An object, whether it is given up behind its first piece, and a seed of its bytes.
type Item = (Entry, bool, u8);

fn items() -> impl Strategy<Value = Vec<Item>> {
    let shape = BlockShape {
        layers: 3,
        tensors_per_layer: 2,
        kv_heads: 1,
        head_dim: 64,
        dtype: Dtype::F16,
        tokens: 20,
    };
    let layout = Layout::new(shape, Order::LayerMajor { slots: 8 }).expect("a layout");
    let piece = PIECE_BYTES as u64;
    let bytes = prop_oneof![0u64..5000, Just(piece), Just(piece + 1), Just(2 * piece)];
    let entry = (
        prop::collection::vec(any::<u8>(), 1..40),
        bytes,
        "[a-zµ]{0,20}",
        any::<Option<u64>>(),
        any::<u64>(),
        any::<bool>(),
    );
    let entry = entry.prop_map(move |(key, bytes, tenant, expires_s, version, is_block)| Entry {
        key: Key::new(&key).expect("short enough"),
        bytes,
        tenant: tenant.into(),
        expires_s,
        version: Version(version),
        layout: is_block.then_some(layout),
    });
    prop::collection::vec((entry, any::<bool>(), any::<u8>()), 0..5)
}

fn data(entry: &Entry, seed: u8) -> Vec<u8> {
    (0..entry.bytes).map(|at| (at as u8).wrapping_mul(seed) ^ (at >> 8) as u8).collect()
}

fn written(items: &[Item]) -> (Vec<u8>, Counts) {
    let mut stream = Exporter::new(Vec::new()).expect("memory takes everything");
    for (entry, is_given_up, seed) in items {
        stream.object(entry).expect("written");
        let all = data(entry, *seed);
        for (number, piece) in all.chunks(PIECE_BYTES).enumerate() {
            if *is_given_up && number == 1 {
                stream.abandon().expect("written");
                break;
            }
            stream.piece(piece).expect("written");
        }
    }
    stream.end().expect("written")
}

/// An object that was read, with its bytes.
type Whole = (Entry, Option<Vec<u8>>);

/// Reads all objects; those that were given up have no bytes.
fn read(bytes: &[u8]) -> Result<(Vec<Whole>, Counts)> {
    let mut stream = Importer::new(bytes)?;
    let mut all = Vec::new();
    while let Some(entry) = stream.object()? {
        let mut data = Vec::new();
        match stream.read_to_end(&mut data) {
            Ok(_) => all.push((entry, Some(data))),
            Err(_) if stream.is_abandoned() => all.push((entry, None)),
            Err(why) => return Err(Error::Source { why: why.to_string() }),
        }
    }
    Ok((all, stream.counts()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_written_is_read_and_nothing_else(
        items in items(), cut in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let (bytes, counts) = written(&items);
        let (all, read_counts) = read(&bytes).expect("whole");
        prop_assert_eq!((all.len(), read_counts), (items.len(), counts));
        for ((entry, data_read), (expected, is_given_up, seed)) in all.into_iter().zip(&items) {
            prop_assert_eq!(&entry, expected);
            let is_whole = !is_given_up || expected.bytes <= PIECE_BYTES as u64;
            let expected = is_whole.then(|| data(expected, *seed));
            prop_assert!(data_read == expected, "the bytes of {}", entry.key);
        }
        let cut = cut.index(bytes.len());
        let told = read(&bytes[..cut]).expect_err("cut off").to_string();
        prop_assert!(told.contains("cut off"), "{}", told);
        let mut flipped = bytes.clone();
        flipped[cut] ^= 1 << bit;
        prop_assert!(read(&flipped).is_err(), "a flipped bit of byte {}", cut);
        prop_assert!(read(&[&bytes[..], &[0]].concat()).is_err(), "a byte behind the end");
    }

    #[test]
    fn any_header_is_refused_or_comes_back(
        body in prop::collection::vec(any::<u8>(), 0..100), tenant in 0u8..70, key in 0u16..40,
        flags in 0u8..5,
    ) {
        let mut body = body;
        if let Some(head) = body.first_chunk_mut::<8>() {
            *head = [flags, tenant, key as u8, 0, 0, 0, 0, 0];
        }
        if let Some(entry) = Entry::decode(&body) {
            prop_assert_eq!(entry.encode(), body);
        }
    }
}

#[test]
fn swapped_missing_and_repeated_frames_are_told() {
    let entry = |key: &str| Entry {
        key: Key::new(key.as_bytes()).expect("short"),
        bytes: 10,
        tenant: "".into(),
        expires_s: None,
        version: Version(7),
        layout: None,
    };
    let (bytes, _) = written(&[(entry("a"), false, 1), (entry("b"), false, 2)]);
    let object = HEAD_BYTES + OBJECT_BYTES + 1 + 4;
    let piece = HEAD_BYTES + 10 + 4;
    let (start, rest) = bytes.split_at(START_BYTES);
    let (first, rest) = rest.split_at(object + piece);
    let (second, end) = rest.split_at(object + piece);
    assert!(read(&[start, first, second, end].concat()).is_ok());
    for wrong in [[second, first, end], [first, first, end], [first, end, second]] {
        let why = read(&[start, &wrong.concat()].concat()).expect_err("out of order").to_string();
        assert!(why.contains("damaged, missing or out of order"), "{why}");
    }
    assert!(read(&[start, first, end].concat()).is_err());
    let mut newer = bytes.clone();
    newer[8] = 2;
    let why = read(&newer).expect_err("newer").to_string();
    assert!(why.contains("has version 2") && why.contains("newer"), "{why}");
    let why = read(b"ADITKV\0\x01 something else").expect_err("another file").to_string();
    assert!(why.contains("no stream of objects"), "{why}");
}
