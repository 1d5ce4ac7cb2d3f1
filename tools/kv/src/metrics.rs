//! A store's metrics in Prometheus's text format, as a server serves them.

use std::collections::BTreeSet;

use adit_kvshare::Client;
use adit_kvshare::wire::Serving;

use crate::failure::{Failure, Result};

/// Maximum bytes of metrics.
pub(crate) const METRICS_BYTES_MAX: u64 = 16 << 20;

/// One sample: a name without `adit_kv_`, labels, a value.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// The samples of a store; of other programs' metrics nothing is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Metrics(Vec<Sample>);

/// A label that a sample must have.
pub(crate) type Label<'a> = (&'a str, &'a str);

impl Metrics {
    /// Parses lines `name{labels} value`; ignores comments and values that are no numbers.
    ///
    /// # Errors
    /// If there is no metric of a store; `source` names where the text came from.
    pub(crate) fn parse(text: &str, source: &str) -> Result<Metrics> {
        let metrics = Metrics(text.lines().filter_map(sample).collect());
        if metrics.0.is_empty() {
            return Err(Failure::failed(format!(
                "{source}: it contains no metrics of a store; give the output of the server's /metrics"
            )));
        }
        Ok(metrics)
    }

    /// Asks the server of a store for what it counts: the store's counters, and those of the server itself, whose names
    /// begin with `server_`.
    ///
    /// # Errors
    /// When the server is gone.
    pub(crate) fn of_server(client: &Client) -> Result<Metrics> {
        let (stats, serving) = client.stats()?;
        let mut metrics = Metrics(stats.prometheus().lines().filter_map(sample).collect());
        let Serving { clients_now, clients, clients_expelled, clients_turned_away, .. } = serving;
        let Serving { mapped_bytes_now, requests_now, requests, leases_now, .. } = serving;
        let own = [
            ("device_written_bytes_total", stats.bytes_to_device),
            ("server_clients_now", clients_now),
            ("server_clients_total", clients),
            ("server_clients_expelled_total", clients_expelled),
            ("server_clients_turned_away_total", clients_turned_away),
            ("server_mapped_bytes_now", mapped_bytes_now),
            ("server_requests_now", requests_now),
            ("server_requests_total", requests),
            ("server_leases_now", leases_now),
        ];
        metrics.0.extend(own.map(|(name, value)| Sample {
            name: name.to_owned(),
            labels: Vec::new(),
            value: value as f64,
        }));
        Ok(metrics)
    }

    /// Returns the sum of the samples with this name and these labels, or `None` if there are none.
    pub(crate) fn sum(&self, name: &str, labels: &[Label<'_>]) -> Option<f64> {
        let has = |sample: &Sample| {
            labels.iter().all(|(label, value)| sample.label(label) == Some(value))
        };
        let mut found =
            self.0.iter().filter(|sample| sample.name == name && has(sample)).peekable();
        found.peek()?;
        Some(found.map(|sample| sample.value).sum())
    }

    /// Returns the values that a label has, in any sample whose name begins with `prefix`.
    pub(crate) fn values(&self, prefix: &str, label: &str) -> BTreeSet<&str> {
        let its = self.0.iter().filter(|sample| sample.name.starts_with(prefix));
        its.filter_map(|sample| sample.label(label)).collect()
    }

    /// Returns the names of the samples that begin with `prefix`.
    pub(crate) fn names(&self, prefix: &str) -> BTreeSet<&str> {
        self.0.iter().map(|sample| &*sample.name).filter(|name| name.starts_with(prefix)).collect()
    }

    /// Returns what was counted since `before`, as Prometheus does: a counter that fell began again at 0. Gauges stay
    /// as they are. Also returns whether a counter fell.
    pub(crate) fn since(&self, before: &Metrics) -> (Metrics, bool) {
        let mut fell = false;
        let less = |sample: &Sample| {
            let earlier =
                before.0.iter().find(|old| old.name == sample.name && old.labels == sample.labels);
            let earlier = earlier.map_or(0.0, |old| old.value);
            let is_counter = ["_total", "_bucket", "_count", "_sum"]
                .iter()
                .any(|end| sample.name.ends_with(end));
            fell |= is_counter && sample.value < earlier;
            let value = match is_counter && sample.value >= earlier {
                true => sample.value - earlier,
                false => sample.value,
            };
            Sample { value, ..sample.clone() }
        };
        let samples = self.0.iter().map(less).collect();
        (Metrics(samples), fell)
    }

    /// Returns a quantile of a histogram, linear within a bucket as Prometheus does; `None` without any value. What
    /// exceeds the last bound counts as that.
    pub(crate) fn quantile(&self, name: &str, labels: &[Label<'_>], quantile: f64) -> Option<f64> {
        let bucket = format!("{name}_bucket");
        let mut bounds: Vec<f64> =
            self.values(&bucket, "le").into_iter().filter_map(|le| le.parse().ok()).collect();
        bounds.sort_by(f64::total_cmp);
        let below = |le: &str| self.sum(&bucket, &[labels, &[("le", le)]].concat());
        let rank = quantile * below("+Inf").filter(|count| *count > 0.0)?;
        let (mut lower, mut counted) = (0.0, 0.0);
        for upper in bounds.into_iter().filter(|bound| bound.is_finite()) {
            let count = below(&upper.to_string())?;
            if count >= rank {
                return Some(
                    lower + (upper - lower) * (rank - counted) / (count - counted).max(1.0),
                );
            }
            (lower, counted) = (upper, count);
        }
        Some(lower)
    }
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| &**value)
    }
}

