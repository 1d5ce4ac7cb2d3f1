//! Waiting with a deadline, and wakers that count their calls.

use super::*;
use std::sync::atomic::AtomicUsize;

#[derive(Default)]
pub(in crate::runtime) struct Count(pub(in crate::runtime) AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(in crate::runtime) struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("as arranged");
    }
}

#[test]
fn all_waiters_are_called_once_though_one_panics() {
    let (waiters, count) = (Waiters::default(), Arc::new(Count::default()));
    waiters.want(&Waker::from(Arc::new(Panics)));
    let waker = Waker::from(Arc::clone(&count));
    waiters.want(&waker);
    waiters.want(&waker);
    waiters.call();
    waiters.call();
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_waker_that_is_called_ends_the_wait() {
    let (asked, there) = (Mutex::new(None::<Waker>), Mutex::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let waker = loop {
                if let Some(waker) = asked.lock().expect("no panic").take() {
                    break waker;
                }
                thread::yield_now();
            };
            *there.lock().expect("no panic") = true;
            waker.wake();
        });
        let found = block_until(Some(Instant::now() + Duration::from_secs(60)), |context| {
            *asked.lock().expect("no panic") = Some(context.waker().clone());
            if *there.lock().expect("no panic") { Poll::Ready(5) } else { Poll::Pending }
        });
        assert_eq!(found, Some(5));
    });
}

#[test]
fn what_never_works_ends_with_the_deadline() {
    let mut attempts = 0;
    let deadline = Instant::now() + Duration::from_millis(2);
    let found: Option<()> = block_until(Some(deadline), |_| {
        attempts += 1;
        Poll::Pending
    });
    assert!(found.is_none() && attempts >= 2 && Instant::now() >= deadline);
}
