//! fio's logs: bandwidth, IOPS, latencies and histograms over time, one file per kind and thread.
//!
//! With `log_avg_msec`, I/Os are summed up in windows of that length, each active way yields a row at the
//! window's end, and nothing is allocated during I/O. Without it, each I/O yields a row: entries of 56 bytes
//! are kept in a vector that starts with room for [`ENTRIES`] and doubles when full, which then delays one I/O
//! by the time of a copy. They become text at the end. Histograms come every `log_hist_msec` in either case.
//!
//! Text goes to a buffer of fixed size, which is written when nearly full. Write failures do not disturb the
//! run; they are reported when the logs are finished.

mod file;
mod histogram;
mod iolog;
mod window;

pub(crate) use self::iolog::IoLog;

use std::path::{Path, PathBuf};
use std::time::Duration;

use self::file::{LogFile, LogRow};
use self::histogram::HistogramLog;
use self::window::Windows;
use super::options::{LogOptions, WindowValue};
use super::way::Way;
use crate::failure::{Failure, Result};

/// Initial capacity for entries of single I/Os.
const ENTRIES: usize = 1 << 16;
/// Index of total latency among the three.
const LAT: usize = 2;

/// An I/O as logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoSample {
    /// Submission latency, in nanoseconds.
    pub(crate) slat_ns: u64,
    /// Completion latency, in nanoseconds.
    pub(crate) clat_ns: u64,
    /// Total latency, in nanoseconds.
    pub(crate) lat_ns: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Byte offset.
    pub(crate) offset: u64,
    /// Issue time in nanoseconds from the start.
    pub(crate) issued_ns: u64,
}

/// Returns a time in nanoseconds.
fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The logs of one thread.
#[derive(Debug)]
pub(crate) struct JobLogs {
    files: LogFiles,
    entries: LoggedIos,
    histogram: Option<HistogramLog>,
}

/// The data rows are made of.
#[derive(Debug)]
enum LoggedIos {
    /// Each I/O.
    Each(Vec<LoggedIo>),
    /// Windows.
    Windows(Windows),
}

#[derive(Clone, Copy, Debug)]
struct LoggedIo {
    at_ms: u32,
    way: Way,
    io: IoSample,
}

impl JobLogs {
    /// Creates the files `options` requests; `None` if there are none. `thread` is the number in their names,
    /// from 1. `log_unix_epoch` adds `start_unix_ms` to times. As in fio, files shared by all jobs are appended to.
    ///
    /// # Errors
    /// When a file cannot be created.
    pub(crate) fn open(
        options: &LogOptions,
        thread: u32,
        start_unix_ms: u64,
    ) -> Result<Option<JobLogs>> {
        let open = |prefix: Option<&PathBuf>, kind| {
            let file = |prefix: &PathBuf| path(options, prefix, kind, thread);
            prefix.map(|prefix| LogFile::open(file(prefix), options.shared)).transpose()
        };
        let lat = |kind| open(options.lat.as_ref(), kind);
        let files = LogFiles {
            bw: open(options.bw.as_ref(), "bw")?,
            iops: open(options.iops.as_ref(), "iops")?,
            lats: [lat("slat")?, lat("clat")?, lat("lat")?],
            wanted: options.bw.is_some() || options.iops.is_some() || options.lat.is_some(),
            epoch_ms: if options.unix_epoch { start_unix_ms } else { 0 },
            options: options.clone(),
        };
        let hist = options.hist.as_ref().filter(|_| !options.hist_every.is_zero());
        let (every, coarseness) = (options.hist_every, options.hist_coarseness);
        let histogram = open(hist, "clat_hist")?
            .map(|file| HistogramLog::new(file, every, coarseness, files.epoch_ms));
        if !files.wanted && histogram.is_none() {
            return Ok(None);
        }
        let entries = match (files.wanted, options.avg.is_zero()) {
            (false, _) => LoggedIos::Each(Vec::new()),
            (true, true) => LoggedIos::Each(Vec::with_capacity(ENTRIES)),
            (true, false) => LoggedIos::Windows(Windows::new(options.avg)),
        };
        Ok(Some(JobLogs { files, entries, histogram }))
    }

    /// Records an I/O that completed `at` after the start. Times must not decrease.
    #[inline]
    pub(crate) fn record(&mut self, at: Duration, way: Way, io: IoSample) {
        let at_ns = nanoseconds(at);
        match &mut self.entries {
            LoggedIos::Windows(windows) => {
                if windows.is_over(at_ns) {
                    self.files.add_window(windows);
                    windows.begin(at_ns);
                }
                windows.add(way, io);
            }
            LoggedIos::Each(entries) if self.files.wanted => {
                entries.push(LoggedIo { at_ms: (at_ns / 1_000_000) as u32, way, io });
            }
            LoggedIos::Each(_) => {}
        }
        if let Some(histogram) = &mut self.histogram {
            histogram.record(at_ns, way, io);
        }
    }

