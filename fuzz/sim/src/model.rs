//! The model: what each LBA may hold, inferred only from requests and answers.
//!
//! An LBA has *candidates*: values that a request wrote, or may have written, with the time in which that can have
//! happened. Time counts the events of the run. Three rules move them:
//!
//! | event | what it tells |
//! |---|---|
//! | a write succeeded | what had ended before it began is overwritten |
//! | a read returned a value | another value that had ended before the read began is not there |
//! | a write ended with an unknown result | it stays possible, and overwrites nothing |
//!
//! Requests that overlap in time can take effect in either order. A read may return any candidate that was possible
//! at some moment between its begin and its end.
//!
//! With a volatile write cache an overwritten value can come back when power fails, until a Flush or a write with
//! Force Unit Access succeeds that began after the overwriting was known: then it is *buried* (NVM Command Set 1.0
//! sections 3.2.1 and 3.2.7).

use crate::content::Value;

/// Later than all events.
const NEVER: u64 = u64::MAX;
/// Number of candidates of an LBA above which invisible ones are removed.
const CROWD: usize = 12;

/// A value that an LBA has, had or may come to have.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    value: Value,
    /// The request that writes it.
    tag: u64,
    /// When the request ended; [`NEVER`] while it is in flight.
    ended: u64,
    /// When the value was known to be gone; [`NEVER`] while it may be there.
    gone: u64,
    /// Whether not even a power loss can bring it back.
    buried: bool,
    /// Whether a read returned it, and no other request can have written the same.
    seen: bool,
}

/// How a request that writes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The data is there; `durable`: even after a power loss.
    Yes {
        /// Whether it had Force Unit Access or there is no write cache.
        durable: bool,
    },
    /// The data may or may not be there.
    Maybe,
    /// The driver promised that the data is not there.
    No,
}

/// The candidates of every LBA.
#[derive(Debug)]
pub(crate) struct Model {
    lbas: Vec<Vec<Candidate>>,
    clock: u64,
    /// When power was last lost; 0 if never.
    cut: u64,
    /// Whether there is a volatile write cache.
    cached: bool,
}

impl Model {
    /// Creates a model of `lbas` LBAs that hold zeros; `cached`: behind a volatile write cache.
    pub(crate) fn new(lbas: usize, cached: bool) -> Model {
        let zeros =
            Candidate { value: 0, tag: NEVER, ended: 0, gone: NEVER, buried: false, seen: true };
        Model { lbas: vec![vec![zeros]; lbas], clock: 1, cut: 0, cached }
    }

    /// Advances to the time of the next event.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Begins a request that writes `value`.
    pub(crate) fn begin(&mut self, tag: u64, lba: u64, value: Value) {
        let candidate =
            Candidate { value, tag, ended: NEVER, gone: NEVER, buried: false, seen: false };
        self.lbas[lba as usize].push(candidate);
    }

    /// Ends the request that began at `began`, for this LBA. `oldest` is when the oldest request in flight began:
    /// values gone before then can no longer be seen.
    ///
    /// # Errors
    /// If data was read that the driver promised not to have written.
    pub(crate) fn end(
        &mut self,
        (tag, began, oldest): (u64, u64, u64),
        lba: u64,
        written: Written,
    ) -> Result<(), String> {
        let now = self.clock;
        let all = &mut self.lbas[lba as usize];
        let at = all.iter().position(|candidate| candidate.tag == tag && candidate.ended == NEVER);
        let at = at.ok_or_else(|| format!("request {tag} ended twice at LBA {lba}"))?;
        all[at].ended = now;
        match written {
            Written::Maybe => {}
            Written::No => {
                let promised = all.swap_remove(at);
                if promised.seen {
                    return Err(format!(
                        "request {tag} is said to have written nothing, and LBA {lba} was read with its data"
                    ));
                }
            }
            // Data cached before power was lost may be gone.
            Written::Yes { durable: false } if began < self.cut => {}
            Written::Yes { durable } => {
                for other in all.iter_mut().filter(|other| other.ended < began) {
                    other.gone = other.gone.min(now);
                    other.buried |= durable;
                }
            }
        }
        if all.len() > CROWD {
            all.retain(|candidate| !candidate.buried || candidate.gone >= oldest);
        }
        Ok(())
    }

