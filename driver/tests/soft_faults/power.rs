//! Power cuts and removal as the driver's user meets them: the same bus, opened again.

use std::time::Duration;

use adit_driver::bus::{Bus, BusEvent};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, Event, QueuePair, QueuePairOptions};

use crate::Device;

const BYTES: usize = 32 << 10;

fn filled(device: &Device, byte: u8) -> Buffer {
    let mut buffer = device.controller.allocate(BYTES).expect("memory");
    buffer.fill(byte);
    buffer
}

fn execute(pair: &mut QueuePair<Buffer>, command: adit_driver::Command<'_, Buffer>) -> Buffer {
    pair.execute(command).expect("success").0
}

/// Returns the bytes at the start of an LBA.
fn read(device: &Device, pair: &mut QueuePair<Buffer>, lba: u64) -> Vec<u8> {
    let buffer = device.controller.allocate(BYTES).expect("memory");
    let buffer = execute(pair, device.namespace.read(Lba(lba), buffer));
    buffer.chunks(device.namespace.lba_bytes() as usize).map(|lba| lba[0]).collect()
}

#[test]
fn what_was_flushed_is_there_after_a_power_cut_and_what_was_not_may_be() {
    let (mut lost, mut kept) = (false, false);
    for seed in 0..20 {
        let mut device = Device::new(&format!("mem=16M,vwc=on,seed={seed}"));
        assert!(device.controller.info().volatile_write_cache);
        let mut pair = device.pair(8);
        execute(&mut pair, device.namespace.write(Lba(0), filled(&device, 1)));
        execute(&mut pair, device.namespace.write(Lba(100), filled(&device, 2)).fua());
        let mut flushes = device.controller.create_queue_pair(QueuePairOptions::default());
        flushes.as_mut().expect("a pair").execute(device.namespace.flush()).expect("flushed");
        execute(&mut pair, device.namespace.write(Lba(200), filled(&device, 3)));
        execute(&mut pair, device.namespace.write(Lba(300), filled(&device, 4)).fua());
        device.bus.cut_power();
        assert_eq!((device.bus.read32(0x1c), device.bus.take_event()), (u32::MAX, None));
        let Device { bus, controller, namespace } = device;
        drop((pair, flushes, namespace, controller));
        bus.restore_power();
        device = Device::open(bus);
        let mut pair = device.pair(8);
        for (lba, byte) in [(0, 1), (100, 2), (300, 4)] {
            assert!(
                read(&device, &mut pair, lba).iter().all(|found| *found == byte),
                "seed {seed}"
            );
        }
        let unflushed = read(&device, &mut pair, 200);
        assert!(unflushed.iter().all(|found| matches!(found, 0 | 3)), "seed {seed}");
        lost |= unflushed.contains(&0);
        kept |= unflushed.contains(&3);
    }
    assert!(lost && kept, "lost {lost}, kept {kept}");
}

#[test]
fn a_device_pulled_out_in_flight_works_again_when_it_is_back() {
    let device = Device::new("mem=16M,model=pm9d3a,faults=remove@write:n=3");
    let mut pair = device.pair(8);
    for lba in [0, 100, 200] {
        let write = device.namespace.write(Lba(lba), filled(&device, 7));
        pair.submit(device.controller.now(), write).expect("room");
    }
    device.controller.pause(Duration::ZERO);
    let gone = device.controller.poll(device.controller.now());
    assert_eq!(gone, Some(Event::Bus(BusEvent::Gone)));
    let mut ended = 0;
    while pair.in_flight() > 0 {
        pair.poll(device.controller.now(), |completion| {
            assert!(completion.result.is_err());
            ended += 1;
        });
        device.controller.pause(Duration::from_millis(100));
    }
    assert_eq!(ended, 3);
    let Device { bus, controller, namespace } = device;
    drop((pair, namespace, controller));
    bus.replug();
    let device = Device::open(bus);
    let mut pair = device.pair(8);
    execute(&mut pair, device.namespace.write(Lba(0), filled(&device, 9)));
    assert_eq!(read(&device, &mut pair, 0), vec![9; BYTES / 512]);
    assert_eq!(device.bus.with_controller(|controller| controller.fault_counts()), [1]);
}
