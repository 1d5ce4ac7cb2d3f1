//! Fault plans as text: rules joined by `+`, each `FAULT[(ARGUMENT)][@CONDITION[:CONDITION...]]`.
//!
//! The syntax has no comma, so that a plan fits into a target.

use std::str::FromStr;

use super::{FaultChance, FaultCommands, FaultKind, FaultPlan, FaultRule, FaultTrigger, Subject};
use crate::error::{Error, Result};
use crate::words::{Parsed, duration, number, unknown};
use crate::{admin, io};
use adit_spec::{Nsid, Qid, Status};

/// Faults without an argument, by their words.
const PLAIN: [(&str, FaultKind); 19] = [
    ("lose", FaultKind::Lose),
    ("mute", FaultKind::Mute),
    ("hold", FaultKind::Hold),
    ("twice", FaultKind::Twice),
    ("cid", FaultKind::WrongCid),
    ("sqid", FaultKind::WrongSqid),
    ("sqhd", FaultKind::WrongSqhd),
    ("phase", FaultKind::WrongPhase),
    ("media", FaultKind::Media),
    ("rot", FaultKind::Rot),
    ("misdirect", FaultKind::Misdirect),
    ("noabort", FaultKind::RefuseAbort),
    ("cfs", FaultKind::Fatal),
    ("remove", FaultKind::Remove),
    ("hang-enable", FaultKind::HangEnable),
    ("refuse-disable", FaultKind::RefuseDisable),
    ("refuse-reset", FaultKind::RefuseReset),
    ("refuse-nssr", FaultKind::RefuseSubsystemReset),
    ("tear", FaultKind::Tear),
];
/// Faults with an argument.
const OTHERS: [&str; 5] = ["delay", "again", "status", "slow-enable", "slow-disable"];
const COMMANDS: [&str; 3] = ["any", "io", "admin"];
const CONDITIONS: [&str; 9] = ["q", "nsid", "lba", "op", "admin-op", "p", "n", "t", "times"];
const FLAGS: [&str; 5] = ["dnr", "more", "crd1", "crd2", "crd3"];

impl FromStr for FaultPlan {
    type Err = Error;

    /// Parses rules joined by `+`; an empty text is the empty plan.
    fn from_str(text: &str) -> Result<FaultPlan> {
        let rules = text.split('+').filter(|_| !text.is_empty()).map(|rule| {
            rule_of(rule).map_err(|why| Error::invalid(format!("fault '{rule}'"), why))
        });
        Ok(FaultPlan { rules: rules.collect::<Result<_>>()? })
    }
}

fn rule_of(text: &str) -> Parsed<FaultRule> {
    let (fault, conditions) = match text.split_once('@') {
        Some((_, "")) => return Err("a condition comes after '@', as in 'lose@p=0.001'".to_owned()),
        Some((fault, conditions)) => (fault, conditions),
        None => (text, ""),
    };
    let mut rule = FaultRule::new(kind(fault)?);
    let mut given = Vec::new();
    for word in conditions.split(':').filter(|_| !conditions.is_empty()) {
        let what = condition(&mut rule, word)?;
        if given.contains(&what) {
            return Err(format!("'{word}' sets {what} a second time"));
        }
        given.push(what);
    }
    check(&rule, &given)?;
    Ok(rule)
}

