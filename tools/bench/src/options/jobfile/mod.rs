//! Parses fio's job files.
//!
//! ```text
//! [global]            ; defaults of the sections after it
//! rw=randread
//! include common.fio  ; options from another file, which has no sections
//! [job]               ; a job
//! size=8*$pagesize
//! filename=${DEVICE}
//! time_based          ; on
//! ```
//!
//! As in fio, `;` or `#` starts a comment up to the end of the line, even within a value. This module does not
//! interpret options; `options` does.

mod expand;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use expand::Surroundings;
pub(crate) use expand::keywords;

use super::written::{TextPlace, Written, WrittenSection};
use crate::failure::{Failure, Result};

/// Maximum depth of includes.
const DEPTH_MAX: usize = 16;

/// Larger files are refused, as they are unlikely to be job files.
const BYTES_MAX: u64 = 16 << 20;

/// Reads an included file.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// Reads a job file from disk, or from standard input if its name is `-`.
///
/// # Errors
/// When it cannot be read or is malformed; gives line and column.
pub(crate) fn open(file: &str, around: &Surroundings) -> Result<Vec<WrittenSection>> {
    let bytes = match file {
        "-" => limited(io::stdin()),
        _ => fs::File::open(file).and_then(limited),
    };
    let bytes = bytes.map_err(|why| {
        Failure::usage(format!("{file}: {why}; name a job file that can be read"))
    })?;
    let name = if file == "-" { "(standard input)" } else { file };
    parse(&bytes, name, around, &|path| fs::File::open(path).and_then(limited))
}

fn limited(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        Err(io::Error::other("it is too long for a job file"))
    } else {
        Ok(bytes)
    }
}

/// Parses a job file.
///
/// # Errors
/// When it is malformed, or an included file cannot be read.
pub fn parse(
    bytes: &[u8],
    file: &str,
    around: &Surroundings,
    read: ReadFile,
) -> Result<Vec<WrittenSection>> {
    let mut parser = Parser { around, read, sections: Vec::new(), including: Vec::new() };
    parser.file(bytes, file)?;
    Ok(parser.sections)
}

struct Parser<'a> {
    around: &'a Surroundings<'a>,
    read: ReadFile<'a>,
    sections: Vec<WrittenSection>,
    /// The files being read, the innermost last.
    including: Vec<String>,
}

/// A line and its place.
struct JobFileLine<'a> {
    text: &'a str,
    file: &'a str,
    number: usize,
}

impl JobFileLine<'_> {
    /// Returns the place of a part of the line.
    fn place(&self, part: &str) -> TextPlace {
        let before = (part.as_ptr() as usize)
            .saturating_sub(self.text.as_ptr() as usize)
            .min(self.text.len());
        let column = self.text.get(..before).map_or(0, |text| text.chars().count()) + 1;
        TextPlace::File { file: self.file.to_owned(), line: self.number, column }
    }
}

impl Parser<'_> {
    fn file(&mut self, bytes: &[u8], file: &str) -> Result<()> {
        let text = str::from_utf8(bytes).map_err(|why| {
            let line = 1 + bytes[..why.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            let place = TextPlace::File { file: file.to_owned(), line, column: 1 };
            place.refuse("this is not text in UTF-8; is it a job file?")
        })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        self.including.push(file.to_owned());
        for (number, text) in text.lines().enumerate() {
            self.line(&JobFileLine { text, file, number: number + 1 })?;
        }
        self.including.pop();
        Ok(())
    }

    fn line(&mut self, line: &JobFileLine) -> Result<()> {
        let text = line.text.trim();
        if text.is_empty() || text.starts_with([';', '#']) {
            return Ok(());
        }
        if text.contains('\0') {
            return Err(line
                .place(text)
                .refuse("there is a byte of zero in this line; is it a job file?"));
        }
        if let Some(rest) = text.strip_prefix('[') {
            return self.section(line, rest);
        }
        let text = text.split([';', '#']).next().unwrap_or_default().trim_end();
        match text.split_once(char::is_whitespace) {
            Some(("include", file)) if !file.trim_start().starts_with('=') => {
                self.include(line, file.trim())
            }
            _ => self.option(line, text),
        }
    }

    fn section(&mut self, line: &JobFileLine, rest: &str) -> Result<()> {
        let place = line.place(line.text.trim());
        if self.including.len() > 1 {
            return Err(place
                .refuse("an included file has options only; move this section into the job file"));
        }
        let Some((name, after)) = rest.rsplit_once(']') else {
            return Err(place.refuse("this section's name does not end; write ']' after it"));
        };
        let after_trimmed = after.trim();
        if !after_trimmed.is_empty() && !after_trimmed.starts_with([';', '#']) {
            return Err(line
                .place(after_trimmed)
                .refuse("nothing may follow a section's name; begin a new line"));
        }
        let name = name.trim();
        if name.is_empty() {
            return Err(place.refuse("this section has no name; write it as in [job1]"));
        }
        let name = (!name.eq_ignore_ascii_case("global")).then(|| name.to_owned());
        self.sections.push(WrittenSection { name, place, options: Vec::new() });
        Ok(())
    }

    fn option(&mut self, line: &JobFileLine, text: &str) -> Result<()> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (text, None),
        };
        let place = line.place(text);
        let is_name =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        if !is_name {
            return Err(place.refuse(format!(
                "'{name}' is no option's name; write NAME=VALUE, [SECTION] or '; comment'"
            )));
        }
        let refused =
            |why: String| line.place(value.unwrap_or(text)).refuse(format!("{name}: {why}"));
        let value = value.map(|value| self.around.expand(value)).transpose().map_err(refused)?;
        let Some(section) = self.sections.last_mut() else {
            return Err(place.refuse("an option before the first section; write [global] above it"));
        };
        section.options.push(Written { name: name.to_owned(), value, place });
        Ok(())
    }

    fn include(&mut self, line: &JobFileLine, file: &str) -> Result<()> {
        let place = line.place(line.text.trim());
        if self.sections.is_empty() {
            return Err(place.refuse("options before the first section; write [global] above it"));
        }
        if self.including.len() > DEPTH_MAX {
            return Err(place.refuse(format!(
                "files include each other more than {DEPTH_MAX} deep; do they in a circle?"
            )));
        }
        let path = beside(line.file, file);
        let bytes =
            (self.read)(&path).map_err(|why| place.refuse(format!("{}: {why}", path.display())))?;
        self.file(&bytes, &path.display().to_string())
    }
}