/// Parses a line, if it is a sample of a store.
fn sample(line: &str) -> Option<Sample> {
    let line = line.strip_prefix("adit_kv_")?;
    let end = line.find(['{', ' '])?;
    let (labels, rest) = match &line[end..] {
        rest if rest.starts_with('{') => labels(&rest[1..])?,
        rest => (Vec::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: line[..end].to_owned(), labels, value })
}

/// Parses `name="value",…}` and returns what follows.
fn labels(mut text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = text.split_once("=\"")?;
        let (mut value, mut letters) = (String::new(), quoted.char_indices());
        text = loop {
            match letters.next()? {
                (at, '"') => break &quoted[at + 1..],
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, letter) => value.push(letter),
            }
        };
        labels.push((name.to_owned(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Metrics {
        Metrics::parse(text, "a test").expect("metrics")
    }

    #[test]
    fn samples_are_summed_over_labels_and_comments_passed_over() {
        let metrics = parse(
            "# HELP adit_kv_gets_total Gets.\n# TYPE adit_kv_gets_total counter\n\
             adit_kv_gets_total{shard=\"0\"} 30\nadit_kv_gets_total{shard=\"1\"} 10 1700000000\n\
             other_gets_total 7\nnonsense\nadit_kv_x NaN-ish\nadit_kv_y{a=\"b 3\n",
        );
        assert_eq!(metrics.sum("gets_total", &[]), Some(40.0));
        assert_eq!(metrics.sum("gets_total", &[("shard", "1")]), Some(10.0));
        assert_eq!((metrics.sum("x", &[]), metrics.sum("y", &[])), (None, None));
        let why = Metrics::parse("other_gets_total 7\n", "a test").expect_err("none");
        assert!(why.to_string().contains("no metrics of a store"), "{why}");
    }

    #[test]
    fn labels_may_contain_what_ends_them() {
        let metrics = parse("adit_kv_a{device=\"x\\\"},\\\\ \\n{\",operation=\"read\"} 1.5e3\n");
        assert_eq!(
            metrics.sum("a", &[("device", "x\"},\\ \n{"), ("operation", "read")]),
            Some(1500.0)
        );
    }

    #[test]
    fn a_counter_that_fell_began_again() {
        let before = parse("adit_kv_gets_total 100\nadit_kv_objects 9\n");
        let (delta, fell) = parse("adit_kv_gets_total 130\nadit_kv_objects 4\n").since(&before);
        assert_eq!(
            (delta.sum("gets_total", &[]), delta.sum("objects", &[]), fell),
            (Some(30.0), Some(4.0), false)
        );
        let (delta, fell) = parse("adit_kv_gets_total 20\n").since(&before);
        assert_eq!((delta.sum("gets_total", &[]), fell), (Some(20.0), true));
    }

    #[test]
    fn quantiles_lie_between_the_bounds_of_their_bucket() {
        let metrics = parse(
            "adit_kv_s_bucket{le=\"0.001\"} 50\nadit_kv_s_bucket{le=\"0.002\"} 90\n\
             adit_kv_s_bucket{le=\"0.004\"} 99\nadit_kv_s_bucket{le=\"+Inf\"} 100\n",
        );
        let of = |quantile| metrics.quantile("s", &[], quantile).expect("values");
        assert_eq!((of(0.5), of(0.7), of(0.9), of(1.0)), (0.001, 0.0015, 0.002, 0.004));
        assert_eq!(parse("adit_kv_s_bucket{le=\"+Inf\"} 0\n").quantile("s", &[], 0.5), None);
    }
}