/// Refuses rules that can never fire.
fn check(rule: &FaultRule, given: &[&str]) -> Parsed<()> {
    let is_scoped = given.iter().any(|what| *what != WHEN && *what != HOW_OFTEN);
    match rule.kind.subject() {
        Subject::Life if is_scoped => {
            Err("it does not concern commands; it takes 'p=', 'n=', 't=' and 'times=' only"
                .to_owned())
        }
        Subject::Lbas | Subject::Writes => match rule.scope.commands {
            FaultCommands::Admin | FaultCommands::AdminOpcode(_) => {
                Err("admin commands have no LBAs; name an I/O command such as 'write'".to_owned())
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn kind(text: &str) -> Parsed<FaultKind> {
    let (name, argument) = match text.split_once('(') {
        None => (text, None),
        Some((name, rest)) => {
            let argument = rest.strip_suffix(')');
            (name, Some(argument.ok_or_else(|| format!("'{text}' has no closing ')'"))?))
        }
    };
    let time = || argument.map(duration).unwrap_or_else(|| needs(name, "a time", "(5ms)"));
    Ok(match name {
        "delay" => FaultKind::Delay(time()?),
        "again" => FaultKind::Again(time()?),
        "slow-enable" => FaultKind::SlowEnable(time()?),
        "slow-disable" => FaultKind::SlowDisable(time()?),
        "status" => FaultKind::Status(match argument {
            Some(argument) => status(argument)?,
            None => return needs(name, "a code type and code", "(2:81)"),
        }),
        "" => return Err("it names no fault; write one such as 'lose'".to_owned()),
        _ => match PLAIN.iter().find(|(plain, _)| *plain == name) {
            Some(_) if argument.is_some() => {
                return Err(format!("'{name}' takes nothing in parentheses"));
            }
            Some((_, kind)) => *kind,
            None => {
                let names: Vec<&str> = PLAIN.iter().map(|(name, _)| *name).chain(OTHERS).collect();
                return Err(unknown("fault", name, &names));
            }
        },
    })
}

fn needs<T>(name: &str, what: &str, example: &str) -> Parsed<T> {
    Err(format!("'{name}' needs {what}, as in '{name}{example}'"))
}

fn status(text: &str) -> Parsed<Status> {
    let mut words = text.split(':');
    let mut code = |limit: u8| {
        let word = words.next().unwrap_or_default();
        let parsed = u8::from_str_radix(word, 16)
            .ok()
            .filter(|code| *code <= limit && !word.starts_with('+'));
        parsed.ok_or_else(|| {
            format!(
                "'{text}' is not a status: code type (0 to 7) and code in hexadecimal, as in '2:81'"
            )
        })
    };
    let mut status = Status::new(code(7)?, code(u8::MAX)?);
    for flag in words {
        status = match flag {
            "dnr" => status.with_dnr(true),
            "more" => status.with_more(true),
            "crd1" => status.with_crd(1),
            "crd2" => status.with_crd(2),
            "crd3" => status.with_crd(3),
            other => return Err(unknown("status flag", other, &FLAGS)),
        };
    }
    Ok(status)
}

const WHICH: &str = "the commands";
const WHEN: &str = "the time";
const HOW_OFTEN: &str = "the frequency";

/// Parses one condition; returns its kind, which may occur once.
fn condition(rule: &mut FaultRule, word: &str) -> Parsed<&'static str> {
    let scope = &mut rule.scope;
    let (name, value) = match word.split_once('=') {
        Some(parts) => parts,
        None => {
            scope.commands = commands(word)?;
            return Ok(WHICH);
        }
    };
    match name {
        "q" => return Ok(set(&mut scope.queue, Qid(number(value)?), "in which queue")),
        "nsid" => return Ok(set(&mut scope.namespace, Nsid(number(value)?), "in which namespace")),
        "lba" => return Ok(set(&mut scope.lbas, lbas(value)?, "at which LBAs")),
        "times" => return Ok(set(&mut rule.times, number(value)?, HOW_OFTEN)),
        _ => {}
    }
    match name {
        "op" => scope.commands = FaultCommands::IoOpcode(number(value)?),
        "admin-op" => scope.commands = FaultCommands::AdminOpcode(number(value)?),
        _ => {
            rule.trigger = trigger(name, value)?;
            return Ok(WHEN);
        }
    }
    Ok(WHICH)
}

fn set<T>(slot: &mut Option<T>, value: T, what: &'static str) -> &'static str {
    *slot = Some(value);
    what
}

fn trigger(name: &str, value: &str) -> Parsed<FaultTrigger> {
    Ok(match name {
        "p" => FaultTrigger::Chance(chance(value)?),
        "n" => match number(value)? {
            0 => return Err("'n' counts from 1".to_owned()),
            n => FaultTrigger::Nth(n),
        },
        "t" => FaultTrigger::From(duration(value)?),
        other => return Err(unknown("condition", other, &CONDITIONS)),
    })
}

fn commands(word: &str) -> Parsed<FaultCommands> {
    if let Some((opcode, ..)) = io::COMMANDS.iter().find(|(_, name, _)| *name == Some(word)) {
        return Ok(FaultCommands::IoOpcode(*opcode));
    }
    if let Some((opcode, _)) = admin::NAMES.iter().find(|(_, name)| *name == word) {
        return Ok(FaultCommands::AdminOpcode(*opcode));
    }
    match word {
        "any" => Ok(FaultCommands::Any),
        "io" => Ok(FaultCommands::Io),
        "admin" => Ok(FaultCommands::Admin),
        "" => Err("there is nothing between two ':'".to_owned()),
        _ if CONDITIONS.contains(&word) => Err(format!("'{word}' needs a value: '{word}=VALUE'")),
        _ => {
            let io = io::COMMANDS.iter().filter_map(|(_, name, _)| *name);
            let admin = admin::NAMES.iter().map(|(_, name)| *name);
            let names: Vec<&str> = io.chain(admin).chain(COMMANDS).collect();
            Err(unknown("command", word, &names))
        }
    }
}

/// Parses `FIRST-LAST` or one LBA.
fn lbas(value: &str) -> Parsed<(u64, u64)> {
    let (first, last) = value.split_once('-').unwrap_or((value, value));
    match (number(first)?, number(last)?) {
        (first, last) if first <= last => Ok((first, last)),
        (first, last) => {
            Err(format!("'{value}' ends before it starts; write 'lba={last}-{first}'"))
        }
    }
}

/// Parses a decimal fraction from 0 to 1 with up to nine digits.
fn chance(value: &str) -> Parsed<FaultChance> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    let digits = format!("{whole}{fraction:0<9}");
    let is_plain = digits.bytes().all(|digit| digit.is_ascii_digit()) && fraction.len() <= 9;
    let ppb = digits.parse::<u32>().ok().filter(|ppb| is_plain && *ppb <= FaultChance::CERTAIN_PPB);
    let chance = ppb.filter(|_| !whole.is_empty()).map(FaultChance::from_ppb);
    chance.ok_or_else(|| format!("'{value}' is not a probability from 0 to 1, as in 'p=0.001'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(text: &str) -> FaultPlan {
        text.parse().expect("a plan")
    }

    fn refusal(text: &str) -> String {
        text.parse::<FaultPlan>().expect_err("must be refused").to_string()
    }

    #[test]
    fn a_plan_is_read_as_it_is_meant() {
        let plan = plan("lose@p=0.001+status(2:81:crd2)@read:lba=8-15:n=100+noabort");
        let [lose, status, noabort] = &plan.rules[..] else { panic!("three rules") };
        let chance = FaultTrigger::Chance(FaultChance::from_ppb(1_000_000));
        assert_eq!(*lose, FaultRule { trigger: chance, ..FaultRule::new(FaultKind::Lose) });
        assert_eq!(status.kind, FaultKind::Status(Status::new(2, 0x81).with_crd(2)));
        assert_eq!(status.scope.commands, FaultCommands::IoOpcode(2));
        assert_eq!((status.scope.lbas, status.trigger), (Some((8, 15)), FaultTrigger::Nth(100)));
        assert_eq!(noabort.scope.commands, FaultCommands::AdminOpcode(8));
        assert_eq!(FaultPlan::default(), "".parse().expect("no rules"));
    }

    #[test]
    fn each_mistake_gets_a_sentence() {
        for (text, part) in [
            ("loose", "did you mean 'lose'?"),
            ("", "names no fault"),
            ("lose+", "names no fault"),
            ("lose@", "after '@'"),
            ("lose@p", "'p=VALUE'"),
            ("lose@reed", "did you mean 'read'?"),
            ("lose@tmes=3", "did you mean 'times'?"),
            ("lose@p=1.5", "from 0 to 1"),
            ("lose@p=0.0000000001", "from 0 to 1"),
            ("lose@p=.5", "from 0 to 1"),
            ("lose@n=0", "counts from 1"),
            ("lose@read:write", "sets the commands a second time"),
            ("lose@p=0.1:n=3", "sets the time a second time"),
            ("lose@lba=9-3", "'lba=3-9'"),
            ("lose(3ms)", "nothing in parentheses"),
            ("delay", "as in 'delay(5ms)'"),
            ("delay(5ms", "no closing"),
            ("delay(5)", "not a duration"),
            ("status", "as in 'status(2:81)'"),
            ("status(9:81)", "not a status"),
            ("status(2)", "not a status"),
            ("status(2:81:dntr)", "did you mean 'dnr'?"),
            ("tear@read", "does not concern commands"),
            ("rot@identify", "have no LBAs"),
            ("lose@read::n=3", "between two ':'"),
        ] {
            let message = if text.is_empty() {
                "lose+".parse::<FaultPlan>().expect_err("refused").to_string()
            } else {
                refusal(text)
            };
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z()@:=+.0-9µ-]{0,40}") {
            let _ = text.parse::<FaultPlan>();
        }
    }
}
