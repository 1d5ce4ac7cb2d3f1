//! Tests of the bus alone: registers, mappings, time, interrupts, power.
#![allow(unsafe_code)]

use super::*;
use crate::sys::{Backing, HostMemory as Memory};

fn bus(tail: &str, drive: Drive) -> Arc<SoftBus> {
    SoftBus::new(tail.parse().expect("options"), drive).expect("bus")
}

fn map(bus: &dyn Bus, memory: &Memory) -> Iova {
    // SAFETY: tests keep their memory as long as the bus, and reach it as atomics only.
    unsafe { bus.map(memory.range()) }.expect("mapped")
}

fn unmap(bus: &dyn Bus, iova: Iova) -> Result<()> {
    // SAFETY: tests unmap what they mapped and use no more.
    unsafe { bus.unmap(iova, 8192) }
}

fn doorbell(bus: &Arc<SoftBus>, offset: u32) -> Result<Doorbell> {
    // SAFETY: tests ring for the commands that they wrote.
    unsafe { Arc::<SoftBus>::clone(bus).doorbell(offset) }
}

fn enable(bus: &dyn Bus, memory: &Memory) -> Iova {
    let queues = map(bus, memory);
    // SAFETY: the queues are in memory that is mapped.
    unsafe {
        bus.write32(0x24, 0x000f_000f);
        bus.write64(0x28, queues.0);
        bus.write64(0x30, queues.0 + 4096);
        bus.write32(0x14, 0x0046_0001);
    }
    for _ in 0..10_000 {
        if bus.read32(0x1c) & 1 == 1 {
            return queues;
        }
        bus.pause(Duration::from_millis(1));
    }
    panic!("not ready: CSTS {:#x}", bus.read32(0x1c));
}

#[test]
fn both_drives_reach_ready_and_complete_a_command() {
    for drive in [Drive::Manual, Drive::Thread] {
        let bus = bus("mem=1M", drive);
        let memory = Arc::new(Memory::allocate(8192, Backing::Any, &|_, _| ()).expect("memory"));
        let queues = enable(&*bus, &memory);
        // Get Features, Number of Queues.
        let words = memory.atomics();
        words.dwords()[0].store(0x0005_000a, Ordering::Relaxed);
        words.dwords()[10].store(7, Ordering::Relaxed);
        doorbell(&bus, 0x1000).expect("doorbell").ring(1);
        let deadline = bus.now() + Duration::from_secs(10);
        while words.dwords()[1024 + 3].load(Ordering::Acquire) == 0 && bus.now() < deadline {
            bus.pause(Duration::from_micros(10));
        }
        assert_eq!(words.dwords()[1024 + 3].load(Ordering::Acquire), 0x0001_0005);
        assert_eq!(words.dwords()[1024].load(Ordering::Acquire), 0x003f_003f);
        assert_eq!(bus.dma_faults(), 0);
        bus.reset().expect("reset");
        unmap(&*bus, queues).expect("unmapped");
        assert!(unmap(&*bus, queues).is_err());
    }
}

#[test]
fn virtual_time_passes_only_when_told() {
    let bus = bus("null", Drive::Manual);
    assert_eq!(bus.now(), Time::ZERO);
    bus.pause(Duration::from_millis(3));
    bus.advance(Duration::from_millis(4));
    assert_eq!(bus.now(), Time::from_ns(7_000_000));
}

#[test]
fn mappings_start_away_from_zero_and_apart() {
    let bus = bus("null", Drive::Manual);
    let memory = Memory::allocate(4096, Backing::Any, &|_, _| ()).expect("memory");
    let (first, second) = (map(&*bus, &memory), map(&*bus, &memory));
    assert_eq!((first.0, second.0), (1 << 32, (1 << 32) + 8192));
    assert!(bus.reserve(1 << 57).is_err());
}

#[test]
fn limits_are_named() {
    let bus = bus("null,ioqueues=2", Drive::Manual);
    assert!(bus.enable_vectors(4).expect_err("too many").to_string().contains("it has 3"));
    assert_eq!(bus.enable_vectors(3).expect("vectors").len(), 3);
    // SAFETY: there is no such window.
    assert!(unsafe { bus.bar_window(2, 0, 4096) }.is_err());
    assert!(doorbell(&bus, 0x800).is_err() && doorbell(&bus, 0x2000).is_err());
}

#[test]
fn a_completion_raises_its_vector_and_a_stray_address_is_a_counted_fault() {
    let bus = bus("mem=1M", Drive::Manual);
    let memory = Arc::new(Memory::allocate(8192, Backing::Any, &|_, _| ()).expect("memory"));
    enable(&*bus, &memory);
    let vectors = bus.enable_vectors(1).expect("vectors");
    // Identify Controller into unmapped memory.
    let words = memory.atomics();
    words.dwords()[0].store(0x0005_0006, Ordering::Relaxed);
    words.dwords()[6].store(0x5000, Ordering::Relaxed);
    words.dwords()[10].store(1, Ordering::Relaxed);
    doorbell(&bus, 0x1000).expect("doorbell").ring(1);
    assert_eq!((bus.step(), bus.dma_faults()), (1, 1));
    let status = words.dwords()[1024 + 3].load(Ordering::Acquire) >> 17;
    assert_eq!(status, 0x04, "Data Transfer Error");
    let mut count = [0; 8];
    let mut vector = std::fs::File::from(vectors.into_iter().next().expect("one"));
    std::io::Read::read_exact(&mut vector, &mut count).expect("raised");
    assert_eq!(u64::from_ne_bytes(count), 1);
}

#[test]
fn a_bus_on_a_thread_goes_with_its_last_owner() {
    let bus = bus("null", Drive::Thread);
    let shared = Arc::downgrade(&bus.shared);
    drop(bus);
    assert!(shared.upgrade().is_none());
}

#[test]
fn a_device_that_is_gone_reads_all_ones() {
    let bus = bus("null", Drive::Manual);
    bus.unplug();
    assert_eq!((bus.read32(0x1c), bus.read64(0)), (u32::MAX, u64::MAX));
    assert_eq!(bus.take_event(), Some(BusEvent::Gone));
    assert_eq!(bus.take_event(), None);
    assert_eq!(bus.step(), 0);
    bus.replug();
    assert_eq!(bus.read32(0x1c), 0);
}

#[test]
fn a_removal_by_plan_is_reported_once_and_a_power_cut_is_not() {
    let bus = bus("mem=1M,faults=remove@t=2ms", Drive::Manual);
    let memory = Arc::new(Memory::allocate(8192, Backing::Any, &|_, _| ()).expect("memory"));
    enable(&*bus, &memory);
    bus.pause(Duration::from_secs(1));
    assert_eq!(bus.now(), Time::from_ns(2_000_000), "a pause ends when something is due");
    bus.step();
    assert_eq!((bus.read32(0x1c), bus.take_event()), (u32::MAX, Some(BusEvent::Gone)));
    bus.unplug();
    assert_eq!(bus.take_event(), None);
    bus.replug();
    enable(&*bus, &memory);
    bus.cut_power();
    assert_eq!((bus.read32(0x1c), bus.take_event()), (u32::MAX, None));
    bus.restore_power();
    enable(&*bus, &memory);
}

#[test]
fn a_function_reset_that_is_refused_fails() {
    let bus = bus("mem=1M,faults=refuse-reset@n=2", Drive::Manual);
    bus.reset().expect("the first");
    assert!(bus.reset().expect_err("the second").to_string().contains("refuses"));
    bus.reset().expect("the third");
}
