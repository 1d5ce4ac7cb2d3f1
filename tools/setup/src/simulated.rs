//! A simulated machine for tests: a kernel that reacts to sysfs writes like Linux, on top of a recorded
//! machine's files.
//!
//! It can refuse any change, kill the process before, during or after any change, and reboot. In every test it
//! asserts two laws: a drive is taken from the kernel's driver only while all its block devices are claimed,
//! and never while one is in use.
//!
//! It does not simulate time (a pause is one tick), several processes, or spontaneous device failures.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;

use super::change::{Change, Claim, Hands};
use super::operation::Operation;
use crate::failure::Result;
use adit_guard::root::Root;

/// VFIO's switch for running without an IOMMU.
const SWITCH: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

/// The most ticks a file takes to appear.
const TICKS_MAX: u64 = 3;

/// A machine without devices: its `/proc`, and what PCI, modules and an IOMMU provide.
const BARE: &str = "\
/proc/sys/kernel/osrelease = 6.1.0-18-amd64
/proc/sys/kernel/random/boot_id = boot-1
/proc/cmdline = BOOT_IMAGE=/vmlinuz intel_iommu=on
/proc/swaps:
    Filename				Type		Size		Used		Priority
/proc/self/mountinfo:
    22 1 0:21 / / rw,relatime - ext4 /dev/sda1 rw
/run/
/dev/
/etc/
/var/lib/
/sys/bus/pci/drivers/nvme/module/
/sys/class/block/
/sys/class/iommu/
/sys/kernel/iommu_groups/
/sys/module/nvme/
";

/// A simulated drive.
#[derive(Clone, Debug)]
pub(crate) struct Drive {
    /// Its address.
    pub(crate) bdf: &'static str,
    /// Its IOMMU group; `None` without an IOMMU.
    pub(crate) group: Option<u32>,
    pub(crate) serial: &'static str,
    pub(crate) namespaces: u32,
}

impl Drive {
    /// Creates a drive with one namespace and an IOMMU group.
    pub(crate) fn new(bdf: &'static str, group: u32) -> Drive {
        Drive { bdf, group: Some(group), serial: bdf, namespaces: 1 }
    }
}

/// A fault at one of a run's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process is killed before the change.
    KilledBefore,
    /// The process is killed while writing a file: the old one remains, with a fragment beside it.
    KilledAmid,
    /// The process is killed after the change.
    KilledAfter,
    /// The change is refused.
    Refused(Errno),
    /// The change times out.
    Hangs,
    /// The user interrupts during the change.
    Interrupted,
    /// Process 77 opens this file during the change.
    Opened(&'static str),
}

/// The result of a killed process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Killed;

/// A machine and its files.
pub(crate) struct World {
    pub(crate) root: Root,
    pub(crate) kernel: Kernel,
}

/// One PCI function.
struct Function {
    drive: Drive,
    /// The kernel's number for its controller.
    instance: usize,
    driver: Option<String>,
    driver_override: Option<String>,
    /// Ticks until its files appear.
    due: Option<u64>,
}

impl Function {
    /// Returns its block devices.
    fn names(&self) -> Vec<String> {
        (1..=self.drive.namespaces)
            .map(|number| format!("nvme{}n{number}", self.instance))
            .collect()
    }

    /// Returns the group VFIO creates for it without an IOMMU.
    fn no_iommu_group(&self) -> u32 {
        self.instance as u32
    }
}

/// The kernel and its processes.
pub(crate) struct Kernel {
    base: PathBuf,
    functions: Vec<Function>,
    boots: u32,
    random: u64,
    /// Modules that can be loaded.
    pub(crate) installed: BTreeSet<&'static str>,
    /// Whether VFIO supports running without an IOMMU.
    pub(crate) has_no_iommu: bool,
    /// Block devices in use.
    pub(crate) in_use: BTreeSet<String>,
    /// Block devices that never appear.
    pub(crate) lost: BTreeSet<String>,
    /// Drivers that refuse all devices.
    pub(crate) broken: BTreeSet<&'static str>,
    /// Owners of files not owned by root.
    owners: BTreeMap<PathBuf, u32>,
    fault: Option<(usize, Fault)>,
    interrupted: Rc<Cell<bool>>,
    made: Vec<Change>,
}

