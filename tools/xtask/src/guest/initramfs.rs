//! Builds the guest's only file system: busybox, kernel modules, copied programs, the command, and `init.sh`.

use super::archive::Archive;
use super::command::quote;
use super::controller::{Address, Controller};
use super::controllers::Controllers;
use super::files::Copy;
use super::modules::{Index, Modules};
use super::packages::Kernel;
use super::programs::{self, Program};
use crate::failure::{Context, Result};
use std::fs;
use std::path::Path;

const INIT: &str = include_str!("init.sh");

/// VFIO's modules, by their names in the kernel.
const VFIO: [&str; 2] = ["vfio_iommu_type1", "vfio_pci"];

/// Checksums that dependencies of the nvme driver request by name at run time. Newer kernels lack them.
const CHECKSUMS: [&str; 2] = ["crct10dif_generic", "crc64_rocksoft_generic"];

/// A user who is not root, for tests of such users' rights.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\nother:x:1001:1001:other:/tmp:/bin/sh\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\nother:x:1001:\n";

/// The contents of the archive.
pub(crate) struct Contents<'a> {
    /// The kernel whose modules to include.
    pub kernel: &'a Kernel,
    /// The directory for fetched packages.
    pub cache: &'a Path,
    /// A static busybox.
    pub busybox: &'a Path,
    /// Modules that `modprobe` can load besides those of vfio and nvme.
    pub extra_modules: &'a [String],
    /// Programs to copy in.
    pub programs: &'a [Program],
    /// Files to copy in.
    pub files: &'a [Copy],
    /// Separates the command's output from the guest's report.
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
            "/var/lib",
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

        self.files.iter().try_for_each(|file| file.add_to(&mut archive))?;
        let libraries = programs::add(self.programs, self.cache, &mut archive)?;
        let nvme = self.add_modules(&mut archive)?;
        let when =
            |wanted: bool, names: &[&str]| if wanted { names.join(" ") } else { String::new() };
        let settings = [
            ("MARKER", self.marker.to_owned()),
            ("LIBRARIES", libraries.join(":")),
            ("VFIO_MODULES", when(!controllers.vfio.is_empty(), &VFIO)),
            ("NVME_MODULES", when(!controllers.kernel.is_empty(), &nvme)),
            ("VFIO_DEVICES", places(&controllers.vfio)),
            ("KERNEL_DEVICES", places(&controllers.kernel)),
        ];
        let lines: String =
            settings.iter().map(|(name, value)| format!("{name}={}\n", quote(value))).collect();
        archive.file("/adit/settings", 0o644, lines.as_bytes());
        Ok(archive.finish())
    }

    /// Adds the modules for `modprobe`: vfio, the nvme driver, and the extra ones. Returns the modules the nvme
    /// driver needs.
    fn add_modules(&self, archive: &mut Archive) -> Result<Vec<&'static str>> {
        let directory = &self.kernel.modules;
        let modules = Modules::find(directory)?;
        let mut nvme: Vec<&str> = CHECKSUMS.into_iter().filter(|name| modules.has(name)).collect();
        nvme.push("nvme");
        let extra = self.extra_modules.iter().map(String::as_str);
        let wanted: Vec<&str> = VFIO.into_iter().chain(nvme.iter().copied()).chain(extra).collect();
        let found = modules.closure(&wanted)?;
        let version = directory.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let place = |file: &str| format!("/lib/modules/{version}/{file}");
        for module in &found {
            archive.file(&place(&format!("{}.ko", module.name)), 0o644, &module.image);
        }
        let index = Index::of(&found);
        archive.file(&place("modules.dep"), 0o644, index.dependencies.as_bytes());
        archive.file(&place("modules.alias"), 0o644, index.aliases.as_bytes());
        archive.file(&place("modules.builtin"), 0o644, modules.builtin_list().as_bytes());
        Ok(nvme)
    }
}

/// Formats the controllers' addresses for `init.sh`.
fn places(controllers: &[Controller]) -> String {
    let place = |controller: &Controller| match controller.address() {
        Address::Fixed(address) => address.clone(),
        Address::NextInOrder => "next".to_owned(),
    };
    controllers.iter().map(place).collect::<Vec<_>>().join(" ")
}
