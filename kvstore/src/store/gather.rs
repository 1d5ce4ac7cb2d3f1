//! Combines the answers of several shards into one.

use std::sync::{Arc, Mutex, PoisonError};

use super::pending::{Answer, Reply, Unfinished};

/// Collects one answer per shard and replies after the last. If one never arrives, dropping the last reference drops
/// the reply, which reports the store as closed.
pub(super) struct Gather<P, T> {
    state: Mutex<State<P, T>>,
}

struct State<P, T> {
    parts: Vec<(u16, P)>,
    left: usize,
    end: Option<End<P, T>>,
}

struct End<P, T> {
    reply: Reply<T>,
    combine: Combine<P, T>,
}

type Combine<P, T> = Box<dyn FnOnce(Vec<(u16, P)>) -> T + Send>;

impl<P, T> Gather<P, T> {
    /// Waits for `count` parts, each with its shard, and replies with what `combine` makes of them.
    pub(super) fn new(
        count: usize,
        reply: Reply<T>,
        combine: impl FnOnce(Vec<(u16, P)>) -> T + Send + 'static,
    ) -> Arc<Gather<P, T>> {
        let end = Some(End { reply, combine: Box::new(combine) });
        let gather = Gather { state: Mutex::new(State { parts: Vec::new(), left: count, end }) };
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
        let (end, mut parts) = (state.end.take(), std::mem::take(&mut state.parts));
        drop(state);
        if let Some(End { reply, combine }) = end {
            parts.sort_by_key(|(shard, _)| *shard);
            reply.send(Ok(combine(parts)));
        }
    }

    fn fail(&self, unfinished: Unfinished) {
        let mut state = self.lock();
        state.left -= 1;
        let (end, parts) = (state.end.take(), std::mem::take(&mut state.parts));
        drop(state);
        drop(parts);
        if let Some(end) = end {
            end.reply.send(Err(unfinished));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<P, T>> {
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
        let gather = Gather::new(2, reply, |parts| parts);
        gather.add(1, Ok('b'));
        let pending = pending.try_wait().expect_err("one is missing");
        gather.add(0, Ok('a'));
        assert_eq!(pending.wait().expect("an answer"), [(0, 'a'), (1, 'b')]);
    }

    #[test]
    fn a_failure_is_the_answer_whatever_comes_later() {
        let (reply, pending) = pair::<usize>(Duration::from_secs(60));
        let gather = Gather::new(3, reply, |parts: Vec<(u16, ())>| parts.len());
        gather.add(0, Ok(()));
        gather.add(1, Err(Unfinished::new(Failure::Full)));
        gather.add(2, Ok(()));
        assert_eq!(pending.wait().expect_err("failed").failure(), Some(&Failure::Full));
    }

    #[test]
    fn of_no_parts_the_answer_is_there_at_once_and_a_lost_part_ends_the_wait() {
        let (reply, pending) = pair(Duration::from_secs(60));
        let _gather = Gather::new(0, reply, |parts: Vec<(u16, ())>| parts.len());
        assert_eq!(pending.wait().expect("an answer"), 0);
        let (reply, pending) = pair::<usize>(Duration::from_secs(60));
        drop(Gather::new(1, reply, |parts: Vec<(u16, ())>| parts.len()));
        assert_eq!(pending.wait().expect_err("lost").failure(), Some(&Failure::Closed));
    }
}
