//! Where NVRTC may lie besides the dynamic linker's directories: CUDA's own folders, conda's, and Python's packages.
//!
//! Python itself is not run: its packages lie in known places below the prefix of each `python3` in `PATH`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Variables that name a folder of CUDA.
const TOOLKIT_VARIABLES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];
/// Variables that name an environment with a Python of its own.
const ENVIRONMENT_VARIABLES: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];
/// Directories of libraries in a folder of CUDA, or in conda's.
const LIBRARIES: [&str; 4] = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];

/// Directories in which NVRTC is looked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// Those that exist, the likelier first.
    pub(super) directories: Vec<PathBuf>,
    /// Directories of Python's packages that exist.
    packages: Vec<PathBuf>,
}

impl Places {
    /// Finds the places below `root`, which is `/`, and below what the environment's variables name.
    pub(super) fn find(root: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Places {
        let named =
            |names: [&'static str; 2]| names.into_iter().filter_map(&variable).map(PathBuf::from);
        let toolkits = named(TOOLKIT_VARIABLES)
            .chain([root.join("usr/local/cuda")])
            .chain(entries(&root.join("usr/local"), |name| name.starts_with("cuda-")))
            .chain([root.join("opt/cuda")])
            .chain(named(ENVIRONMENT_VARIABLES));
        let mut places = Places::default();
        for toolkit in toolkits {
            LIBRARIES.iter().for_each(|name| places.add(toolkit.join(name)));
        }
        let system = ["usr", "usr/local", "opt/conda", "opt/venv"].map(|name| root.join(name));
        let home = variable("HOME").map(|home| Path::new(&home).join(".local"));
        let pythons = named(ENVIRONMENT_VARIABLES)
            .chain(prefixes(variable("PATH").unwrap_or_default()))
            .chain(home)
            .chain(system);
        let extra = variable("PYTHONPATH").unwrap_or_default();
        let packages = std::env::split_paths(&extra).chain(pythons.flat_map(|it| packages(&it)));
        for packages in packages.filter(|packages| packages.is_dir()) {
            entries(&packages.join("nvidia"), is_wheel)
                .into_iter()
                .for_each(|wheel| places.add(wheel.join("lib")));
            if !places.packages.contains(&packages) {
                places.packages.push(packages);
            }
        }
        places
    }

    fn add(&mut self, directory: PathBuf) {
        if directory.is_dir() && !self.directories.contains(&directory) {
            self.directories.push(directory);
        }
    }

    /// Says where was looked in vain.
    pub(super) fn looked(&self) -> String {
        let packages: Vec<_> =
            self.packages.iter().map(|path| path.display().to_string()).collect();
        let packages = if packages.is_empty() { "none".to_owned() } else { packages.join(", ") };
        format!(
            "neither by the dynamic linker, nor in folders of CUDA (CUDA_HOME, CUDA_PATH, /usr/local/cuda*, /opt/cuda, conda's), \
             nor in nvidia/*/lib of Python's packages ({packages})"
        )
    }
}

/// Returns whether a folder of Python's package `nvidia` may have NVRTC: `cuda_nvrtc`, or from CUDA 13 on `cu13`.
fn is_wheel(name: &str) -> bool {
    let version = name.strip_prefix("cu").unwrap_or_default();
    name == "cuda_nvrtc"
        || (!version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the prefix of each `python3` in a search path: `/opt/x` for `/opt/x/bin/python3`.
fn prefixes(path: OsString) -> Vec<PathBuf> {
    let directories = std::env::split_paths(&path).filter(|bin| bin.join("python3").exists());
    // Where /bin is a link, its prefix is /usr.
    let real = directories.filter_map(|bin| bin.canonicalize().ok());
    real.filter_map(|bin| bin.parent().map(Path::to_owned)).collect()
}

/// Returns the directories of packages below a prefix, of each version of Python.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let libraries = ["lib", "lib64"].map(|name| prefix.join(name));
    let versions = libraries.iter().flat_map(|lib| entries(lib, |it| it.starts_with("python3")));
    versions.flat_map(|it| ["site-packages", "dist-packages"].map(|name| it.join(name))).collect()
}

/// Returns the entries of a directory with such names, the last by name first.
pub(super) fn entries(directory: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let found = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let named = found.filter(|entry| entry.file_name().to_str().is_some_and(&is_wanted));
    let mut paths: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    paths.sort_by(|one, other| other.cmp(one));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root file system of a test's own, removed when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, directories: &[&str]) -> Root {
            let root =
                std::env::temp_dir().join(format!("adit-nvrtc-{name}-{}", std::process::id()));
            for directory in directories {
                std::fs::create_dir_all(root.join(directory)).expect("a directory");
            }
            Root(root)
        }

        /// Finds the places below the root, with variables whose values are below it, too.
        fn find(&self, variables: &[(&str, &str)]) -> (Vec<String>, String) {
            let value = |name: &str| {
                let (_, value) = variables.iter().find(|(variable, _)| *variable == name)?;
                let paths = value.split(':').map(|path| self.0.join(path));
                Some(std::env::join_paths(paths).expect("no colon"))
            };
            let places = Places::find(&self.0, value);
            let below = |path: &PathBuf| {
                path.strip_prefix(&self.0).expect("below it").display().to_string()
            };
            (places.directories.iter().map(below).collect(), places.looked())
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn folders_of_cuda_come_first_and_the_newest_of_them_before_older_ones() {
        let root = Root::new(
            "cuda",
            &[
                "usr/local/cuda-12.8/targets/x86_64-linux/lib",
                "usr/local/cuda-13.0/lib64",
                "home/toolkit/lib64",
                "usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib",
            ],
        );
        let (found, _) = root.find(&[("CUDA_PATH", "home/toolkit")]);
        let expected = [
            "home/toolkit/lib64",
            "usr/local/cuda-13.0/lib64",
            "usr/local/cuda-12.8/targets/x86_64-linux/lib",
            "usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn packages_of_each_python_are_looked_through() {
        let wheel = "site-packages/nvidia/cu13/lib";
        let places = [
            format!("venv/lib/python3.12/{wheel}"),
            format!("conda/lib/python3.11/{wheel}"),
            format!("tools/lib/python3.10/{wheel}"),
            format!("home/.local/lib/python3.9/{wheel}"),
            "usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib".to_owned(),
            format!("usr/lib64/python3.9/{wheel}"),
            "usr/local/lib/python3.13/dist-packages/nvidia/cu12/lib".to_owned(),
        ];
        let mut directories: Vec<&str> = places.iter().map(String::as_str).collect();
        // Another library's, one without Python, and a Python without the wheel.
        directories.extend([
            "venv/lib/python3.12/site-packages/nvidia/cublas/lib",
            "other/lib/python3.10/site-packages/nvidia/cu13/lib",
            "other/bin",
            "tools/bin/python3",
            "usr/lib/python3.13/site-packages",
        ]);
        let root = Root::new("python", &directories);
        let variables = [
            ("VIRTUAL_ENV", "venv"),
            ("CONDA_PREFIX", "conda"),
            ("PATH", "other/bin:tools/bin"),
            ("HOME", "home"),
        ];
        let (mut found, looked) = root.find(&variables);
        // Conda has a folder of libraries beside Python's.
        assert!(found.iter().any(|directory| directory == "conda/lib"), "{found:?}");
        found.retain(|directory| directory.contains("nvidia"));
        assert_eq!(found, places);
        assert!(looked.contains("usr/lib/python3.13/site-packages"), "{looked}");
        let (found, _) = root.find(&[("PYTHONPATH", "other/lib/python3.10/site-packages")]);
        assert_eq!(found[0], "other/lib/python3.10/site-packages/nvidia/cu13/lib");
    }

    #[test]
    fn a_machine_with_neither_is_told_where_was_looked() {
        let (found, looked) = Root::new("neither", &["usr/bin"]).find(&[]);
        assert!(found.is_empty(), "{found:?}");
        for part in ["dynamic linker", "CUDA_HOME", "/usr/local/cuda*", "Python's packages (none)"]
        {
            assert!(looked.contains(part), "{looked}");
        }
    }
}
