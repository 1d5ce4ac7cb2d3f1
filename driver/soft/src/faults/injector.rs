//! Executes a plan: decides which rule fires for each command or moment.

use std::time::Duration;

use super::{FaultCommands, FaultKind, FaultPlan, FaultRule, FaultScope, FaultTrigger, Subject};
use crate::command::Command;
use crate::io::{range_of, writes};
use crate::rng::Rng;
use adit_shared::Time;

/// A lifecycle step of the controller at which a fault can occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The host set CC.EN.
    Enable,
    /// The host cleared CC.EN.
    Disable,
    Reset,
    SubsystemReset,
    PowerCut,
}

/// A rule with its random stream and counters.
#[derive(Debug)]
struct Armed {
    rule: FaultRule,
    rng: Rng,
    /// Commands or moments that matched it.
    seen: u64,
    fired: u32,
}

/// The rules of a plan with their progress.
#[derive(Debug)]
pub(crate) struct Injector(Vec<Armed>);

/// Separates the rules' streams from the controller's other draws.
const STREAM: u64 = 0xfa17_0000;

impl Injector {
    pub(crate) fn new(plan: &FaultPlan, seed: u64) -> Injector {
        let armed = plan.rules.iter().zip(STREAM..).map(|(rule, stream)| Armed {
            rule: rule.clone(),
            rng: Rng::stream(seed, stream),
            seen: 0,
            fired: 0,
        });
        Injector(armed.collect())
    }

    /// Returns how often each rule has fired.
    pub(crate) fn counts(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|armed| armed.fired)
    }

    /// Returns what goes wrong with a command, and a number for whatever it leaves open.
    pub(crate) fn command(&mut self, command: &Command, now: Time) -> Option<(FaultKind, u64)> {
        self.first(now, |rule| !rule.is_of_life() && !rule.is_by_clock() && rule.applies(command))
    }

    /// Returns what goes wrong at a moment.
    pub(crate) fn moment(&mut self, moment: Moment, now: Time) -> Option<FaultKind> {
        self.first(now, |rule| rule.kind.moment() == Some(moment)).map(|(kind, _)| kind)
    }

    /// Returns what goes wrong by the clock alone; each rule once.
    pub(crate) fn clock(&mut self, now: Time) -> Option<FaultKind> {
        let due = |armed: &&mut Armed| armed.waits_for().is_some_and(|time| time <= now);
        let armed = self.0.iter_mut().find(due)?;
        armed.fired += 1;
        Some(armed.rule.kind)
    }

    /// Returns when the next clock fault is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.0.iter().filter_map(Armed::waits_for).min()
    }

    /// Returns the first rule that fires. Every matching rule counts and draws, so that rules stay independent.
    fn first(
        &mut self,
        now: Time,
        applies: impl Fn(&FaultRule) -> bool,
    ) -> Option<(FaultKind, u64)> {
        let mut found = None;
        for armed in self.0.iter_mut().filter(|armed| applies(&armed.rule)) {
            let (fires, draw) = (armed.draw(now), armed.rng.next());
            if fires && found.is_none() {
                armed.fired += 1;
                found = Some((armed.rule.kind, draw));
            }
        }
        found
    }
}

impl Armed {
    fn draw(&mut self, now: Time) -> bool {
        self.seen += 1;
        let hits = match self.rule.trigger {
            FaultTrigger::Always => true,
            FaultTrigger::Chance(chance) => {
                self.rng.chance(u64::from(chance.ppb()), u64::from(super::FaultChance::CERTAIN_PPB))
            }
            FaultTrigger::Nth(n) => self.seen == n,
            FaultTrigger::From(start) => now >= Time::ZERO + start,
        };
        hits && self.rule.times.is_none_or(|times| self.fired < times)
    }

    /// Returns the time at which the rule fires by the clock, until it has fired.
    fn waits_for(&self) -> Option<Time> {
        let may = self.fired == 0 && self.rule.times != Some(0);
        self.rule.start_by_clock().filter(|_| may).map(|start| Time::ZERO + start)
    }
}

impl FaultRule {
    fn is_of_life(&self) -> bool {
        self.kind.subject() == Subject::Life
    }

    fn is_by_clock(&self) -> bool {
        self.start_by_clock().is_some()
    }

    /// Returns the start time of a controller fault that waits for no command.
    fn start_by_clock(&self) -> Option<Duration> {
        let names_commands = self.scope != FaultRule::new(self.kind).scope;
        match self.trigger {
            FaultTrigger::From(start) if self.kind.subject() == Subject::Controller => {
                Some(start).filter(|_| !names_commands)
            }
            _ => None,
        }
    }

    fn applies(&self, command: &Command) -> bool {
        let range = range_of(command);
        let suits = match self.kind.subject() {
            Subject::Lbas => range.is_some(),
            Subject::Writes => range.is_some() && writes(command.opcode),
            _ => true,
        };
        suits && self.scope.contains(command, range)
    }
}

