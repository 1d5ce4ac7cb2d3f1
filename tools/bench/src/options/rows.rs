//! Reads tables that are data files: headings in brackets, rows of cells between ` | `, comments after `#`.

/// Returns the rows of `text`, each with its heading; cells that are missing are empty.
pub(super) fn rows<const N: usize>(
    text: &'static str,
) -> impl Iterator<Item = (&'static str, [&'static str; N])> {
    let mut heading = "";
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).filter_map(move |line| {
        if let Some(name) = line.strip_prefix('[') {
            heading = name.trim_end_matches(']');
            return None;
        }
        let mut cells = line.splitn(N, " | ");
        Some((heading, std::array::from_fn(|_| cells.next().unwrap_or_default())))
    })
}
