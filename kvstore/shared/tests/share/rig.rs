//! A store and its server in this process.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_driver::{Device, DeviceOptions, Target};
use adit_kvshare::wire::Serving;
use adit_kvshare::{Client, ClientOptions, Error, Event, Options, RefusalKind, Server};
use adit_kvstore::evict::{Policy, PolicyMaker};
use adit_kvstore::{FormatStore, Key, ObjectId, OpenOptions, Store};

/// How long what has to happen may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const SOFT: &str = "soft:mem=256M,queues=host";

pub(crate) struct Rig {
    pub(crate) store: Store,
    /// Present until its end.
    server: Option<Arc<Server>>,
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
    folder: PathBuf,
    /// The store's file, if it is in one.
    media: Option<File>,
    stops: Arc<AtomicBool>,
    serving: Option<JoinHandle<Result<(), Error>>>,
}

/// Panics at the first object, which ends the store's thread.
struct Fatal;

impl Policy for Fatal {
    fn inserted(&mut self, _: ObjectId, _: u64) {
        panic!("as arranged");
    }
    fn touched(&mut self, _: ObjectId) {}
    fn removed(&mut self, _: ObjectId) {}
    fn evicted(&mut self, _: ObjectId, _: u64) {}
    fn victim(&mut self, _: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
        None
    }
    fn memory_bytes(&self) -> usize {
        0
    }
}

impl Rig {
    /// Serves a store in memory.
    pub(crate) fn soft() -> Rig {
        Rig::soft_with(Options::default())
    }

    /// Serves a store in memory with these settings.
    pub(crate) fn soft_with(options: Options) -> Rig {
        Rig::new(SOFT.to_owned(), None, options, OpenOptions::default())
    }

    /// Serves a store in memory with a memory tier.
    pub(crate) fn tiered() -> Rig {
        let open = OpenOptions { tier_bytes: 256 << 20, ..OpenOptions::default() };
        Rig::new(SOFT.to_owned(), None, Options::default(), open)
    }

    /// Serves a store in memory whose thread dies of its first object.
    pub(crate) fn dying() -> Rig {
        let custom_policy = Some(PolicyMaker::new(|_| Box::new(Fatal)));
        let open = OpenOptions { custom_policy, ..OpenOptions::default() };
        Rig::new(SOFT.to_owned(), None, Options::default(), open)
    }

    /// Serves a store in memory whose server panics when it tells of an event.
    pub(crate) fn panicking_at(what: fn(&Event) -> bool) -> Rig {
        Rig::serve(SOFT.to_owned(), None, Options::default(), OpenOptions::default(), what)
    }

    /// Serves a store in a file, through io_uring.
    pub(crate) fn file() -> Rig {
        Rig::file_with(OpenOptions::default())
    }

    /// Serves a store in a file that is opened so.
    pub(crate) fn file_with(open: OpenOptions) -> Rig {
        let path = scratch().join("kv.img");
        let target = format!("uring:{}", path.display());
        Rig::new(target, Some(256 << 20), Options::default(), open)
    }

    fn new(target: String, file_bytes: Option<u64>, options: Options, open: OpenOptions) -> Rig {
        Rig::serve(target, file_bytes, options, open, |_| false)
    }

    fn serve(
        target: String,
        file_bytes: Option<u64>,
        options: Options,
        open: OpenOptions,
        panics_at: fn(&Event) -> bool,
    ) -> Rig {
        let folder = scratch();
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = target.strip_prefix("uring:").map(PathBuf::from);
        if let Some(parent) = file.as_deref().and_then(Path::parent) {
            std::fs::create_dir_all(parent).expect("a folder");
        }
        let target: Target = target.parse().expect("a target");
        let device_options =
            DeviceOptions { queue_count: 4, file_bytes, ..DeviceOptions::default() };
        let device = Device::open(&target, &device_options).expect("a device");
        let devices = vec![device];
        let shards = 2;
        let format = FormatStore { devices: devices.clone(), shards, ..FormatStore::default() };
        Store::format(&format).expect("formatted");
        let store = Store::open(&OpenOptions { devices, ..open }).expect("open");
        let server = Arc::new(Server::bind(&folder.join("kv.sock"), options).expect("bound"));
        let (events, stops) = (Arc::<Mutex<Vec<Event>>>::default(), Arc::<AtomicBool>::default());
        let serving = std::thread::spawn({
            let (store, server) = (store.clone(), Arc::clone(&server));
            let (events, stops) = (Arc::clone(&events), Arc::clone(&stops));
            move || {
                let tell = |event: &Event| {
                    assert!(!panics_at(event), "as arranged");
                    locked(&events).push(event.clone());
                };
                server.run(&store, &stops, &tell)
            }
        });
        let media = file.map(|file| {
            let media = File::options().read(true).write(true).open(&file).expect("there");
            // The device has it open; its folder may go.
            std::fs::remove_dir_all(file.parent().expect("a folder")).expect("removed");
            media
        });
        let (server, serving) = (Some(server), Some(serving));
        Rig { store, server, events, folder, media, stops, serving }
    }

