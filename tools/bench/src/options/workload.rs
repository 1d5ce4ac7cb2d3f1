//! Parses workloads: `rw`, block sizes with shares, random distributions.

use adit_load::Distribution;

use super::grammar::{Parsed, choice, fraction, no_such, percent, whole};
use super::rows::rows;
use super::{BlockSizes, Engine, SteadyOf, SteadyState, Workload};
use crate::units::KbBase;
use crate::way::{PerWay, Way};

/// Values of `rw`: whether random, and whether they read, write and trim.
const WORKLOADS: [(&str, bool, [bool; 3]); 11] = [
    ("read", false, [true, false, false]),
    ("write", false, [false, true, false]),
    ("trim", false, [false, false, true]),
    ("randread", true, [true, false, false]),
    ("randwrite", true, [false, true, false]),
    ("randtrim", true, [false, false, true]),
    ("rw", false, [true, true, false]),
    ("readwrite", false, [true, true, false]),
    ("randrw", true, [true, true, false]),
    ("trimwrite", false, [false, true, true]),
    ("randtrimwrite", true, [false, true, true]),
];

/// Parses `rw`, as in `randread` or `read:4k`.
pub(crate) fn rw(text: &str, base: KbBase) -> Parsed<Workload> {
    let (name, step) = match text.split_once(':') {
        Some((name, step)) => (name, Some(step)),
        None => (text, None),
    };
    let found = WORKLOADS.iter().find(|(known, ..)| *known == name);
    let Some(&(_, random, [reads, writes, trims])) = found else {
        return Err(no_such(name, &WORKLOADS.map(|(name, ..)| name)));
    };
    let step = step.map_or(Ok(i64::from(random)), |step| signed(step, base))?;
    if random && step < 1 {
        return Err(format!("'{text}': a new place is chosen after at least one I/O"));
    }
    Ok(Workload { random, reads, writes, trims, step })
}

fn signed(text: &str, base: KbBase) -> Parsed<i64> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let number = i64::try_from(whole(digits, base)?);
    number.map(|number| sign * number).map_err(|_| format!("'{text}' is too far"))
}

/// Parses one size of `bs`.
pub(crate) fn block(text: &str, base: KbBase) -> Parsed<BlockSizes> {
    block_bytes(text, base).map(BlockSizes::Fixed)
}

/// Parses a block size from 1 byte to 1 GiB.
pub(crate) fn block_bytes(text: &str, base: KbBase) -> Parsed<u64> {
    match whole(text, base)? {
        0 => Err("a block has at least one byte".to_owned()),
        bytes if bytes > 1 << 30 => Err(format!("'{text}': a block has at most 1g")),
        bytes => Ok(bytes),
    }
}

/// Parses `bsrange`, as in `1k-4k`, swapping the ends if the first is larger.
pub(crate) fn block_range(text: &str, base: KbBase) -> Parsed<BlockSizes> {
    let (from, to) = text
        .split_once(['-', ':'])
        .ok_or_else(|| format!("'{text}' is not a range such as 1k-4k"))?;
    let (from, to) = (block_bytes(from, base)?, block_bytes(to, base)?);
    Ok(match from == to {
        true => BlockSizes::Fixed(from),
        false => BlockSizes::Range(from.min(to), from.max(to)),
    })
}

/// Parses `bssplit`, as in `4k/10:64k/50:32k/40`.
pub(crate) fn block_split(text: &str, base: KbBase) -> Parsed<BlockSizes> {
    const MAX: usize = 64;
    let mut sizes: Vec<(u64, Option<u8>)> = Vec::new();
    for part in text.split(':') {
        let (size, share) = part.split_once('/').unwrap_or((part, ""));
        sizes.push((block_bytes(size, base)?, given(share, percent)?));
    }
    if sizes.len() > MAX {
        return Err(format!("there are {} sizes; there may be {MAX}", sizes.len()));
    }
    let shares: Vec<Option<f64>> = sizes.iter().map(|(_, share)| share.map(f64::from)).collect();
    let left = left_over(&shares)? as u8;
    let blanks = shares.iter().filter(|share| share.is_none()).count() as u8;
    let each = left.checked_div(blanks).unwrap_or(0);
    let mut split: Vec<(u64, u8)> =
        sizes.into_iter().map(|(size, share)| (size, share.unwrap_or(each))).collect();
    // As in fio, the last size gets the remainder.
    let sum: u8 = split.iter().map(|(_, share)| share).sum();
    if let Some((_, share)) = split.last_mut() {
        *share += 100 - sum;
    }
    Ok(BlockSizes::Split(split))
}

