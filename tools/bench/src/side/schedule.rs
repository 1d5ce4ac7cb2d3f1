//! Orders measurements.
//!
//! Machines drift: they warm up, SSDs fill and collect garbage, other users interfere. Measurements to compare
//! therefore run close together, and in a different order in each round, so that drift affects all alike.

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    /// The round, from 0.
    pub(super) round: usize,
    /// Index of the sweeps' values.
    pub(super) variant: usize,
    /// Index of the target.
    pub(super) target: usize,
}

/// Returns all measurements in order: by round, then by variant, then by target.
///
/// Each round starts with the next variant and the next target, and every second round goes backwards. So over
/// twice as many rounds as targets, each target comes in each place, and before and after each neighbour.
pub(super) fn schedule(rounds: usize, variants: usize, targets: usize) -> Vec<Slot> {
    let mut slots = Vec::with_capacity(rounds * variants * targets);
    for round in 0..rounds {
        for variant in order(variants, round) {
            for target in order(targets, round + variant) {
                slots.push(Slot { round, variant, target });
            }
        }
    }
    slots
}

fn order(count: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.rotate_left((round / 2) % count.max(1));
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Returns all combinations of one value of each; the first changes slowest. Without values, returns one empty
/// combination.
pub(super) fn combinations(values: &[Vec<(String, String)>]) -> Vec<Vec<(String, String)>> {
    values.iter().fold(vec![Vec::new()], |combinations, values| {
        let with = |combination: &Vec<(String, String)>, value: &(String, String)| {
            combination.iter().chain([value]).cloned().collect()
        };
        combinations
            .iter()
            .flat_map(|combination| values.iter().map(move |value| with(combination, value)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_once_in_each_round() {
        let mut slots = schedule(3, 2, 4);
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len(), 3 * 2 * 4);
    }

    #[test]
    fn each_target_comes_in_each_place() {
        let targets = 3;
        let slots = schedule(2 * targets, 1, targets);
        for place in 0..targets {
            let mut there: Vec<usize> =
                slots.chunks(targets).map(|round| round[place].target).collect();
            there.sort_unstable();
            assert_eq!(there, [0, 0, 1, 1, 2, 2], "place {place}");
        }
    }

    #[test]
    fn targets_of_one_variant_follow_each_other() {
        for neighbours in schedule(4, 3, 2).chunks(2) {
            assert_eq!(neighbours[0].variant, neighbours[1].variant);
        }
    }

    #[test]
    fn sweeps_multiply() {
        let of = |name: &str, values: [&str; 2]| values.map(|v| (name.into(), v.into())).to_vec();
        let all = combinations(&[of("bs", ["4k", "8k"]), of("iodepth", ["1", "2"])]);
        let names: Vec<String> = all.iter().map(|c| format!("{}{}", c[0].1, c[1].1)).collect();
        assert_eq!(names, ["4k1", "4k2", "8k1", "8k2"]);
        assert_eq!(combinations(&[]), [vec![]]);
    }
}