impl World {
    /// Creates a booted machine; `seed` varies delays.
    pub(crate) fn new(drives: &[Drive], seed: u64) -> World {
        let root = Root::recorded(BARE).expect("a recording");
        let functions = drives.iter().enumerate().map(|(instance, drive)| Function {
            drive: drive.clone(),
            instance,
            driver: None,
            driver_override: None,
            due: None,
        });
        let kernel = Kernel {
            base: root.path("/"),
            functions: functions.collect(),
            boots: 0,
            random: seed,
            installed: ["vfio-pci", "nvme"].into(),
            has_no_iommu: true,
            in_use: BTreeSet::new(),
            lost: BTreeSet::new(),
            broken: BTreeSet::new(),
            owners: BTreeMap::new(),
            fault: None,
            interrupted: Rc::default(),
            made: Vec::new(),
        };
        let mut world = World { root, kernel };
        world.kernel.functions.iter().for_each(|function| world.kernel.plug(function));
        world.boot();
        world
    }

    /// Reboots: binds drivers by class, clears `driver_override`, empties `/run` and VFIO's files.
    pub(crate) fn boot(&mut self) {
        self.kernel.boot();
    }

    /// Runs one process, with a fault at its change of that number, from 0.
    ///
    /// # Errors
    /// The process was killed.
    pub(crate) fn run<T>(
        &mut self,
        fault: Option<(usize, Fault)>,
        body: impl FnOnce(&mut Operation) -> Result<T>,
    ) -> std::result::Result<Result<T>, Killed> {
        self.kernel.fault = fault;
        self.kernel.made.clear();
        self.kernel.interrupted.set(false);
        let flag = Rc::clone(&self.kernel.interrupted);
        let interrupted = || flag.get();
        let (root, kernel) = (&self.root, &mut self.kernel);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            body(&mut Operation::new(root, kernel, &interrupted, false, true))
        }));
        self.kernel.settle();
        ended.map_err(|why| match why.downcast::<Killed>() {
            Ok(killed) => *killed,
            Err(why) => resume_unwind(why),
        })
    }

    /// Returns every file and link with its content, except those that a boot or a loaded module changes.
    pub(crate) fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        self.kernel.collect(Path::new("/"), &mut found);
        let owners = self.kernel.owners.iter().filter(|(path, _)| self.kernel.at(path).exists());
        found.extend(owners.map(|(path, uid)| (path.join("owner"), uid.to_string())));
        found
    }
}

impl Hands for Kernel {
    fn apply(&mut self, change: &Change) -> io::Result<()> {
        let number = self.made.len();
        self.made.push(change.clone());
        let fault = self.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        match fault {
            Some(Fault::KilledBefore) => resume_unwind(Box::new(Killed)),
            Some(Fault::Refused(why)) => return Err(why.into()),
            Some(Fault::Hangs) => return Err(io::ErrorKind::TimedOut.into()),
            Some(Fault::Interrupted) => self.interrupted.set(true),
            Some(Fault::Opened(file)) => self.open(file),
            Some(Fault::KilledAmid) => {
                if let Change::File { path, content, .. } = change {
                    self.put(&fragment(path), &content[..content.len() / 2]);
                }
                resume_unwind(Box::new(Killed));
            }
            Some(Fault::KilledAfter) | None => {}
        }
        let done = self.carry_out(change);
        if fault == Some(Fault::KilledAfter) {
            resume_unwind(Box::new(Killed));
        }
        done
    }

    fn claim(&mut self, device: &Path) -> io::Result<Claim> {
        let file = File::open(self.at(device))?;
        if self.in_use.contains(&name_of(device)) || file.try_lock().is_err() {
            return Err(Errno::EBUSY.into());
        }
        Ok(Claim(Some(file)))
    }

    fn pause(&mut self, _: Duration) {
        self.tick();
    }
}

impl Kernel {
    /// Returns the changes requested by the last run.
    pub(crate) fn made(&self) -> &[Change] {
        &self.made
    }