/// Parses a value; an empty one is `None`.
fn given<T>(text: &str, parse: impl Fn(&str) -> Parsed<T>) -> Parsed<Option<T>> {
    if text.is_empty() { Ok(None) } else { parse(text).map(Some) }
}

/// Returns the percentage left unassigned.
fn left_over(shares: &[Option<f64>]) -> Parsed<f64> {
    let sum: f64 = shares.iter().flatten().sum();
    if sum > 100.0 {
        return Err(format!("the shares are {sum} percent together, which is more than 100"));
    }
    Ok(100.0 - sum)
}

/// Parses `random_distribution`: one for all ways, or several separated by commas. After `zoned:` the name may
/// be omitted.
pub(crate) fn distributions(
    text: &str,
    ways: &mut PerWay<Distribution>,
    base: KbBase,
) -> Parsed<()> {
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 3 {
        return Err(format!(
            "'{text}' has {} values; there are at most three: reads,writes,trims",
            parts.len()
        ));
    }
    let mut before: Option<&str> = None;
    let mut parsed = Vec::new();
    for part in parts {
        let (name, values) = named(part, before);
        parsed.push(distribution(name, values, base)?);
        before = Some(name);
    }
    for way in Way::ALL {
        ways[way] = parsed[(way as usize).min(parsed.len() - 1)].clone();
    }
    Ok(())
}

/// Returns the name and the values of one part; `before` is the previous part's name.
fn named<'a>(part: &'a str, before: Option<&'a str>) -> (&'a str, &'a str) {
    match before {
        Some(name) if part.starts_with(|c: char| c.is_ascii_digit()) => (name, part),
        _ => part.split_once(':').unwrap_or((part, "")),
    }
}

fn distribution(name: &str, values: &str, base: KbBase) -> Parsed<Distribution> {
    let (first, center) = values.split_once(':').unwrap_or((values, ""));
    let center = |name: &str| {
        given(center, |text| fraction(text, 0.0, 1.0))
            .map_err(|why| format!("the center of {name}: {why}"))
    };
    let or = |default: f64, from: f64, to: f64| {
        Ok::<f64, String>(given(first, |text| fraction(text, from, to))?.unwrap_or(default))
    };
    Ok(match name {
        "random" => Distribution::Uniform,
        "zipf" => match or(1.1, 0.0, 100.0)? {
            1.0 => return Err("zipf is not defined for 1; use 1.01".to_owned()),
            theta => Distribution::Zipf { theta, center: center(name)? },
        },
        "pareto" => match or(0.2, 0.0, 1.0)? {
            power if power == 0.0 || power == 1.0 => {
                return Err("pareto is defined between 0 and 1; use 0.2".to_owned());
            }
            power => Distribution::Pareto { power, center: center(name)? },
        },
        "normal" => Distribution::Normal { deviation: or(0.0, 0.0, 100.0)?, center: center(name)? },
        "zoned" => Distribution::Zoned(zones(values)?),
        "zoned_abs" => Distribution::ZonedAbs(zones_of_bytes(values, base)?),
        _ => {
            let all = ["random", "zipf", "pareto", "normal", "zoned", "zoned_abs"];
            return Err(no_such(name, &all));
        }
    })
}

/// Parses zones as in `60/10:30/20:10/70`, with sizes in percent; blanks share the remainder.
fn zones(text: &str) -> Parsed<Vec<(f64, f64)>> {
    let share = |size: &str| given(size, |text| fraction(text, 0.0, 100.0));
    let (accesses, sizes) = zone_parts(text, share)?;
    let sizes = filled(&sizes)?;
    let whole: f64 = sizes.iter().sum();
    if whole < 100.0 - 1e-6 {
        return Err(format!(
            "the zones of '{text}' are {whole} percent of the region together, not 100"
        ));
    }
    Ok(accesses.into_iter().zip(sizes).collect())
}

/// Parses zones as in `60/20G:30/100G:10/500G`.
fn zones_of_bytes(text: &str, base: KbBase) -> Parsed<Vec<(f64, u64)>> {
    let (accesses, sizes) = zone_parts(text, |size| whole(size, base))?;
    Ok(accesses.into_iter().zip(sizes).collect())
}

/// Returns the zones' shares of accesses, and their sizes.
fn zone_parts<T>(text: &str, size: impl Fn(&str) -> Parsed<T>) -> Parsed<(Vec<f64>, Vec<T>)> {
    const MAX: usize = 256;
    let parts: Option<Vec<_>> = text.split(':').map(|part| part.split_once('/')).collect();
    let parts = parts.filter(|parts| parts.len() <= MAX).ok_or_else(|| {
        format!("'{text}' are not zones such as 60/10:30/20:10/70, of which there may be {MAX}")
    })?;
    let access = |text: &str| given(text, |text| fraction(text, 0.0, 100.0));
    let accesses = parts.iter().map(|(text, _)| access(text)).collect::<Parsed<Vec<_>>>()?;
    let sizes = parts.iter().map(|(_, text)| size(text)).collect::<Parsed<_>>()?;
    Ok((filled(&accesses)?, sizes))
}

