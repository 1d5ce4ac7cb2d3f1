//! Structs with many fields.

/// Structs with more fields are listed.
const FIELDS_MAX: usize = 25;

/// Returns the structs with many fields, by name, as rustfmt lays them out.
pub(super) fn large(lines: &[&str]) -> impl Iterator<Item = (String, usize)> {
    let starts = (0..lines.len()).filter_map(|at| Some((struct_name(lines[at])?, at + 1)));
    let counted = starts.map(|(name, at)| (name.to_owned(), fields(lines[at - 1], &lines[at..])));
    counted.filter(|(_, fields)| *fields > FIELDS_MAX)
}

/// Returns the name in a line that begins a struct with named fields.
fn struct_name(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("struct ").filter(|_| line.ends_with('{'))?;
    let is_item = line.trim_start().starts_with(['p', 's']);
    after.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|_| is_item)
}

/// Counts the lines with a field below the first line of a struct.
fn fields(first: &str, body: &[&str]) -> usize {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let inside = body.iter().take_while(|line| indent(line) > indent(first) || line.is_empty());
    let is_field = |line: &&&str| {
        let (name, colon) = line.trim_start().split_once(": ").unwrap_or_default();
        indent(line) == indent(first) + 4
            && !name.starts_with(['/', '#'])
            && (!colon.is_empty() || line.ends_with(':'))
    };
    inside.filter(is_field).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_without_comments_and_attributes() {
        let field =
            "    /// One: of many.\n    #[arg(help = \"a: b\")]\n    pub(crate) x: Vec<u8>,\n\n";
        let text = |fields: usize| {
            format!(
                "pub struct Large<T> {{\n{}}}\nfn f() {{\n    y: u8,\n}}\n",
                field.repeat(fields)
            )
        };
        let found = |fields: usize| {
            let text = text(fields);
            large(&text.lines().collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        assert_eq!(found(25), []);
        assert_eq!(found(26), [("Large".to_owned(), 26)]);
    }
}
