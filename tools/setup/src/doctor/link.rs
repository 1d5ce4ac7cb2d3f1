//! A link of the chain, and its state once it is checked.

use serde::{Serialize, Serializer};

/// The state of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LinkState {
    /// It holds; a short description of what was found.
    Holds(String),
    /// It is broken.
    Broken {
        /// The problem.
        why: String,
        /// The fix.
        remedy: Remedy,
    },
    /// It cannot be checked here, for this reason. A later link shows whether it holds.
    NotChecked(String),
}

/// How to fix a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Remedy {
    /// A description.
    pub(super) advice: String,
    /// Commands to copy; empty if no command fixes it.
    pub(super) commands: Vec<String>,
}

impl Remedy {
    /// Creates a remedy from a description and its commands.
    pub(super) fn new<C: ToString>(
        advice: impl ToString,
        commands: impl IntoIterator<Item = C>,
    ) -> Remedy {
        let commands = commands.into_iter().map(|command| command.to_string()).collect();
        Remedy { advice: advice.to_string(), commands }
    }
}

impl LinkState {
    /// Returns a holding link.
    pub(super) fn holds(found: impl ToString) -> LinkState {
        LinkState::Holds(found.to_string())
    }

    /// Returns a broken link.
    pub(super) fn broken(why: impl ToString, remedy: Remedy) -> LinkState {
        LinkState::Broken { why: why.to_string(), remedy }
    }

    /// Returns whether the walk ends here.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self, LinkState::Broken { .. })
    }
}

/// A link's name, and its check of the state `S`.
pub(super) struct Link<S> {
    /// The name, such as `IOMMU group`.
    pub(super) name: &'static str,
    pub(super) check: fn(&S) -> LinkState,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// Its device; `None` for the host.
    pub(super) device: Option<String>,
    /// The link's name.
    pub(super) name: &'static str,
    pub(super) outcome: LinkState,
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            device: Option<&'a str>,
            name: &'a str,
            state: &'a str,
            detail: &'a str,
            remedy: Option<&'a Remedy>,
        }
        let (state, detail, remedy) = match &self.outcome {
            LinkState::Holds(found) => ("ok", found, None),
            LinkState::Broken { why, remedy } => ("broken", why, Some(remedy)),
            LinkState::NotChecked(why) => ("not_checked", why, None),
        };
        let device = self.device.as_deref();
        Fields { device, name: self.name, state, detail, remedy }.serialize(serializer)
    }
}