    /// Writes the rest, `at` after the start.
    ///
    /// # Errors
    /// When a file could not be written, now or before: names it; later rows are missing from it.
    pub(crate) fn finish(mut self, at: Duration) -> Result<()> {
        match &mut self.entries {
            LoggedIos::Each(entries) => self.files.add_entries(entries),
            LoggedIos::Windows(windows) => {
                windows.end(nanoseconds(at));
                self.files.add_window(windows);
            }
        }
        let mut failures: Vec<Failure> = self.files.all_mut().filter_map(LogFile::finish).collect();
        if let Some(histogram) = self.histogram {
            failures.extend(histogram.finish(nanoseconds(at)));
        }
        Failure::all(failures).map_or(Ok(()), Err)
    }
}

/// Returns `PREFIX_KIND.N.log`, without the number of the thread if all jobs share the file.
fn path(options: &LogOptions, prefix: &Path, kind: &str, thread: u32) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(match options.shared {
        true => format!("_{kind}.log"),
        false => format!("_{kind}.{thread}.log"),
    });
    name.into()
}

/// The files of values over time.
#[derive(Debug)]
struct LogFiles {
    bw: Option<LogFile>,
    iops: Option<LogFile>,
    /// slat, clat and lat.
    lats: [Option<LogFile>; 3],
    /// Whether there are any.
    wanted: bool,
    /// Added to times.
    epoch_ms: u64,
    options: LogOptions,
}

impl LogFiles {
    fn all_mut(&mut self) -> impl Iterator<Item = &mut LogFile> {
        [&mut self.bw, &mut self.iops].into_iter().chain(&mut self.lats).flatten()
    }

    /// Adds a row for each way with I/O in the window.
    fn add_window(&mut self, windows: &Windows) {
        let at_ms = self.epoch_ms + windows.end_ms();
        for way in Way::ALL {
            let Some(sums) = windows.sums(way) else { continue };
            let row = self.row(at_ms, way, None);
            let (rates, means, maxima) = (windows.rates(sums), sums.means_ns(), sums.max_ns);
            match self.options.window {
                WindowValue::Average => self.add(row, rates, means, None),
                WindowValue::Maximum => self.add(row, rates, maxima, None),
                WindowValue::Both => self.add(row, rates, means, Some(maxima)),
            }
        }
    }

    /// Adds a row for each I/O.
    fn add_entries(&mut self, entries: &[LoggedIo]) {
        for LoggedIo { at_ms, way, io } in entries {
            let row = self.row(self.epoch_ms + u64::from(*at_ms), *way, Some(io));
            let kib_per_second = u128::from(io.bytes) * 1_000_000_000
                / 1024
                / u128::from(io.lat_ns.max(io.clat_ns).max(1));
            let rates = [kib_per_second as u64, 1];
            self.add(row, rates, [io.slat_ns, io.clat_ns, io.lat_ns], None);
        }
    }

    /// Returns the fields of a row besides its value, for an I/O or a window.
    fn row(&self, at_ms: u64, way: Way, io: Option<&IoSample>) -> LogRow {
        LogRow {
            at_ms,
            most: None,
            way,
            bytes: io.map_or(0, |io| io.bytes),
            offset: self.options.offset.then(|| io.map_or(0, |io| io.offset)),
            shows_prio: self.options.prio,
            issued_ns: self.options.issue_time.then(|| io.map_or(0, |io| io.issued_ns)),
        }
    }

    /// Adds a row to each file; `maxima_ns` is present if both values of a window are logged. A rate has only
    /// one value.
    fn add(
        &mut self,
        row: LogRow,
        rates: [u64; 2],
        lats_ns: [u64; 3],
        maxima_ns: Option<[u64; 3]>,
    ) {
        // As in fio, only slat and clat have an issue time.
        let without = LogRow { issued_ns: row.issued_ns.map(|_| 0), ..row };
        for (file, rate) in [&mut self.bw, &mut self.iops].into_iter().zip(rates) {
            let Some(file) = file else { continue };
            file.add(LogRow { most: maxima_ns.map(|_| rate), ..without }, rate);
        }
        for (index, file) in self.lats.iter_mut().enumerate() {
            let Some(file) = file else { continue };
            let row = if index == LAT { without } else { row };
            file.add(LogRow { most: maxima_ns.map(|ns| ns[index]), ..row }, lats_ns[index]);
        }
    }
}

#[cfg(test)]
mod tests;
