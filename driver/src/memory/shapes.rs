//! What each shape of buffer says of its bytes, and what goes through a bounce page.
#![allow(unsafe_code)]

use std::fs::File;

use super::*;
use crate::bus::soft::{Drive, SoftBus};
use crate::transfer::Position;

fn bus() -> Arc<dyn Bus> {
    SoftBus::new("mem=1M".parse().expect("options"), Drive::Manual).expect("a bus")
}

/// A segment, its address here, its lists and the start of its region.
type Told = (Segment, *const u8, Option<PrebuiltPrps>, NonNull<u8>);

fn told<B: IoBuffer>(buffer: &B) -> Vec<Told> {
    let of = |index| {
        let region = buffer.region_of(index).expect("a segment is of a region");
        let prebuilt = buffer.prebuilt(index).copied();
        (buffer.segment(index), buffer.pointer(index).as_ptr().cast_const(), prebuilt, region.at)
    };
    (0..buffer.segment_count()).map(of).collect()
}

/// Returns what a buffer has to say of its first `len` bytes.
fn of(buffer: &Buffer, len: usize) -> Told {
    let segment = Segment { iova: buffer.iova(), len: len as u64 };
    let prebuilt = buffer.region.prebuilt.as_ref().map(|(prps, _)| *prps);
    (segment, buffer.as_ptr(), prebuilt, buffer.region.start())
}

#[test]
fn every_shape_tells_its_buffers_as_they_are() {
    let bus = bus();
    let mut first = allocate(&bus, 5 * 4096).expect("memory");
    let second = first.split_off(3 * 4096 + 4);
    let third = allocate(&bus, 4096).expect("memory");
    let all = [of(&first, first.len()), of(&second, second.len()), of(&third, 4096)];
    assert_eq!(all.map(|told| told.2.is_some()), [true, true, false], "one page needs no lists");
    assert!(all[0].3 == all[1].3 && all[0].3 != all[2].3);
    assert_eq!((told(&second), told(&third)), (vec![all[1]], vec![all[2]]));
    let short = of(&second, 9);
    let prefix = Prefix::new(second, 9);
    assert_eq!((told(&prefix), prefix.len()), (vec![short], 9));
    let many = vec![first, prefix.into_buffer(), third];
    assert_eq!(told(&many), all);
    let many = AnyBuffer::Many(many);
    assert_eq!(told(&many), all);
    let tagged = Some((many, "tag"));
    assert_eq!(told(&tagged), all);
    let Some((AnyBuffer::Many(mut many), _)) = tagged else { unreachable!("as it was made") };
    assert_eq!(told(&AnyBuffer::One(many.remove(1))), [all[1]]);
}

#[test]
fn a_buffer_and_a_mapping_are_printed_as_where_they_lie() {
    let bus = bus();
    let buffer = allocate(&bus, 4096 + 512).expect("memory");
    assert_eq!(format!("{buffer:?}"), format!("Buffer({}+0x1200)", buffer.iova()));
    let mapping = Mapping::allocate(&bus, 4096).expect("memory");
    let printed = format!("Mapping({}+{:#x})", mapping.iova(), mapping.atomics().len());
    assert_eq!(format!("{mapping:?}"), printed);
}

#[test]
fn what_has_no_data_has_no_segments() {
    let counts = [
        ().segment_count(),
        AnyBuffer::None.segment_count(),
        None::<Buffer>.segment_count(),
        Vec::<Buffer>::new().segment_count(),
    ];
    assert_eq!(counts, [0; 4]);
    assert!(().prebuilt(0).is_none() && AnyBuffer::None.prebuilt(0).is_none());
    assert!(().region_of(0).is_none() && AnyBuffer::None.region_of(0).is_none());
    let anywhere = DomainId::of(&bus());
    assert!(
        ().is_in(anywhere) && AnyBuffer::None.is_in(anywhere) && None::<Buffer>.is_in(anywhere)
    );
}

#[test]
fn a_buffer_is_in_the_domain_of_its_bus_and_several_in_that_of_all() {
    let buses = [bus(), bus()];
    let [ours, theirs] = buses.each_ref().map(DomainId::of);
    let buffer = |at: usize| allocate(&buses[at], 4096).expect("memory");
    let of = |is_in: &dyn Fn(DomainId) -> bool| [ours, theirs, DomainId::HOST].map(is_in);
    let one = AnyBuffer::One(buffer(0));
    assert_eq!(of(&|domain| one.is_in(domain)), [true, false, false]);
    let prefix = Prefix::new(buffer(1), 1);
    assert_eq!(of(&|domain| prefix.is_in(domain)), [false, true, false]);
    let tagged = Some((vec![buffer(1), buffer(1)], 7));
    assert_eq!(of(&|domain| tagged.is_in(domain)), [false, true, false]);
    let mixed = AnyBuffer::Many(vec![buffer(0), buffer(1)]);
    assert_eq!(of(&|domain| mixed.is_in(domain)), [false; 3]);
    let host = allocate_for_host(4096).expect("memory");
    assert_eq!(of(&|domain| host.is_in(domain)), [false, false, true]);
}

