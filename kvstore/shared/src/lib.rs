//! One store for several processes of a machine.
//!
//! One process has a store's devices. [`Server`] lets others use it through shared memory: a [`Client`] connects to a
//! Unix socket and hands over memory files, one that holds a ring of requests and a ring of answers, and others that
//! hold objects' bytes. These are registered with the store, so that a device reads and writes the client's memory
//! itself: **no payload is copied** between the processes. The calls, types and errors of a client are those of a store
//! of its own process ([`KvStore`]).
//!
//! ```text
//!  client's process                                    server's process
//!
//!  client.put(key, span) -> ring of requests --------> a thread of the store takes it between its own rounds
//!             an eventfd is rung if that thread sleeps     |
//!                                                        shard <=> device <====== Span: memory that both map
//!                                                          |
//!  pending.wait() <-------- ring of answers <---------- the thread that ends the request writes its answer
//!             an eventfd is rung if the client sleeps
//!
//!  greeting, memory to share, layouts, counters <-----> the client's own thread, over the socket
//! ```
//!
//! ```
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use adit_kvshare::{Client, ClientOptions, KvStore, Options, PendingAnswer, Server};
//! use adit_kvstore::{FormatStore, Key, OpenOptions, Store};
//!
//! # let folder = std::env::temp_dir().join(format!("adit-kvshare-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).expect("a folder");
//! # let (file, socket) = (folder.join("kv.img"), folder.join("kv.sock"));
//! # let target: adit_driver::Target = format!("uring:{}", file.display()).parse().expect("a target");
//! # Store::format(&FormatStore { file_bytes: Some(64 << 20), ..FormatStore::new([target.clone()]) })?;
//! // In the server's process, which 'adit kv serve' is:
//! let store = Store::open(&OpenOptions::new([target]))?;
//! let server = Server::bind(&socket, Options::default())?;
//! let stops = AtomicBool::new(false);
//! std::thread::scope(|scope| {
//!     let serving = scope.spawn(|| server.run(&store, &stops, &|event| println!("{event}")));
//!
//!     // In another process:
//!     let client = Client::connect(&socket, &ClientOptions::default())?;
//!     let key = Key::new(b"model/block/17")?;
//!     assert!(client.put(key.clone(), b"some bytes").wait()?.is_stored());
//!     let value = client.get(key).wait()?.expect("a hit");
//!     assert_eq!(value.to_vec(), b"some bytes");
//!     stops.store(true, Ordering::Relaxed);
//!     serving.join().expect("no panic")
//! })?;
//! store.close().wait()?;
//! # std::fs::remove_dir_all(&folder).expect("it was made");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `wire` | messages, requests and answers, byte by byte |
//! | `ring` | the rings, and the words by which a side says that it sleeps |
//! | `memory` | a client's memory files, as rings and as spans; the server's half is `server::mapped` |
//! | `mapping` | how they are mapped, on large pages |
//! | `pieces` | which bytes of a region are idle |
//! | `socket` | messages and files over the socket |
//! | [`server`] | the server |
//! | [`client`] | its clients |
//!
//! [`server`] says what a client may not do, and what clients trust each other with;
//! `docs/operate/kv.md` is for operators.

pub mod client;
mod mapping;
mod memory;
mod pieces;
mod ring;
pub mod server;
mod socket;
pub mod wire;

pub use adit_kvstore::{Divide, Error, KvStore, PendingAnswer, RefusalKind, Result, StoredBytes};
pub use adit_shared::{SharedBytes, SharedBytesMut};
pub use client::{Client, ClientOptions, Unfinished};
pub use memory::Span;
pub use pieces::Pieces;
pub use server::{Event, Options, Server};
