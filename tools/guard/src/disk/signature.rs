//! Signatures on block devices, as found by `wipefs` of util-linux.

use serde::{Deserialize, Serialize};

use super::block::block;
use crate::root::Root;

/// The signature of a file system, RAID, volume manager or partition table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// The block device.
    pub device: String,
    /// Its byte offset.
    pub offset: u64,
    /// Its type: `ext4`, `LVM2_member`, `linux_raid_member`, `zfs_member`, `gpt`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Its usage: `filesystem`, `raid`, `partition-table`, `crypto` or `other`.
    pub usage: String,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// Its identifier, if it has one.
    pub uuid: Option<String>,
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

/// Why a namespace without a block device cannot be inspected.
pub const NO_DEVICE: &str =
    "the kernel shows no device for it: its format is one that Linux cannot use";

/// Returns the signatures on `devices`, a block device and its partitions.
///
/// # Errors
/// Why the search failed.
pub fn signatures(root: &Root, devices: &[&str]) -> Result<Vec<Signature>, String> {
    // Without a device number there is no file in /dev: the kernel is still scanning the namespace, or does not
    // support its format. Another system may have stored data there, so it does not count as empty.
    let attribute = |name: &str| root.text(block(devices[0]).join(name));
    // A device without a size cannot be read either.
    if attribute("dev").is_none() || attribute("size").as_deref() == Some("0") {
        return Err(NO_DEVICE.to_owned());
    }
    let mut all = Vec::new();
    for device in devices {
        all.extend(signatures_of_file(root, &format!("/dev/{device}"), device)?);
    }
    Ok(all)
}

/// Returns the signatures in `file`, a device or an image of one, attributed to `device`.
///
/// # Errors
/// As [`signatures`].
pub fn signatures_of_file(root: &Root, file: &str, device: &str) -> Result<Vec<Signature>, String> {
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

/// Describes signatures, with their device; once for each device and type, because GPT and ZFS write several
/// copies.
pub fn told_once(signatures: &[Signature]) -> Vec<(String, &str)> {
    let mut words: Vec<(String, &str)> = Vec::new();
    for signature in signatures {
        let told = (signature.in_words(), signature.device.as_str());
        if !words.contains(&told) {
            words.push(told);
        }
    }
    words
}

impl Signature {
    fn in_words(&self) -> String {
        let label = self.label.as_ref().map(|label| format!(" '{label}'")).unwrap_or_default();
        format!("{} holds a signature of {}{label} ({})", self.device, self.kind, self.usage)
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
        let there = "/sys/class/block/nvme0n1/dev = 259:0\n/sys/class/block/nvme0n1/size = 2048\n";
        let machine = line("nvme0n1", empty) + &line("nvme0n1p1", ext4) + there;
        let root = Root::recorded(&machine).expect("a recording");
        let found = signatures(&root, &["nvme0n1", "nvme0n1p1"]).expect("both are recorded");
        assert_eq!((found.len(), found[0].device.as_str()), (1, "nvme0n1p1"));
        let why = signatures(&root, &["nvme0n1", "nvme0n1p2"]).expect_err("not recorded");
        assert_eq!(why, "nothing by wipefs is recorded");
        let failed =
            "/recorded/wipefs/nvme0n1.failed = wipefs: error: /dev/nvme0n1: Permission denied\n";
        let root = Root::recorded(&(failed.to_owned() + there)).expect("a recording");
        let why = signatures(&root, &["nvme0n1"]).expect_err("failed then");
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