/// Fifteen bytes in buffers of 4, 1, 7 and 3, each with its number.
fn fifteen() -> Vec<Buffer> {
    let mut rest = allocate_for_host(4096).expect("memory");
    rest[..15].copy_from_slice(&std::array::from_fn::<u8, 15, _>(|at| at as u8));
    let mut buffers = Vec::new();
    for len in [4, 1, 7, 3] {
        let tail = rest.split_off(len);
        buffers.push(std::mem::replace(&mut rest, tail));
    }
    buffers
}

#[test]
fn a_bounce_copies_exactly_the_bytes_asked_for_either_way() {
    let memory = HostMemory::allocate(4096, Backing::Any, &|_, _| ()).expect("memory");
    let bounce = Arc::new(memory).atomics();
    let set = |words: [u64; 2]| {
        let pairs = bounce.words().iter().zip(words);
        pairs.for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    };
    let get = || -> Vec<u8> {
        bounce.words()[..2]
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect()
    };
    let numbers: Vec<u8> = (0..15).collect();
    let mut first = 0;
    for (segment, len) in [4, 1, 7, 3].into_iter().enumerate() {
        for offset in 0..len {
            for bytes in 0..=15 - (first + offset) {
                let (from, start) = (first + offset, Position { segment, offset: offset as u64 });
                let buffers = fifteen();
                set([u64::MAX; 2]);
                bounce_copy(&buffers, start, bytes as u64, &bounce, Bounce::Out);
                let mut page = vec![0xff; 16];
                page[..bytes].copy_from_slice(&numbers[from..from + bytes]);
                assert_eq!(get(), page, "{bytes} bytes from {from}");
                set([0x5555_5555_5555_5555; 2]);
                bounce_copy(&buffers, start, bytes as u64, &bounce, Bounce::Back);
                let mut data = numbers.clone();
                data[from..from + bytes].fill(0x55);
                assert_eq!(
                    buffers.iter().flat_map(|buffer| buffer.to_vec()).collect::<Vec<u8>>(),
                    data
                );
            }
        }
        first += len;
    }
}

#[test]
#[cfg_attr(miri, ignore = "its memory is not the kernel's")]
fn memory_that_a_device_only_reads_has_pages_of_its_own() {
    use std::os::unix::fs::FileExt;
    let Ok(pagemap) = File::open("/proc/self/pagemap") else { return };
    let pages = 12;
    let mapping = Mapping::allocate_read_only(&bus(), pages * PAGE_BYTES as usize).expect("memory");
    let first = mapping.memory().as_ptr().addr().get() as u64 / PAGE_BYTES;
    for page in first..first + pages as u64 {
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, page * 8).expect("an entry for each page");
        assert!(entry[7] & 0x80 != 0, "page {page} is the kernel's page of zeroes, or none");
    }
}

#[test]
fn memory_that_others_write_is_copied_and_lends_no_slice() {
    let own = HostMemory::allocate(2 * 4096, Backing::Any, &|_, _| ()).expect("memory");
    let (at, len) = (own.as_ptr(), own.len());
    // SAFETY: the owner is the memory itself, to which there are no references.
    let memory = unsafe { HostMemory::adopt_shared(at, len, None, Box::new(own)) };
    let ways: [fn(HostMemory) -> Result<Buffer>; 2] =
        [|memory| register(&bus(), memory), |memory| Ok(register_for_host(memory))];
    for of in ways {
        // SAFETY: the first owner outlives this one, and there are no references to its memory.
        let again = unsafe { HostMemory::adopt_shared(at, len, None, Box::new(())) };
        let mut buffer = of(again.expect("whole pages")).expect("registered");
        let tail = buffer.split_off(4096);
        assert_eq!((buffer.len(), buffer.is_empty(), buffer.is_shared()), (4096, false, true));
        buffer.bytes_mut().write(4000, &[7; 96]);
        assert_eq!(buffer.bytes().slice(3999..4001).to_vec(), [0, 7]);
        buffer.bytes_mut().zero();
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tail[0]));
        let why = *refused.expect_err("no slice").downcast::<&str>().expect("a text");
        assert!(why.contains("copy it by Buffer::bytes"), "{why}");
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffer[0] = 1));
        assert!(refused.is_err(), "nor one to write");
    }
    drop(memory.expect("whole pages"));
    assert!(!allocate(&bus(), 4096).expect("memory").is_shared());
}

#[test]
fn what_was_split_off_joins_again_and_nothing_else_does() {
    let mut buffer = allocate_for_host(64 << 10).expect("memory");
    buffer[8191] = 7;
    let mut tail = buffer.split_off(4096);
    let end = tail.split_off(4096);
    let end = buffer.join(end).expect_err("not what lies behind it");
    let tail = allocate_for_host(4096).expect("memory").join(tail).expect_err("another region");
    buffer.join(tail).expect("what lies behind it");
    assert_eq!((buffer.len(), buffer[8191]), (8192, 7));
    buffer.join(end).expect("what lies behind it");
    assert_eq!(buffer.len(), 64 << 10);
}
