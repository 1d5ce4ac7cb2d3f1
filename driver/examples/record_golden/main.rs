//! Records a controller's answers as text for `driver/tests/golden`.
//!
//! ```text
//! cargo build --release -p adit-driver --example record_golden
//! cargo xtask vm --with target/release/examples/record_golden --nvme OPTIONS -- record_golden {0}
//! ```
//!
//! The first lines of each recording state its options. QEMU's own trace of the same commands is beside it.
//! The recorder writes to namespaces 1 and 2, so their data must be expendable.

mod commands;
mod run;
mod text;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_driver::bus::Bus;
use adit_driver::bus::vfio::Vfio;
use adit_driver::spec::feature::AsyncEvent;
use adit_driver::spec::register::{AQA, CAP, CC, CMBLOC, CMBMSC, CMBSZ, CSTS, VS};
use adit_driver::spec::{Fid, Iova, Lid, Nsid, Sqe};
use adit_driver::{Controller, ControllerOptions, Event, QueuePairOptions, Result};

use text::Item;

fn main() -> ExitCode {
    let target = std::env::args().nth(1).unwrap_or_default();
    let Some(bdf) = target.strip_prefix("vfio:") else {
        eprintln!("usage: record_golden vfio:BDF (writes to its namespaces)");
        return ExitCode::from(2);
    };
    match record(bdf) {
        Ok(items) => {
            items.iter().for_each(|item| println!("{item}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("record_golden: {error}");
            ExitCode::FAILURE
        }
    }
}

fn record(bdf: &str) -> Result<Vec<Item>> {
    let bus: Arc<dyn Bus> = Vfio::open(bdf)?;
    let has_cmb = adit_driver::spec::register::Cap(bus.read64(CAP.offset())).cmbs();
    let options = ControllerOptions { cmb: has_cmb, ..ControllerOptions::default() };
    let controller = Controller::attach(Arc::clone(&bus), &options)?;
    let mut queue = controller.create_queue_pair::<()>(QueuePairOptions::default())?;
    let mut items = registers(&*bus);
    let (arena, commands) = run::run(&controller, &mut queue)?;
    items.push(address("arena", arena));
    items.extend(commands);
    items.push(temperature_event(&controller)?);
    Ok(items)
}

fn address(name: &str, iova: Iova) -> Item {
    Item::new(name).with("iova", &iova.0.to_le_bytes())
}

/// Records the registers of an enabled controller.
fn registers(bus: &dyn Bus) -> Vec<Item> {
    let short =
        |name: &str, offset| Item::new(name).with("value", &bus.read32(offset).to_le_bytes());
    let long =
        |name: &str, offset| Item::new(name).with("value", &bus.read64(offset).to_le_bytes());
    vec![
        long("register CAP", CAP.offset()),
        short("register VS", VS.offset()),
        short("register CC", CC.offset()),
        short("register CSTS", CSTS.offset()),
        short("register AQA", AQA.offset()),
        short("register CMBLOC", CMBLOC.offset()),
        short("register CMBSZ", CMBSZ.offset()),
        long("register CMBMSC", CMBMSC.offset()),
    ]
}

/// Lowers the temperature threshold until the controller reports an excess temperature.
#[allow(unsafe_code)]
fn temperature_event(controller: &Controller) -> Result<Item> {
    // The bits above the Kelvin select "over" for the composite temperature.
    let set = |kelvin| {
        let sqe = Sqe::set_features(Fid::TEMPERATURE_THRESHOLD, Nsid::NONE, kelvin, false);
        // SAFETY: the command transfers nothing.
        unsafe { controller.admin("Set Features (Temperature Threshold)", sqe, None) }
    };
    set(200)?;
    let event = next_event(controller);
    let smart = controller.log_page(Lid::SMART_HEALTH, Nsid::ALL, 512)?;
    set(400)?;
    let item = Item::new("temperature event").with("smart", &smart);
    Ok(event.map_or(item.clone(), |event| item.with("dw0", &event.0.to_le_bytes())))
}

fn next_event(controller: &Controller) -> Option<AsyncEvent> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        if let Some(Event::Health { event, .. }) = controller.poll(controller.now()) {
            return Some(event);
        }
        controller.pause(Duration::from_millis(1));
    }
    None
}
