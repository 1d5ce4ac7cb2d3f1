//! The software controller, asked the same as QEMU's.

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::soft::{Options, Storage};
use adit_driver::{Controller, ControllerOptions, QueuePairOptions};

use crate::recording::{Recording, field, status};
use crate::run;
use crate::text::Item;

fn soft() -> Vec<Item> {
    let options = Options {
        lba_bytes: vec![512, 4096, 512],
        namespace_count: 3,
        ..Options::over(Storage::Memory { bytes: 3 << 30 })
    };
    let bus = SoftBus::new(options, Drive::Manual).expect("a software controller");
    let controller = Controller::attach(bus, &ControllerOptions::default()).expect("it is ready");
    let mut queue = controller.create_queue_pair(QueuePairOptions::default()).expect("a queue");
    run::run(&controller, &mut queue).expect("it keeps answering").1
}

#[test]
fn the_software_controller_answers_as_qemu() {
    let recording = Recording::of_qemu();
    let mut bad = Vec::new();
    for item in soft() {
        let other = recording.item(&item.name);
        if status(&item) != status(other) {
            bad.push(format!("{}: soft {}, qemu {}", item.name, status(&item), status(other)));
        } else if field(&item, "dw0") != field(other, "dw0") {
            bad.push(format!(
                "{}: dw0 soft {:?}, qemu {:?}",
                item.name,
                field(&item, "dw0"),
                field(other, "dw0")
            ));
        } else if field(&item, "data") != field(other, "data") {
            bad.push(format!("{}: data", item.name));
        }
    }
    panic!("{}", bad.join("\n"));
}
