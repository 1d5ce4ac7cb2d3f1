//! The server: a correct one, as far as its input permits.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc;

use adit_driver::sys::SharedPages;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::input::Input;

const HEADER_BYTES: usize = 16;
const REQUEST_BYTES_MAX: usize = 1 << 16;
/// Bytes of a BAR0 with registers and one page of doorbells.
const BAR0_BYTES: u64 = 0x2000;
/// The request whose reply may carry a file.
const GET_REGION_INFO: u8 = 5;

/// Starts the thread; returns its socket, the sender of inputs, and the receiver of their ends.
pub(super) fn start() -> (PathBuf, mpsc::Sender<Input>, mpsc::Receiver<()>) {
    let socket = std::env::temp_dir().join(format!("adit-fuzz-{}.sock", std::process::id()));
    // Left by a killed process with the same id.
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).expect("a socket to listen on");
    let (inputs, received) = mpsc::channel::<Input>();
    let (finish, finished) = mpsc::channel();
    let path = socket.clone();
    let doorbells = SharedPages::allocate(BAR0_BYTES as usize).expect("memory");
    std::thread::spawn(move || {
        for mut input in received {
            let (stream, _) = listener.accept().expect("the client connects");
            serve(stream, &mut input, &doorbells);
            if finish.send(()).is_err() {
                break;
            }
        }
        let _ = std::fs::remove_file(&path);
    });
    (socket, inputs, finished)
}

/// Answers until the client is gone or the input is spent.
fn serve(mut stream: UnixStream, input: &mut Input, doorbells: &SharedPages) {
    while let Some((header, body)) = request(&mut stream) {
        if input.is_spent() {
            return;
        }
        let (reply, brings_file) = (reply(input, &header, &body), input.byte() & 1 == 0);
        let sent = match brings_file && header[2] == GET_REGION_INFO && !reply.is_empty() {
            true => stream.send_with_fd(&reply[..], doorbells.file().as_raw_fd()).map(drop).is_ok(),
            false => stream.write_all(&reply).is_ok(),
        };
        // Hang up after a truncated message, so that the client does not wait for the rest.
        if !sent || is_short(&reply) {
            return;
        }
    }
}

/// Returns whether a message is shorter than its header says.
fn is_short(message: &[u8]) -> bool {
    let said =
        message.get(4..8).map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes")));
    said.is_none_or(|said| message.len() < said as usize)
}

/// Reads the client's next message, which must be correct. Drops files that come with it.
fn request(stream: &mut UnixStream) -> Option<([u8; HEADER_BYTES], Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).ok()?;
    let len = u32::from_ne_bytes(header[4..8].try_into().expect("four bytes")) as usize;
    assert!((HEADER_BYTES..=REQUEST_BYTES_MAX).contains(&len), "the client says how long it is");
    let mut body = vec![0; len - HEADER_BYTES];
    stream.read_exact(&mut body).ok()?;
    Some((header, body))
}

/// Builds the reply, as the target's module documentation says.
fn reply(input: &mut Input, request: &[u8; HEADER_BYTES], body: &[u8]) -> Vec<u8> {
    let command = u16::from_ne_bytes([request[2], request[3]]);
    let kind = input.byte();
    let body = match kind % 8 {
        0..=4 => right_body(command, body),
        5 | 6 => (0..input.number(2) % 512).map(|_| input.byte()).collect(),
        _ => return (0..input.byte()).map(|_| input.byte()).collect(),
    };
    let mut message = request.to_vec();
    message[4..8].copy_from_slice(&((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    message[8..12].copy_from_slice(&1u32.to_ne_bytes());
    message.extend(body);
    // Corrupt some bytes.
    for _ in 0..(kind >> 3) % 8 {
        let at = input.number(2) as usize % message.len();
        message[at] = input.byte();
    }
    if kind & 0x80 != 0 {
        message.truncate(input.number(2) as usize % message.len() + 1);
    }
    message
}

fn right_body(command: u16, asked: &[u8]) -> Vec<u8> {
    match command {
        1 => {
            let json = b"{\"capabilities\":{\"max_msg_fds\":2,\"max_dma_maps\":4}}\0";
            [&[0, 0, 1, 0], json.as_slice()].concat()
        }
        4 => words(&[16, 3, 9, 5]),
        5 => region(asked),
        7 => [&words(&[16, 1]), asked.get(8..12).unwrap_or(&[0; 4]), &words(&[4])].concat(),
        // A read: the request, and as many bytes.
        9 => {
            let count = asked.get(12..16).map_or(0, |count| count[0]);
            [asked, &vec![1; count.into()]].concat()
        }
        10 => asked.to_vec(),
        3 => asked.to_vec(),
        _ => Vec::new(),
    }
}

/// Describes BAR0 with a mappable page of doorbells; no other region.
fn region(asked: &[u8]) -> Vec<u8> {
    let word = |at: usize| asked.get(at..at + 4).map_or(0, |word| u32::from(word[0]));
    let index = word(8);
    let size = if index == 0 { BAR0_BYTES } else { 0 };
    let sparse = words(&[1 | 1 << 16, 0, 1, 0, 0x1000, 0, 0x1000, 0]);
    let mut body = words(&[64, 0b1111, index, 32]);
    body.extend(size.to_ne_bytes());
    body.extend(0u64.to_ne_bytes());
    let is_whole = asked.len() >= 4 && asked[0] >= 64;
    if is_whole { [body, sparse].concat() } else { body }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
