//! Actions on the machine from outside while the guest runs: the rules of `--qmp`, in order.
//!
//! `TEXT => COMMAND` waits until the guest's command has printed TEXT; `COMMAND` alone does not wait; `event
//! NAME WORD…` waits for an event from QEMU. A rule starts when the previous one is done, and only considers
//! output after the text that the previous rule waited for, so a list of rules reads like a script.

use std::collections::VecDeque;

/// Separates a text to wait for from a command.
const ARROW: &str = " => ";
/// Begins a rule that waits for an event.
const EVENT: &str = "event ";

/// One `--qmp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Sends `command` once the guest's command has printed `after`.
    Tell { after: Option<String>, command: String },
    /// Waits for the event `name` whose data contain all `words`.
    Await { name: String, words: Vec<String> },
}

impl Rule {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(event) = text.strip_prefix(EVENT) {
            let mut words = event.split_whitespace().map(str::to_owned);
            let name = words.next().ok_or("it names no event, as in 'event DEVICE_DELETED'")?;
            return Ok(Self::Await { name, words: words.collect() });
        }
        let (after, command) =
            text.split_once(ARROW).map_or((None, text), |(after, rest)| (Some(after), rest));
        match (after.map(str::trim), command.trim()) {
            (Some(""), _) => Err(format!("there is no text before '{}'", ARROW.trim())),
            (_, "") => {
                Err("there is no command in it, as in 'TEXT => device_del nvme0'".to_owned())
            }
            (after, command) => {
                Ok(Self::Tell { after: after.map(str::to_owned), command: command.to_owned() })
            }
        }
    }

    /// Describes what is still awaited, to complete "the guest ended before …".
    fn awaited(&self) -> String {
        match self {
            Self::Tell { after: Some(text), command } => {
                format!("it said {text:?}, so that QEMU was never told {command:?}")
            }
            Self::Tell { after: None, command } => format!("QEMU was told {command:?}"),
            Self::Await { name, words } => {
                format!("QEMU's event {name} came, with {:?} in its data", words.join(" "))
            }
        }
    }
}

/// The remaining rules, and what has arrived since the last one was done.
pub(crate) struct Script {
    rules: VecDeque<Rule>,
    said: Vec<u8>,
    events: Vec<(String, String)>,
}

impl Script {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        Self { rules: rules.iter().cloned().collect(), said: Vec::new(), events: Vec::new() }
    }

    /// Takes output of the guest's command.
    pub(crate) fn hear(&mut self, bytes: &[u8]) {
        if !self.rules.is_empty() {
            self.said.extend_from_slice(bytes);
        }
    }

    /// Takes an event and its data.
    pub(crate) fn see(&mut self, name: &str, data: &str) {
        self.events.push((name.to_owned(), data.to_owned()));
    }

    /// Returns the command to send now, if one is due. Call it again only after the answer.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            match self.rules.front()? {
                Rule::Tell { after: None, .. } => {}
                Rule::Tell { after: Some(text), .. } => {
                    let end = find(&self.said, text.as_bytes())? + text.len();
                    self.said.drain(..end);
                }
                Rule::Await { name, words } => {
                    let index = self.events.iter().position(|(came, data)| {
                        came == name && words.iter().all(|word| data.contains(word.as_str()))
                    })?;
                    self.events.drain(..=index);
                }
            }
            if let Some(Rule::Tell { command, .. }) = self.rules.pop_front() {
                return Some(command);
            }
        }
    }

    /// Returns what the guest ended without, if a rule remains.
    pub(crate) fn unfinished(&self) -> Option<String> {
        let rule = self.rules.front()?;
        Some(format!("the guest's command ended before {}", rule.awaited()))
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(rules: &[&str]) -> Script {
        let rules: Vec<Rule> = rules.iter().map(|text| Rule::parse(text).unwrap()).collect();
        Script::new(&rules)
    }

    #[test]
    fn a_command_waits_for_its_text_however_it_is_cut() {
        let mut script = script(&["under load => device_del nvme0"]);
        script.hear(b"... under lo");
        assert_eq!(script.next(), None);
        assert!(script.unfinished().unwrap().contains("\"under load\""));
        script.hear(b"ad\n");
        assert_eq!(script.next().as_deref(), Some("device_del nvme0"));
        assert_eq!((script.next(), script.unfinished()), (None, None));
    }

    #[test]
    fn a_text_counts_once_and_rules_keep_their_order() {
        let mut script = script(&["go => first", "go => second"]);
        script.hear(b"go");
        assert_eq!(script.next().as_deref(), Some("first"));
        assert_eq!(script.next(), None, "the same text does not count again");
        script.hear(b" and go");
        assert_eq!(script.next().as_deref(), Some("second"));
    }

    #[test]
    fn a_command_alone_is_sent_at_once_and_an_event_is_waited_for() {
        let mut script = script(&["break", "event DEVICE_DELETED nvme0", "done => resume"]);
        assert_eq!(script.next().as_deref(), Some("break"));
        script.hear(b"done");
        script.see("DEVICE_DELETED", r#"{"path":"/machine/other"}"#);
        assert_eq!(script.next(), None, "another device's");
        script.see("DEVICE_DELETED", r#"{"device":"nvme0"}"#);
        assert_eq!(script.next().as_deref(), Some("resume"));
    }

    #[test]
    fn json_with_an_arrow_inside_a_command_stays_whole() {
        let command = r#"{"execute":"qom-get"}"#;
        let rule = Rule::parse(&format!("a => {command}")).unwrap();
        assert_eq!(rule, Rule::Tell { after: Some("a".into()), command: command.into() });
    }

    #[test]
    fn rules_without_a_text_a_command_or_an_event_are_refused() {
        for text in ["", "a => ", " => stop", "event ", "event  "] {
            assert!(Rule::parse(text).is_err(), "{text:?}");
        }
    }
}