    /// Records that a read that began at `began` returned `value`.
    ///
    /// # Errors
    /// If nothing allows that value: law 1 is broken.
    pub(crate) fn observe(&mut self, began: u64, lba: u64, value: Value) -> Result<(), String> {
        if !self.allows(began, lba, value) {
            return Err(format!(
                "LBA {lba} was read as {value:#x}, and it may hold {:#x?}",
                self.possible(began, lba)
            ));
        }
        let (now, cut, cached) = (self.clock, self.cut, self.cached);
        let all = self.lbas[lba as usize].iter();
        let is_it = |one: &&Candidate| one.value == value && one.gone >= began;
        // Several requests may have written zeros.
        let is_only = all.clone().filter(is_it).count() == 1;
        // Values older than the power loss survived it, and are no longer in a cache.
        let survived = cut > 0 && all.clone().filter(is_it).all(|one| one.ended <= cut);
        for candidate in &mut self.lbas[lba as usize] {
            if candidate.value == value {
                candidate.seen |= is_only && candidate.gone >= began;
            } else if candidate.ended < began && (!cached || cut < began) {
                candidate.gone = candidate.gone.min(now);
                candidate.buried |= !cached || (survived && candidate.ended <= cut);
            }
        }
        Ok(())
    }

    /// Returns whether a read that began at `began` and ends now may return `value`.
    pub(crate) fn allows(&self, began: u64, lba: u64, value: Value) -> bool {
        let mut all = self.lbas[lba as usize].iter();
        all.any(|candidate| candidate.value == value && candidate.gone >= began)
    }

