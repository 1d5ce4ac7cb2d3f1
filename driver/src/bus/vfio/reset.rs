//! Resetting the function, also while the kernel is at it itself.

use std::io;
use std::time::Duration;

use crate::bus::clock::Clock;

/// How long the kernel may be at a reset of its own: after a fatal error it resets the link and
/// waits for the function, a second or more.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes `attempt` until the kernel does not say any more that it is at the function itself
/// (EAGAIN), or for [`PATIENCE`].
///
/// # Errors
/// The last attempt's.
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
