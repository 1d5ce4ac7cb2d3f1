//! QEMU's monitor (QMP) and, through it, its human monitor (HMP): one JSON object per line in each direction.
//!
//! QEMU's standard input is one end of a socket pair, so no socket name can be too long or be left behind. A
//! thread reads QEMU's messages; this side never blocks: call [`Monitor::step`] regularly.

use super::rules::{Rule, Script};
use crate::failure::{Context, Failure, Result};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// QEMU's arguments for a monitor on its standard input.
pub(super) const ARGUMENTS: [&str; 4] =
    ["-chardev", "socket,id=monitor,fd=0", "-mon", "chardev=monitor,mode=control"];

/// QEMU's mandatory first command.
const HELLO: &str = r#"{"execute":"qmp_capabilities"}"#;

/// Time limit of an answer. The monitor runs in QEMU's main loop, so a later answer means that QEMU hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The beginning of a human monitor's answer that is no error; most commands answer nothing.
const HMP_GOOD: &str = "OK";

/// The connection, and the rules to carry out.
pub(super) struct Monitor {
    stream: UnixStream,
    messages: Receiver<Value>,
    script: Script,
    asked: Option<Asked>,
    /// Whether to show commands on standard error too.
    aloud: bool,
}

/// An unanswered command.
struct Asked {
    command: String,
    since: Instant,
}

impl Monitor {
    /// Opens both ends: the connection and QEMU's standard input.
    pub(super) fn open(rules: &[Rule], aloud: bool) -> Result<(Self, OwnedFd)> {
        let failed = "cannot make a socket pair for QEMU's monitor";
        let (stream, theirs) = UnixStream::pair().context(failed)?;
        let lines = BufReader::new(stream.try_clone().context(failed)?).lines();
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            // Ignore lines that are no JSON; the loop ends when QEMU closes its end.
            let values = lines.map_while(std::result::Result::ok);
            for value in values.filter_map(|line| serde_json::from_str(&line).ok()) {
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let mut monitor = Self { stream, messages, script: Script::new(rules), asked: None, aloud };
        monitor.send(HELLO.to_owned())?;
        Ok((monitor, theirs.into()))
    }

    /// Takes output of the guest's command.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        self.script.hear(bytes);
    }

    /// Handles QEMU's answers and events, and sends commands that are due.
    ///
    /// # Errors
    /// A command that QEMU refused or did not answer.
    pub(super) fn step(&mut self) -> Result<()> {
        while let Ok(message) = self.messages.try_recv() {
            self.take(&message)?;
        }
        match &self.asked {
            Some(asked) if asked.since.elapsed() > ANSWER_WITHIN => Err(Failure::new(format!(
                "QEMU did not answer {:?} within {} s: it hangs",
                asked.command,
                ANSWER_WITHIN.as_secs()
            ))),
            Some(_) => Ok(()),
            None => match self.script.next() {
                Some(command) => self.send(command),
                None => Ok(()),
            },
        }
    }

    /// Ends the connection after QEMU is gone; every rule must be done.
    ///
    /// # Errors
    /// The first rule that is not.
    pub(super) fn finish(mut self) -> Result<()> {
        while let Ok(message) = self.messages.recv_timeout(ANSWER_WITHIN) {
            self.take(&message)?;
            // The last rules may wait for the last events.
            if self.asked.is_none()
                && let Some(command) = self.script.next()
            {
                return Err(Failure::new(format!(
                    "QEMU was gone before it could be told {command:?}"
                )));
            }
        }
        match (self.asked, self.script.unfinished()) {
            (Some(asked), _) => {
                Err(Failure::new(format!("QEMU was gone before it answered {:?}", asked.command)))
            }
            (None, Some(unfinished)) => Err(Failure::new(unfinished)),
            (None, None) => Ok(()),
        }
    }

    /// Sends a command: QMP unchanged, any other line through the human monitor.
    fn send(&mut self, command: String) -> Result<()> {
        if command != HELLO {
            self.say(&command);
        }
        let message = if command.starts_with('{') {
            command.clone()
        } else {
            let arguments = json!({ "command-line": command });
            json!({ "execute": "human-monitor-command", "arguments": arguments }).to_string()
        };
        self.asked = Some(Asked { command, since: Instant::now() });
        // If QEMU is gone, the end of its output reports it.
        let _ = self.stream.write_all(format!("{message}\n").as_bytes());
        Ok(())
    }

