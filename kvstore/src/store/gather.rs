//! Combines the answers of several shards into one.

use std::sync::{Arc, Mutex, PoisonError};

use super::pending::{Answer, Unfinished};

/// Collects one answer per shard and passes them on after the last, or the first failure. If one never arrives,
/// dropping the last reference drops whom it would pass them to, and with it a reply, which reports the store as
/// closed.
pub(super) struct Gather<P> {
    state: Mutex<State<P>>,
}

struct State<P> {
    parts: Vec<(u16, P)>,
    left: usize,
    hear: Option<Hear<P>>,
}

type Hear<P> = Box<dyn FnOnce(Answer<Vec<(u16, P)>>) + Send>;

impl<P> Gather<P> {
    /// Waits for `count` parts, each with its shard, and passes them to `hear` in the order of the shards.
    pub(super) fn new(
        count: usize,
        hear: impl FnOnce(Answer<Vec<(u16, P)>>) + Send + 'static,
    ) -> Arc<Gather<P>> {
        let hear: Option<Hear<P>> = Some(Box::new(hear));
        let gather = Gather { state: Mutex::new(State { parts: Vec::new(), left: count, hear }) };
        if count == 0 {
            gather.finish();
        }
        Arc::new(gather)
    }

    /// Adds a part. The first failure becomes the answer.
    pub(super) fn add(&self, shard: u16, part: Answer<P>) {
        match part {
            Ok(part) => {
                let mut state = self.lock();
                state.parts.push((shard, part));
                state.left -= 1;
                let is_last = state.left == 0;
                drop(state);
                if is_last {
                    self.finish();
                }
            }
            Err(unfinished) => self.fail(unfinished),
        }
    }

    fn finish(&self) {
        let mut state = self.lock();
        let (hear, mut parts) = (state.hear.take(), std::mem::take(&mut state.parts));
        drop(state);
        if let Some(hear) = hear {
            parts.sort_by_key(|(shard, _)| *shard);
            hear(Ok(parts));
        }
    }

    fn fail(&self, unfinished: Unfinished) {
        let mut state = self.lock();
        state.left -= 1;
        let (hear, parts) = (state.hear.take(), std::mem::take(&mut state.parts));
        drop(state);
        drop(parts);
        if let Some(hear) = hear {
            hear(Err(unfinished));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending::pair;
    use super::*;
    use crate::shard::Failure;
    use std::time::Duration;

    #[test]
    fn the_last_part_makes_the_answer_in_the_order_of_shards() {
        let (reply, pending) = pair(Duration::from_secs(60));
        let gather = Gather::new(2, |parts| reply.send(parts));
        gather.add(1, Ok('b'));
        let pending = pending.try_wait().expect_err("one is missing");
        gather.add(0, Ok('a'));
        assert_eq!(pending.wait().expect("an answer"), [(0, 'a'), (1, 'b')]);
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
        let _gather = Gather::new(0, |parts| reply.send(parts));
        assert_eq!(pending.wait().expect("an answer"), [(0, ())][..0]);
        let (reply, pending) = pair(Duration::from_secs(60));
        drop(Gather::<()>::new(1, |parts| reply.send(parts)));
        assert_eq!(pending.wait().expect_err("lost").failure(), Some(&Failure::Closed));
    }
}
