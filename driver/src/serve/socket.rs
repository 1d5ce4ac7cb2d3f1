//! The listening socket: created where no other file is in the way, removed at the end.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bus::vfio_user::connect;
use crate::error::{Error, Result};
use crate::lock::{LockFile, NotTaken};

/// Longest path in a socket's address (`sockaddr_un`), without the terminating zero byte.
const PATH_BYTES_MAX: usize = 107;
/// How long another server may take to create the socket.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);

/// A listening socket; dropping it removes its path.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Identity of its file, so that another's is not removed.
    inode: (u64, u64),
}

impl Socket {
    /// Listens at `path`; replaces a dead server's socket.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a path that is too long; [`Error::Refused`] if another server or file is there.
    pub fn bind(path: &Path) -> Result<Socket> {
        let len = path.as_os_str().as_bytes().len();
        if len > PATH_BYTES_MAX {
            let what = format!("socket '{}'", path.display());
            let why = format!(
                "{len} bytes; a socket's path has at most {PATH_BYTES_MAX}: choose a shorter one"
            );
            return Err(Error::invalid(what, why));
        }
        let cannot = |why: io::Error, fix: &str| refused(path, why, fix);
        // It serializes the check and the bind of servers that start at once.
        let _lock = lock(path)?;
        make_way(path)?;
        let fix = "check the folder's rights";
        let listener = UnixListener::bind(path).map_err(|why| cannot(why, fix))?;
        listener.set_nonblocking(true).map_err(|why| cannot(why, fix))?;
        let about = fs::symlink_metadata(path).map_err(|why| cannot(why, fix))?;
        Ok(Socket { listener, path: path.to_owned(), inode: (about.dev(), about.ino()) })
    }

