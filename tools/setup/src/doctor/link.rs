//! A link of the chain, and what looking at it gave.

use serde::{Serialize, Serializer};

/// What became of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It holds; in a few words, what was found.
    Holds(String),
    /// It does not.
    Broken {
        /// What is wrong.
        why: String,
        /// What mends it.
        remedy: Remedy,
    },
    /// It cannot be looked at from here, for this reason. Whether it holds shows at a later link.
    NotChecked(String),
}

/// What mends a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Remedy {
    /// What to do, in words.
    pub(super) advice: String,
    /// The commands that do it, to copy; none where it is not done by a command.
    pub(super) commands: Vec<String>,
}

impl Remedy {
    /// `advice`, which these `commands` carry out.
    pub(super) fn new<C: ToString>(
        advice: impl ToString,
        commands: impl IntoIterator<Item = C>,
    ) -> Remedy {
        let commands = commands.into_iter().map(|command| command.to_string()).collect();
        Remedy { advice: advice.to_string(), commands }
    }
}

impl Outcome {
    /// A link that holds.
    pub(super) fn holds(found: impl ToString) -> Outcome {
        Outcome::Holds(found.to_string())
    }

    /// A link that is broken.
    pub(super) fn broken(why: impl ToString, remedy: Remedy) -> Outcome {
        Outcome::Broken { why: why.to_string(), remedy }
    }

    /// Whether the walk ends here.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self, Outcome::Broken { .. })
    }
}

/// A link by its name, and how it is looked at: from `S`, what is known by then.
pub(super) struct Link<S> {
    /// `IOMMU group`.
    pub(super) name: &'static str,
    /// The look.
    pub(super) check: fn(&S) -> Outcome,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The device that it is about; the host otherwise.
    pub(super) device: Option<String>,
    /// The link's name.
    pub(super) name: &'static str,
    /// What became of it.
    pub(super) outcome: Outcome,
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
            Outcome::Holds(found) => ("ok", found, None),
            Outcome::Broken { why, remedy } => ("broken", why, Some(remedy)),
            Outcome::NotChecked(why) => ("not_checked", why, None),
        };
        let device = self.device.as_deref();
        Fields { device, name: self.name, state, detail, remedy }.serialize(serializer)
    }
}
