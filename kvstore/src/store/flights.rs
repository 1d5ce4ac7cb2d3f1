//! Maps requests in shards to the callers that wait for them.

use super::job::Waiter;

/// Requests in progress, indexed by their tag in the shard.
#[derive(Default)]
pub(super) struct Flights {
    flights: Vec<Flight>,
    free: Vec<u32>,
}

enum Flight {
    None,
    One(Waiter),
    Many { waiters: Vec<Option<Waiter>>, left: usize },
}

impl Flights {
    /// Enters a request with one waiter and returns its tag.
    pub(super) fn enter_one(&mut self, waiter: Waiter) -> u64 {
        self.enter(Flight::One(waiter))
    }

    /// Enters a request with one item for each of `waiters` and returns its tag.
    pub(super) fn enter_many(&mut self, waiters: Vec<Waiter>) -> u64 {
        let left = waiters.len();
        self.enter(Flight::Many { waiters: waiters.into_iter().map(Some).collect(), left })
    }

    fn enter(&mut self, flight: Flight) -> u64 {
        if let Some(number) = self.free.pop() {
            self.flights[number as usize] = flight;
            return u64::from(number);
        }
        self.flights.push(flight);
        self.flights.len() as u64 - 1
    }

    /// Returns the waiter for item `item` of request `tag`. The last item frees the tag.
    ///
    /// # Panics
    /// If an item is answered twice; a shard never does that.
    pub(super) fn leave(&mut self, tag: u64, item: u32) -> Waiter {
        let flight = &mut self.flights[tag as usize];
        let (waiter, is_over) = match flight {
            Flight::Many { waiters, left } => {
                *left -= 1;
                (waiters[item as usize].take(), *left == 0)
            }
            Flight::None => (None, false),
            Flight::One(_) => match std::mem::replace(flight, Flight::None) {
                Flight::One(waiter) => (Some(waiter), true),
                _ => unreachable!("it was looked at"),
            },
        };
        if is_over {
            *flight = Flight::None;
            self.free.push(u32::try_from(tag).expect("fewer than 2^32 are on their way"));
        }
        waiter.expect("an item is answered once")
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flights.len() == self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending::pair;
    use super::*;
    use std::time::Duration;

    fn waiter() -> Waiter {
        Waiter::Delete(pair(Duration::ZERO).0)
    }

    #[test]
    fn a_tag_is_free_when_its_last_item_is_answered() {
        let mut flights = Flights::default();
        let many = flights.enter_many(vec![waiter(), waiter()]);
        let one = flights.enter_one(waiter());
        flights.leave(many, 1);
        assert_ne!(flights.enter_one(waiter()), many, "an item is still out");
        flights.leave(many, 0);
        flights.leave(one, 0);
        assert_eq!(flights.enter_one(waiter()), one);
        assert!(!flights.is_empty());
        flights.leave(one, 0);
        flights.leave(2, 0);
        assert!(flights.is_empty());
    }

    #[test]
    #[should_panic(expected = "an item is answered once")]
    fn an_item_that_is_answered_twice_is_a_bug() {
        let mut flights = Flights::default();
        let many = flights.enter_many(vec![waiter(), waiter()]);
        flights.leave(many, 1);
        flights.leave(many, 1);
    }
}
