//! Every parser of bytes chosen by a device, with every accessor and formatter of the results.
//!
//! The first byte selects the structure, the second whether the rest is padded to a page or left short.
//! `tests/accessors.rs` checks that no accessor is missing here.

mod data;
mod entries;
mod registers;

/// Evaluates methods without arguments.
macro_rules! look {
    ($value:expr; $($method:ident),+ $(,)?) => {{
        let value = $value;
        $(std::hint::black_box(value.$method());)+
    }};
}
use look;

/// The longest structure.
const PAGE: usize = 4096;

/// Runs one input.
pub fn target(data: &[u8]) {
    let [kind, padded, bytes @ ..] = data else { return };
    let mut page = bytes.to_vec();
    if *padded & 1 == 0 {
        // A short input repeats, so that fields at the end are not always zero.
        page =
            bytes.iter().copied().cycle().take(if bytes.is_empty() { 0 } else { PAGE }).collect();
        page.resize(PAGE, 0);
    }
    match kind % 11 {
        0 => data::identify_controller(&page),
        1 => data::identify_namespace(&page),
        2 => data::identify_nvm(&page),
        3 => data::namespace_list(&page),
        4 => data::smart(&page),
        5 => data::errors(&page),
        6 => data::firmware(&page),
        7 => data::changed_namespaces(&page),
        8 => entries::completion(&page),
        9 => entries::features(&page),
        _ => registers::all(&page),
    }
}

/// Evaluates a value's text, for users and for programmers.
fn show(value: &impl std::fmt::Debug, text: Option<&dyn std::fmt::Display>) {
    std::hint::black_box(format!("{value:?}"));
    if let Some(text) = text {
        let text = text.to_string();
        assert!(text.chars().all(|c| !c.is_control()), "fit for a terminal: {text:?}");
    }
}
