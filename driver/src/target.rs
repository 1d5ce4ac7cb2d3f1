//! Target strings: a controller, and how to use it.
//!
//! | target | what |
//! |---|---|
//! | `vfio:0000:01:00.0` | a real controller bound to vfio-pci |
//! | `vfio-user:/run/x/cntrl` | a controller served over a vfio-user socket |
//! | `soft:mem=1G`, `soft:file=disk.img,size=4G`, `soft:null` | the software controller in this process |
//! | `uring:PATH`, `uring-cmd:/dev/ng0n1`, `psync:PATH`, `mmap:PATH` | a file or device through the kernel |
//! | `null:` | nothing |
//!
//! Options follow, separated by commas. `ns=N` and `queues=host|cmb` apply to every kind of controller.
//! `sgl=on|off` and `dbbuf=on|off` restrict what the driver uses of a real controller; for `soft:` they set
//! what the controller offers, like all its other options. [`KernelTarget`] lists the options of the kernel's
//! paths. A path may not contain a comma.
//!
//! Parsing accesses no device; opening the target does. A parsed target prints as a string that parses to the
//! same target.

mod kernel;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub use self::kernel::{KernelPath, KernelTarget};
use crate::error::{Error, Result};
use crate::soft::words::nearest;
use crate::spec::Nsid;

/// A controller by name, and what the driver may use of it.
///
/// ```
/// use adit_driver::Target;
///
/// let target: Target = "vfio:0000:01:00.0,sgl=off,ns=2".parse()?;
/// assert_eq!(target.device(), "vfio:0000:01:00.0");
/// assert!(!target.settings().sgl);
/// # Ok::<(), adit_driver::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// A PCI function bound to vfio-pci.
    Vfio {
        /// Its full address, as in `0000:01:00.0`.
        address: String,
        /// The driver's settings for it.
        settings: Settings,
    },
    /// A controller in another process.
    VfioUser {
        /// The socket it listens on.
        socket: PathBuf,
        /// The driver's settings for it.
        settings: Settings,
    },
    /// The software controller in this process.
    Soft {
        /// Its configuration, as in `mem=1G,mdts=5`: parses as [`crate::soft::Options`].
        options: String,
        /// The driver's settings for it.
        settings: Settings,
    },
    /// A file or device reached through the kernel; see [`crate::Device`].
    Kernel(KernelTarget),
}

/// The features of a controller that the driver uses; by default all it offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The namespace (`ns=N`); by default the controller's first.
    pub namespace: Option<Nsid>,
    /// Use SGLs if offered (`sgl=on|off`); otherwise PRPs only.
    pub sgl: bool,
    /// Use shadow doorbells if offered (`dbbuf=on|off`).
    pub dbbuf: bool,
    /// Location of submission queues (`queues=host|cmb`).
    pub queues: QueueMemory,
}

/// Location of submission queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueMemory {
    /// In this machine's memory.
    #[default]
    Host,
    /// In the controller memory buffer.
    Cmb,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { namespace: None, sgl: true, dbbuf: true, queues: QueueMemory::Host }
    }
}

/// A parse result; the error is the reason.
type Parsed<T> = std::result::Result<T, String>;

const KINDS: [&str; 8] =
    ["vfio", "vfio-user", "soft", "uring", "uring-cmd", "psync", "mmap", "null"];
const SETTINGS: [&str; 4] = ["ns", "sgl", "dbbuf", "queues"];
const EXAMPLES: &str = "targets look like 'vfio:0000:01:00.0', 'vfio-user:/run/x/cntrl', 'soft:mem=1G' or \
                        'uring:/dev/nvme0n1'";

impl Target {
    /// Returns the target without its settings: the device's name in messages.
    pub fn device(&self) -> String {
        match self {
            Target::Vfio { address, .. } => format!("vfio:{address}"),
            Target::VfioUser { socket, .. } => format!("vfio-user:{}", socket.display()),
            Target::Soft { options, .. } => format!("soft:{options}"),
            Target::Kernel(kernel) => kernel.device(),
        }
    }

