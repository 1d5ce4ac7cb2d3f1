//! Our vfio-user server against clients that do what the fuzzer's bytes say.
//!
//! More than raw bytes: up to three clients with real memory files and eventfds connect, negotiate, hand over memory,
//! truncate it, enable the controller, queue commands, ring by message or through the mapped page, set interrupts,
//! reset and vanish, in any order. The server is turned in the same thread, so that an input repeats; only a client
//! that could block the server would be found by its duration.

mod client;
mod files;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use adit_driver::Time;
use adit_driver::serve::{DoorbellAccess, Event, Options, Server};
use adit_driver::soft;

use self::client::Client;
use self::files::Files;
use crate::input::Input;

const CLIENTS: usize = 3;
const ACTIONS_MAX: usize = 200;
const TURNS_PER_ACTION: usize = 4;
const TURN: Duration = Duration::from_micros(50);
/// Turns for the server to notice that clients are gone, or to serve one: it accepts once a millisecond.
const TURNS_MAX: usize = 2000;
/// Time limit of an input on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs one input.
pub fn target(data: &[u8]) {
    let input = &mut Input::new(data);
    let started = Instant::now();
    let mut world = World::new(input.byte());
    for _ in 0..ACTIONS_MAX {
        if input.is_spent() {
            break;
        }
        world.act(input);
        (0..TURNS_PER_ACTION).for_each(|_| world.turn());
        world.listen();
    }
    world.finish();
    assert!(started.elapsed() < PATIENCE, "took {:?}", started.elapsed());
}

/// The server, and everything clients have.
struct World {
    server: Server,
    socket: PathBuf,
    now: Time,
    sealed_only: bool,
    clients: [Option<Client>; CLIENTS],
    files: Files,
}

impl World {
    fn new(settings: u8) -> World {
        let socket = std::env::temp_dir().join(format!("adit-fuzzed-{}.sock", std::process::id()));
        let sealed_only = settings & 1 != 0;
        let doorbells =
            if settings & 2 == 0 { DoorbellAccess::Mapped } else { DoorbellAccess::Messages };
        let options = Options { doorbells, sealed_memory_only: sealed_only, ..Options::default() };
        let controller = soft::Controller::new(soft::Options::memory(1 << 20)).expect("controller");
        let server = Server::bind(&socket, controller, options).expect("a socket");
        let clients = [const { None }; CLIENTS];
        World { server, socket, now: Time::ZERO, sealed_only, clients, files: Files::new() }
    }

    fn act(&mut self, input: &mut Input) {
        let kind = input.byte();
        let place = usize::from(kind >> 4) % CLIENTS;
        let Some(client) = &mut self.clients[place] else {
            let mut client = Client::connect(&self.socket);
            client.negotiate(kind);
            self.clients[place] = Some(client);
            return;
        };
        match kind & 15 {
            0 | 1 => client.map(input, &self.files),
            2 => client.unmap(input),
            3 => client.set_irqs(input, &self.files),
            4 => client.enable(input),
            5 => client.write_register(input),
            6 => client.access(input),
            7 | 8 => client.command(input, &self.files),
            9 => client.ring(input),
            10 => self.files.resize(input),
            11 => self.files.disturb_eventfd(input),
            12 => client.ask(input),
            13 => client.send_anything(input),
            14 => self.clients[place] = None,
            _ => self.now = self.now + Duration::from_nanos(input.edgy() % (10 << 30)),
        }
    }

    fn turn(&mut self) {
        self.now = self.now + TURN;
        self.server.turn(self.now);
        while let Some(event) = self.server.take_event() {
            let lost = matches!(&event, Event::ClientGone { why } if why.contains("shortened"));
            assert!(!(lost && self.sealed_only), "sealed memory stays: {event}");
        }
    }

    fn listen(&mut self) {
        self.clients.iter_mut().flatten().for_each(Client::listen);
    }

    fn turn_until(&mut self, what: &str, mut is_so: impl FnMut(&mut World) -> bool) {
        for _ in 0..TURNS_MAX {
            if is_so(self) {
                return;
            }
            self.turn();
        }
        panic!("{what}: not within {TURNS_MAX} turns");
    }

    /// Checks that the memory of clients is given back when they are gone, and that the next client is served.
    fn finish(&mut self) {
        self.clients = [const { None }; CLIENTS];
        self.turn_until("memory given back", |world| world.server.mapping_count() == 0);
        let mut good = Client::connect(&self.socket);
        good.negotiate(0);
        self.turn_until("a client after the others", |_| good.replies() == 1);
        good.read_version();
        self.turn_until("a register", |_| good.replies() == 2);
        assert_eq!(good.last_reply().get(32..), Some(&0x0002_0000u32.to_le_bytes()[..]), "VS");
    }
}
