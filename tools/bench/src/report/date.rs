//! Dates as `asctime` writes them.

/// Formats a UTC time as `asctime` does.
pub(crate) fn utc(unix_seconds: u64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Counting from 1 March of year 0 puts leap days last.
    let days_since_0000_03_01 = days + 719_468;
    let (era, day_of_era) = (days_since_0000_03_01 / 146_097, days_since_0000_03_01 % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_written_as_by_asctime() {
        assert_eq!(utc(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(utc(951_827_696), "Tue Feb 29 12:34:56 2000");
        assert_eq!(utc(1_795_203_892), "Fri Nov 20 19:44:52 2026");
    }
}
