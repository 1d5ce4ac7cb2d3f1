use super::*;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Decline, Failure};
use adit_kvstore::store::ObjectInfo;
use adit_kvstore::{Error, RefusalKind};
use proptest::prelude::*;

fn keys() -> impl Strategy<Value = Key> {
    proptest::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX)
        .prop_map(|bytes| Key::new(&bytes).expect("a key"))
}

fn prefixes() -> impl Strategy<Value = Box<[u8]>> {
    proptest::collection::vec(any::<u8>(), 0..=KEY_BYTES_MAX).prop_map(Into::into)
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
    let run = run.prop_map(|(region, offset, bytes)| MemoryRun { region, offset, bytes });
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
        (prefixes(), any::<(u64, u64)>(), run)
            .prop_map(|(prefix, (from, limit), memory)| Ask::Scan { prefix, from, limit, memory }),
        (keys(), proptest::option::of(any::<u32>()))
            .prop_map(|(key, ttl_s)| Ask::Touch { key, ttl_s }),
        (prefixes(), any::<(Option<u64>, u64)>(), removals).prop_map(
            |(prefix, (from, limit), memory)| Ask::Removals { prefix, from, limit, memory }
        ),
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
        Just(Ask::Commit),
        keys().prop_map(Ask::DeletePrefix),
    ]
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_made(ask in asks(), tag: u64) {
        let entry = RequestEntry::of(&ask, tag);
        prop_assert_eq!(entry.head.tag, tag);
        // Only these words go through the ring.
        let mut sent = RequestEntry::new_zeroed();
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
        let mut entry = RequestEntry::new_zeroed();
        entry.as_mut_bytes().fill(fill);
        entry.as_mut_bytes()[..head.len()].copy_from_slice(&head);
        for action in [head[0], action] {
            entry.head.action = action;
            prop_assert!(entry.words() <= ENTRY_WORDS);
            if let Ok(ask) = Ask::of(&entry) {
                prop_assert_eq!(Ask::of(&RequestEntry::of(&ask, 0)), Ok(ask));
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
    let done = Done::new(Code::Device, 0, 0).with_tag(3).with_text(&"ä".repeat(200));
    assert_eq!(done.text(), "ä".repeat(112));
    let odd = Done::new(Code::Device, 0, 0).with_tag(3).with_text(&format!("x{}", "ä".repeat(200)));
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
    let done = Done::new(Code::Unverified, 70_000, 7).with_tag(3).with_digest(&digest);
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

/// Returns one of each failure. A new one has no place in the `match` until it is listed.
fn failures() -> Vec<Failure> {
    let found = Some(Version(7));
    let all = vec![
        Failure::TooLarge { needs: 1 << 40, has: 3 },
        Failure::Full,
        Failure::Quota { tenant: "team-a".into(), quota_bytes: 1 << 30 },
        Failure::Tenant("there are 255 tenants".into()),
        Failure::Layout("there are 255 layouts".into()),
        Failure::Memory { needs: 8192, has: 4096 },
        Failure::Foreign { device: 3 },
        Failure::Conflict { found },
        Failure::Conflict { found: None },
        Failure::Conflict { found: Some(Version::NONE) },
        Failure::Part("the layout has no such layer".into()),
        Failure::Writer,
        Failure::Unfilled { missing_bytes: 12 },
        Failure::Declined(Decline::Admission),
        Failure::Declined(Decline::Budget),
        Failure::Undefined("tenant"),
        Failure::Undefined("layout"),
        Failure::Deadline,
        Failure::Device { device: 255, why: "uring:kv.img: an input or output error".to_owned() },
        Failure::NoSpace { device: "uring:kv.img".to_owned() },
    ];
    for failure in &all {
        match failure {
            Failure::TooLarge { .. } | Failure::Full | Failure::Quota { .. } => {}
            Failure::Tenant(_) | Failure::Layout(_) | Failure::Memory { .. } => {}
            Failure::Foreign { .. } | Failure::Conflict { .. } | Failure::Part(_) => {}
            Failure::Writer | Failure::Unfilled { .. } | Failure::Declined(_) => {}
            Failure::Undefined(_) | Failure::Deadline | Failure::Device { .. } => {}
            Failure::NoSpace { .. } | Failure::Closed => {}
        }
    }
    all
}

#[test]
fn each_failure_comes_back_as_it_was_in_an_answer_and_in_a_message() {
    for failure in failures() {
        let reason = Reason::of(&Error::Failed(failure.clone()));
        for told in [
            Done::failed(&reason).with_tag(7).reason(),
            Message::refused(Matter::Layout, &reason).reason(),
        ] {
            let Error::Failed(came) = told.error() else { panic!("{failure:?}") };
            assert_eq!(came, failure);
        }
    }
}

#[test]
fn other_errors_keep_their_kind_and_what_they_say() {
    let closed = Reason::of(&Error::Failed(Failure::Closed)).error();
    assert!(matches!(&closed, Error::Lost { why } if why == "the store is closed"), "{closed}");
    let (thread, why) = ("adit-0".to_owned(), "a bug".to_owned());
    let died = Reason::of(&Error::Died { thread, why }).error();
    assert!(matches!(&died, Error::Lost { why } if why.contains("adit-0 died")), "{died}");
    let after = Duration::from_millis(1500);
    let late = Error::Timeout { waited_for: "a device", after, fix: "look" };
    assert!(matches!(Reason::of(&late).error(), Error::Timeout { after: it, .. } if it == after));
    let source = Error::Source { why: "it ended".to_owned() };
    let (key, text) = (Error::Key { bytes: 0 }, source.to_string());
    for (error, kind, says) in [
        (Reason::of(&key), RefusalKind::Malformed, key.to_string()),
        (Reason::of(&source), RefusalKind::Failed, text),
        (Reason::new(Code::Limit, "too many"), RefusalKind::Limit, "too many".to_owned()),
        (Reason::new(Code::InUse, "taken"), RefusalKind::InUse, "taken".to_owned()),
    ] {
        match error.error() {
            Error::Refused { kind: is, why } => assert_eq!((is, why), (kind, says)),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn what_is_told_of_an_object_comes_back_with_and_without_its_key() {
    let block = BlockShape {
        layers: 2,
        tensors_per_layer: 2,
        kv_heads: 8,
        head_dim: 128,
        dtype: Dtype::F16,
        tokens: 16,
    };
    let layout = Layout::new(block, Order::LayerMajor { slots: 4 }).expect("a layout");
    let key = Key::new(&[7; KEY_BYTES_MAX]).expect("a key");
    for (layout, tenant, ttl_s) in
        [(None, "", None), (Some(layout), &*"t".repeat(64), Some(u64::MAX - 1))]
    {
        let (bytes, version, tenant) = ((1 << 40) - 1, Version(3), tenant.into());
        let info =
            ObjectInfo { key: key.clone(), bytes, tenant, layout, version, ttl_s, device: 255 };
        let with_key = [object_bytes(&info, true), vec![1, 2]].concat();
        assert_eq!(object_of(&with_key, None), Some((info.clone(), &[1, 2][..])));
        let without = object_bytes(&info, false);
        assert!(without.len() <= TEXT_BYTES && with_key.len() - 2 <= OBJECT_BYTES_MAX);
        assert_eq!(object_of(&without, Some(&key)), Some((info, &[][..])));
        assert_eq!(object_of(&without, None), None, "no key is none");
        assert_eq!(object_of(&without[..without.len() - 1], Some(&key)), None);
    }
}
