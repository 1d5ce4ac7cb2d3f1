//! Selects the guest's kernel modules, and generates `modprobe`'s indices.
//!
//! All information comes from the `.modinfo` section of each module, because a kernel package that was only
//! unpacked has no `modules.dep`. Modules may be compressed with xz, zstd or gzip. The caller must name
//! dependencies that a module only requests at run time (its crypto algorithms).

use crate::failure::{Context, Failure, Result};
use crate::process;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The module files of one kernel.
pub(crate) struct Modules {
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
    builtin_list: String,
}

/// A module to be loaded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its name, with `_` for `-` in the file name.
    pub name: String,
    /// The uncompressed file.
    pub image: Vec<u8>,
    /// Its direct dependencies: hard ones, and those that `modprobe` loads before or after it anyway.
    needs: Vec<String>,
}

/// The files `modprobe` reads besides the modules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Index {
    /// `modules.dep`
    pub dependencies: String,
    /// `modules.alias`: the names by which the kernel requests modules.
    pub aliases: String,
}

impl Index {
    /// Creates the index of `modules`, in the order of [`Modules::closure`].
    ///
    /// Busybox's `modprobe` knows only hard dependencies, so soft ones are written as hard: `vfio_iommu_type1`,
    /// which vfio loads after itself, becomes a dependency of everything that needs vfio.
    pub(crate) fn of(modules: &[Module]) -> Self {
        let mut index = Self { dependencies: String::new(), aliases: String::new() };
        for (at, module) in modules.iter().enumerate() {
            let mut needed = BTreeSet::new();
            reach(module, modules, &mut needed);
            // Only modules before it, because later loads cannot be expressed; last one first, as modprobe
            // reads them.
            let before = modules[..at].iter().rev().filter(|other| needed.contains(&other.name));
            let files: String = before.map(|other| format!(" {}.ko", other.name)).collect();
            index.dependencies += &format!("{}.ko:{files}\n", module.name);
            for alias in entries(&module.image, "alias") {
                index.aliases += &format!("alias {alias} {}\n", module.name);
            }
        }
        index
    }
}

/// Adds the direct and indirect dependencies of `module` to `needed`.
fn reach(module: &Module, modules: &[Module], needed: &mut BTreeSet<String>) {
    for name in &module.needs {
        let found = modules.iter().find(|other| &other.name == name);
        if let Some(found) = found.filter(|_| needed.insert(name.clone())) {
            reach(found, modules, needed);
        }
    }
}

impl Modules {
    /// Finds the modules below `directory` (`lib/modules/VERSION`).
    pub(crate) fn find(directory: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        let mut open = vec![directory.to_path_buf()];
        while let Some(folder) = open.pop() {
            for entry in
                fs::read_dir(&folder).context(format_args!("cannot list {}", folder.display()))?
            {
                let entry = entry.context(format_args!("cannot list {}", folder.display()))?;
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open.push(entry.path());
                } else if let Some(name) = module_name(&entry.file_name().to_string_lossy()) {
                    files.insert(name, entry.path());
                }
            }
        }
        let list = fs::read_to_string(directory.join("modules.builtin")).unwrap_or_default();
        Ok(Self { files, builtin: builtin_names(&list), builtin_list: list })
    }

    /// Returns whether this kernel has `name`, built in or as a module.
    pub(crate) fn has(&self, name: &str) -> bool {
        let name = canonical(name);
        self.builtin.contains(&name) || self.files.contains_key(&name)
    }

    /// Returns the kernel's list of built-in modules (`modules.builtin`).
    pub(crate) fn builtin_list(&self) -> &str {
        &self.builtin_list
    }

    /// Returns `wanted` and all dependencies, dependencies first, without built-in modules.
    pub(crate) fn closure(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in wanted {
            self.visit(&canonical(name), &mut seen, &mut order)?;
        }
        Ok(order)
    }

    fn visit(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<Module>,
    ) -> Result<()> {
        if self.builtin.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(file) = self.files.get(name) else {
            return Err(Failure::new(format!(
                "the guest's kernel has no module {name}; if it should, remove target/vm and try again"
            )));
        };
        let image = read_unpacked(file)?;
        let (mut needs, later) = (dependencies(&image), self.soft(&image, "post:"));
        needs.extend(self.soft(&image, "pre:"));
        for dependency in &needs {
            self.visit(dependency, seen, order)?;
        }
        needs.extend(later.iter().cloned());
        order.push(Module { name: name.to_owned(), image, needs });
        later.iter().try_for_each(|companion| self.visit(companion, seen, order))
    }

    /// Returns the modules that `modprobe` should load before (`pre:`) or after (`post:`) this one, as far as
    /// this kernel has them.
    fn soft(&self, image: &[u8], when: &str) -> Vec<String> {
        let mut names = Vec::new();
        for entry in entries(image, "softdep") {
            let mut here = false;
            for word in entry.split_whitespace() {
                if word.ends_with(':') {
                    here = word == when;
                } else if here && self.files.contains_key(&canonical(word)) {
                    names.push(canonical(word));
                }
            }
        }
        names
    }
}