    /// Changes byte `at` of an object with these contents in the store's file.
    pub(crate) fn damage(&self, contents: &[u8], at: usize) {
        const UNIT: u64 = 4096;
        let media = self.media.as_ref().expect("it is in a file");
        let (unit, within) = (at / UNIT as usize * UNIT as usize, at as u64 % UNIT);
        let mut begin = [0; 16];
        let is_there = |number: &u64| {
            media.read_exact_at(&mut begin, number * UNIT).expect("a unit");
            begin == contents[unit..unit + 16]
        };
        let units = media.metadata().expect("a file").len() / UNIT;
        let number = (0..units).find(is_there).expect("it was put");
        media.write_all_at(&[!contents[at]], number * UNIT + within).expect("written");
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("kv.sock")
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(&ClientOptions { pool_bytes: 8 << 20, ..ClientOptions::default() })
    }

    pub(crate) fn client_with(&self, options: &ClientOptions) -> Client {
        Client::connect(&self.socket(), options).expect("connected")
    }

    /// Ends the server and waits for it.
    pub(crate) fn end(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        if self.serving.is_some() {
            self.ended().expect("the server ends in order");
        }
    }

    /// Waits for the end of the server, and returns how it ended.
    pub(crate) fn ended(&mut self) -> Result<(), Error> {
        let serving = self.serving.take().expect("it has not ended");
        let begin = Instant::now();
        while !serving.is_finished() {
            assert!(begin.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.server = None;
        serving.join().expect("the server does not panic")
    }

    /// Returns the server's counters.
    pub(crate) fn counts(&self) -> Serving {
        self.server.as_ref().expect("it has not ended").counts()
    }

    /// Waits until the server's counters are as they should be.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(Serving) -> bool) {
        let begin = Instant::now();
        while !holds(self.counts()) {
            let counts = self.counts();
            assert!(begin.elapsed() < PATIENCE, "{what}: {counts:?}, {:?}", self.events.lock());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until nothing of any client is left.
    pub(crate) fn until_nothing_is_left(&self) {
        self.until("nothing is left", |counts| {
            let Serving { clients_now, mapped_bytes_now, requests_now, leases_now, .. } = counts;
            (clients_now, mapped_bytes_now, requests_now, leases_now) == (0, 0, 0, 0)
        });
        let begin = Instant::now();
        while self.store.stats().wait().expect("counted").leased > 0 {
            assert!(begin.elapsed() < PATIENCE, "objects are still leased");
        }
    }

    /// Returns why the clients so far are gone.
    pub(crate) fn reasons(&self) -> Vec<(String, bool)> {
        let events = locked(&self.events);
        let gone = events.iter().filter_map(|event| match event {
            Event::ClientGone { why, is_expelled, .. } => Some((why.clone(), *is_expelled)),
            _ => None,
        });
        gone.collect()
    }
}

/// Returns whether the server refused a request so.
pub(crate) fn is_refused(why: &Error, as_kind: RefusalKind) -> bool {
    matches!(why, Error::Refused { kind, .. } if *kind == as_kind)
}

fn locked(events: &Mutex<Vec<Event>>) -> MutexGuard<'_, Vec<Event>> {
    events.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn scratch() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("adit-share-{}-{number}", std::process::id());
    std::env::temp_dir().join(name)
}

pub(crate) fn key(number: u64) -> Key {
    Key::from(number)
}

/// Returns the contents of version `version` of object `number`: every word tells both, and where it is.
pub(crate) fn data(number: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    fill(number, version, &mut data);
    data
}

/// Writes the contents of an object.
pub(crate) fn fill(number: u64, version: u64, into: &mut [u8]) {
    for (at, chunk) in into.chunks_mut(8).enumerate() {
        let word = number << 40 ^ version << 20 ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}
