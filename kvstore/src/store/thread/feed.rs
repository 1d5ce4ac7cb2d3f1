//! Requests that come in by other ways than calls, such as a ring in memory of another process.
//!
//! A thread of the store polls its feeds in each round, so that no other thread has to be woken for their requests.
//! Before it sleeps it announces that, polls once more, and then sleeps until one of their descriptors is rung. Once
//! awake it says so, and no descriptor is rung while it works or spins. The descriptors are watched by edges and
//! never read: they may belong to other processes, which could make a read wait.

use std::os::fd::{AsFd, BorrowedFd};

use adit_driver::runtime::caught;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Number of descriptors whose edges are taken together at most.
const EDGES: usize = 16;

/// A source of requests that a thread of the store polls. No call may wait.
pub trait Feed: Send {
    /// Makes the requests that have come in, by calls of a [`Store`](crate::store::Store), and returns their number;
    /// `None` if the feed has ended.
    fn turn(&mut self) -> Option<usize>;

    /// Called before the thread sleeps: requests that come in from now on ring the descriptor. Returns whether some
    /// came in before.
    fn announce(&mut self) -> bool;

    /// Called once the thread is awake again: it polls, so requests need not ring.
    fn resume(&mut self);

    /// Returns the descriptor, which can be polled without waiting.
    fn bell(&self) -> BorrowedFd<'_>;
}

/// The feeds of a thread.
#[derive(Default)]
pub(crate) struct Feeds {
    list: Vec<Box<dyn Feed>>,
    /// Watches their descriptors, while there are any.
    epoll: Option<Epoll>,
}

impl Feeds {
    /// Adds a feed. Drops one that cannot be watched, and logs that.
    pub(crate) fn add(&mut self, feed: Box<dyn Feed>) {
        if let Err(why) = self.watch(feed.bell()) {
            return tracing::error!("cannot watch what brings requests: {why}");
        }
        self.list.push(feed);
    }

    fn watch(&mut self, bell: BorrowedFd<'_>) -> nix::Result<()> {
        if self.epoll.is_none() {
            self.epoll = Some(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        }
        let epoll = self.epoll.as_ref().expect("made above");
        epoll.add(bell, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))
    }

