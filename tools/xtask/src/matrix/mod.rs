//! The guests in which the driver and `adit setup` are tested on real VFIO. Each case boots one guest and runs its steps
//! in order.

mod case;
mod lanes;
mod text;

pub(crate) use case::Case;
pub(crate) use lanes::run;

use crate::failure::{Failure, Result};
use std::sync::LazyLock;

/// All cases in order of their start: long ones first, so that none is left running alone at the end.
static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let texts = [
        include_str!("cases/setup.cases"),
        include_str!("cases/gpu.cases"),
        include_str!("cases/store.cases"),
        include_str!("cases/paths.cases"),
        include_str!("cases/faults.cases"),
        include_str!("cases/shapes.cases"),
    ];
    texts.into_iter().flat_map(text::parse).collect()
});

/// Returns the cases whose name contains `only`, or all but those that only measure.
pub(crate) fn select(only: Option<&str>) -> Result<Vec<&'static Case>> {
    let is_chosen = |case: &&Case| match only {
        Some(part) => case.name.contains(part),
        None => !lanes::ALONE.contains(&case.name),
    };
    let chosen: Vec<&Case> = CASES.iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        return Err(Failure::usage(format!(
            "no case has such a name; there are: {}",
            names.join(", ")
        )));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Plan;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_guest_can_be_planned() {
        let mut names = BTreeSet::new();
        for case in &*CASES {
            assert!(names.insert(case.name), "{} is there twice", case.name);
            let plan = case.arguments().and_then(|arguments| Plan::new(&arguments));
            assert!(plan.is_ok(), "{}: {:?}", case.name, plan.err());
        }
    }

    #[test]
    fn cases_are_selected_by_a_part_of_their_name() {
        assert_eq!(select(None).unwrap().len(), CASES.len() - lanes::ALONE.len());
        assert_eq!(select(Some("bench-fio")).unwrap().len(), 1);
        assert!(select(Some("mdts")).unwrap().len() >= 3);
        assert_eq!(select(Some("nothing like it")).err().map(|failure| failure.code()), Some(2));
    }
}
