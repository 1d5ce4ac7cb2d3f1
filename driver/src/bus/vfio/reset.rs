//! Resets the function, even if the kernel is resetting it too.

use std::io;
use std::time::Duration;

use crate::bus::clock::Clock;

/// Time limit for a reset by the kernel: after a fatal error it resets the link and waits for the function, a
/// second or more.
const PATIENCE: Duration = Duration::from_secs(10);

/// Repeats `attempt` while the kernel is resetting the function itself (EAGAIN), for at most [`PATIENCE`].
///
/// # Errors
/// The last attempt's error.
pub(super) fn when_free(
    clock: &Clock,
    mut attempt: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let deadline = clock.now() + PATIENCE;
    loop {
        match attempt() {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock && clock.now() < deadline => {
                clock.pause(PATIENCE);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_at_it_is_waited_for() {
        let mut answers = [Some(libc::EAGAIN), Some(libc::EAGAIN), None].into_iter();
        let attempt = || match answers.next().expect("no attempt after success") {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        };
        when_free(&Clock::start(), attempt).expect("the third attempt works");
        assert_eq!(answers.len(), 0);
    }

    #[test]
    fn any_other_refusal_is_final() {
        let mut attempts = 0;
        let refused = when_free(&Clock::start(), || {
            attempts += 1;
            Err(io::Error::from_raw_os_error(libc::ENOTTY))
        });
        assert_eq!(
            (refused.expect_err("refused").raw_os_error(), attempts),
            (Some(libc::ENOTTY), 1)
        );
    }
}
