//! Reads traces in Mooncake's format: one JSON object per line, whose `hash_ids` name a request's KV blocks in
//! prefix order.
//!
//! The whole file is read and checked before anything runs; a malformed line is reported with its number.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

/// Maximum bytes of a line; a prompt of 100 million tokens has fewer.
const LINE_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct TraceRequest {
    /// Its KV blocks in prefix order.
    pub(super) hash_ids: Vec<u64>,
    /// When it came, in milliseconds of the trace.
    #[serde(default)]
    pub(super) timestamp: Option<u64>,
}

/// Returns the time from the first request to the last; `None` if they have no times, or all the same.
pub(super) fn span(trace: &[TraceRequest]) -> Option<Duration> {
    let times = || trace.iter().filter_map(|request| request.timestamp);
    let span = times().max()? - times().min()?;
    (span > 0).then(|| Duration::from_millis(span))
}

/// Reads the trace at `path`.
///
/// # Errors
/// A sentence about what is wrong with the file.
pub(super) fn read(path: &Path) -> Result<Vec<TraceRequest>, String> {
    let name = path.display();
    let file = File::open(path).map_err(|why| format!("{name}: {why}"))?;
    let requests = parse(BufReader::new(file)).map_err(|why| format!("{name}: {why}"))?;
    if requests.iter().all(|request| request.hash_ids.is_empty()) {
        return Err(format!(
            "{name}: it contains no KV block; each line of a trace is a JSON object with 'hash_ids'"
        ));
    }
    Ok(requests)
}

fn parse(mut lines: impl BufRead) -> Result<Vec<TraceRequest>, String> {
    let (mut requests, mut line) = (Vec::new(), Vec::new());
    for number in 1u64.. {
        line.clear();
        let read = read_line(&mut lines, &mut line);
        match read.map_err(|why| format!("line {number}: {why}"))? {
            0 => break,
            _ if line.trim_ascii().is_empty() => continue,
            _ => {}
        }
        let request = serde_json::from_slice(&line);
        requests.push(request.map_err(|why| {
            format!("line {number} is not a request: {why}; write an object with 'hash_ids'")
        })?);
    }
    Ok(requests)
}

/// Reads the next line; the length limit bounds memory.
fn read_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    let read = io::Read::take(lines, LINE_BYTES_MAX).read_until(b'\n', line)?;
    if read as u64 == LINE_BYTES_MAX {
        return Err(io::Error::other(format!("it is longer than {LINE_BYTES_MAX} bytes")));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_request_and_empty_ones_are_none() {
        let text =
            "{\"timestamp\": 0, \"input_length\": 9, \"hash_ids\": [0, 1]}\n\n{\"hash_ids\":[]}";
        let requests = parse(text.as_bytes()).expect("a trace");
        let ids: Vec<&[u64]> = requests.iter().map(|request| &*request.hash_ids).collect();
        assert_eq!(ids, [&[0u64, 1][..], &[]]);
        assert_eq!(requests[0].timestamp, Some(0));
    }

    #[test]
    fn a_trace_lasts_from_its_first_request_to_its_last() {
        let requests = |text: &str| parse(text.as_bytes()).expect("a trace");
        let line = |ms: u64| format!("{{\"timestamp\": {ms}, \"hash_ids\": [1]}}\n");
        let three = [2000, 5500, 4000].map(line).concat();
        assert_eq!(span(&requests(&three)), Some(Duration::from_millis(3500)));
        assert_eq!(span(&requests(&line(7))), None);
        assert_eq!(span(&requests("{\"hash_ids\": [1]}")), None);
    }

    #[test]
    fn a_wrong_line_is_told_by_its_number() {
        for (text, part) in [
            ("{\"hash_ids\": [1]}\n{\"hash\": 2}", "line 2"),
            ("[1]", "line 1"),
            ("{\"hash_ids\": [-1]}", "line 1"),
            ("\n\nnothing", "line 3"),
        ] {
            let why = parse(text.as_bytes()).expect_err(text);
            assert!(why.contains(part) && why.contains("hash_ids"), "{why}");
        }
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused() {
        let why = read(Path::new("/nonexistent/trace")).expect_err("not there");
        assert!(why.starts_with("/nonexistent/trace: "), "{why}");
        let why = read(Path::new("/dev/null")).expect_err("empty");
        assert!(why.contains("no KV block"), "{why}");
        let why = read(Path::new("/dev/zero")).expect_err("endless");
        assert!(why.contains("line 1"), "{why}");
    }
}