/// Fills blank shares with equal parts of the remainder.
fn filled(shares: &[Option<f64>]) -> Parsed<Vec<f64>> {
    let left = left_over(shares)?;
    let blanks = shares.iter().filter(|share| share.is_none()).count();
    if blanks == 0 && left > 1e-6 {
        return Err(format!("the shares are {} percent together, not 100", 100.0 - left));
    }
    Ok(shares.iter().map(|share| share.unwrap_or(left / blanks as f64)).collect())
}

/// Parses `ioengine`.
pub(crate) fn engine(text: &str) -> Parsed<Engine> {
    if text.starts_with("external") || text.contains('/') || text.starts_with("spdk") {
        return Err(format!(
            "'{text}' is a plugin of fio; name the device as in filename=vfio:0000:01:00.0 instead"
        ));
    }
    let mut absent = rows(include_str!("engines.txt"));
    if let Some((_, [_, instead])) =
        absent.find(|(_, [names, _])| names.split(' ').any(|name| name == text))
    {
        return Err(format!("there is no engine '{text}' here; {instead}"));
    }
    choice(text)
}

/// Parses `steadystate`, as in `iops_slope:0.1%`; leaves the related options unchanged.
pub(crate) fn steady_state(text: &str, steady: &mut SteadyState) -> Parsed<()> {
    let (name, limit) = text.split_once(':').unwrap_or((text, ""));
    let of = choice(name)?;
    if limit.is_empty() {
        return Err(format!("'{text}' has no limit; write it as in {name}:0.1%"));
    }
    let (number, in_percent) = match limit.strip_suffix('%') {
        Some(number) => (fraction(number, 0.0, 100.0)?, true),
        None if matches!(of, SteadyOf::Bandwidth | SteadyOf::BandwidthSlope) => {
            let bytes = whole(limit, KbBase::Binary).map(|bytes| bytes as f64);
            (bytes.or_else(|_| fraction(limit, 0.0, f64::MAX))?, false)
        }
        None => (fraction(limit, 0.0, f64::MAX)?, false),
    };
    *steady = SteadyState { of, limit: number, in_percent, ..*steady };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const K: KbBase = KbBase::Binary;

    fn spread(text: &str) -> Parsed<PerWay<Distribution>> {
        let mut ways = PerWay::all(Distribution::Uniform);
        distributions(text, &mut ways, K).map(|()| ways)
    }

    #[test]
    fn all_workloads_of_fio_are_known() {
        let mixed = rw("randrw", K).expect("known");
        assert!(mixed.random && mixed.reads && mixed.writes && !mixed.trims && mixed.step == 1);
        let trims = rw("trimwrite", K).expect("known");
        assert!(!trims.random && !trims.reads && trims.writes && trims.trims && trims.step == 0);
        assert_eq!(rw("randread:8", K).expect("known").step, 8);
        assert_eq!(rw("write:4k", K).expect("known").step, 4096);
        assert_eq!(rw("read:-4k", K).expect("known").step, -4096);
        assert!(rw("randraed", K).expect_err("slip").contains("did you mean 'randread'?"));
        assert!(
            rw("randread:0", K).is_err()
                && rw("randread:-1", K).is_err()
                && rw("read:x", K).is_err()
        );
    }

    #[test]
    fn shares_of_sizes_are_100_together() {
        let split = |text: &str| block_split(text, K);
        let sizes = |text: &str| match split(text).expect(text) {
            BlockSizes::Split(sizes) => sizes,
            other => panic!("{other:?}"),
        };
        assert_eq!(sizes("4k/10:64k/50:32k/40"), [(4096, 10), (65536, 50), (32768, 40)]);
        assert_eq!(sizes("4k/50:1k/:32k/"), [(4096, 50), (1024, 25), (32768, 25)]);
        assert_eq!(sizes("4k:8k:16k"), [(4096, 33), (8192, 33), (16384, 34)]);
        assert_eq!(sizes("4k/10:8k/20"), [(4096, 10), (8192, 90)]);
        assert!(split("4k/60:8k/50").expect_err("too much").contains("110 percent"));
        assert!(split("4k/x").is_err() && split("").is_err() && split("0/100").is_err());
    }

    #[test]
    fn a_range_of_sizes_is_put_in_order() {
        assert_eq!(block_range("8k-4k", K), Ok(BlockSizes::Range(4096, 8192)));
        assert_eq!(block_range("1k:4k", K), Ok(BlockSizes::Range(1024, 4096)));
        assert_eq!(block_range("4k-4k", K), Ok(BlockSizes::Fixed(4096)));
        assert!(block_range("4k", K).is_err());
    }

    #[test]
    fn distributions_have_parameters_and_centers() {
        let zipf = Distribution::Zipf { theta: 1.2, center: Some(0.5) };
        assert_eq!(spread("zipf:1.2:0.5").map(|ways| ways.0[0].clone()), Ok(zipf.clone()));
        assert_eq!(
            spread("zipf"),
            Ok(PerWay::all(Distribution::Zipf { theta: 1.1, center: None }))
        );
        let pareto = Distribution::Pareto { power: 0.9, center: None };
        assert_eq!(spread("zipf:1.2:0.5,pareto:0.9"), Ok(PerWay([zipf, pareto.clone(), pareto])));
        assert_eq!(
            spread("normal:5"),
            Ok(PerWay::all(Distribution::Normal { deviation: 5.0, center: None }))
        );
        for text in [
            "zipf:1",
            "zipf:x",
            "pareto:1",
            "pareto:0",
            "normal:101",
            "zipf:1.2:2",
            "zpif",
            "random,",
        ] {
            assert!(spread(text).is_err(), "{text}");
        }
    }

    #[test]
    fn zones_may_differ_by_way() {
        let zoned = spread("zoned:60/10:30/20:10/70,50/50:50/50").expect("zones");
        assert_eq!(zoned.0[0], Distribution::Zoned(vec![(60.0, 10.0), (30.0, 20.0), (10.0, 70.0)]));
        assert_eq!(zoned.0[1], Distribution::Zoned(vec![(50.0, 50.0), (50.0, 50.0)]));
        assert_eq!(zoned.0[2], zoned.0[1]);
        let blanks = spread("zoned:60/10:/20:/").expect("zones");
        assert_eq!(
            blanks.0[0],
            Distribution::Zoned(vec![(60.0, 10.0), (20.0, 20.0), (20.0, 70.0)])
        );
        let bytes = spread("zoned_abs:60/20G:40/1m").expect("zones");
        assert_eq!(bytes.0[0], Distribution::ZonedAbs(vec![(60.0, 20 << 30), (40.0, 1 << 20)]));
        for text in ["zoned", "zoned:60/10", "zoned:60/50:60/50", "zoned:50:50", "zoned_abs:100/x"]
        {
            assert!(spread(text).is_err(), "{text}");
        }
    }

    #[test]
    fn engines_of_fio_map_to_paths_or_say_what_to_take() {
        assert_eq!(engine("libaio"), Ok(Engine::Uring));
        assert_eq!(engine("sync"), Ok(Engine::Psync));
        assert!(engine("rbd").expect_err("no path").contains("rbd map"));
        for operation in ["create", "stat", "delete"] {
            let refused = engine(&format!("file{operation}")).expect_err("no I/O");
            assert!(refused.contains("operations are not measured"), "{refused}");
        }
        assert!(engine("io_urin").expect_err("slip").contains("'io_uring'"));
        assert!(engine("libaoi").expect_err("slip").contains("'libaio'"));
        assert!(engine("external:/x/spdk_nvme").expect_err("a plugin").contains("filename=vfio:"));
    }

    #[test]
    fn steadiness_has_a_limit() {
        let of = |text: &str| {
            let mut steady = super::super::draft::Draft::new().steady;
            steady_state(text, &mut steady).map(|()| (steady.of, steady.limit, steady.in_percent))
        };
        assert_eq!(of("iops_slope:0.1%"), Ok((SteadyOf::IopsSlope, 0.1, true)));
        assert_eq!(of("bw:1m"), Ok((SteadyOf::Bandwidth, 1048576.0, false)));
        assert_eq!(of("iops:2.5"), Ok((SteadyOf::Iops, 2.5, false)));
        assert!(of("iops").is_err() && of("x:1").is_err() && of("iops:-1").is_err());
    }

    proptest! {
        #[test]
        fn shares_come_to_100_or_are_refused(text in "[0-9]{1,2}k(/[0-9]{0,2})?(:[0-9]{1,2}k(/[0-9]{0,2})?){0,6}") {
            if let Ok(BlockSizes::Split(sizes)) = block_split(&text, K) {
                prop_assert_eq!(sizes.iter().map(|(_, share)| u32::from(*share)).sum::<u32>(), 100);
            }
        }
    }
}
