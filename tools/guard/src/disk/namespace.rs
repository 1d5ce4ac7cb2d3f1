//! The names by which the kernel shows a namespace.

/// A path to a namespace: `nvme0n1`, or `nvme0c1n1` below the multipath device `nvme0n1`.
#[derive(Debug, PartialEq, Eq)]
pub struct NamespacePath {
    /// Its name.
    pub name: String,
    /// The block device.
    pub head: String,
    /// The kernel's number of the namespace.
    pub namespace: u32,
    /// The subsystem, if the kernel may have several paths.
    pub subsystem: Option<u32>,
}

impl NamespacePath {
    /// Parses a block device's name; `None` for others and for partitions.
    pub fn parse(name: &str) -> Option<NamespacePath> {
        let (instance, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
        let namespace: u32 = namespace.parse().ok()?;
        let (subsystem, controller) = match instance.split_once('c') {
            Some((subsystem, controller)) => (subsystem, Some(controller)),
            None => (instance, None),
        };
        let number: u32 = subsystem.parse().ok()?;
        controller.map_or(Some(0), |controller| controller.parse::<u32>().ok())?;
        let head = format!("nvme{subsystem}n{namespace}");
        let subsystem = controller.map(|_| number);
        Some(NamespacePath { name: name.to_owned(), head, namespace, subsystem })
    }

    /// Returns its generic character devices: the namespace's, and with multipath the path's.
    pub fn character_devices(&self) -> Vec<String> {
        let mut files: Vec<String> =
            [&self.head, &self.name].iter().map(|name| name.replacen("nvme", "ng", 1)).collect();
        files.dedup();
        files
    }
}

/// Returns the block device of the namespace with the generic character device `ng0n1`, or `ng0c1n1` with
/// multipath.
pub(super) fn behind_generic(name: &str) -> Option<String> {
    NamespacePath::parse(&format!("nvme{}", name.strip_prefix("ng")?)).map(|path| path.head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_and_their_heads() {
        let plain = NamespacePath::parse("nvme2n1").expect("plain");
        assert_eq!((plain.head.as_str(), plain.subsystem), ("nvme2n1", None));
        let hidden = NamespacePath::parse("nvme3c5n17").expect("hidden");
        assert_eq!((hidden.head.as_str(), hidden.subsystem), ("nvme3n17", Some(3)));
        for name in ["nvme0", "ng0n1", "nvme0n1p1", "nvmen1", "nvme0cn1", "power", "hwmon3"] {
            assert_eq!(NamespacePath::parse(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_name_is_a_path_or_none(name in "nvme[0-9cnp]{0,12}") {
            let _ = NamespacePath::parse(&name);
        }
    }
}