    fn take(&mut self, message: &Value) -> Result<()> {
        if let Some(name) = message["event"].as_str() {
            let data = message["data"].to_string();
            self.say(&format!("{name} {data}"));
            self.script.see(name, &data);
            return Ok(());
        }
        let (Some(asked), Some(complaint)) = (&self.asked, complaint(message)) else {
            return Ok(());
        };
        if !complaint.is_empty() {
            return Err(Failure::new(format!("QEMU refuses {:?}: {complaint}", asked.command)));
        }
        self.asked = None;
        Ok(())
    }

    fn say(&self, what: &str) {
        if self.aloud {
            eprintln!("xtask: [monitor] {what}");
        }
    }
}

/// Returns the error in an answer, empty if there is none; `None` if the message is no answer.
fn complaint(message: &Value) -> Option<String> {
    if let Some(error) = message.get("error") {
        return Some(error["desc"].as_str().unwrap_or("it does not say why").to_owned());
    }
    match message.get("return")? {
        Value::String(said) if !said.starts_with(HMP_GOOD) => Some(said.trim().to_owned()),
        _ => Some(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a monitor with these rules, and returns QEMU's end of it.
    fn open(rules: &[&str]) -> (Monitor, BufReader<UnixStream>) {
        let rules: Vec<Rule> = rules.iter().map(|text| Rule::parse(text).unwrap()).collect();
        let (monitor, theirs) = Monitor::open(&rules, false).unwrap();
        (monitor, BufReader::new(UnixStream::from(theirs)))
    }

    fn answer(qemu: &mut BufReader<UnixStream>, message: &str) {
        qemu.get_mut().write_all(format!("{message}\r\n").as_bytes()).unwrap();
    }

    fn asked(qemu: &mut BufReader<UnixStream>) -> Value {
        let mut line = String::new();
        qemu.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Steps until no answer is pending.
    fn settle(monitor: &mut Monitor) -> Result<()> {
        while monitor.asked.is_some() {
            monitor.step()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    #[test]
    fn rules_are_carried_out_in_turn() {
        let (mut monitor, mut qemu) =
            open(&["go => device_del nvme0", "event DEVICE_DELETED nvme0"]);
        answer(&mut qemu, r#"{"QMP":{"version":{}}}"#);
        assert_eq!(asked(&mut qemu)["execute"], "qmp_capabilities");
        answer(&mut qemu, r#"{"return":{}}"#);
        settle(&mut monitor).unwrap();
        monitor.hear(b"go");
        monitor.step().unwrap();
        assert_eq!(asked(&mut qemu)["arguments"]["command-line"], "device_del nvme0");
        answer(&mut qemu, r#"{"return":""}"#);
        answer(&mut qemu, r#"{"event":"DEVICE_DELETED","data":{"device":"nvme0"}}"#);
        drop(qemu);
        monitor.finish().unwrap();
    }

    #[test]
    fn what_qemu_refuses_and_what_never_happens_are_told() {
        for refusal in [r#"{"error":{"class":"x","desc":"no way"}}"#, r#"{"return":"no way\r\n"}"#]
        {
            let (mut monitor, mut qemu) = open(&["go => stop"]);
            answer(&mut qemu, r#"{"return":{}}"#);
            settle(&mut monitor).unwrap();
            monitor.hear(b"go");
            monitor.step().unwrap();
            answer(&mut qemu, refusal);
            let refused = settle(&mut monitor).unwrap_err().to_string();
            assert_eq!(refused, r#"QEMU refuses "stop": no way"#);
        }
        let (monitor, mut qemu) = open(&["never => stop"]);
        answer(&mut qemu, r#"{"return":{}}"#);
        drop(qemu);
        assert!(monitor.finish().unwrap_err().to_string().contains("never told \"stop\""));
    }

    #[test]
    fn an_answer_that_begins_with_ok_is_good() {
        assert_eq!(complaint(&json!({"return": "OK id: rp0"})), Some(String::new()));
        assert_eq!(
            complaint(&json!({"return": "unknown command"})),
            Some("unknown command".into())
        );
        assert_eq!(complaint(&json!({"QMP": {}})), None);
    }
}
