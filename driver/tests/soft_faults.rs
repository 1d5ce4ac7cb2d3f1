//! The driver over a software controller with drive timing, power cuts or a fault plan, in virtual time.
#![allow(missing_docs)]
#![forbid(unsafe_code)]

#[path = "soft_faults/power.rs"]
mod power;
#[path = "soft_faults/protection.rs"]
mod protection;
#[path = "soft_faults/timing.rs"]
mod timing;

use std::sync::Arc;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::Nsid;
use adit_driver::{Buffer, Controller, ControllerOptions, Namespace, QueuePair, QueuePairOptions};

struct Device {
    bus: Arc<SoftBus>,
    controller: Controller,
    namespace: Namespace,
}

impl Device {
    fn new(tail: &str) -> Device {
        let options = tail.parse().expect("options");
        Device::open(SoftBus::new(options, Drive::Manual).expect("a bus"))
    }

    fn open(bus: Arc<SoftBus>) -> Device {
        let options = ControllerOptions::default();
        let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &options).expect("ready");
        let namespace = controller.namespace(Nsid(1)).expect("a namespace");
        Device { bus, controller, namespace }
    }

    fn pair(&self, depth: u32) -> QueuePair<Buffer> {
        let options = QueuePairOptions { depth, ..QueuePairOptions::default() };
        self.controller.create_queue_pair(options).expect("a queue pair")
    }
}

/// A bug of the software controller's own: what waits is told that the device is gone, not that it is late.
#[test]
fn a_controller_whose_thread_died_is_gone() {
    let options = "mem=1M".parse().expect("options");
    let device = Device::open(SoftBus::new(options, Drive::Thread).expect("a bus"));
    device.bus.with_controller(|controller| controller.set_hook(|_, _| panic!("as arranged")));
    let error = device.controller.namespace(Nsid(1)).expect_err("no thread").to_string();
    assert!(error.contains("read as all ones"), "{error}");
}
