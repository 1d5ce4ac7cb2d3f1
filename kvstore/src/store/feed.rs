//! Requests that come in by other ways than calls, such as a ring in memory of another process.
//!
//! A thread of the store looks at its feeds in each round, so that no other thread has to be woken for what they bring.
//! Before it sleeps it tells them so, looks once more, and then sleeps until one of their descriptors is rung; once awake,
//! by whatever, it tells them that, so that nothing rings while it works or spins. The descriptors are watched by edges
//! and never read: their makers may be other processes, which could make a read wait.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use adit_driver::runtime::caught;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::core::Core;
use super::handle::Store;

/// The most descriptors whose edges are taken together.
const EDGES: usize = 16;

/// A source of requests that a thread of the store looks at. No call may wait.
pub trait Feed: Send {
    /// Makes requests of what has come in, by calls of a [`Store`], and returns how much that was; `None` if the feed has
    /// ended.
    fn turn(&mut self) -> Option<usize>;

    /// Called before the thread sleeps: has its descriptor rung by what comes in from now on, and returns whether something
    /// already has.
    fn announce(&mut self) -> bool;

    /// Called once the thread is awake again: what comes in is found without being rung for.
    fn resume(&mut self);

    /// Returns the descriptor, which can be polled without waiting.
    fn bell(&self) -> BorrowedFd<'_>;
}

/// A feed that a thread of the store looks at. Dropping this has the thread look once more, to let go of a feed that has
/// ended.
#[must_use = "dropping it has the feed looked at for the last time"]
pub struct Attached {
    core: Arc<Core>,
    shard: u16,
}

impl Store {
    /// Has a thread of the store look at a feed in each of its rounds, until the feed has ended or the store closes.
    pub fn attach_feed(&self, feed: Box<dyn Feed>) -> Attached {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let shard = NEXT.fetch_add(1, Ordering::Relaxed) % self.core.set.shards();
        self.core.feed(shard, feed);
        Attached { core: Arc::clone(&self.core), shard }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.core.end(self.shard, |_| ());
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attached(shard {})", self.shard)
    }
}

/// The feeds of a thread.
#[derive(Default)]
pub(super) struct Feeds {
    list: Vec<Box<dyn Feed>>,
    /// Watches their descriptors, while there are any.
    epoll: Option<Epoll>,
}

impl Feeds {
    /// Adds a feed. One that cannot be watched is dropped, which the log says.
    pub(super) fn add(&mut self, feed: Box<dyn Feed>) {
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

    /// Returns what ends the thread's sleep.
    pub(super) fn interrupts(&self) -> Vec<BorrowedFd<'_>> {
        self.epoll.iter().map(|epoll| epoll.0.as_fd()).collect()
    }

    /// Looks at each feed, and returns how much came in.
    #[inline]
    pub(super) fn turn(&mut self) -> usize {
        if self.list.is_empty() { 0 } else { self.look() }
    }

    fn look(&mut self) -> usize {
        let mut moved = 0;
        self.keep(|feed| feed.turn().map(|count| moved += count));
        moved
    }

    /// Calls each feed, and drops those that return `None` or panic: what a feed does with another process's bytes must
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

    /// Tells all feeds that the thread is about to sleep; returns whether something has come in.
    pub(super) fn announce(&mut self) -> bool {
        let mut has_news = false;
        self.keep(|feed| {
            has_news |= feed.announce();
            Some(())
        });
        has_news
    }

    /// Tells all feeds that the thread is awake. `is_interrupted`: a descriptor was rung.
    pub(super) fn resume(&mut self, is_interrupted: bool) {
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
    use std::sync::Mutex;
    use std::time::Duration;

    /// What a feed brings, and what it was asked.
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
