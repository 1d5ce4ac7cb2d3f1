//! `adit identify`: shows what a controller reports about itself.

use std::fmt::{Display, Write};

use adit_driver::spec::identify::IdentifyNamespace;
use adit_driver::spec::log::SmartHealth;
use adit_driver::spec::{Cns, Lid, Nsid, View};
use adit_driver::transfer::SglSupport;
use adit_driver::{Controller, ControllerOptions, Namespace, Target};
use clap::Args;
use serde::Serialize;

use crate::failure::Result;
use crate::human;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  A controller bound to vfio-pci:
    adit identify vfio:0000:01:00.0
  One served by another process, for a program to read:
    adit identify vfio-user:/run/x/cntrl --json
  The software controller, with two namespaces:
    adit identify soft:mem=1G,lba=512+4096";

/// Shows a controller, its namespaces and its health
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IdentifyArgs {
    /// The controller, as in vfio:0000:01:00.0, vfio-user:/run/x/cntrl or soft:mem=1G; ',ns=N' shows one namespace
    target: Target,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// As [`Controller::open`], and when the controller does not answer.
pub(crate) fn run(args: &IdentifyArgs) -> Result<()> {
    let controller = Controller::open(&args.target, &ControllerOptions::default())?;
    let report = Report::of(&controller, &args.target)?;
    output::report(args.json, || &report, || table(&report))
}

/// The report. Field names are those of the JSON.
#[derive(Debug, Serialize)]
struct Report {
    target: String,
    controller: ControllerReport,
    namespaces: Vec<NamespaceReport>,
    /// `None` if the controller does not provide its SMART log.
    health: Option<HealthReport>,
}

#[derive(Debug, Serialize)]
struct ControllerReport {
    model: String,
    serial: String,
    firmware: String,
    pci_vendor_id: String,
    nvme_version: String,
    subsystem_nqn: String,
    /// Maximum bytes of a transfer; `null` for no limit.
    mdts_bytes: Option<u64>,
    io_queues: u16,
    queue_entries_max: u32,
    sgl: &'static str,
    shadow_doorbells: bool,
    cmb_supported: bool,
    cmb_bytes: u64,
    volatile_write_cache: bool,
    total_capacity_bytes: u128,
    unallocated_capacity_bytes: u128,
}

#[derive(Debug, Serialize)]
struct NamespaceReport {
    nsid: u32,
    size_bytes: u64,
    size_lbas: u64,
    used_lbas: u64,
    /// `null` for a format the driver does not support.
    lba_bytes: Option<u32>,
    metadata_bytes: u16,
    /// Type of protection information of its format, 1 to 3, even if the driver does not support it; `null` for
    /// none.
    protection_type: Option<u8>,
    /// What the controller generates and checks of it for the driver; `null` also if the driver does not
    /// support it.
    protection: Option<String>,
    nguid: Option<String>,
    eui64: Option<String>,
    noiob_lbas: Option<u32>,
    /// Why the driver cannot use it, if so.
    unusable: Option<String>,
}

#[derive(Debug, Serialize)]
struct HealthReport {
    critical_warning: u8,
    /// `null` if the controller does not report it.
    temperature_celsius: Option<i32>,
    available_spare_percent: u8,
    percentage_used: u8,
    data_read_bytes: u128,
    data_written_bytes: u128,
    power_on_hours: u128,
    power_cycles: u128,
    unsafe_shutdowns: u128,
    media_errors: u128,
}

impl Report {
    fn of(controller: &Controller, target: &Target) -> Result<Report> {
        let nsids = match target.settings().namespace {
            Some(nsid) => vec![controller.namespace(nsid)?.nsid()],
            None => controller.namespace_ids()?,
        };
        let namespaces = nsids.into_iter().map(|nsid| NamespaceReport::of(controller, nsid));
        Ok(Report {
            target: target.to_string(),
            controller: ControllerReport::of(controller),
            namespaces: namespaces.collect::<Result<_>>()?,
            health: HealthReport::of(controller),
        })
    }
}

impl ControllerReport {
    fn of(controller: &Controller) -> ControllerReport {
        let (info, identify) = (controller.info(), &controller.info().identify);
        ControllerReport {
            model: identify.mn.to_string(),
            serial: identify.sn.to_string(),
            firmware: identify.fr.to_string(),
            pci_vendor_id: format!("{:#06x}", identify.vid.get()),
            nvme_version: info.version.to_string(),
            subsystem_nqn: identify.subnqn.to_string(),
            mdts_bytes: identify.max_transfer_bytes(info.cap.page_size_min()),
            io_queues: info.io_queues,
            queue_entries_max: info.queue_entries_max,
            sgl: match info.sgl {
                SglSupport::None => "none",
                SglSupport::Byte => "byte",
                SglSupport::Dword => "dword",
            },
            shadow_doorbells: info.shadow_doorbells,
            cmb_supported: info.cap.cmbs(),
            cmb_bytes: info.cmb_bytes,
            volatile_write_cache: info.volatile_write_cache,
            total_capacity_bytes: identify.tnvmcap_bytes.get(),
            unallocated_capacity_bytes: identify.unvmcap_bytes.get(),
        }
    }
}

impl NamespaceReport {
    fn of(controller: &Controller, nsid: Nsid) -> Result<NamespaceReport> {
        let page = controller.identify(Cns::NAMESPACE, nsid)?;
        let identify = IdentifyNamespace::view(&page).expect("a page is as long as the structure");
        let format = identify.lba_format();
        let lba_bytes = format.and_then(|format| format.lba_bytes());
        let lbas = identify.nsze_lbas.get();
        let namespace = controller.namespace(nsid);
        let protection = namespace.as_ref().ok().and_then(Namespace::protection);
        Ok(NamespaceReport {
            nsid: nsid.0,
            size_bytes: lbas.saturating_mul(u64::from(lba_bytes.unwrap_or(0))),
            size_lbas: lbas,
            used_lbas: identify.nuse_lbas.get(),
            lba_bytes,
            metadata_bytes: format.map_or(0, |format| format.ms_bytes.get()),
            protection_type: protection_type(identify),
            protection: protection.map(|protection| protection.to_string()),
            nguid: identifier(&identify.nguid),
            eui64: identifier(&identify.eui64),
            noiob_lbas: identify.noiob(),
            unusable: namespace.err().map(|error| error.to_string()),
        })
    }
}

/// Returns the type of protection information according to the format alone.
fn protection_type(identify: &IdentifyNamespace) -> Option<u8> {
    Some(identify.protection_type()).filter(|kind| *kind != 0)
}

/// Formats a globally unique identifier in hexadecimal; `None` if it is all zeroes.
fn identifier(bytes: &[u8]) -> Option<String> {
    let known = bytes.iter().any(|byte| *byte != 0);
    known.then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl HealthReport {
    fn of(controller: &Controller) -> Option<HealthReport> {
        let page =
            controller.log_page(Lid::SMART_HEALTH, Nsid::ALL, size_of::<SmartHealth>() as u32);
        let page = page.inspect_err(|error| tracing::warn!("no SMART log: {error}")).ok()?;
        Some(HealthReport::from_log(SmartHealth::view(&page)?))
    }

    fn from_log(smart: &SmartHealth) -> HealthReport {
        HealthReport {
            critical_warning: smart.critical_warning,
            temperature_celsius: smart.temperature_c(),
            available_spare_percent: smart.available_spare_percent,
            percentage_used: smart.percentage_used,
            data_read_bytes: smart.data_read_bytes(),
            data_written_bytes: smart.data_written_bytes(),
            power_on_hours: smart.power_on_hours.get(),
            power_cycles: smart.power_cycles.get(),
            unsafe_shutdowns: smart.unsafe_shutdowns.get(),
            media_errors: smart.media_errors.get(),
        }
    }
}

fn table(report: &Report) -> String {
    let mut out = format!("{}\n", report.target);
    add_rows(&mut out, controller_rows(&report.controller));
    out.push_str("\nNamespaces\n");
    if report.namespaces.is_empty() {
        out.push_str("  none\n");
    }
    for namespace in &report.namespaces {
        add_rows(&mut out, namespace_rows(namespace));
    }
    if let Some(health) = &report.health {
        out.push_str("\nHealth\n");
        add_rows(&mut out, health_rows(health));
    }
    out
}

fn add_rows(out: &mut String, rows: Vec<(impl Display, String)>) {
    for (name, value) in rows {
        writeln!(out, "  {name:<18}{value}").expect("a string takes everything");
    }
}

fn size(bytes: u128) -> String {
    human::bytes(bytes as f64)
}

fn controller_rows(controller: &ControllerReport) -> Vec<(&'static str, String)> {
    let c = controller;
    let cmb = match (c.cmb_bytes, c.cmb_supported) {
        (0, false) => "none".to_owned(),
        (0, true) => "there, not in use; 'queues=cmb' in the target puts queues there".to_owned(),
        (bytes, _) => format!("{}, in use", size(bytes.into())),
    };
    let cache = if c.volatile_write_cache {
        "on: only Flush and FUA make data durable"
    } else {
        "none: what is written stays"
    };
    vec![
        ("Model", c.model.clone()),
        ("Serial", c.serial.clone()),
        ("Firmware", c.firmware.clone()),
        ("NVMe version", c.nvme_version.clone()),
        ("PCI vendor", c.pci_vendor_id.clone()),
        ("Subsystem", c.subsystem_nqn.clone()),
        (
            "MDTS",
            c.mdts_bytes.map_or("no limit".to_owned(), |bytes| {
                format!("{} ({bytes} bytes)", size(bytes.into()))
            }),
        ),
        ("I/O queues", format!("{} of up to {} entries", c.io_queues, c.queue_entries_max)),
        ("SGL", sgl(c.sgl).to_owned()),
        ("Shadow doorbells", if c.shadow_doorbells { "in use" } else { "not in use" }.to_owned()),
        ("CMB", cmb),
        ("Write cache", cache.to_owned()),
        ("Capacity", capacity(c)),
    ]
}

fn sgl(support: &str) -> &'static str {
    match support {
        "byte" => "in use, any alignment",
        "dword" => "in use, multiples of four bytes",
        _ => "not in use",
    }
}

fn capacity(controller: &ControllerReport) -> String {
    match (controller.total_capacity_bytes, controller.unallocated_capacity_bytes) {
        (0, _) => "not reported".to_owned(),
        (total, free) => format!("{}, {} in no namespace", size(total), size(free)),
    }
}

fn namespace_rows(namespace: &NamespaceReport) -> Vec<(String, String)> {
    let n = namespace;
    let lba = n
        .lba_bytes
        .map_or("unknown LBA format".to_owned(), |bytes| format!("LBA of {bytes} bytes"));
    let metadata = if n.metadata_bytes > 0 {
        format!(" + {} metadata", n.metadata_bytes)
    } else {
        String::new()
    };
    let mut rows = vec![(
        n.nsid.to_string(),
        format!("{}, {} LBAs, {lba}{metadata}", size(n.size_bytes.into()), n.size_lbas),
    )];
    let more = [
        ("NGUID", n.nguid.clone()),
        ("EUI64", n.eui64.clone()),
        ("Protection", n.protection.clone()),
        ("NOIOB", n.noiob_lbas.map(|lbas| format!("{lbas} LBAs"))),
        ("cannot be used", n.unusable.clone()),
    ];
    rows.extend(more.into_iter().filter_map(|(name, value)| Some((format!("  {name}"), value?))));
    rows
}

fn health_rows(health: &HealthReport) -> Vec<(&'static str, String)> {
    let h = health;
    let warning = if h.critical_warning == 0 {
        "none".to_owned()
    } else {
        format!("{:#04x}", h.critical_warning)
    };
    vec![
        ("Warnings", warning),
        (
            "Temperature",
            h.temperature_celsius
                .map_or("not reported".to_owned(), |celsius| format!("{celsius} C")),
        ),
        ("Spare, used", format!("{} %, {} %", h.available_spare_percent, h.percentage_used)),
        ("Read, written", format!("{}, {}", size(h.data_read_bytes), size(h.data_written_bytes))),
        (
            "Power",
            format!(
                "{} h, {} cycles, {} unsafe",
                h.power_on_hours, h.power_cycles, h.unsafe_shutdowns
            ),
        ),
        ("Media errors", h.media_errors.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temperature_that_is_not_reported_is_not_absolute_zero() {
        let shown = |kelvin: u16| {
            let mut page = [0; size_of::<SmartHealth>()];
            page[1..3].copy_from_slice(&kelvin.to_le_bytes());
            let health = HealthReport::from_log(SmartHealth::view(&page).expect("a page"));
            let rows = health_rows(&health).into_iter();
            rows.filter(|(name, _)| *name == "Temperature").map(|(_, value)| value).collect()
        };
        let values: [Vec<String>; 2] = [shown(0), shown(300)];
        assert_eq!(values, [["not reported"], ["27 C"]]);
    }

    #[test]
    fn protection_that_the_driver_refuses_is_told_by_its_type() {
        let mut page = [0; size_of::<IdentifyNamespace>()];
        let kind = |page: &[u8]| protection_type(IdentifyNamespace::view(page).expect("a page"));
        assert_eq!(kind(&page), None);
        // DPS: type 2, after 64 bytes of other metadata in LBA format 0, which the driver does not support.
        (page[29], page[128], page[130]) = (2, 64, 12);
        assert_eq!(kind(&page), Some(2));
    }
}
