//! Clients that do harm by the files they hand over: each is dropped or refused, and the next is served.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use adit_driver::serve::Event;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::raw::{DMA_MAP, GET_INFO, REPLY, Raw, SET_IRQS, dwords, qwords};
use crate::{served, wait_for, works};

const IOVA: u64 = 1 << 32;
const MSIX: u32 = 2;
const MEMORY_BYTES: u64 = 16 * 4096;

/// Makes memory that cannot be sealed against shortening.
fn unsealable() -> File {
    let file = File::from(memfd_create(c"client", MFdFlags::empty()).expect("memfd"));
    file.set_len(MEMORY_BYTES).expect("room");
    file
}

/// Hands `memory` over and enables the controller with its admin queues in it.
fn enable(raw: &mut Raw, memory: &File) {
    let map = [dwords(&[32, 3]), qwords(&[0, IOVA, MEMORY_BYTES])].concat();
    assert_eq!(raw.ask_with(DMA_MAP, &map, &[memory]).flags, REPLY);
    raw.write(0, 0x24, &0x003f_003fu32.to_le_bytes());
    raw.write(0, 0x28, &IOVA.to_le_bytes());
    raw.write(0, 0x30, &(IOVA + 4096).to_le_bytes());
    raw.write(0, 0x14, &0x0046_0001u32.to_le_bytes());
    wait_for("CSTS.RDY", || raw.read(0, 0x1c, 4)[0] & 1 == 1);
}

#[test]
fn a_client_that_cuts_its_memory_short_is_left_and_the_next_is_served() {
    let server = served();
    for _ in 0..3 {
        let memory = unsealable();
        let mut raw = Raw::open(server.socket());
        enable(&mut raw, &memory);
        memory.set_len(0).expect("shorter");
        // The commands that the controller fetches are gone.
        raw.write(0, 0x1000, &5u32.to_le_bytes());
        assert!(raw.is_hung_up(), "the server left");
        let events = server.events();
        let [.., Event::ClientGone { why }] = &events[..] else { panic!("{events:?}") };
        assert!(why.contains("shortened"), "{why}");
        works(server.socket());
    }
}

/// The flag lies in the shared file: a client can clear it at any time.
#[test]
fn a_full_eventfd_that_makes_writers_wait_does_not_stop_the_server() {
    let server = served();
    let mut raw = Raw::open(server.socket());
    let full = EventFd::from_value_and_flags(u32::MAX, EfdFlags::empty()).expect("eventfd");
    full.write(u64::MAX - 1 - u64::from(u32::MAX)).expect("full");
    let file = File::from(full.as_fd().try_clone_to_owned().expect("descriptor"));
    let set = dwords(&[20, 1 << 2 | 1 << 5, MSIX, 0, 1]);
    assert_eq!(raw.ask_with(SET_IRQS, &set, &[&file]).flags, REPLY);
    fcntl(&full, FcntlArg::F_SETFL(OFlag::empty())).expect("writers wait again");
    for _ in 0..3 {
        let test = dwords(&[20, 1 | 1 << 5, MSIX, 0, 1]);
        assert_eq!(raw.ask(SET_IRQS, &test).flags, REPLY, "the server did not wait");
    }
    drop(raw);
    works(server.socket());
}

/// Makes a connection whose last close(2) waits for its data to be read, for longer than a client waits for the server.
///
/// The wait ends with the listener. So that comes last: a test that fails drops it first.
fn lingering() -> (File, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    stream.set_nonblocking(true).expect("a socket");
    while (&stream).write(&[0; 4096]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 60 };
    let (value, len) = ((&raw const linger).cast(), size_of_val(&linger) as libc::socklen_t);
    let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: the value is as long as it says and alive for the call.
    let done = unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, value, len) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    (File::from(OwnedFd::from(stream)), listener)
}

/// Closes on a thread of its own: the last close of such a connection waits, and it may be this side's.
fn close(what: impl Send + 'static) {
    std::thread::spawn(move || drop(what));
}

/// Leaves `file` in the socket of a connection that the server ends without receiving it: it stands behind an impossible
/// length. A server that ended the connection before the file was sent is asked again.
fn leave_unread(socket: &Path, file: &File) -> Raw {
    for _ in 0..1000 {
        let raw = Raw::open(socket);
        raw.send_bytes(&[0xff; 16], &[]).expect("sent");
        if raw.send_bytes(&[0; 16], &[file.as_raw_fd()]).is_ok() {
            return raw;
        }
    }
    panic!("the server always ended the connection before the file was sent");
}

#[test]
fn files_whose_close_waits_delay_no_other_client() {
    let server = served();
    let map = [dwords(&[32, 3]), qwords(&[0, IOVA, MEMORY_BYTES])].concat();
    let mut listeners = Vec::new();
    let mut raw = Raw::open(server.socket());
    for (command, body) in [(DMA_MAP, &map[..]), (GET_INFO, &[0; 16])] {
        let (file, listener) = lingering();
        raw.send(command, 0, body, &[file.as_raw_fd()]);
        close(file);
        listeners.push(listener);
        assert_eq!(raw.receive().expect("a reply").errno, libc::EINVAL);
    }
    assert_eq!(raw.read(0, 8, 4), 0x0002_0000u32.to_le_bytes(), "VS, on the same connection");
    drop(raw);
    let (file, listener) = lingering();
    let raw = leave_unread(server.socket(), &file);
    close((file, raw));
    works(server.socket());
    drop((listeners, listener));
}
