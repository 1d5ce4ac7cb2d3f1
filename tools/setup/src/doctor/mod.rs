//! `adit setup doctor`: walks the chain from the firmware to one read, and finds its first broken link.
//!
//! A link is a function from what is known to a [`LinkState`]. The walk ends at the first broken link, because
//! later ones may be broken only because of it. Several devices have a chain each. Nothing is changed, and only
//! the last links touch the device, after all others hold.

mod device;
mod host;
mod link;
mod patient;
#[cfg(test)]
mod tests;
mod touch;

use std::cell::OnceCell;
use std::fmt::Write;

use adit_driver::bus::pci::PciAddress;
use serde_json::json;

use self::link::{Finding, Link, LinkState, Remedy};
use self::patient::{Patient, Scene};
use super::args::DoctorArgs;
use super::inventory::{Function, Inventory};
use crate::failure::{Failure, Result};
use crate::human::printable;
use crate::output::Output;
use adit_guard::root::Root;

/// Indents text under a broken link.
const INDENT: &str = "     ";

/// Runs the command.
///
/// # Errors
/// When a link is broken; names it.
pub(crate) fn run(root: &Root, args: &DoctorArgs, json: bool) -> Result<()> {
    let inventory = Inventory::read(root);
    let target =
        |root: &Root, bdf: &str| root.is_live().then(|| format!("vfio:{bdf}").parse().ok())?;
    let findings = walk(&Scene { root, inventory: &inventory, target }, args.device);
    if json {
        let broken = first_broken(&findings).map(|finding| finding.name);
        Output::Standard.json(&json!({ "links": findings, "first_broken": broken }))?;
    } else {
        Output::Standard.write(&as_text(&findings))?;
    }
    match first_broken(&findings) {
        None => Ok(()),
        Some(finding) => Err(Failure::failed(in_short(finding))),
    }
}

fn walk(scene: &Scene, which: Option<PciAddress>) -> Vec<Finding> {
    let mut findings = Vec::new();
    follow(&mut findings, None, &host::links(), scene);
    if first_broken(&findings).is_some() {
        return findings;
    }
    let devices = match which {
        Some(address) => vec![address],
        None => bound(scene),
    };
    if devices.is_empty() {
        findings.push(Finding { device: None, name: device::DEVICE, outcome: none_bound(scene) });
    }
    for address in devices {
        findings.extend(walk_device(scene, address));
    }
    findings
}

/// Checks the links in turn, up to the first broken one.
fn follow<S>(findings: &mut Vec<Finding>, device: Option<&str>, links: &[Link<S>], state: &S) {
    for link in links {
        let outcome = (link.check)(state);
        let broken = outcome.is_broken();
        findings.push(Finding { device: device.map(str::to_owned), name: link.name, outcome });
        if broken {
            return;
        }
    }
}

fn bound(scene: &Scene) -> Vec<PciAddress> {
    let bound = scene.inventory.controllers.iter().filter(|function| function.is_bound());
    bound.filter_map(|function| function.bdf.parse().ok()).collect()
}

fn walk_device(scene: &Scene, address: PciAddress) -> Vec<Finding> {
    let bdf = address.to_string();
    let (function, outcome) = match device::find(scene, address) {
        Ok((function, outcome)) => (Some(function), outcome),
        Err(outcome) => (None, outcome),
    };
    let mut findings = vec![Finding { device: Some(bdf.clone()), name: device::DEVICE, outcome }];
    if let Some(function) = function {
        let target = (scene.target)(scene.root, &bdf);
        let patient = Patient { scene, function, target, controller: OnceCell::new() };
        follow(&mut findings, Some(&bdf), &device::links(), &patient);
    }
    findings
}

/// Returns why there is no device to check, and which one could be bound.
fn none_bound(scene: &Scene) -> LinkState {
    let all = &scene.inventory.controllers;
    let free: Vec<&Function> =
        all.iter().filter(|function| function.obstacles.is_empty()).collect();
    let list = Remedy::new("see what there is", ["sudo adit setup status"]);
    if all.is_empty() {
        let why = "no device is bound to vfio-pci, and this machine has no NVMe controller";
        return LinkState::broken(why, list);
    }
    if free.is_empty() {
        let reasons: Vec<String> = all
            .iter()
            .map(|function| format!("{}: {}", function.bdf, device::reasons(function)))
            .collect();
        let why =
            format!("no device is bound to vfio-pci, and none can be: {}", reasons.join("; "));
        return LinkState::broken(why, list);
    }
    let commands = free.iter().map(|function| device::bind_command(&function.bdf));
    LinkState::broken(
        "no device is bound to vfio-pci",
        Remedy::new("bind one that nothing uses", commands),
    )
}

fn first_broken(findings: &[Finding]) -> Option<&Finding> {
    findings.iter().find(|finding| finding.outcome.is_broken())
}

fn in_short(finding: &Finding) -> String {
    let device = finding.device.as_ref().map(|device| format!("{device}: ")).unwrap_or_default();
    format!("{device}the first broken link is '{}'; its remedy is above", finding.name)
}

/// Formats a line per link, with a heading per device.
fn as_text(findings: &[Finding]) -> String {
    let mut out = String::from("Host\n");
    let mut device = &None;
    for finding in findings {
        if let (true, Some(bdf)) = (device != &finding.device, &finding.device) {
            out.push('\n');
            line(&mut out, format_args!("Device {bdf}"));
            device = &finding.device;
        }
        told(&mut out, finding);
    }
    out
}

fn told(out: &mut String, finding: &Finding) {
    let name = finding.name;
    match &finding.outcome {
        LinkState::Holds(found) => line(out, format_args!("ok   {name}: {found}")),
        LinkState::NotChecked(why) => line(out, format_args!("-    {name}: not checked: {why}")),
        LinkState::Broken { why, remedy } => {
            line(out, format_args!("BAD  {name}: {why}"));
            let colon = if remedy.commands.is_empty() { "" } else { ":" };
            line(out, format_args!("{INDENT}{}{colon}", remedy.advice));
            for command in &remedy.commands {
                line(out, format_args!("{INDENT}    {command}"));
            }
        }
    }
}

fn line(out: &mut String, line: std::fmt::Arguments) {
    writeln!(out, "{}", printable(&line.to_string())).expect("a string takes everything");
}
