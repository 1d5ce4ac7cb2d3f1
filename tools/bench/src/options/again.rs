//! Derives a job with one option changed, for sweeps.

use super::draft::Draft;
use super::{Section, written};

impl Section {
    /// Returns the section with another value for one option, which its listed options show too.
    ///
    /// # Errors
    /// A sentence that names the option, if the value is invalid or contradicts another option.
    pub(crate) fn with(&self, name: &str, value: &str) -> Result<Section, String> {
        let name = written::canonical(name);
        let mut draft = Draft::from(self.job.clone());
        written::set(&mut draft, &name, Some(value)).map_err(|why| format!("{name}: {why}"))?;
        let refused = |why| format!("job '{}' with {name}={value}: {why}", self.job.name);
        let job = draft.finish().map_err(refused)?;
        let mut given = self.given.clone();
        match given.iter_mut().find(|(given, _)| *given == name) {
            Some((_, old)) => value.clone_into(old),
            None => given.push((name, value.to_owned())),
        }
        Ok(Section { job, given })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{AmountOptions, JobOptions};

    #[test]
    fn a_changed_option_changes_nothing_else() {
        let base = Section {
            job: Section::of("verify=md5").expect("a job").job,
            given: vec![("iodepth".to_owned(), "1".to_owned())],
        };
        let changed = base
            .with("iodepth", "8")
            .and_then(|section| section.with("io-limit", "1m"))
            .expect("a job");
        let expected = JobOptions {
            iodepth: 8,
            amount: AmountOptions {
                io_size: Some(crate::units::Size::Bytes(1 << 20)),
                ..base.job.amount
            },
            ..base.job
        };
        assert_eq!(changed.job, expected);
        let given =
            [("iodepth".to_owned(), "8".to_owned()), ("io_size".to_owned(), "1m".to_owned())];
        assert_eq!(changed.given, given);
    }

    #[test]
    fn what_contradicts_the_rest_is_refused() {
        let job = Section::of("iodepth_batch_complete_min=0").expect("a job");
        assert!(job.with("iodepth_low", "2").expect_err("too deep").contains("iodepth_low=2"));
        assert!(job.with("iodepth", "x").expect_err("no number").starts_with("iodepth: "));
    }
}
