use super::*;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use proptest::prelude::*;

fn keys() -> impl Strategy<Value = Key> {
    proptest::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX)
        .prop_map(|bytes| Key::new(&bytes).expect("a key"))
}

fn parts() -> impl Strategy<Value = Part> {
    let bytes = (any::<u64>(), any::<u64>()).prop_filter_map("a range", |(one, other)| {
        (one != other).then(|| Part::Bytes(one.min(other)..one.max(other)))
    });
    prop_oneof![Just(Part::All), bytes, any::<u32>().prop_map(Part::Layer)]
}

fn conditions() -> impl Strategy<Value = Condition> {
    let version = any::<u64>().prop_map(|number| Condition::Version(Version(number)));
    prop_oneof![Just(Condition::Always), Just(Condition::Absent), version]
}

fn asks() -> impl Strategy<Value = Ask> {
    let run = (any::<u32>(), any::<u64>(), any::<u64>());
    let run = run.prop_map(|(region, offset, bytes)| Run { region, offset, bytes });
    let (fill, removals) = (run.clone(), run.clone());
    let put = (keys(), run.clone(), any::<u64>(), any::<(u32, u32, bool)>(), conditions());
    let versions = || proptest::option::of(any::<u64>().prop_map(Version));
    prop_oneof![
        put.prop_map(|(key, memory, bytes, (layout, ttl_s, joins), condition)| Ask::Put {
            key,
            memory,
            bytes,
            layout,
            ttl_s,
            joins,
            condition
        }),
        (keys(), parts(), run.clone(), versions(), any::<bool>()).prop_map(
            |(key, part, memory, version, is_checked)| Ask::Get {
                key,
                part,
                memory,
                version,
                is_checked
            }
        ),
        (proptest::collection::vec(any::<u8>(), 0..=KEY_BYTES_MAX), any::<u64>(), run)
            .prop_map(|(prefix, from, memory)| Ask::Scan { prefix: prefix.into(), from, memory }),
        (keys(), proptest::option::of(any::<u32>()))
            .prop_map(|(key, ttl_s)| Ask::Touch { key, ttl_s }),
        (proptest::collection::vec(any::<u8>(), 0..=KEY_BYTES_MAX), any::<Option<u64>>(), removals)
            .prop_map(|(prefix, from, memory)| Ask::Removals {
                prefix: prefix.into(),
                from,
                memory
            }),
        keys().prop_map(Ask::Exists),
        keys().prop_map(Ask::Refresh),
        keys().prop_map(Ask::Info),
        (keys(), versions()).prop_map(|(key, version)| Ask::Delete { key, version }),
        keys().prop_map(Ask::Key),
        keys().prop_map(Ask::LookupPrefix),
        (keys(), any::<u64>())
            .prop_map(|(key, ms)| Ask::Lease { key, time: Duration::from_millis(ms) }),
        any::<u64>().prop_map(Ask::Release),
        (keys(), any::<u64>(), any::<(u32, u32)>(), conditions()).prop_map(
            |(key, bytes, (layout, ttl_s), condition)| Ask::Reserve {
                key,
                bytes,
                layout,
                ttl_s,
                condition
            }
        ),
        (any::<(u64, u64, u64)>(), fill).prop_map(|((writer, offset, bytes), memory)| Ask::Fill {
            writer,
            offset,
            bytes,
            memory
        }),
        any::<u64>().prop_map(Ask::Seal),
        any::<u64>().prop_map(Ask::Abandon),
        keys().prop_map(Ask::Outline),
        Just(Ask::Commit),
        keys().prop_map(Ask::DeletePrefix),
    ]
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_made(ask in asks(), tag: u64) {
        let entry = Entry::of(&ask, tag);
        prop_assert_eq!(entry.head.tag, tag);
        // Only these words go through the ring.
        let mut sent = Entry::new_zeroed();
        let bytes = 8 * entry.words();
        sent.as_mut_bytes()[..bytes].copy_from_slice(&entry.as_bytes()[..bytes]);
        prop_assert_eq!(Ask::of(&sent), Ok(ask));
    }

    #[test]
    fn any_bytes_are_a_request_that_means_something_or_not(
        head in proptest::collection::vec(any::<u8>(), 8 * HEAD_WORDS),
        action in 0u8..22,
        fill: u8,
    ) {
        let mut entry = Entry::new_zeroed();
        entry.as_mut_bytes().fill(fill);
        entry.as_mut_bytes()[..head.len()].copy_from_slice(&head);
        for action in [head[0], action] {
            entry.head.action = action;
            prop_assert!(entry.words() <= ENTRY_WORDS);
            if let Ok(ask) = Ask::of(&entry) {
                prop_assert_eq!(Ask::of(&Entry::of(&ask, 0)), Ok(ask));
            }
        }
    }

    #[test]
    fn any_bytes_are_an_answer_and_a_message(bytes in proptest::collection::vec(any::<u8>(), MESSAGE_BYTES)) {
        let done = Done::read_from_bytes(&bytes[..size_of::<Done>()]).expect("its size");
        prop_assert!(done.words() <= DONE_WORDS && done.text().len() <= 3 * TEXT_BYTES);
        prop_assert_eq!(done.digest().is_some(), done.code == 4 && done.text[4..8] == [0; 4]);
        let message = Message::read_from_bytes(&bytes).expect("its size");
        prop_assert!(message.body().len() <= BODY_BYTES);
        prop_assert_eq!(message.matter(), None, "no magic");
    }

    #[test]
    fn layouts_come_back(numbers: [u64; 4], layers in 1u32..64, heads in 1u32..16, tokens in 1u32..64, slots in 0u32..64) {
        // Any numbers: a layout or none.
        if let Some(layout) = layout_of(numbers) {
            prop_assert_eq!(layout_of(layout_numbers(&layout)), Some(layout));
        }
        let block = BlockShape { layers, tensors_per_layer: 2, kv_heads: heads, head_dim: 128, dtype: Dtype::Fp8, tokens };
        let order = if slots == 0 { Order::BlockMajor } else { Order::LayerMajor { slots } };
        if let Ok(layout) = Layout::new(block, order) {
            prop_assert_eq!(layout_of(layout_numbers(&layout)), Some(layout));
        }
    }
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let done = Done::new(3, Code::Device, 0, 0).with_text(&"ä".repeat(200));
    assert_eq!(done.text(), "ä".repeat(112));
    let odd = Done::new(3, Code::Device, 0, 0).with_text(&format!("x{}", "ä".repeat(200)));
    assert_eq!(odd.text(), format!("x{}", "ä".repeat(111)));
    let message = Message::new(Matter::Share, [0; 4]).with_body(&[b'x'; 1000]);
    assert_eq!((message.body().len(), message.matter()), (BODY_BYTES, Some(Matter::Share)));
}

#[test]
fn a_digest_takes_the_place_of_the_text_and_comes_back() {
    let digest = Digest {
        pieces: 9,
        stride_bytes: 8192,
        piece_bytes: 5000,
        last_bytes: 1,
        sum: u64::MAX - 1,
    };
    let done = Done::new(3, Code::Unverified, 70_000, 7).with_digest(&digest);
    assert_eq!((done.digest(), done.words()), (Some(digest), DONE_HEAD_WORDS + 5));
    assert_eq!(Done { code: Code::Done as u16, ..done }.digest(), None, "it is verified");
}

#[test]
fn every_code_is_itself_and_other_numbers_are_failures() {
    for number in 0..=u16::MAX {
        let code = Code::of(number);
        assert!(code as u16 == number || code == Code::Failed, "{number}");
        assert!(code.is_failure() || number <= 4, "{number}");
    }
}
