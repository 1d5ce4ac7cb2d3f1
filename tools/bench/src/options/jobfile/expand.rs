//! Expands environment variables and fio's reserved words in values.

use std::fs;

use super::super::expression::evaluate;
use crate::units::{KbBase, byte_unit};

/// The values variables and words expand to.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Looks up an environment variable; `None` is the same as empty.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// `$pagesize`, in bytes.
    pub page_bytes: u64,
    /// `$mb_memory`: the machine's memory in MiB.
    pub memory_mib: u64,
    /// `$ncpus`.
    pub cores: u64,
}

impl Surroundings<'static> {
    /// Returns the values of this process.
    pub(crate) fn here() -> Surroundings<'static> {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        Surroundings {
            variable: &|name| std::env::var(name).ok(),
            page_bytes: page_bytes(),
            memory_mib: kib_of(&memory, "MemTotal:").unwrap_or(0) / 1024,
            cores,
        }
    }
}

/// Returns the page size; 4096 if unknown.
fn page_bytes() -> u64 {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    kib_of(&smaps, "KernelPageSize:").map_or(4096, |kib| kib * 1024)
}

/// Returns the number after a name in one of the kernel's lists.
fn kib_of(list: &str, name: &str) -> Option<u64> {
    let line = list.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Surroundings<'_> {
    /// Expands a value of a job file.
    ///
    /// # Errors
    /// A sentence, if a variable's name is not terminated.
    pub(crate) fn expand(&self, value: &str) -> Result<String, String> {
        self.variables(value).map(|value| keywords(self, &value))
    }

    fn variables(&self, value: &str) -> Result<String, String> {
        let (mut expanded, mut rest) = (String::new(), value);
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after
                .split_once('}')
                .ok_or("'${' is not closed; write '}' after the variable's name")?;
            expanded.push_str(before);
            expanded.push_str(
                &(self.variable)(name).unwrap_or_default().replace(['\0', '\n', '\r'], " "),
            );
            rest = after;
        }
        expanded.push_str(rest);
        Ok(expanded.trim().to_owned())
    }
}

/// Expands fio's reserved words and then evaluates an expression such as `8*$pagesize`.
pub(crate) fn keywords(around: &Surroundings, value: &str) -> String {
    let mut filled = value.to_owned();
    for (name, number) in [
        ("$pagesize", around.page_bytes),
        ("$mb_memory", around.memory_mib),
        ("$ncpus", around.cores),
    ] {
        filled = filled.replace(name, &number.to_string());
    }
    let is_changed = filled != value;
    let computed = is_changed && filled.contains(['+', '-', '*', '/', '%', '^', '(']);
    let unit = |unit: &str| byte_unit(unit, KbBase::Binary).map(|bytes| bytes as f64);
    let number = computed.then(|| evaluate(&filled, &unit).ok()).flatten();
    number.map_or(filled, |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AROUND: Surroundings<'static> = Surroundings {
        variable: &|name| if name == "A" { Some("x".to_owned()) } else { None },
        page_bytes: 4096,
        memory_mib: 2048,
        cores: 4,
    };

    #[test]
    fn reserved_words_are_filled_in_and_computed_with() {
        for (value, expected) in [
            ("$pagesize", "4096"),
            ("8*$pagesize", "32768"),
            ("($ncpus+2)*3k", "18432"),
            ("$mb_memory/2", "1024"),
            ("0,$ncpus", "0,4"),
            ("read:4", "read:4"),
            ("2*3", "2*3"),
            ("$pagesizes", "4096s"),
            ("$other", "$other"),
        ] {
            assert_eq!(AROUND.expand(value).as_deref(), Ok(expected), "{value}");
        }
    }

    #[test]
    fn variables_are_filled_in_anywhere() {
        assert_eq!(AROUND.expand("/${A}/${B}${A}").as_deref(), Ok("/x/x"));
        assert!(AROUND.expand("${A").is_err());
    }

    #[test]
    fn this_machine_has_pages_and_cores() {
        let here = Surroundings::here();
        assert!(here.page_bytes.is_power_of_two() && here.page_bytes >= 4096);
        assert!(here.cores >= 1 && here.memory_mib > 16);
    }
}
