//! Formats numbers and untrusted text for people.

use std::borrow::Cow;

/// Powers of 1000.
const SI: [&str; 6] = ["", "k", "M", "G", "T", "P"];
/// Powers of 1024.
const IEC: [&str; 6] = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

/// Formats `number` with at most `digits` digits and a prefix of 1000, as fio formats counts: `10.2k`.
pub fn si(number: f64, digits: usize) -> String {
    scaled(number, 1000.0, &SI, digits)
}

/// Formats bytes in binary units like fio: `39.7MiB`.
pub fn bytes(number: f64) -> String {
    scaled(number, 1024.0, &IEC, 4) + "B"
}

/// Formats a size in binary units and few digits, for drives and pages: `3.5TiB`, `2.0MiB`.
pub fn capacity(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &IEC, 3) + "B"
}

/// Formats bytes in decimal units: `41.6MB`.
pub fn bytes_si(number: f64) -> String {
    si(number, 4) + "B"
}

/// Formats bytes per second in both units: `39.7MiB/s (41.6MB/s)`.
pub fn rate(bytes_per_second: f64) -> String {
    format!("{}/s ({}/s)", bytes(bytes_per_second), bytes_si(bytes_per_second))
}

/// Returns the ending of a noun for so many.
pub fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Makes untrusted text (a label on a drive, a process's name) harmless for a terminal, on one line.
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if is_harmful(letter) { '?' } else { letter }).collect()
}

/// Makes text of several lines harmless; keeps line feeds and tabs.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let is_layout = |letter: char| letter == '\n' || letter == '\t';
    let goes = |letter: char| is_harmful(letter) && !is_layout(letter);
    if text.contains(goes) { Cow::Owned(text.replace(goes, "?")) } else { Cow::Borrowed(text) }
}

/// Returns whether a character moves the cursor, starts a new line, or reorders characters (Unicode's
/// bidirectional controls).
fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Formats text as one shell word on one line, quoted if necessary.
pub fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/-_.,:@+=%".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", printable(text).replace('\'', "'\\''"))
}

/// Divides by `base` until the integer part has at most `digits` digits, then adds decimals to fill them.
fn scaled(number: f64, base: f64, prefixes: &[&str], digits: usize) -> String {
    let (mut number, mut prefix) = (number, 0);
    while whole_digits(number) > digits && prefix + 1 < prefixes.len() {
        number /= base;
        prefix += 1;
    }
    // The decimal point takes one place.
    let decimals = if prefix == 0 { 0 } else { digits.saturating_sub(whole_digits(number) + 1) };
    format!("{number:.decimals$}{}", prefixes[prefix])
}

fn whole_digits(number: f64) -> usize {
    let mut digits = 1;
    let mut rest = number.trunc();
    while rest >= 10.0 {
        rest /= 10.0;
        digits += 1;
    }
    digits
}

/// Formats a latency with a suitable unit: `84.7 us`.
pub fn latency(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_as_in_fio() {
        assert_eq!(si(500.0, 4), "500");
        assert_eq!(si(9999.0, 4), "9999");
        assert_eq!(si(10_234.0, 4), "10.2k");
        assert_eq!(si(102_400.0, 4), "102k");
        assert_eq!(si(4_192_700.0, 6), "4192.7k");
    }

    #[test]
    fn bytes_read_as_in_fio() {
        assert_eq!(bytes(4096.0), "4096B");
        assert_eq!(bytes(65536.0), "64.0KiB");
        assert_eq!(bytes(7968.0 * 1024.0), "7968KiB");
        assert_eq!(bytes(1669.0 * 1048576.0), "1669MiB");
        assert_eq!(capacity(2 << 20), "2.0MiB");
        assert_eq!(capacity(960_197_124_096), "894GiB");
        assert_eq!(rate(39.7 * 1048576.0), "39.7MiB/s (41.6MB/s)");
    }

    #[test]
    fn what_others_chose_stays_in_its_line() {
        assert_eq!(printable("a\u{1b}[2J\nb ü\u{9b}"), "a?[2J?b ü?");
        assert_eq!(printable("a\u{202e}b\u{2028}c"), "a?b?c");
        assert_eq!(printable_lines("a\n\tb\r\u{1b}c\n"), "a\n\tb??c\n");
    }

    #[test]
    fn what_others_chose_is_one_word_of_a_shell() {
        assert_eq!(shell_word("/dev/nvme0n1"), "/dev/nvme0n1");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("a b; rm -r '/'\n"), "'a b; rm -r '\\''/'\\''?'");
    }

    #[test]
    fn latencies_have_their_unit() {
        assert_eq!(latency(850), "850 ns");
        assert_eq!(latency(84_720), "84.7 us");
        assert_eq!(latency(12_000_000), "12.0 ms");
        assert_eq!(latency(2_500_000_000), "2.50 s");
    }

    #[test]
    fn a_shell_reads_a_quoted_word_as_it_is() {
        for word in ["a b", "it's", "$HOME;`x`", "plain=1", "", "\"q\""] {
            let command = format!("printf %s {}", shell_word(word));
            let output =
                std::process::Command::new("sh").arg("-c").arg(command).output().expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }
}
