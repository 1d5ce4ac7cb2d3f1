//! The generations of a run's objects.
//!
//! A generation counts an object's puts in this run, offset by the time the run began, so generations of
//! earlier runs are lower.

use adit_load::Expected;

/// Generations of objects numbered from 0.
#[derive(Debug)]
pub(super) struct Objects {
    /// Generations up to this one belong to earlier runs.
    base: u64,
    versions: Vec<Version>,
}

/// An object's puts.
#[derive(Clone, Copy, Debug, Default)]
struct Version {
    /// Acknowledged.
    acknowledged: u32,
    /// Submitted; one more than acknowledged while a put is in flight.
    handed_in: u32,
}

impl Objects {
    /// Creates the objects of a run that began at `unix_ns`, none put yet.
    pub(super) fn new(unix_ns: u64) -> Objects {
        Objects { base: unix_ns, versions: Vec::new() }
    }

    fn version(&self, object: u64) -> Version {
        self.versions.get(object as usize).copied().unwrap_or_default()
    }

    fn version_mut(&mut self, object: u64) -> &mut Version {
        let index = object as usize;
        if self.versions.len() <= index {
            self.versions.resize(index + 1, Version::default());
        }
        &mut self.versions[index]
    }

    /// Returns whether a put is in flight. The order of two concurrent puts would be unknown.
    pub(super) fn is_busy(&self, object: u64) -> bool {
        let version = self.version(object);
        version.handed_in != version.acknowledged
    }

    /// Begins a put; returns its generation.
    pub(super) fn begin_put(&mut self, object: u64) -> u64 {
        let base = self.base;
        let version = self.version_mut(object);
        assert_eq!(version.handed_in, version.acknowledged, "one put of an object at a time");
        version.handed_in += 1;
        base + u64::from(version.handed_in)
    }

    /// Ends a put.
    pub(super) fn end_put(&mut self, object: u64, is_stored: bool) {
        let version = self.version_mut(object);
        match is_stored {
            true => version.acknowledged = version.handed_in,
            false => version.handed_in = version.acknowledged,
        }
    }

    /// Returns the smallest generation that a get starting now may find.
    pub(super) fn least(&self, object: u64) -> u64 {
        match self.version(object).acknowledged {
            0 => 0,
            count => self.base + u64::from(count),
        }
    }

    /// Returns what a get may find that started when `least` was the smallest generation and ends now.
    pub(super) fn expected(&self, object: u64, least: u64) -> Expected {
        let most = self.base + u64::from(self.version(object).handed_in);
        Expected { object, generations: (least, most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_may_find_what_was_acknowledged_before_it_or_handed_in_since() {
        let mut objects = Objects::new(1000);
        assert_eq!(objects.least(3), 0, "an earlier run's");
        assert_eq!(objects.begin_put(3), 1001);
        assert!(objects.is_busy(3) && objects.least(3) == 0);
        assert_eq!(objects.expected(3, 0).generations, (0, 1001));
        objects.end_put(3, true);
        assert!(!objects.is_busy(3) && objects.least(3) == 1001);
        assert_eq!(objects.begin_put(3), 1002);
        assert_eq!(objects.expected(3, 1001).generations, (1001, 1002));
        objects.end_put(3, false);
        assert_eq!(objects.expected(3, 1001).generations, (1001, 1001));
        assert!(!objects.is_busy(9), "objects that were never put are idle");
    }
}