    /// Returns the controller's settings; the defaults for kernel targets.
    pub fn settings(&self) -> &Settings {
        const DEFAULT: &Settings =
            &Settings { namespace: None, sgl: true, dbbuf: true, queues: QueueMemory::Host };
        match self {
            Target::Kernel(_) => DEFAULT,
            Target::Vfio { settings, .. } => settings,
            Target::VfioUser { settings, .. } => settings,
            Target::Soft { settings, .. } => settings,
        }
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Target> {
        let (kind, tail) = text.split_once(':').unwrap_or((text, ""));
        let parsed = match kind {
            "vfio" => vfio(tail),
            "vfio-user" => vfio_user(tail),
            "soft" => return soft(text, tail),
            _ => match KernelPath::of_kind(kind) {
                Some(path) => KernelTarget::parse(path, tail).map(Target::Kernel),
                None => Err(unknown_kind(text, kind, tail)),
            },
        };
        parsed.map_err(|reason| Error::target(text, reason))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Target::Kernel(kernel) = self {
            return kernel.fmt(f);
        }
        f.write_str(&self.device())?;
        let settings = self.settings();
        // For `soft:` the controller's options already contain these two.
        if !matches!(self, Target::Soft { .. }) {
            if !settings.sgl {
                f.write_str(",sgl=off")?;
            }
            if !settings.dbbuf {
                f.write_str(",dbbuf=off")?;
            }
        }
        if settings.queues == QueueMemory::Cmb {
            f.write_str(",queues=cmb")?;
        }
        settings.namespace.map_or(Ok(()), |nsid| write!(f, ",ns={}", nsid.0))
    }
}

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> Parsed<()> {
        match name {
            "ns" => self.namespace = Some(namespace(value)?),
            "sgl" => self.sgl = switch(name, value)?,
            "dbbuf" => self.dbbuf = switch(name, value)?,
            "queues" => self.queues = queues(value)?,
            _ => return Err(unknown_setting(name)),
        }
        Ok(())
    }

    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Parsed<Settings> {
        let (mut settings, mut seen) = (Settings::default(), Vec::new());
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                return Err(format!(
                    "'{word}' is not a setting; settings are written NAME=VALUE, as in 'ns=2'"
                ));
            };
            settings.set(name, value)?;
            if seen.contains(&name) {
                return Err(format!("'{name}' is given twice"));
            }
            seen.push(name);
        }
        Ok(settings)
    }
}

fn vfio(tail: &str) -> Parsed<Target> {
    let mut words = tail.split(',');
    let text = words.next().unwrap_or_default();
    let address = pci_address(text).ok_or_else(|| {
        format!("'{text}' is not a PCI address; write domain:bus:device.function as in 'vfio:0000:01:00.0' ('adit setup status' lists them)")
    })?;
    Ok(Target::Vfio { address, settings: Settings::parse(words)? })
}

fn vfio_user(tail: &str) -> Parsed<Target> {
    let mut words = tail.split(',');
    let socket = words.next().unwrap_or_default();
    if socket.is_empty() {
        return Err("it names no socket; write the path as in 'vfio-user:/run/x/cntrl'".to_owned());
    }
    Ok(Target::VfioUser { socket: socket.into(), settings: Settings::parse(words)? })
}

fn soft(text: &str, tail: &str) -> Result<Target> {
    let (ours, theirs): (Vec<&str>, Vec<&str>) =
        tail.split(',').partition(|word| is_for_the_driver(word));
    let settings =
        Settings::parse(ours.into_iter()).map_err(|reason| Error::target(text, reason))?;
    let options = theirs.join(",");
    // Parsed here so that a mistake shows now, not when the controller is opened.
    options.parse::<crate::soft::Options>()?;
    Ok(Target::Soft { options, settings })
}

/// Returns whether an option of a `soft:` target belongs to the driver, not the controller.
fn is_for_the_driver(word: &str) -> bool {
    matches!(word.split('=').next(), Some("ns" | "queues"))
}

/// Returns the full PCI address; `text` may omit the domain, as `lspci` does.
fn pci_address(text: &str) -> Option<String> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.rsplit(':');
    let device = hex(parts.next()?, 2).filter(|device| *device < 32)?;
    let bus = hex(parts.next()?, 2)?;
    let domain = parts.next().map_or(Some(0), |domain| hex(domain, 4))?;
    let function = hex(function, 1).filter(|function| *function < 8)?;
    parts.next().is_none().then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

fn hex(text: &str, digits: usize) -> Option<u32> {
    let fits = text.len() == digits && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if fits { u32::from_str_radix(text, 16).ok() } else { None }
}