    /// Writes a file of the machine.
    pub(crate) fn put(&self, path: &Path, content: &str) {
        let place = self.at(path);
        fs::create_dir_all(place.parent().expect("a file is in a directory")).expect("directory");
        fs::write(place, content).expect("file");
    }

    /// Makes process 77, `fio`, open a file.
    pub(crate) fn open(&self, file: &str) {
        self.put(Path::new("/proc/77/comm"), "fio\n");
        fs::create_dir_all(self.at("/proc/77/fd")).expect("directory");
        symlink(file, self.at("/proc/77/fd/3")).expect("link");
    }

    /// Ends process 77.
    pub(crate) fn close(&self) {
        fs::remove_dir_all(self.at("/proc/77")).expect("a process");
    }

    /// Removes the function from the machine.
    pub(crate) fn unplug(&mut self, bdf: &str) {
        let at = self.functions.iter().position(|one| one.drive.bdf == bdf).expect("a function");
        self.detach(at);
        let function = self.functions.remove(at);
        self.delete(&format!("/sys/bus/pci/devices/{bdf}"));
        let _ = fs::remove_dir_all(self.at(directory(bdf)));
        if let Some(group) = function.drive.group {
            self.delete(&format!("/sys/kernel/iommu_groups/{group}/devices/{bdf}"));
        }
    }

    /// Writes to sysfs as another tool would.
    pub(crate) fn write(&mut self, path: &str, value: &str) {
        self.write_attribute(Path::new(path), value).expect("a write that the kernel takes");
        self.settle();
    }

