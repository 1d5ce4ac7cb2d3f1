//! Each profile's figures, measured as a benchmark would, in virtual time.

use std::time::Duration;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::soft::TimingModel;
use adit_driver::spec::Lba;
use adit_driver::{Buffer, QueuePair, Time};

use crate::Device;

const LARGE: usize = 128 << 10;
const SMALL: usize = 4096;
/// Measuring window, after an equally long time to settle.
const WINDOW: Duration = Duration::from_millis(4);

/// A closed loop with as many commands in flight as buffers.
struct Load {
    pair: QueuePair<Buffer>,
    idle: Vec<Buffer>,
    writes: bool,
    next_lba: u64,
    done: u64,
}

impl Load {
    fn new(device: &Device, depth: u32, bytes: usize, writes: bool) -> Load {
        let buffers = (0..depth).map(|_| device.controller.allocate(bytes).expect("memory"));
        Load { pair: device.pair(depth + 1), idle: buffers.collect(), writes, next_lba: 0, done: 0 }
    }

    fn turn(&mut self, device: &Device) {
        let Load { pair, idle, done, .. } = self;
        pair.poll(device.controller.now(), |completion| {
            completion.result.expect("success");
            idle.push(completion.buffer);
            *done += 1;
        });
        while let Some(buffer) = self.idle.pop() {
            let lba = Lba(self.next_lba);
            self.next_lba += buffer.len() as u64 / u64::from(device.namespace.lba_bytes());
            let command = match self.writes {
                true => device.namespace.write(lba, buffer),
                false => device.namespace.read(lba, buffer),
            };
            self.pair.post(device.controller.now(), command).expect("room");
        }
        self.pair.ring();
    }
}

/// Runs loads until `end`, from one due completion to the next.
fn run(device: &Device, loads: &mut [Load], end: Time) {
    while device.controller.now() < end {
        loads.iter_mut().for_each(|load| load.turn(device));
        while device.bus.step() > 0 {}
        let now = device.controller.now();
        let due = device.bus.next_due().expect("something is in flight");
        device.bus.advance(due.since(now));
        while device.bus.step() > 0 {}
    }
}

fn rates(device: &Device, loads: &mut [Load]) -> Vec<f64> {
    run(device, loads, device.controller.now() + WINDOW);
    let (start, before) =
        (device.controller.now(), loads.iter().map(|load| load.done).collect::<Vec<_>>());
    run(device, loads, start + WINDOW);
    let seconds = device.controller.now().since(start).as_secs_f64();
    let done = loads.iter().zip(before).map(|(load, before)| load.done - before);
    done.map(|done| done as f64 / seconds).collect()
}

fn rate(model: TimingModel, depth: u32, bytes: usize, writes: bool) -> f64 {
    let device = Device::new(&format!("null,model={model},mqes=1024,mdts=7"));
    rates(&device, &mut [Load::new(&device, depth, bytes, writes)])[0]
}

fn is_near(measured: f64, expected: f64, what: &str) {
    let ratio = measured / expected;
    assert!((0.95..1.05).contains(&ratio), "{what}: {measured:.0}, expected {expected:.0}");
}

#[test]
fn a_lone_command_takes_the_drives_latency() {
    for model in TimingModel::ALL {
        let profile = model.profile();
        is_near(
            1e9 / rate(model, 1, SMALL, false),
            profile.read_ns as f64,
            &format!("{model} read ns"),
        );
        let write_ns = 1e9 / rate(model, 1, SMALL, true);
        is_near(write_ns, profile.write_ns as f64, &format!("{model} write ns"));
    }
}

#[test]
fn rates_rise_with_depth_up_to_what_the_drive_does() {
    for model in TimingModel::ALL {
        let profile = model.profile();
        let most = (profile.read_bytes_per_s as f64 / SMALL as f64).min(profile.read_iops as f64);
        for depth in [1, 8, 64, 256] {
            let expected = (f64::from(depth) * 1e9 / profile.read_ns as f64).min(most);
            let measured = rate(model, depth, SMALL, false);
            is_near(measured, expected, &format!("{model} reads per second at depth {depth}"));
        }
    }
}

