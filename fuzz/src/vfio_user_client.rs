//! Our vfio-user client against a server that answers with the fuzzer's bytes.
//!
//! The server is a thread with a listening socket, both kept for all inputs. It answers each request correctly,
//! correctly except for some bytes, with a correct header over any body, or with anything; and it hangs up when its
//! bytes are used up, so that no input waits for a deadline.

mod server;

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use adit_driver::bus::Bus;
use adit_driver::bus::vfio_user::{Options, VfioUser};
use adit_driver::sys::HostMemory;

use crate::input::Input;

/// Deadline for the server's answers. It answers at once, or omits part of one.
const DEADLINE: Duration = Duration::from_millis(5);
/// Time limit of an input: its calls, each until its deadline, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server's thread, as the target sees it.
struct Peer {
    socket: PathBuf,
    inputs: mpsc::Sender<Input>,
    finished: mpsc::Receiver<()>,
}

#[allow(unsafe_code)]
fn peer() -> MutexGuard<'static, Peer> {
    static PEER: OnceLock<Mutex<Peer>> = OnceLock::new();
    let start = || {
        // SAFETY: the server is the fuzzer, which lies in messages and accesses no memory.
        unsafe { adit_driver::bus::vfio_user::trust_servers() };
        let (socket, inputs, finished) = server::start();
        Mutex::new(Peer { socket, inputs, finished })
    };
    PEER.get_or_init(start).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one input.
pub fn target(data: &[u8]) {
    let peer = peer();
    let input = &mut Input::new(data);
    let options = Options { deadline: DEADLINE, map_doorbells: input.byte() & 1 == 0 };
    let calls: Vec<u8> = (0..input.byte() % 16).map(|_| input.byte()).collect();
    peer.inputs.send(input.clone()).expect("the server lives");
    let started = Instant::now();
    match VfioUser::open_with(&peer.socket, options) {
        Ok(bus) => calls.iter().for_each(|&call| use_bus(&bus, call)),
        Err(error) => assert!(!error.to_string().is_empty(), "refused with a reason"),
    }
    assert!(started.elapsed() < PATIENCE, "waited {:?}", started.elapsed());
    peer.finished.recv().expect("the server lives");
}

/// Makes one call of each kind that talks to the server, or uses its answers.
#[allow(unsafe_code)]
fn use_bus(bus: &Arc<VfioUser>, call: u8) {
    let offset = u32::from(call >> 4) * 4;
    match call & 15 {
        0 | 1 => drop(bus.read32(offset)),
        2 => drop(bus.read64(offset * 2)),
        // SAFETY: there is no device behind the server, which writes no memory.
        3 => unsafe { bus.write32(offset, 1) },
        // SAFETY: the same.
        4 => unsafe { bus.write64(offset * 2, 1) },
        5 | 6 => {
            // SAFETY: the same.
            let doorbell = unsafe { Arc::<VfioUser>::clone(bus).doorbell(0x1000 + offset) };
            drop(doorbell.map(|bell| bell.ring(1)));
        }
        // SAFETY: the same.
        7 => drop(unsafe { bus.bar_window(call >> 4, 0, 4096) }),
        8 | 9 => map_and_unmap(bus),
        10 => drop(bus.reset()),
        11 => drop(bus.enable_vectors(u16::from(call >> 4))),
        12 => drop(bus.take_event()),
        13 => drop(bus.reserve(1 << (call >> 4))),
        _ => drop((bus.vector_count(), bus.locality(), format!("{bus:?}"))),
    }
}

#[allow(unsafe_code)]
fn map_and_unmap(bus: &Arc<VfioUser>) {
    let memory = HostMemory::allocate(4096, bus.backing(), &|_, _| ()).expect("memory");
    // SAFETY: the server writes no memory, and keeps its own mapping of the file.
    if let Ok(iova) = unsafe { bus.map(memory.range()) } {
        assert!(iova.is_aligned(4096), "pages are mapped at pages");
        // SAFETY: it is what was mapped.
        drop(unsafe { bus.unmap(iova, 4096) });
    }
}