    /// Returns where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its descriptor, to wait on.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts the next waiting client, if any.
    ///
    /// # Errors
    /// The system's error.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock) => Ok(None),
            // The client gave up early, or a signal arrived.
            Err(why)
                if matches!(
                    why.kind(),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let about = fs::symlink_metadata(&self.path);
        if about.is_ok_and(|about| (about.dev(), about.ino()) == self.inode) {
            // If removal fails, clients are refused and the next server replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn refused(path: &Path, why: impl ToString, fix: &str) -> Error {
    Error::refused(path.display(), "cannot serve here", why, fix)
}

/// Takes a lock that only servers of this path, and of this user, can have; none where the file system has none.
fn lock(path: &Path) -> Result<Option<LockFile>> {
    let fix = "name a file in a folder, such as /run/adit/kv.sock";
    let name = path.file_name().ok_or_else(|| refused(path, "it names no file", fix))?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".lock");
    let lock = path.with_file_name(hidden);
    for _ in 0..LOCK_TRIES {
        match LockFile::take(&lock) {
            Ok(lock) => return Ok(Some(lock)),
            Err(NotTaken::Held(_)) => std::thread::sleep(LOCK_PAUSE),
            Err(NotTaken::System(why)) if why.kind() == io::ErrorKind::NotFound => {
                return Err(refused(path, why, "make the folder first, or name another"));
            }
            Err(why) if why.is_without_locks() => return Ok(None),
            Err(why) => return Err(refused(path, why, "check the folder's rights")),
        }
    }
    let why = format!("another server is being started here and has {}", lock.display());
    Err(refused(path, why, "end that one first, or name another folder"))
}

/// Removes a dead server's socket; refuses if anything else is in the way.
fn make_way(path: &Path) -> Result<()> {
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(refused(path, why, "check the folder's rights")),
    };
    if !about.file_type().is_socket() {
        let fix = "remove it if you do not need it, or name another folder";
        return Err(refused(path, "a file that is not a socket has this name", fix));
    }
    match connect(path, CONNECT_DEADLINE) {
        Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!("{}: replacing the socket of a server that is gone", path.display());
            fs::remove_file(path).map_err(|why| refused(path, why, "remove it"))
        }
        Err(why) if why.kind() != io::ErrorKind::WouldBlock => {
            Err(refused(path, why, "remove the socket if no server uses it"))
        }
        // The server answers, or its backlog is full.
        _ => {
            let fix = "end that one first, or name another folder";
            Err(refused(path, "another server serves here", fix))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Barrier;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path =
                std::env::temp_dir().join(format!("adit-socket-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("folder");
            Scratch(path)
        }

        fn refusal(&self) -> String {
            Socket::bind(&self.0.join("cntrl")).expect_err("must be refused").to_string()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_a_live_ones_is_not() {
        let scratch = Scratch::new("stale");
        let path = scratch.0.join("cntrl");
        drop(UnixListener::bind(&path).expect("a server that does not clean up"));
        let socket = Socket::bind(&path).expect("replaced");
        assert!(scratch.refusal().contains("another server serves here"));
        assert!(socket.accept().expect("the other's look").is_some());
        assert!(socket.accept().expect("no error without a client").is_none());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_locked_folder_and_a_socket_beside_keep_no_server_waiting() {
        let scratch = Scratch::new("folder");
        let folder = File::open(&scratch.0).expect("any user may open it");
        folder.lock().expect("and lock it");
        let beside = lock(&scratch.0.join("other")).expect("it is free");
        let socket = Socket::bind(&scratch.0.join("cntrl")).expect("bound");
        drop(beside);
        let names = fs::read_dir(&scratch.0).expect("a folder");
        let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
        assert_eq!(names, ["cntrl"], "no lock is left");
        drop(socket);
    }

    #[test]
    fn two_servers_that_start_at_once_are_told_apart() {
        let scratch = Scratch::new("race");
        let path = scratch.0.join("cntrl");
        for _ in 0..20 {
            drop(UnixListener::bind(&path).expect("a server that does not clean up"));
            let start = Barrier::new(4);
            let bound = std::thread::scope(|scope| {
                let bind = || {
                    start.wait();
                    Socket::bind(&path)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"))
                    .collect::<Vec<_>>()
            });
            assert_eq!(bound.iter().filter(|bound| bound.is_ok()).count(), 1, "{bound:?}");
        }
    }

    #[test]
    fn a_lock_that_is_not_ours_is_refused_and_stays() {
        let scratch = Scratch::new("link");
        fs::write(scratch.0.join("precious"), "precious").expect("written");
        std::os::unix::fs::symlink("precious", scratch.0.join(".cntrl.lock")).expect("a link");
        assert!(scratch.refusal().contains("cntrl.lock is no regular file; remove it"));
        assert_eq!(fs::read(scratch.0.join("precious")).expect("still there"), b"precious");
    }

    #[test]
    fn what_is_in_the_way_stays() {
        let scratch = Scratch::new("file");
        fs::write(scratch.0.join("cntrl"), "precious").expect("written");
        assert!(scratch.refusal().contains("not a socket has this name"));
        assert_eq!(fs::read(scratch.0.join("cntrl")).expect("still there"), b"precious");
    }

    #[test]
    fn another_servers_socket_is_not_removed() {
        let scratch = Scratch::new("other");
        let path = scratch.0.join("cntrl");
        let socket = Socket::bind(&path).expect("bound");
        fs::remove_file(&path).expect("removed");
        let _other = UnixListener::bind(&path).expect("bound");
        drop(socket);
        assert!(path.exists());
    }

    #[test]
    fn paths_that_cannot_be_are_refused_by_name() {
        let long = PathBuf::from("/tmp").join("x".repeat(107));
        let error = Socket::bind(&long).expect_err("too long");
        assert!(error.is_usage() && error.to_string().contains("at most 107"), "{error}");
        let error = Socket::bind(Path::new("/nonexistent/cntrl")).expect_err("absent").to_string();
        assert!(error.contains("make the folder first"), "{error}");
    }
}
