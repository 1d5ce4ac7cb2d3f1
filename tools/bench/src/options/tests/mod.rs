//! Tests of the options as a whole, and jobs for other tests.

mod documented;

use super::Section;
use super::draft::Draft;
use super::written::{canonical, set};

impl Section {
    /// Parses a job from options as in a job file, such as `rw=randwrite bs=4k`.
    ///
    /// # Errors
    /// A sentence that names the mistake.
    pub(crate) fn of(options: &str) -> Result<Section, String> {
        let mut draft = Draft::new();
        let mut given = Vec::new();
        for option in options.split_whitespace() {
            let (name, value) = option.split_once('=').unwrap_or((option, "1"));
            set(&mut draft, &canonical(name), Some(value))?;
            given.push((name.to_owned(), value.to_owned()));
        }
        Ok(Section { job: draft.finish()?, given })
    }
}