    /// Returns what a read that began at `began` and ends now may return.
    pub(crate) fn possible(&self, began: u64, lba: u64) -> Vec<Value> {
        let all = self.lbas[lba as usize].iter();
        let mut values: Vec<Value> = all
            .filter(|candidate| candidate.gone >= began)
            .map(|candidate| candidate.value)
            .collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Returns a value that the LBA may hold, preferring the newest.
    pub(crate) fn likely(&self, lba: u64) -> Value {
        let mut all = self.lbas[lba as usize].iter().rev();
        all.find(|candidate| candidate.gone == NEVER).map_or(0, |candidate| candidate.value)
    }

    /// Returns the only possible value of the LBA, if it is known and nothing is about to change it.
    pub(crate) fn settled(&self, lba: u64) -> Option<Value> {
        let mut present = self.lbas[lba as usize].iter().filter(|one| one.gone == NEVER);
        let first = present.next().filter(|one| one.ended < NEVER)?;
        present.next().is_none().then_some(first.value)
    }

    pub(crate) fn flushed(&mut self, began: u64) {
        for candidate in self.lbas.iter_mut().flatten() {
            candidate.buried |= candidate.gone < began;
        }
    }

    /// Records that an LBA is removed or new: it holds zeros for good.
    pub(crate) fn erase(&mut self, lba: u64) {
        let now = self.clock;
        let all = &mut self.lbas[lba as usize];
        for candidate in all.iter_mut().filter(|candidate| candidate.ended < NEVER) {
            candidate.gone = candidate.gone.min(now);
            candidate.buried = true;
        }
        all.push(Candidate {
            value: 0,
            tag: NEVER,
            ended: now,
            gone: NEVER,
            buried: false,
            seen: true,
        });
    }

    /// Records a power loss: overwritten values that were not made durable may be back.
    pub(crate) fn lose_power(&mut self) {
        self.cut = self.tick();
        for all in &mut self.lbas {
            for candidate in all.iter_mut().filter(|candidate| !candidate.buried) {
                candidate.gone = NEVER;
            }
        }
    }

    pub(crate) fn lba_count(&self) -> u64 {
        self.lbas.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURABLE: Written = Written::Yes { durable: true };
    const CACHED: Written = Written::Yes { durable: false };

    struct Run {
        model: Model,
        tag: u64,
    }

    impl Run {
        fn new() -> Run {
            Run { model: Model::new(1, true), tag: 0 }
        }

        fn begin(&mut self, value: Value) -> (u64, u64, u64) {
            self.tag += 1;
            let began = self.model.tick();
            self.model.begin(self.tag, 0, value);
            (self.tag, began, 0)
        }

        fn end(&mut self, write: (u64, u64, u64), written: Written) {
            self.model.tick();
            self.model.end(write, 0, written).expect("kept its promise");
        }

        fn write(&mut self, value: Value, written: Written) {
            let write = self.begin(value);
            self.end(write, written);
        }

        fn read(&mut self, value: Value) -> Result<(), String> {
            let began = self.model.tick();
            self.model.tick();
            self.model.observe(began, 0, value)
        }

        fn may_hold(&mut self) -> Vec<Value> {
            let began = self.model.tick();
            self.model.possible(began, 0)
        }
    }

    #[test]
    fn an_acknowledged_write_is_all_there_is() {
        let mut run = Run::new();
        run.write(7, DURABLE);
        assert_eq!(run.may_hold(), [7]);
        assert!(run.read(0).is_err());
        assert!(run.read(7).is_ok());
    }

    #[test]
    fn a_write_of_unknown_outcome_is_there_or_not_and_a_read_settles_it() {
        for (seen, other) in [(7, 0), (0, 7)] {
            let mut run = Run::new();
            run.write(7, Written::Maybe);
            assert_eq!(run.may_hold(), [0, 7]);
            run.read(seen).expect("possible");
            assert!(run.read(other).is_err(), "it does not change by itself");
        }
    }

    #[test]
    fn writes_that_overlap_in_time_take_effect_in_either_order() {
        let mut run = Run::new();
        let (first, second) = (run.begin(1), run.begin(2));
        run.end(second, DURABLE);
        run.end(first, DURABLE);
        assert_eq!(run.may_hold(), [1, 2]);
        run.write(3, DURABLE);
        assert_eq!(run.may_hold(), [3]);
    }

    #[test]
    fn a_read_may_return_what_was_there_at_any_time_between_its_ends() {
        let mut run = Run::new();
        let began = run.model.tick();
        run.write(1, DURABLE);
        run.write(2, DURABLE);
        assert_eq!(run.model.possible(began, 0), [0, 1, 2]);
        assert_eq!(run.may_hold(), [2]);
    }

    #[test]
    fn a_broken_promise_is_noticed_before_and_after_it_is_made() {
        let mut run = Run::new();
        let write = run.begin(5);
        run.read(5).expect("in flight");
        run.model.tick();
        assert!(run.model.end(write, 0, Written::No).is_err());
        let mut run = Run::new();
        run.write(5, Written::No);
        assert!(run.read(5).is_err());
    }

    #[test]
    fn what_was_there_before_is_no_broken_promise() {
        let mut run = Run::new();
        let zeroes = run.begin(0);
        run.read(0).expect("still zeros");
        run.end(zeroes, Written::No);
    }

    #[test]
    fn power_loss_brings_back_what_was_not_made_durable() {
        let mut run = Run::new();
        run.write(1, DURABLE);
        run.write(2, CACHED);
        run.write(3, CACHED);
        run.model.lose_power();
        assert_eq!(run.may_hold(), [1, 2, 3], "and not the zeros");
        run.read(2).expect("possible");
        run.model.lose_power();
        assert_eq!(run.may_hold(), [2], "the others were lost the first time");
    }

    #[test]
    fn what_a_read_finds_in_the_cache_is_not_durable() {
        let mut run = Run::new();
        run.write(1, CACHED);
        run.read(1).expect("written");
        run.model.lose_power();
        assert_eq!(run.may_hold(), [0, 1]);
    }

    #[test]
    fn what_is_learnt_after_a_power_loss_of_before_it_is_of_before_it() {
        let mut run = Run::new();
        let (write, read) = (run.begin(1), run.model.tick());
        run.model.lose_power();
        run.end(write, CACHED);
        run.model.observe(read, 0, 1).expect("written before");
        assert_eq!(run.may_hold(), [0, 1]);
        let write = run.begin(2);
        run.model.lose_power();
        run.end(write, DURABLE);
        assert_eq!(run.may_hold(), [2]);
    }

    #[test]
    fn what_is_written_after_a_power_loss_says_nothing_of_before() {
        let mut run = Run::new();
        run.model.lose_power();
        run.write(1, CACHED);
        run.read(1).expect("written");
        run.model.lose_power();
        assert_eq!(run.may_hold(), [0, 1]);
    }

    #[test]
    fn a_flush_covers_what_was_known_when_it_began() {
        let mut run = Run::new();
        run.write(1, CACHED);
        let began = run.model.tick();
        run.write(2, CACHED);
        run.model.tick();
        run.model.flushed(began);
        run.model.lose_power();
        assert_eq!(run.may_hold(), [1, 2]);
    }

    #[test]
    fn an_erased_lba_holds_zeros_and_what_was_about_to_be_written() {
        let mut run = Run::new();
        run.write(1, CACHED);
        let write = run.begin(2);
        run.model.tick();
        run.model.erase(0);
        run.model.lose_power();
        assert_eq!(run.may_hold(), [0, 2]);
        run.end(write, Written::No);
        assert_eq!(run.may_hold(), [0]);
    }

    #[test]
    fn force_unit_access_covers_its_own_lba() {
        let mut run = Run::new();
        run.write(1, CACHED);
        run.write(2, DURABLE);
        run.model.lose_power();
        assert_eq!(run.may_hold(), [2]);
    }

    #[test]
    fn crowds_are_thinned_without_forgetting_what_may_be_seen() {
        let mut run = Run::new();
        let began = run.model.tick();
        for value in 1..40 {
            let (tag, at, _) = run.begin(value);
            run.model.tick();
            run.model.end((tag, at, began), 0, DURABLE).expect("kept");
        }
        assert_eq!(run.model.possible(began, 0).len(), 40);
        let last = run.begin(99);
        run.end((last.0, last.1, last.1), DURABLE);
        assert_eq!(run.may_hold(), [99]);
        assert!(run.model.lbas[0].len() <= 2);
    }
}