/// Replaces `-` by `_`, which the kernel treats as equal in module names.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn module_name(file: &str) -> Option<String> {
    let (name, extension) = file.split_once(".ko")?;
    matches!(extension, "" | ".xz" | ".zst" | ".gz").then(|| canonical(name))
}

fn builtin_names(list: &str) -> BTreeSet<String> {
    list.lines().filter_map(|path| module_name(path.rsplit('/').next()?)).collect()
}

/// Reads a file, decompressing it according to its extension.
pub(super) fn read_unpacked(file: &Path) -> Result<Vec<u8>> {
    let program = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(file).context(format_args!("cannot read {}", file.display())),
    };
    if process::find(program).is_none() {
        return Err(Failure::new(format!(
            "the guest's kernel or its modules are compressed with {program}, which is not there; install it (the package \
             is {program}, or xz-utils for xz)"
        )));
    }
    Ok(process::run_quietly(Command::new(program).arg("-dc").arg(file))?.stdout)
}

/// Returns the names in the module's `depends=` entry.
fn dependencies(image: &[u8]) -> Vec<String> {
    let names = entries(image, "depends").into_iter().next().unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).map(canonical).collect()
}

/// Returns the values of all `key=` entries in the module's `.modinfo` section.
fn entries(image: &[u8], key: &str) -> Vec<String> {
    let key = format!("\0{key}=");
    let mut values = Vec::new();
    let mut rest = image;
    while let Some(at) = rest.windows(key.len()).position(|window| window == key.as_bytes()) {
        rest = &rest[at + key.len()..];
        let value = rest.split(|&byte| byte == 0).next().unwrap_or_default();
        values.push(String::from_utf8_lossy(value).into_owned());
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(depends: &str) -> Vec<u8> {
        format!("\x7fELF…\0license=GPL\0depends={depends}\0retpoline=Y\0").into_bytes()
    }

    /// A directory of modules that is removed on drop.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, modules: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("adit-xtask-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("kernel/drivers")).unwrap();
            for (file, depends) in modules {
                fs::write(root.join("kernel/drivers").join(file), image(depends)).unwrap();
            }
            fs::write(root.join("modules.builtin"), "kernel/lib/crc-always.ko\n").unwrap();
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let tree = Tree::new(
            "order",
            &[
                ("vfio-pci.ko", "vfio-pci-core,vfio"),
                ("vfio-pci-core.ko", "vfio,irqbypass,crc_always"),
                ("vfio.ko", ""),
                ("irqbypass.ko", ""),
            ],
        );
        let modules = Modules::find(&tree.0).unwrap();
        let order = modules.closure(&["vfio_pci", "vfio"]).unwrap();
        let names: Vec<&str> = order.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["vfio", "irqbypass", "vfio_pci_core", "vfio_pci"]);
    }

    #[test]
    fn a_missing_module_is_named_and_a_builtin_one_is_fine() {
        let tree = Tree::new("missing", &[("a.ko", "gone")]);
        let modules = Modules::find(&tree.0).unwrap();
        assert!(modules.closure(&["a"]).unwrap_err().to_string().contains("no module gone"));
        assert!(modules.closure(&["crc-always"]).unwrap().is_empty());
        assert!(modules.has("a") && modules.has("crc-always") && !modules.has("gone"));
    }

    #[test]
    fn module_files_are_recognized_with_and_without_compression() {
        assert_eq!(module_name("t10-pi.ko.xz").as_deref(), Some("t10_pi"));
        assert_eq!(module_name("nvme.ko").as_deref(), Some("nvme"));
        assert_eq!(module_name("modules.order"), None);
    }

    #[test]
    fn an_image_without_the_entry_depends_on_nothing() {
        assert!(dependencies(b"\x7fELF").is_empty());
    }

    #[test]
    fn modprobe_is_told_dependencies_companions_and_aliases() {
        let vfio = "\0softdep=pre: nothing-here post: vfio_iommu_type1\0alias=char-major-10-196";
        let tree = Tree::new(
            "index",
            &[
                ("vfio.ko", vfio),
                ("vfio_iommu_type1.ko", "vfio"),
                ("vfio-pci.ko", "vfio,irqbypass\0alias=a*\0alias=b"),
                ("irqbypass.ko", ""),
            ],
        );
        let modules = Modules::find(&tree.0).unwrap();
        let index = Index::of(&modules.closure(&["vfio-pci"]).unwrap());
        let dependencies = "vfio.ko:\nvfio_iommu_type1.ko: vfio.ko\nirqbypass.ko:\n\
                            vfio_pci.ko: irqbypass.ko vfio_iommu_type1.ko vfio.ko\n";
        assert_eq!(index.dependencies, dependencies);
        assert_eq!(
            index.aliases,
            "alias char-major-10-196 vfio\nalias a* vfio_pci\nalias b vfio_pci\n"
        );
    }
}