impl FaultScope {
    fn contains(&self, command: &Command, range: Option<(u64, u64)>) -> bool {
        let (is_admin, opcode) = (command.sqid.is_admin(), command.opcode);
        let is_one = match self.commands {
            FaultCommands::Any => true,
            FaultCommands::Io => !is_admin,
            FaultCommands::Admin => is_admin,
            FaultCommands::IoOpcode(of) => !is_admin && opcode == of,
            FaultCommands::AdminOpcode(of) => is_admin && opcode == of,
        };
        let overlaps = |(first, last): (u64, u64)| {
            range.is_some_and(|(start, count)| start <= last && first < start.saturating_add(count))
        };
        is_one
            && self.queue.is_none_or(|queue| queue == command.sqid)
            && self.namespace.is_none_or(|namespace| namespace.0 == command.nsid)
            && self.lbas.is_none_or(overlaps)
    }
}

impl FaultKind {
    pub(super) fn moment(self) -> Option<Moment> {
        match self {
            FaultKind::HangEnable | FaultKind::SlowEnable(_) => Some(Moment::Enable),
            FaultKind::SlowDisable(_) | FaultKind::RefuseDisable => Some(Moment::Disable),
            FaultKind::RefuseReset => Some(Moment::Reset),
            FaultKind::RefuseSubsystemReset => Some(Moment::SubsystemReset),
            FaultKind::Tear => Some(Moment::PowerCut),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_spec::Qid;

    fn command(opcode: u8, qid: u16, lba: u64) -> Command {
        let mut entry = [0; 64];
        entry[0] = opcode;
        entry[4] = 1;
        entry[40..48].copy_from_slice(&lba.to_le_bytes());
        Command::parse(&entry, Qid(qid))
    }

    fn injector(plan: &str, seed: u64) -> Injector {
        Injector::new(&plan.parse().expect("a plan"), seed)
    }

    fn hits(injector: &mut Injector, count: u64) -> Vec<(u64, FaultKind, u64)> {
        let draw = |at| {
            injector
                .command(&command(2, 1, at), Time::from_ns(at))
                .map(|(kind, draw)| (at, kind, draw))
        };
        (0..count).filter_map(draw).collect()
    }

    #[test]
    fn one_seed_fires_for_the_same_commands_and_another_for_others() {
        let plan = "lose@p=0.01+rot@p=0.02";
        let once = hits(&mut injector(plan, 7), 10_000);
        assert_eq!(once, hits(&mut injector(plan, 7), 10_000));
        assert_ne!(once, hits(&mut injector(plan, 8), 10_000));
        let lost = once.iter().filter(|(_, kind, _)| *kind == FaultKind::Lose).count();
        assert!((50..200).contains(&lost), "{lost} of 10000 at one in a hundred");
    }

    #[test]
    fn a_rule_that_is_taken_away_does_not_move_the_one_before() {
        let with = hits(&mut injector("lose@p=0.01+rot@p=0.5", 7), 5000);
        let lost: Vec<_> =
            with.into_iter().filter(|(_, kind, _)| *kind == FaultKind::Lose).collect();
        assert_eq!(lost, hits(&mut injector("lose@p=0.01", 7), 5000));
    }

    #[test]
    fn scopes_counts_and_times_hold() {
        let mut nth = injector("lose@read:q=1:lba=10-19:n=2", 1);
        for (opcode, qid, lba, fires) in [
            (2, 1, 15, false),
            (1, 1, 15, false),
            (2, 2, 15, false),
            (2, 1, 20, false),
            (2, 1, 10, true),
            (2, 1, 12, false),
        ] {
            let fired = nth.command(&command(opcode, qid, lba), Time::ZERO).is_some();
            assert_eq!(fired, fires, "opcode {opcode} queue {qid} LBA {lba}");
        }
        assert_eq!(
            hits(&mut injector("lose@t=5ns:times=3", 1), 20)
                .iter()
                .map(|hit| hit.0)
                .collect::<Vec<_>>(),
            [5, 6, 7]
        );
        assert!(
            injector("lose", 1).command(&command(6, 0, 0), Time::ZERO).is_none(),
            "admin is not meant"
        );
        assert!(
            injector("misdirect", 1).command(&command(2, 1, 0), Time::ZERO).is_none(),
            "a read is no write"
        );
    }

    #[test]
    fn the_clock_and_the_moments_have_their_own_rules() {
        let mut clock = injector("cfs@t=5us", 1);
        assert_eq!(clock.next_due(), Some(Time::from_ns(5000)));
        assert!(clock.command(&command(2, 1, 0), Time::from_ns(9000)).is_none());
        assert_eq!(clock.clock(Time::from_ns(4999)), None);
        assert_eq!(clock.clock(Time::from_ns(5000)), Some(FaultKind::Fatal));
        assert_eq!((clock.clock(Time::from_ns(6000)), clock.next_due()), (None, None));
        let mut life = injector("hang-enable@n=2+refuse-disable", 1);
        let enables = [(); 3].map(|()| life.moment(Moment::Enable, Time::ZERO));
        assert_eq!(enables, [None, Some(FaultKind::HangEnable), None]);
        assert_eq!(life.moment(Moment::Disable, Time::ZERO), Some(FaultKind::RefuseDisable));
        assert_eq!(life.counts().collect::<Vec<_>>(), [1, 1]);
    }
}
