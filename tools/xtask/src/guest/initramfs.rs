//! The guest's only file system: busybox, the kernel modules, the copied programs, the command, and `init.sh`.

use super::Controllers;
use super::command::quote;
use super::controller::{Address, Controller};
use super::cpio::Archive;
use super::modules::{Module, Modules};
use super::packages::Kernel;
use super::programs::{self, Program};
use crate::failure::{Context, Result};
use std::fs;
use std::path::Path;

const INIT: &str = include_str!("init.sh");

/// What vfio takes, from the kernel's point of view.
const VFIO: [&str; 2] = ["vfio_iommu_type1", "vfio_pci"];

/// Checksums that the nvme driver's dependencies ask for by name at run time. Newer kernels have none of them.
const CHECKSUMS: [&str; 2] = ["crct10dif_generic", "crc64_rocksoft_generic"];

/// A user who is not root, for tests of what such a user may do.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\n";

/// What goes into the archive.
pub(crate) struct Contents<'a> {
    /// Whose modules to take.
    pub kernel: &'a Kernel,
    /// A static busybox.
    pub busybox: &'a Path,
    /// Programs to copy in.
    pub programs: &'a [Program],
    /// What separates the command's output from the guest's report.
    pub marker: &'a str,
    /// The shell line to run.
    pub line: &'a str,
}

impl Contents<'_> {
    /// Builds the archive for a guest with these controllers.
    pub(crate) fn archive(&self, controllers: &Controllers) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for directory in [
            "/bin",
            "/dev",
            "/etc",
            "/proc",
            "/root",
            "/run",
            "/sys",
            "/tmp",
            "/usr/bin",
            "/usr/local/bin",
        ] {
            archive.directory(directory);
        }
        let busybox = fs::read(self.busybox)
            .context(format_args!("cannot read {}", self.busybox.display()))?;
        archive.file("/bin/busybox", 0o755, &busybox);
        archive.file("/init", 0o755, INIT.as_bytes());
        archive.file("/etc/passwd", 0o644, PASSWD.as_bytes());
        archive.file("/etc/group", 0o644, GROUP.as_bytes());
        archive.file("/adit/command", 0o755, format!("{}\n", self.line).as_bytes());

        let libraries = programs::add(self.programs, &mut archive)?;
        let (vfio, nvme) = self.modules(!controllers.kernel.is_empty())?;
        for module in vfio.iter().chain(&nvme) {
            archive.file(&format!("/adit/modules/{}.ko", module.name), 0o644, &module.image);
        }
        let settings = [
            ("MARKER", self.marker.to_owned()),
            ("LIBRARIES", libraries.join(":")),
            ("VFIO_MODULES", names(&vfio)),
            ("KERNEL_MODULES", names(&nvme)),
            ("VFIO_DEVICES", places(&controllers.vfio)),
            ("KERNEL_DEVICES", places(&controllers.kernel)),
        ];
        let lines: String =
            settings.iter().map(|(name, value)| format!("{name}={}\n", quote(value))).collect();
        archive.file("/adit/settings", 0o644, lines.as_bytes());
        Ok(archive.finish())
    }

    /// vfio's modules and, when wanted, those of the nvme driver.
    fn modules(&self, kernel_driver: bool) -> Result<(Vec<Module>, Vec<Module>)> {
        let modules = Modules::find(&self.kernel.modules)?;
        let vfio = modules.closure(&VFIO)?;
        if !kernel_driver {
            return Ok((vfio, Vec::new()));
        }
        let mut wanted: Vec<&str> =
            CHECKSUMS.into_iter().filter(|name| modules.has(name)).collect();
        wanted.push("nvme");
        let mut nvme = modules.closure(&wanted)?;
        nvme.retain(|module| !vfio.contains(module));
        Ok((vfio, nvme))
    }
}

fn names(modules: &[Module]) -> String {
    modules.iter().map(|module| module.name.as_str()).collect::<Vec<_>>().join(" ")
}

/// The controllers' places as `init.sh` reads them.
fn places(controllers: &[Controller]) -> String {
    let place = |controller: &Controller| match controller.address() {
        Address::Fixed(address) => address.clone(),
        Address::NextInOrder => "next".to_owned(),
    };
    controllers.iter().map(place).collect::<Vec<_>>().join(" ")
}