/// Resolves an included file's path relative to the including file.
fn beside(including: &str, file: &str) -> PathBuf {
    Path::new(including).parent().unwrap_or(Path::new("")).join(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn here() -> Surroundings<'static> {
        Surroundings {
            variable: &|name| (name == "SIZE").then(|| "64m".to_owned()),
            page_bytes: 4096,
            memory_mib: 1000,
            cores: 8,
        }
    }

    fn files(path: &Path) -> io::Result<Vec<u8>> {
        match path.to_str() {
            Some("jobs/common.fio") => Ok(b"iodepth=4\ninclude deeper/more.fio".to_vec()),
            Some("jobs/deeper/more.fio") => Ok(b"bs=8k".to_vec()),
            Some("jobs/circle.fio") => Ok(b"include circle.fio".to_vec()),
            Some("jobs/section.fio") => Ok(b"\n[x]".to_vec()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn parsed(text: &str) -> Result<Vec<WrittenSection>> {
        parse(text.as_bytes(), "jobs/a.fio", &here(), &files)
    }

    /// Returns sections with their options as `name=value`.
    fn read(text: &str) -> Vec<(String, Vec<String>)> {
        let option = |option: &Written| match &option.value {
            Some(value) => format!("{}={value}", option.name),
            None => option.name.clone(),
        };
        let sections = parsed(text).expect(text).into_iter();
        let name = |section: &WrittenSection| section.name.clone().unwrap_or("(global)".into());
        sections
            .map(|section| (name(&section), section.options.iter().map(option).collect()))
            .collect()
    }

    fn refusal(text: &str) -> String {
        parsed(text).expect_err(text).to_string()
    }

    #[test]
    fn sections_have_options_with_and_without_values() {
        let text = "\u{feff}; a comment\n# another\n[global]\r\nrw = randread \nthread ; on\n\
                    numjobs=4# four\n\n [ job 1 ] ; first\n  bs=4k\n[job2]";
        let expected = [
            (
                "(global)".to_owned(),
                vec!["rw=randread".to_owned(), "thread".to_owned(), "numjobs=4".to_owned()],
            ),
            ("job 1".to_owned(), vec!["bs=4k".to_owned()]),
            ("job2".to_owned(), vec![]),
        ];
        assert_eq!(read(text), expected);
    }

    #[test]
    fn values_are_expanded() {
        let options = &read(
            "[a]\nsize=${SIZE}\nio_size=8*$mb_memory\n\
                             numjobs=$ncpus\ndescription=${NOBODY}x $pagesize",
        )[0]
        .1;
        assert_eq!(*options, ["size=64m", "io_size=8000", "numjobs=8", "description=x 4096"]);
        assert_eq!(
            refusal("[a]\nsize=${SIZE"),
            "jobs/a.fio:2:6: size: '${' is not closed; write '}' after the variable's name"
        );
    }

    #[test]
    fn files_are_included_from_beside_the_file_that_names_them() {
        assert_eq!(
            read("[a]\ninclude common.fio\nrw=read")[0].1,
            ["iodepth=4", "bs=8k", "rw=read"]
        );
        assert!(refusal("[a]\ninclude circle.fio").contains("in a circle?"));
        assert!(
            refusal("[a]\ninclude section.fio")
                .starts_with("jobs/section.fio:2:1: an included file")
        );
        assert!(refusal("[a]\ninclude gone.fio").starts_with("jobs/a.fio:2:1: jobs/gone.fio: "));
        assert!(refusal("include common.fio").contains("[global]"));
    }

    #[test]
    fn what_is_malformed_is_refused_where_it_is() {
        for (text, expected) in [
            ("rw=read", "jobs/a.fio:1:1: an option before"),
            ("\n\n  [job", "jobs/a.fio:3:3: this section's name does not end"),
            ("[]", "jobs/a.fio:1:1: this section has no name"),
            ("[a] b", "jobs/a.fio:1:5: nothing may follow"),
            ("[a]\n  =5", "jobs/a.fio:2:3: '' is no option's name"),
            ("[a]\nhello world", "jobs/a.fio:2:1: 'hello world' is no option's name"),
            ("[a]\nrw=re\0ad", "jobs/a.fio:2:1: there is a byte of zero"),
        ] {
            let said = refusal(text);
            assert!(said.starts_with(expected), "{text:?}: {said}");
        }
        let said = parse(b"[a]\n\xff\xfe", "b", &here(), &files).expect_err("no text").to_string();
        assert!(said.starts_with("b:2:1: this is not text"), "{said}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let said = open("/nonexistent/x.fio", &here()).expect_err("no file").to_string();
        assert!(said.contains("/nonexistent/x.fio") && said.contains("name a job file"), "{said}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, "x", &here(), &files);
        }

        #[test]
        fn no_text_panics(text in r"(\[|\]|=|;|#|\$|\{|\}|include |\n|[a-z0-9]|é| ){0,60}") {
            let _ = parse(text.as_bytes(), "jobs/x", &here(), &files);
        }
    }
}
