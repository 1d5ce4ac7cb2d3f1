//! Lays out JSON: one object member per line, lists on one line.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Lays out objects like [`PrettyFormatter`] and lists compactly, because thousands of points on separate lines
/// would hide the rest.
#[derive(Default)]
struct Layout(PrettyFormatter<'static>);

impl Formatter for Layout {
    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

/// Returns the text of a value, without a final newline.
pub(super) fn text(value: &Value) -> String {
    let mut text = Vec::new();
    let mut out = Serializer::with_formatter(&mut text, Layout::default());
    value.serialize(&mut out).expect("values are JSON, and memory takes everything");
    String::from_utf8(text).expect("JSON is UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_are_on_one_line_and_members_on_their_own() {
        let value = json!({ "a": [[1, 2.5], [3, 4.0]], "b": [{ "c": [] }], "d": {} });
        let laid_out =
            "{\n  \"a\": [[1,2.5],[3,4.0]],\n  \"b\": [{\n    \"c\": []\n  }],\n  \"d\": {}\n}";
        assert_eq!(text(&value), laid_out);
        assert_eq!(serde_json::from_str::<Value>(laid_out).expect("JSON"), value);
    }
}
