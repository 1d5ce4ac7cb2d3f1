//! Items whose wakers fired since they were last looked at.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use adit_driver::runtime::{lock, wake};

/// The numbers of items to look at, and the waker of the thread that does.
#[derive(Default)]
pub(crate) struct ReadyList(Mutex<Looks>);

#[derive(Default)]
struct Looks {
    items: VecDeque<u64>,
    waiter: Option<Waker>,
}

/// Wakes the waiter and records which item is ready.
struct ItemWaker {
    item: u64,
    ready: Arc<ReadyList>,
}

impl ReadyList {
    /// Creates a list of items that are all ready.
    pub(crate) fn all(items: impl Iterator<Item = u64>) -> Arc<ReadyList> {
        let looks = Looks { items: items.collect(), waiter: None };
        Arc::new(ReadyList(Mutex::new(looks)))
    }

    /// Returns the next item, or registers `waiter` for when there is one.
    pub(crate) fn next(&self, waiter: &Waker) -> Option<u64> {
        let mut looks = lock(&self.0);
        let item = looks.items.pop_front();
        if item.is_none() && !looks.waiter.as_ref().is_some_and(|old| old.will_wake(waiter)) {
            looks.waiter = Some(waiter.clone());
        }
        item
    }

    /// Returns a waker that makes an item ready.
    pub(crate) fn waker(self: &Arc<ReadyList>, item: u64) -> Waker {
        Waker::from(Arc::new(ItemWaker { item, ready: Arc::clone(self) }))
    }
}

impl Wake for ItemWaker {
    fn wake(self: Arc<Self>) {
        let mut looks = lock(&self.ready.0);
        looks.items.push_back(self.item);
        let waiter = looks.waiter.take();
        drop(looks);
        waiter.into_iter().for_each(wake);
    }
}