    /// Unbinds a function from its driver, as a user would who knows that it is idle.
    pub(crate) fn unbind_by_hand(&mut self, bdf: &str) {
        self.detach(self.find(bdf).expect("a function"));
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.base.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn delete(&self, path: &str) {
        // A missing file is fine.
        let _ = fs::remove_file(self.at(path));
    }

    fn collect(&self, directory: &Path, found: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(self.at(directory)).into_iter().flatten().flatten() {
            let path = directory.join(entry.file_name());
            let text = path.to_string_lossy();
            let passing = ["/sys/bus/pci/drivers", "/sys/module", "/proc/sys/kernel/random"];
            if passing.iter().any(|start| text.starts_with(start)) && !SWITCH.starts_with(&*text) {
                continue;
            }
            if let Ok(target) = fs::read_link(entry.path()) {
                found.insert(path, target.to_string_lossy().into_owned());
            } else if entry.path().is_dir() {
                self.collect(&path, found);
            } else {
                let content = fs::read_to_string(entry.path()).unwrap_or_default();
                // A module provides the switch, off.
                if text != SWITCH || content.trim() != "N" {
                    found.insert(path, content);
                }
            }
        }
    }

    /// Adds a drive's function to the machine, without a driver.
    fn plug(&self, function: &Function) {
        let drive = &function.drive;
        let directory = directory(drive.bdf);
        let attributes = [
            ("class", "0x010802\n"),
            ("vendor", "0x1b36\n"),
            ("device", "0x0010\n"),
            ("numa_node", "-1\n"),
            ("driver_override", "(null)\n"),
        ];
        for (name, value) in attributes {
            self.put(&directory.join(name), value);
        }
        let link = format!("/sys/bus/pci/devices/{}", drive.bdf);
        let target = format!("../../../devices/pci0000:00/{}", drive.bdf);
        fs::create_dir_all(self.at("/sys/bus/pci/devices")).expect("directory");
        symlink(target, self.at(link)).expect("link");
        if let Some(group) = drive.group {
            self.join_group(drive.bdf, group);
            self.put(Path::new("/sys/class/iommu/dmar0/intel-iommu/version"), "1:0\n");
        }
        function.names().iter().for_each(|name| self.put_signatures(name, "[]"));
    }

    /// Sets `wipefs`'s findings for a block device: a JSON array.
    pub(crate) fn put_signatures(&self, name: &str, signatures: &str) {
        let printed = format!("{{\"signatures\": {signatures}}}\n");
        self.put(Path::new(&format!("/recorded/wipefs/{name}")), &printed);
    }

    fn join_group(&self, bdf: &str, group: u32) {
        let members = format!("/sys/kernel/iommu_groups/{group}/devices");
        fs::create_dir_all(self.at(&members)).expect("directory");
        let device = format!("../../../../devices/pci0000:00/{bdf}");
        symlink(device, self.at(format!("{members}/{bdf}"))).expect("link");
        let group = format!("../../../kernel/iommu_groups/{group}");
        symlink(group, self.at(directory(bdf)).join("iommu_group")).expect("link");
    }

    fn boot(&mut self) {
        for at in 0..self.functions.len() {
            self.detach(at);
            self.functions[at].driver_override = None;
            self.show_override(at);
        }
        self.boots += 1;
        self.in_use.clear();
        self.owners.clear();
        for directory in ["/run", "/dev/vfio"] {
            let _ = fs::remove_dir_all(self.at(directory));
            fs::create_dir_all(self.at(directory)).expect("directory");
        }
        let _ = fs::remove_dir_all(self.at("/sys/bus/pci/drivers/vfio-pci"));
        let _ = fs::remove_dir_all(self.at("/sys/module/vfio"));
        let boot_id = Path::new("/proc/sys/kernel/random/boot_id");
        self.put(boot_id, &format!("boot-{}\n", self.boots));
        for at in 0..self.functions.len() {
            self.probe(at);
        }
        self.settle();
    }

    /// Lets all pending events happen.
    fn settle(&mut self) {
        (0..=TICKS_MAX).for_each(|_| self.tick());
    }

    fn tick(&mut self) {
        for at in 0..self.functions.len() {
            match self.functions[at].due {
                Some(0) => self.appear(at),
                due => self.functions[at].due = due.map(|ticks| ticks - 1),
            }
        }
    }

    fn carry_out(&mut self, change: &Change) -> io::Result<()> {
        match change {
            Change::Write { path, value } => self.write_attribute(path, value),
            Change::File { path, content, .. } => {
                self.put(path, content);
                self.delete(&fragment(path).to_string_lossy());
                Ok(())
            }
            Change::Remove { path } => {
                self.delete(&path.to_string_lossy());
                self.delete(&fragment(path).to_string_lossy());
                Ok(())
            }
            Change::Owner { path, uid } => {
                fs::metadata(self.at(path))?;
                self.owners.remove(path);
                if *uid != 0 {
                    self.owners.insert(path.clone(), *uid);
                }
                Ok(())
            }
            Change::Run { program, arguments } => {
                let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
                self.run_program(program, &words)
            }
        }
    }

    fn run_program(&mut self, program: &str, words: &[&str]) -> io::Result<()> {
        match (program, words) {
            ("modprobe", [module]) if self.installed.contains(module) => {
                self.load(module);
                Ok(())
            }
            ("modprobe", [module]) => {
                Err(io::Error::other(format!("modprobe: FATAL: Module {module} not found")))
            }
            ("env", [home, "wipefs", "--all", "--backup", device]) => {
                let name = name_of(Path::new(device));
                if self.in_use.contains(&name) {
                    return Err(io::Error::other(
                        "probing initialization failed: Device or resource busy",
                    ));
                }
                let copies = home.strip_prefix("HOME=").expect("where copies go");
                fs::metadata(self.at(copies))?;
                self.put(&Path::new(copies).join(format!("wipefs-{name}-0x00000438.bak")), "");
                self.put_signatures(&name, "[]");
                Ok(())
            }
            ("udevadm" | "systemctl", _) => Ok(()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Loads a module, which makes its driver available.
    pub(crate) fn load(&self, module: &str) {
        let driver = self.at(format!("/sys/bus/pci/drivers/{module}"));
        fs::create_dir_all(driver).expect("directory");
        if module == "vfio-pci" && self.has_no_iommu && !self.at(SWITCH).exists() {
            self.put(Path::new(SWITCH), "N\n");
        }
    }

    fn is_loaded(&self, driver: &str) -> bool {
        self.at(format!("/sys/bus/pci/drivers/{driver}")).exists()
    }

    fn write_attribute(&mut self, path: &Path, value: &str) -> io::Result<()> {
        let text = path.to_string_lossy().into_owned();
        if let Some(rest) = text.strip_prefix("/sys/bus/pci/devices/") {
            let (bdf, attribute) = rest.split_once('/').ok_or(Errno::ENOENT)?;
            let at = self.find(bdf).ok_or(Errno::ENOENT)?;
            return match attribute {
                "driver_override" => {
                    self.functions[at].driver_override =
                        Some(value.to_owned()).filter(|name| !name.is_empty());
                    self.show_override(at);
                    Ok(())
                }
                "driver/unbind" if self.functions[at].driver.is_none() => Err(Errno::ENOENT.into()),
                "driver/unbind" if value == bdf => self.unbind(at),
                "driver/unbind" => Err(Errno::ENODEV.into()),
                _ => Err(Errno::ENOENT.into()),
            };
        }
        if text == "/sys/bus/pci/drivers_probe" {
            let at = self.find(value).ok_or(Errno::ENODEV)?;
            self.probe(at);
            return Ok(());
        }
        if let Some(driver) = text.strip_prefix("/sys/bus/pci/drivers/") {
            let driver = driver.strip_suffix("/bind").ok_or(Errno::ENOENT)?;
            return self.bind(driver, value);
        }
        if !self.at(path).exists() {
            return Err(Errno::ENOENT.into());
        }
        self.put(path, &format!("{value}\n"));
        Ok(())
    }

    fn find(&self, bdf: &str) -> Option<usize> {
        self.functions.iter().position(|function| function.drive.bdf == bdf)
    }

    fn show_override(&self, at: usize) {
        let function = &self.functions[at];
        let text = function.driver_override.as_deref().unwrap_or("(null)");
        self.put(&directory(function.drive.bdf).join("driver_override"), &format!("{text}\n"));
    }

    /// Handles `driver/unbind`; panics if it violates the machine's laws.
    fn unbind(&mut self, at: usize) -> io::Result<()> {
        let function = &self.functions[at];
        if function.driver.as_deref() == Some("nvme") {
            for name in function.names() {
                assert!(!self.in_use.contains(&name), "{name} was taken while in use");
                let node = self.at(format!("/dev/{name}"));
                let free = File::open(node).is_ok_and(|node| node.try_lock().is_ok());
                assert!(!free, "{name} was taken without a claim");
            }
        }
        self.detach(at);
        Ok(())
    }

    /// Handles `drivers_probe` and a boot; a driver that refuses a device is no failure.
    fn probe(&mut self, at: usize) {
        let function = &self.functions[at];
        let driver = function.driver_override.clone().unwrap_or_else(|| "nvme".to_owned());
        if function.driver.is_none() && self.is_loaded(&driver) {
            let _ = self.attach(at, &driver);
        }
    }

    fn bind(&mut self, driver: &str, bdf: &str) -> io::Result<()> {
        if !self.is_loaded(driver) {
            return Err(Errno::ENOENT.into());
        }
        let at = self.find(bdf).ok_or(Errno::ENODEV)?;
        let function = &self.functions[at];
        if function.driver_override.as_deref().unwrap_or("nvme") != driver {
            return Err(Errno::ENODEV.into());
        }
        if function.driver.is_some() {
            return Err(Errno::EBUSY.into());
        }
        self.attach(at, driver)
    }

    fn attach(&mut self, at: usize, driver: &str) -> io::Result<()> {
        let is_isolated = self.functions[at].drive.group.is_some();
        let switch = fs::read_to_string(self.at(SWITCH)).unwrap_or_default();
        let refuses = driver == "vfio-pci" && !is_isolated && switch.trim() != "Y";
        if refuses || self.broken.contains(driver) {
            return Err(Errno::EINVAL.into());
        }
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let ticks = (self.random >> 33) % TICKS_MAX;
        let function = &mut self.functions[at];
        function.driver = Some(driver.to_owned());
        function.due = Some(ticks);
        let bdf = function.drive.bdf;
        let link = self.at(directory(bdf)).join("driver");
        symlink(format!("../../../bus/pci/drivers/{driver}"), link).expect("link");
        if driver == "vfio-pci" && !is_isolated {
            self.join_group(bdf, self.functions[at].no_iommu_group());
        }
        Ok(())
    }

    /// Creates the files of a driver that has become ready.
    fn appear(&mut self, at: usize) {
        self.functions[at].due = None;
        let function = &self.functions[at];
        match function.driver.as_deref() {
            Some("nvme") => self.show_namespaces(function),
            Some("vfio-pci") => self.put(&self.group_file(at), ""),
            _ => {}
        }
    }

    fn group_file(&self, at: usize) -> PathBuf {
        let function = &self.functions[at];
        let no_iommu = || format!("noiommu-{}", function.no_iommu_group());
        let name = function.drive.group.map_or_else(no_iommu, |group| group.to_string());
        Path::new("/dev/vfio").join(name)
    }

    fn show_namespaces(&self, function: &Function) {
        let Function { drive, instance, .. } = function;
        let controller = directory(drive.bdf).join(format!("nvme/nvme{instance}"));
        let identity = [
            ("model", "QEMU NVMe Ctrl"),
            ("serial", drive.serial),
            ("firmware_rev", "8.2.0"),
            ("state", "live"),
        ];
        for (name, value) in identity {
            self.put(&controller.join(name), &format!("{value}\n"));
        }
        self.put(Path::new(&format!("/dev/nvme{instance}")), "");
        for (number, name) in function.names().iter().enumerate() {
            if self.lost.contains(name) {
                continue;
            }
            let directory = controller.join(name);
            self.put(&directory.join("size"), "2097152\n");
            self.put(&directory.join("ro"), "0\n");
            self.put(&directory.join("dev"), &format!("259:{}\n", instance * 16 + number));
            self.put(&directory.join("queue/logical_block_size"), "512\n");
            fs::create_dir_all(self.at(directory.join("holders"))).expect("directory");
            let target =
                format!("../../devices/pci0000:00/{}/nvme/nvme{instance}/{name}", drive.bdf);
            symlink(target, self.at(format!("/sys/class/block/{name}"))).expect("link");
            self.put(Path::new(&format!("/dev/{name}")), "");
        }
    }

    /// Removes the driver and its files.
    fn detach(&mut self, at: usize) {
        let function = &self.functions[at];
        let (bdf, instance, names) = (function.drive.bdf, function.instance, function.names());
        self.functions[at].due = None;
        match self.functions[at].driver.take().as_deref() {
            Some("nvme") => {
                let _ = fs::remove_dir_all(self.at(directory(bdf)).join("nvme"));
                self.delete(&format!("/dev/nvme{instance}"));
                for name in names {
                    self.delete(&format!("/dev/{name}"));
                    self.delete(&format!("/sys/class/block/{name}"));
                }
            }
            Some("vfio-pci") => self.leave_vfio(at),
            _ => {}
        }
        self.delete(&directory(bdf).join("driver").to_string_lossy());
    }

    fn leave_vfio(&mut self, at: usize) {
        let file = self.group_file(at);
        let is_shared = (0..self.functions.len()).any(|other| {
            self.functions[other].driver.as_deref() == Some("vfio-pci")
                && self.group_file(other) == file
        });
        if !is_shared {
            self.delete(&file.to_string_lossy());
            self.owners.remove(&file);
        }
        let function = &self.functions[at];
        let bdf = function.drive.bdf;
        if function.drive.group.is_none() {
            self.delete(&directory(bdf).join("iommu_group").to_string_lossy());
            let group = format!("/sys/kernel/iommu_groups/{}", function.no_iommu_group());
            let _ = fs::remove_dir_all(self.at(group));
        }
    }
}

fn directory(bdf: &str) -> PathBuf {
    Path::new("/sys/devices/pci0000:00").join(bdf)
}

fn name_of(path: &Path) -> String {
    path.file_name().expect("a file's path").to_string_lossy().into_owned()
}

fn fragment(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}