fn namespace(value: &str) -> Parsed<Nsid> {
    let nsid = value.parse().ok().map(Nsid).filter(|nsid| nsid.is_specific());
    nsid.ok_or_else(|| format!("'ns={value}': a namespace is a number from 1 on, as in 'ns=1'"))
}

fn switch(name: &str, value: &str) -> Parsed<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{name}={value}': it is '{name}=on' or '{name}=off'")),
    }
}

fn queues(value: &str) -> Parsed<QueueMemory> {
    match value {
        "host" => Ok(QueueMemory::Host),
        "cmb" => Ok(QueueMemory::Cmb),
        _ => Err(format!("'queues={value}': it is 'queues=host' or 'queues=cmb'")),
    }
}

fn unknown_setting(name: &str) -> String {
    match nearest(name, &SETTINGS) {
        Some(meant) => format!("there is no setting '{name}'; did you mean '{meant}='?"),
        None => format!(
            "there is no setting '{name}'; there are 'ns=N', 'sgl=on|off', 'dbbuf=on|off' and 'queues=host|cmb'"
        ),
    }
}

fn unknown_kind(text: &str, kind: &str, tail: &str) -> String {
    let address = text.split(',').next().and_then(pci_address);
    if let Some(address) = address {
        return format!("did you mean 'vfio:{address}'?");
    }
    if text.starts_with("/dev/") {
        let kind = if text.starts_with("/dev/ng") { "uring-cmd" } else { "uring" };
        return format!(
            "a device file belongs to the kernel's driver: write '{kind}:{text}' to go through it, or the PCI address \
             of a controller bound to vfio-pci, as in 'vfio:0000:01:00.0'"
        );
    }
    if text.starts_with(['/', '.']) {
        return format!(
            "did you mean 'vfio-user:{text}' (a controller's socket) or 'uring:{text}' (a file)?"
        );
    }
    match nearest(kind, &KINDS) {
        Some(meant) if tail.is_empty() => format!("did you mean '{meant}:'? {EXAMPLES}"),
        Some(meant) => format!("there is no kind '{kind}:'; did you mean '{meant}:{tail}'?"),
        None => EXAMPLES.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Target {
        text.parse().expect("a target")
    }

    fn refusal(text: &str) -> String {
        text.parse::<Target>().expect_err("must be refused").to_string()
    }

    #[test]
    fn each_kind_parses_with_its_settings() {
        let off = Settings {
            sgl: false,
            dbbuf: false,
            namespace: Some(Nsid(9)),
            queues: QueueMemory::Cmb,
        };
        let vfio = parsed("vfio:0000:01:00.0,sgl=off,dbbuf=off,queues=cmb,ns=9");
        assert_eq!(vfio, Target::Vfio { address: "0000:01:00.0".into(), settings: off });
        let user = parsed("vfio-user:/run/x/cntrl");
        assert_eq!(
            user,
            Target::VfioUser { socket: "/run/x/cntrl".into(), settings: Settings::default() }
        );
        let soft = parsed("soft:mem=1G,ns=2,sgl=off,queues=cmb,mdts=5");
        assert_eq!(soft.device(), "soft:mem=1G,sgl=off,mdts=5");
        assert_eq!(soft.settings().namespace, Some(Nsid(2)));
        assert!(soft.settings().sgl, "for a software controller, sgl is what it offers");
    }

    #[test]
    fn a_fault_plan_fits_into_a_target() {
        let text = "soft:mem=1G,seed=7,faults=lose@p=0.001+status(2:81)@read:n=100";
        let soft = parsed(&format!("{text},ns=2"));
        assert_eq!((soft.device().as_str(), soft.settings().namespace), (text, Some(Nsid(2))));
        assert!(refusal("soft:mem=1G,faults=loose").contains("did you mean 'lose'?"));
    }

    #[test]
    fn an_address_without_domain_is_completed() {
        assert_eq!(parsed("vfio:c1:00.7").to_string(), "vfio:0000:c1:00.7");
        assert_eq!(parsed("vfio:ABCD:c1:1f.0").device(), "vfio:abcd:c1:1f.0");
    }

    #[test]
    fn a_typo_gets_the_nearest_kind() {
        assert!(refusal("vfi:0000:00:03.0").contains("did you mean 'vfio:0000:00:03.0'?"));
        assert!(refusal("vfiouser:/run/x").contains("did you mean 'vfio-user:/run/x'?"));
        assert!(refusal("urign:/x").contains("did you mean 'uring:/x'?"));
        assert!(refusal("io_uring:/x").contains("did you mean 'uring:/x'?"));
        assert!(refusal("uring_cmd:/x").contains("did you mean 'uring-cmd:/x'?"));
        assert!(refusal("sfot:null").contains("did you mean 'soft:null'?"));
        assert!(refusal("soft").contains("starts with"));
        assert!(refusal("soft:men=1G").contains("did you mean 'mem'?"));
        assert!(refusal("").contains("targets look like"));
        assert!(refusal("http://x").contains("targets look like"));
    }

    #[test]
    fn what_is_nearly_a_target_is_completed() {
        assert!(refusal("0000:00:03.0").contains("did you mean 'vfio:0000:00:03.0'?"));
        assert!(refusal("00:03.0,ns=1").contains("did you mean 'vfio:0000:00:03.0'?"));
        assert!(refusal("/run/x/cntrl").contains("did you mean 'vfio-user:/run/x/cntrl'"));
        assert!(refusal("./disk.img").contains("'uring:./disk.img'"));
        assert!(refusal("/dev/nvme0n1").contains("'uring:/dev/nvme0n1'"));
        assert!(refusal("/dev/ng0n1").contains("'uring-cmd:/dev/ng0n1'"));
    }

    #[test]
    fn malformed_addresses_are_refused_with_an_example() {
        for text in [
            "",
            "00:03",
            "0000:00:03",
            "0000:00:20.0",
            "0000:00:03.8",
            "0:0000:00:03.0",
            "00000:00:03.0",
            "+000:00:03.0",
        ] {
            let message = refusal(&format!("vfio:{text}"));
            assert!(message.contains("vfio:0000:01:00.0"), "{message}");
        }
    }

    #[test]
    fn bad_settings_are_refused_by_name() {
        let with = |setting: &str| refusal(&format!("vfio:0000:00:03.0,{setting}"));
        assert!(with("slg=on").contains("did you mean 'sgl='?"));
        assert!(with("queue=cmb").contains("did you mean 'queues='?"));
        assert!(with("temperature=3").contains("there are 'ns=N'"));
        assert!(with("sgl=maybe").contains("'sgl=on' or 'sgl=off'"));
        assert!(with("queues=gpu").contains("'queues=host' or 'queues=cmb'"));
        assert!(with("ns=0").contains("from 1 on"));
        assert!(with("ns=4294967295").contains("from 1 on"));
        assert!(with("ns").contains("NAME=VALUE"));
        assert!(with("ns=1,ns=2").contains("given twice"));
    }

    fn settings(of_a_device: bool) -> impl Strategy<Value = Settings> {
        let namespace = proptest::option::of((1u32..0xffff_fffe).prop_map(Nsid));
        (namespace, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            move |(namespace, sgl, dbbuf, cmb)| Settings {
                namespace,
                sgl: sgl || !of_a_device,
                dbbuf: dbbuf || !of_a_device,
                queues: if cmb { QueueMemory::Cmb } else { QueueMemory::Host },
            },
        )
    }

    fn target() -> impl Strategy<Value = Target> {
        let address = (any::<u16>(), any::<u8>(), 0u8..32, 0u8..8)
            .prop_map(|(d, b, v, f)| format!("{d:04x}:{b:02x}:{v:02x}.{f}"));
        prop_oneof![
            kernel::tests::target().prop_map(Target::Kernel),
            (address, settings(true))
                .prop_map(|(address, settings)| Target::Vfio { address, settings }),
            ("[^,]{1,30}", settings(true))
                .prop_map(|(path, settings)| Target::VfioUser { socket: path.into(), settings }),
            ("mem=[1-9][0-9]{0,3}[kMG](,mdts=[0-9])?(,sgl=(on|off|dword))?", settings(false))
                .prop_map(|(options, settings)| Target::Soft { options, settings }),
        ]
    }

    proptest! {
        #[test]
        fn a_printed_target_parses_to_itself(target in target()) {
            prop_assert_eq!(target.to_string().parse::<Target>().expect("parses"), target);
        }

        #[test]
        fn no_string_panics_and_what_parses_prints_stably(
            text in "(vfio|vfio-user|soft|uring|psync|mmap|null|x)?:?.{0,40}"
        ) {
            if let Ok(target) = text.parse::<Target>() {
                let printed = target.to_string();
                prop_assert_eq!(printed.parse::<Target>().expect("parses").to_string(), printed);
            }
        }
    }
}
