//! Combines the answers of several shards into one.

use std::sync::{Arc, Mutex};

use adit_driver::runtime::lock;

use super::pending::Answer;

/// Collects one answer per shard and passes them on after the last, or the first failure. If one never arrives, the
/// closure that would receive them is dropped with the last reference, and with it a reply: that reports the store as
/// closed.
pub(crate) struct Gather<P> {
    state: Mutex<GatherState<P>>,
}

struct GatherState<P> {
    parts: Vec<(u16, P)>,
    count: usize,
    then: Option<Then<P>>,
}

type Then<P> = Box<dyn FnOnce(Answer<Vec<P>>) + Send>;

impl<P> Gather<P> {
    /// Waits for `count` parts, each of a shard, and passes them to `then` in the order of the shards.
    pub(crate) fn new(
        count: usize,
        then: impl FnOnce(Answer<Vec<P>>) + Send + 'static,
    ) -> Arc<Gather<P>> {
        let mut then: Option<Then<P>> = Some(Box::new(then));
        if count == 0 {
            then.take().into_iter().for_each(|then| then(Ok(Vec::new())));
        }
        Arc::new(Gather { state: Mutex::new(GatherState { parts: Vec::new(), count, then }) })
    }

    /// Adds a part. The first failure becomes the answer.
    pub(crate) fn add(&self, shard: u16, part: Answer<P>) {
        let mut state = lock(&self.state);
        let failure = part.map(|part| state.parts.push((shard, part))).err();
        if failure.is_none() && state.parts.len() < state.count {
            return;
        }
        let (then, mut parts) = (state.then.take(), std::mem::take(&mut state.parts));
        drop(state);
        let answer = match failure {
            Some(failure) => {
                drop(parts);
                Err(failure)
            }
            None => {
                parts.sort_by_key(|(shard, _)| *shard);
                Ok(parts.into_iter().map(|(_, part)| part).collect())
            }
        };
        if let Some(then) = then {
            then(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending::pair;
    use super::*;
    use crate::shard::Failure;
    use crate::store::memory::Unfinished;
    use std::time::Duration;

    #[test]
    fn the_last_part_makes_the_answer_in_the_order_of_shards() {
        let (reply, pending) = pair(Duration::from_secs(60));
        let gather = Gather::new(2, |parts| reply.send(parts));
        gather.add(1, Ok('b'));
        let pending = pending.try_wait().expect_err("one is missing");
        gather.add(0, Ok('a'));
        assert_eq!(pending.wait().expect("an answer"), ['a', 'b']);
    }

    #[test]
    fn a_failure_is_the_answer_whatever_comes_later() {
        let (reply, pending) = pair(Duration::from_secs(60));
        let gather = Gather::new(3, |parts| reply.send(parts));
        gather.add(0, Ok(()));
        gather.add(1, Err(Unfinished::new(Failure::Full)));
        gather.add(2, Ok(()));
        assert_eq!(pending.wait().expect_err("failed").failure(), Some(&Failure::Full));
    }

    #[test]
    fn of_no_parts_the_answer_is_there_at_once_and_a_lost_part_ends_the_wait() {
        let (reply, pending) = pair(Duration::from_secs(60));
        let _gather = Gather::<()>::new(0, |parts| reply.send(parts));
        assert_eq!(pending.wait().expect("an answer"), [(); 0]);
        let (reply, pending) = pair(Duration::from_secs(60));
        drop(Gather::<()>::new(1, |parts| reply.send(parts)));
        assert_eq!(pending.wait().expect_err("lost").failure(), Some(&Failure::Closed));
    }
}
