//! Names that become parts of paths, rules and commands of root. A recorded name is checked like one from the command
//! line.

/// Longer names of users would not fit into a file name.
const USER_BYTES_MAX: usize = 128;
/// The kernel's limit for the name of a module (`MODULE_NAME_LEN`).
const DRIVER_BYTES_MAX: usize = 64;

/// Returns whether a name is safe in a file name, a rule and a line of limits.d, and denotes a user there.
pub(crate) fn is_user(name: &str) -> bool {
    // A name of digits would be taken for a uid.
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    is_plain(name, b"_-.") && !is_number && name.len() <= USER_BYTES_MAX
}

/// Returns whether a name is safe as a folder of sysfs and as an argument of modprobe: a driver's, or a block device's.
pub(crate) fn is_driver(name: &str) -> bool {
    is_plain(name, b"_-") && name.len() <= DRIVER_BYTES_MAX
}

fn is_plain(name: &str, marks: &[u8]) -> bool {
    let begins =
        name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    begins && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || marks.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_a_name_and_neither_a_path_nor_an_option() {
        for name in ["nvme", "vfio-pci", "uio_pci_generic", "3w-9xxx", "i40e", &"x".repeat(64)] {
            assert!(is_driver(name), "{name}");
        }
        let bad = [
            "", ".", "..", "../nvme", "a/b", "/etc", "-r", "--config", "a b", "a\nb", "a.ko", "ä",
            "a\0", "a;b",
        ];
        for name in bad.into_iter().chain([&*"x".repeat(65)]) {
            assert!(!is_driver(name), "{name}");
        }
    }
}
