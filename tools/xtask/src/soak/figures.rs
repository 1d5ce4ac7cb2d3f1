//! What clients counted, in rows of ten seconds: as CSV, and for the picture.

use std::fmt::Write;
use std::time::Duration;

/// The figures of one interval.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// Gets of the cache that were answered.
    pub(super) gets: u64,
    pub(super) hits: u64,
    pub(super) puts: u64,
    /// Requests that were refused or got no answer, other than misses.
    pub(super) refused: u64,
    /// Reads and writes of the ledger that were answered.
    pub(super) ledger: u64,
    /// Latencies of hits, and of puts, in microseconds.
    hit_us: Vec<u32>,
    put_us: Vec<u32>,
}

impl Figures {
    pub(super) fn hit(&mut self, took: Duration) {
        self.hits += 1;
        self.hit_us.push(micros(took));
    }

    pub(super) fn put(&mut self, took: Duration) {
        self.puts += 1;
        self.put_us.push(micros(took));
    }

    pub(super) fn add(&mut self, other: Figures) {
        self.gets += other.gets;
        self.hits += other.hits;
        self.puts += other.puts;
        self.refused += other.refused;
        self.ledger += other.ledger;
        self.hit_us.extend(other.hit_us);
        self.put_us.extend(other.put_us);
    }
}

fn micros(took: Duration) -> u32 {
    u32::try_from(took.as_micros()).unwrap_or(u32::MAX)
}

/// Returns a quantile in milliseconds, or `None` of nothing.
fn quantile_ms(latencies_us: &mut [u32], quantile: f64) -> Option<f64> {
    latencies_us.sort_unstable();
    let at = (latencies_us.len() as f64 * quantile) as usize;
    let us = latencies_us.get(at.min(latencies_us.len().checked_sub(1)?))?;
    Some(f64::from(*us) / 1000.0)
}

/// What went on around the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    /// Servers were killed or stopped in this interval.
    pub(super) ended: bool,
    pub(super) neighbour: bool,
    pub(super) second_model: bool,
    pub(super) full_disk: bool,
}

/// A row of the CSV.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) second: u64,
    pub(super) gets: u64,
    pub(super) puts: u64,
    pub(super) ledger: u64,
    pub(super) refused: u64,
    pub(super) hit_ratio: Option<f64>,
    pub(super) hit_p50_ms: Option<f64>,
    pub(super) hit_p99_ms: Option<f64>,
    pub(super) put_p99_ms: Option<f64>,
    pub(super) around: Around,
}

pub(super) const HEADING: &str = "second,gets,hit_ratio,hit_p50_ms,hit_p99_ms,puts,put_p99_ms,ledger,refused,ended,\
                                  neighbour,second_model,full_disk\n";

impl Row {
    pub(super) fn new(second: u64, mut figures: Figures, around: Around) -> Row {
        Row {
            second,
            gets: figures.gets,
            puts: figures.puts,
            ledger: figures.ledger,
            refused: figures.refused,
            hit_ratio: (figures.gets > 0).then(|| figures.hits as f64 / figures.gets as f64),
            hit_p50_ms: quantile_ms(&mut figures.hit_us, 0.5),
            hit_p99_ms: quantile_ms(&mut figures.hit_us, 0.99),
            put_p99_ms: quantile_ms(&mut figures.put_us, 0.99),
            around,
        }
    }

    pub(super) fn csv(&self) -> String {
        let told = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
        let Around { ended, neighbour, second_model, full_disk } = self.around;
        let mut line = format!("{},{},{}", self.second, self.gets, told(self.hit_ratio));
        let latencies = [
            told(self.hit_p50_ms),
            told(self.hit_p99_ms),
            self.puts.to_string(),
            told(self.put_p99_ms),
        ];
        latencies.iter().for_each(|figure| line += &format!(",{figure}"));
        let flags = [ended, neighbour, second_model, full_disk].map(u8::from);
        write!(line, ",{},{}", self.ledger, self.refused)
            .expect("a string takes all that is written");
        flags.iter().for_each(|flag| line += &format!(",{flag}"));
        line + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_as_many_columns_as_the_heading() {
        let mut figures = Figures { gets: 4, ..Figures::default() };
        (1..=3).for_each(|ms| figures.hit(Duration::from_millis(ms)));
        let around = Around { ended: true, full_disk: true, ..Around::default() };
        let line = Row::new(20, figures, around).csv();
        assert_eq!(line, "20,4,0.750,2.000,3.000,0,,0,0,1,0,0,1\n");
        assert_eq!(line.split(',').count(), HEADING.split(',').count());
        let empty = Row::new(0, Figures::default(), Around::default());
        assert_eq!((empty.hit_ratio, empty.hit_p99_ms), (None, None));
    }
}
