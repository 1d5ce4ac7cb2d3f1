//! In which order things are measured.
//!
//! A machine drifts: it warms up, its SSD fills and cleans up, others use it. What is compared is therefore measured
//! close together and in a different order in each round, so that drift hits all alike.

/// One of the things to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    /// The round, from 0.
    pub(super) round: usize,
    /// Which of the sweeps' values.
    pub(super) variant: usize,
    /// Which of the targets.
    pub(super) target: usize,
}

/// Everything there is to do, in order: by round, in it by variant, in that by target.
///
/// Each round begins with the next variant and the next target, and every second one goes backwards, so that over
/// twice as many rounds as there are targets each comes in each place, and before and after each neighbour.
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

/// All combinations of one value of each; the first changes slowest. One empty combination where there are none.
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