#[test]
fn small_writes_reach_what_the_drive_does_when_its_buffer_is_full_or_vast() {
    for model in TimingModel::ALL {
        let profile = model.profile();
        let (bandwidth, iops) = match profile.buffer_bytes < 1 << 30 {
            true => (profile.write_bytes_per_s, profile.write_iops),
            false => (profile.buffered_bytes_per_s, profile.buffered_iops),
        };
        let most = (bandwidth as f64 / SMALL as f64).min(iops as f64);
        is_near(rate(model, 64, SMALL, true), most, &format!("{model} writes per second"));
    }
}

#[test]
fn large_commands_reach_the_drives_bandwidth() {
    for model in TimingModel::ALL {
        let profile = model.profile();
        let reads = rate(model, 64, LARGE, false) * LARGE as f64;
        is_near(reads, profile.read_bytes_per_s as f64, &format!("{model} read bytes per second"));
        // Past the buffer if it is small, into it if it is large.
        let sustained = profile.buffer_bytes < 1 << 30;
        let expected =
            if sustained { profile.write_bytes_per_s } else { profile.buffered_bytes_per_s };
        let writes = rate(model, 64, LARGE, true) * LARGE as f64;
        is_near(writes, expected as f64, &format!("{model} write bytes per second"));
    }
}

#[test]
fn reads_and_large_writes_together_share_what_the_papers_measured() {
    for model in TimingModel::ALL {
        let device = Device::new(&format!("null,model={model},mdts=7"));
        let loads =
            &mut [Load::new(&device, 32, LARGE, false), Load::new(&device, 32, LARGE, true)];
        let rates = rates(&device, loads);
        let (reads, writes) = (rates[0] * LARGE as f64, rates[1] * LARGE as f64);
        let profile = model.profile();
        is_near(reads + writes, profile.mixed_bytes_per_s as f64, &format!("{model} together"));
        assert!(reads < profile.read_bytes_per_s as f64 / 2.0, "{model}: reads keep {reads:.0}");
    }
    // Four of these are the paper's array: 29 GB/s, 12 GB/s, and 12 GB/s together.
    let one = TimingModel::D7Ps1010.profile();
    let array = [one.read_bytes_per_s, one.write_bytes_per_s, one.mixed_bytes_per_s]
        .map(|rate| rate * 4 / 1_000_000_000);
    assert_eq!(array, [29, 12, 12]);
}

#[test]
fn an_hour_of_a_slow_host_passes_quickly() {
    let device = Device::new("null,model=990pro");
    let mut load = Load::new(&device, 1, SMALL, false);
    for _ in 0..3600 {
        load.turn(&device);
        let start = device.controller.now();
        while device.controller.now().since(start) < Duration::from_secs(1) {
            device.controller.pause(Duration::from_secs(1));
        }
    }
    assert_eq!(load.done, 3599);
    assert!(device.controller.now() >= Time::ZERO + Duration::from_secs(3600));
}

#[test]
fn on_a_thread_no_command_is_done_before_its_time() {
    let options = "null,model=990pro".parse().expect("options");
    let device = Device::open(SoftBus::new(options, Drive::Thread).expect("a bus"));
    let mut pair = device.pair(4);
    let start = device.controller.now();
    for lba in 0..20 {
        let buffer = device.controller.allocate(SMALL).expect("memory");
        pair.execute(device.namespace.read(Lba(lba), buffer)).expect("success");
    }
    let least = Duration::from_nanos(20 * TimingModel::Samsung990Pro.profile().read_ns);
    let took = device.controller.now().since(start);
    assert!(took >= least, "{took:?} for what takes {least:?}");
}
