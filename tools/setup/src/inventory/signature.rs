//! Signatures on block devices, as found by `wipefs` of util-linux.

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// The signature of a file system, RAID, volume manager or partition table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Signature {
    /// The block device.
    pub(crate) device: String,
    /// Its byte offset.
    pub(crate) offset: u64,
    /// Its type: `ext4`, `LVM2_member`, `linux_raid_member`, `zfs_member`, `gpt`, …
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Its usage: `filesystem`, `raid`, `partition-table`, `crypto` or `other`.
    pub(crate) usage: String,
    pub(crate) label: Option<String>,
    pub(crate) uuid: Option<String>,
}

/// The output of `wipefs --json`.
#[derive(Deserialize)]
struct Printed {
    signatures: Vec<PrintedSignature>,
}

/// One signature; the offset is text such as `0x438`.
#[derive(Deserialize)]
struct PrintedSignature {
    offset: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    usage: Option<String>,
    label: Option<String>,
    uuid: Option<String>,
}

/// Returns the signatures on `devices`, a namespace and its partitions.
///
/// # Errors
/// Why the search failed.
pub(super) fn of(root: &Root, devices: &[&str]) -> Result<Vec<Signature>, String> {
    let mut all = Vec::new();
    for device in devices {
        all.extend(of_file(root, &format!("/dev/{device}"), device)?);
    }
    Ok(all)
}

/// Returns the signatures in `file`, a device or an image of one, attributed to `device`.
///
/// # Errors
/// As [`of`].
pub(super) fn of_file(root: &Root, file: &str, device: &str) -> Result<Vec<Signature>, String> {
    let arguments = ["--no-act", "--json", "--output", "DEVICE,OFFSET,TYPE,UUID,LABEL,USAGE", file];
    let printed = root.probe("wipefs", &arguments, device);
    parse(device, &printed.map_err(|why| why.to_string())?)
}

fn parse(device: &str, printed: &str) -> Result<Vec<Signature>, String> {
    // Some versions print nothing for an empty device.
    if printed.trim().is_empty() {
        return Ok(Vec::new());
    }
    let unreadable = |why: String| format!("wipefs said of {device} what cannot be read: {why}");
    let printed: Printed =
        serde_json::from_str(printed).map_err(|why| unreadable(why.to_string()))?;
    printed
        .signatures
        .into_iter()
        .map(|row| row.signature(device))
        .collect::<Result<_, _>>()
        .map_err(unreadable)
}

impl PrintedSignature {
    fn signature(self, device: &str) -> Result<Signature, String> {
        let digits = self.offset.trim_start_matches("0x");
        let offset =
            u64::from_str_radix(digits, 16).map_err(|_| format!("offset {}", self.offset))?;
        Ok(Signature {
            device: device.to_owned(),
            offset,
            kind: self.kind.unwrap_or_else(|| "unknown".to_owned()),
            usage: self.usage.unwrap_or_else(|| "other".to_owned()),
            label: self.label,
            uuid: self.uuid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Printed by util-linux 2.38.1.
    const PRINTED: &str = r#"{
   "signatures": [
      {
         "device": "nvme0n1",
         "offset": "0x200",
         "type": "gpt",
         "uuid": null,
         "label": null,
         "usage": "partition-table"
      },{
         "device": "nvme0n1",
         "offset": "0x438",
         "type": "ext4",
         "uuid": "5f9c0a3e-0000-4000-8000-000000000001",
         "label": "my data",
         "usage": "filesystem"
      }
   ]
}
"#;

    #[test]
    fn signatures_read_as_wipefs_prints_them() {
        let found = parse("nvme0n1", PRINTED).expect("signatures");
        let told: Vec<(&str, u64, &str)> = found
            .iter()
            .map(|found| (found.kind.as_str(), found.offset, found.usage.as_str()))
            .collect();
        assert_eq!(told, [("gpt", 0x200, "partition-table"), ("ext4", 0x438, "filesystem")]);
        assert_eq!(found[1].label.as_deref(), Some("my data"));
        assert_eq!(parse("nvme0n1", "{\n   \"signatures\": []\n}\n"), Ok(Vec::new()));
        assert_eq!(parse("nvme0n1", "\n"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_cut_off_or_odd_is_not_taken_for_an_empty_device() {
        let half = &PRINTED[..PRINTED.len() / 2];
        let odd_offset = PRINTED.replace("0x438", "many");
        for printed in [half, odd_offset.as_str(), "{}", "[]", "wipefs: what?"] {
            let why = parse("nvme0n1", printed).expect_err(printed);
            assert!(why.starts_with("wipefs said of nvme0n1 what cannot be read"), "{why}");
        }
    }

    #[test]
    fn each_partition_is_looked_at_and_one_that_cannot_be_makes_all_unknown() {
        let empty = "{\"signatures\": []}";
        let line = |device: &str, printed: &str| format!("/recorded/wipefs/{device} = {printed}\n");
        let ext4 = "{\"signatures\": [{\"offset\": \"0x438\", \"type\": \"ext4\"}]}";
        let machine = line("nvme0n1", empty) + &line("nvme0n1p1", ext4);
        let root = Root::recorded(&machine);
        let found = of(&root, &["nvme0n1", "nvme0n1p1"]).expect("both are recorded");
        assert_eq!((found.len(), found[0].device.as_str()), (1, "nvme0n1p1"));
        let why = of(&root, &["nvme0n1", "nvme0n1p2"]).expect_err("not recorded");
        assert_eq!(why, "nothing by wipefs is recorded");
        let failed =
            "/recorded/wipefs/nvme0n1.failed = wipefs: error: /dev/nvme0n1: Permission denied";
        let why = of(&Root::recorded(failed), &["nvme0n1"]).expect_err("failed then");
        assert!(why.ends_with("Permission denied"), "{why}");
    }

    proptest! {
        #[test]
        fn any_text_is_signatures_or_refused(text in "\\PC{0,40}", offset in "\\PC{0,8}") {
            let _ = parse("nvme0n1", &text);
            let row = serde_json::json!({ "signatures": [{ "offset": offset, "type": text }] });
            let _ = parse("nvme0n1", &row.to_string());
        }
    }
}