    /// Returns the descriptor that ends the thread's sleep, if there are feeds.
    pub(crate) fn interrupts(&self) -> Vec<BorrowedFd<'_>> {
        self.epoll.iter().map(|epoll| epoll.0.as_fd()).collect()
    }

    /// Polls each feed, and returns how many requests came in.
    #[inline]
    pub(crate) fn turn(&mut self) -> usize {
        if self.list.is_empty() { 0 } else { self.look() }
    }

    fn look(&mut self) -> usize {
        let mut moved = 0;
        self.keep(|feed| feed.turn().map(|count| moved += count));
        moved
    }

    /// Calls each feed, and drops those that return `None` or panic: a feed that reads another process's bytes must
    /// not end the store.
    fn keep(&mut self, mut call: impl FnMut(&mut dyn Feed) -> Option<()>) {
        let Feeds { list, epoll } = self;
        list.retain_mut(|feed| {
            let what = "it looked at what brings requests, which is a bug; that is dropped";
            let kept = caught(what, || call(&mut **feed)).ok().flatten();
            if let (None, Some(epoll)) = (kept, &epoll) {
                // Its maker may keep the descriptor open.
                let _ = epoll.delete(feed.bell());
            }
            kept.is_some()
        });
        if self.list.is_empty() {
            self.epoll = None;
        }
    }

    /// Announces to all feeds that the thread is about to sleep. Returns whether requests have come in.
    pub(crate) fn announce(&mut self) -> bool {
        let mut has_news = false;
        self.keep(|feed| {
            has_news |= feed.announce();
            Some(())
        });
        has_news
    }

    /// Announces to all feeds that the thread is awake. `is_interrupted` means that a descriptor was rung.
    pub(crate) fn resume(&mut self, is_interrupted: bool) {
        if is_interrupted {
            self.take_edges();
        }
        self.keep(|feed| {
            feed.resume();
            Some(())
        });
    }

    /// Takes the edges that ended a sleep, so that they do not end the next. Edges beyond these end the next at once.
    fn take_edges(&mut self) {
        if let Some(epoll) = &self.epoll {
            let _ = epoll.wait(&mut [EpollEvent::empty(); EDGES], EpollTimeout::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::runtime::Alarm;
    use nix::sys::eventfd::EventFd;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::time::Duration;

    /// The work that a feed brings, and the calls it got.
    #[derive(Default)]
    struct Script {
        turns: Vec<Option<usize>>,
        announces: usize,
        resumes: usize,
        news: bool,
    }

    struct Scripted(Arc<Mutex<Script>>, OwnedFd);

    impl Feed for Scripted {
        fn turn(&mut self) -> Option<usize> {
            let turned = self.0.lock().expect("script").turns.pop();
            turned.unwrap_or(Some(0))
        }

        fn announce(&mut self) -> bool {
            let mut script = self.0.lock().expect("script");
            script.announces += 1;
            script.news
        }

        fn resume(&mut self) {
            self.0.lock().expect("script").resumes += 1;
        }

        fn bell(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
    }

    fn feeds() -> (Feeds, Arc<Mutex<Script>>, EventFd) {
        let (script, bell) = (Arc::<Mutex<Script>>::default(), EventFd::new().expect("eventfd"));
        let same = bell.as_fd().try_clone_to_owned().expect("a descriptor");
        let mut feeds = Feeds::default();
        assert!(feeds.turn() == 0 && feeds.interrupts().is_empty());
        feeds.add(Box::new(Scripted(Arc::clone(&script), same)));
        (feeds, script, bell)
    }

    #[test]
    fn all_feeds_are_told_before_and_after_a_sleep() {
        let (mut feeds, first, bell) = feeds();
        let second = Arc::<Mutex<Script>>::default();
        let same = bell.as_fd().try_clone_to_owned().expect("a descriptor");
        feeds.add(Box::new(Scripted(Arc::clone(&second), same)));
        let told = || {
            let of = |script: &Mutex<Script>| {
                let script = script.lock().expect("script");
                (script.announces, script.resumes)
            };
            [of(&first), of(&second)]
        };
        first.lock().expect("script").turns = vec![Some(3)];
        assert_eq!((feeds.turn(), feeds.turn(), told()), (3, 0, [(0, 0); 2]), "it is awake");
        assert!(!feeds.announce());
        assert_eq!(told(), [(1, 0); 2]);
        feeds.resume(false);
        assert_eq!(told(), [(1, 1); 2]);
        first.lock().expect("script").news = true;
        assert!(feeds.announce(), "one has news");
        assert_eq!(told(), [(2, 1); 2], "the other was told all the same");
    }

    #[test]
    fn a_bell_interrupts_once_though_it_is_never_read() {
        let (mut feeds, _script, bell) = feeds();
        let alarm = Alarm::new().expect("alarm");
        let sleep = |feeds: &Feeds| alarm.sleep(Duration::ZERO, &feeds.interrupts());
        assert!(!sleep(&feeds));
        bell.write(1).expect("rung");
        assert!(sleep(&feeds), "it was rung");
        feeds.resume(true);
        assert!(!sleep(&feeds), "the edge was taken");
        bell.write(1).expect("rung");
        feeds.resume(false);
        assert!(sleep(&feeds), "it was rung while awake");
    }

    #[test]
    fn a_feed_that_has_ended_or_panics_is_dropped() {
        let (mut feeds, script, _bell) = feeds();
        assert_eq!(feeds.interrupts().len(), 1);
        script.lock().expect("script").turns = vec![None];
        assert_eq!((feeds.turn(), feeds.interrupts().len()), (0, 0));
        let calls: [fn(&mut Feeds); 3] = [
            |feeds| assert_eq!(feeds.turn(), 0),
            |feeds| assert!(!feeds.announce()),
            |feeds| feeds.resume(true),
        ];
        for call in calls {
            let (mut feeds, script, _bell) = self::feeds();
            let poisoned = Arc::clone(&script);
            let _ = std::thread::spawn(move || {
                let _held = poisoned.lock();
                panic!("poisons the script, so that the feed panics");
            })
            .join();
            call(&mut feeds);
            assert_eq!(feeds.interrupts().len(), 0);
        }
    }
}
