//! What a block device holds, by the signatures that `wipefs` of util-linux knows.

use serde::Deserialize;

use super::Signature;
use crate::setup::root::Root;

/// What `wipefs --json` prints.
#[derive(Deserialize)]
struct Printed {
    signatures: Vec<Row>,
}

/// One signature; the offset is text such as `0x438`.
#[derive(Deserialize)]
struct Row {
    offset: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    usage: Option<String>,
    label: Option<String>,
    uuid: Option<String>,
}

/// The signatures on `devices`, a namespace and its partitions.
///
/// # Errors
/// Why they could not be looked for.
pub(super) fn of(root: &Root, devices: &[&str]) -> Result<Vec<Signature>, String> {
    let mut all = Vec::new();
    for device in devices {
        let file = format!("/dev/{device}");
        let arguments =
            ["--no-act", "--json", "--output", "DEVICE,OFFSET,TYPE,UUID,LABEL,USAGE", &file];
        let printed = root.probe("wipefs", &arguments, device);
        let printed = printed.map_err(|why| why.to_string())?;
        all.extend(parse(device, &printed)?);
    }
    Ok(all)
}

fn parse(device: &str, printed: &str) -> Result<Vec<Signature>, String> {
    // Of an empty device some versions print nothing at all.
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

impl Row {
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
