//! What `adit kv import` may be given: bytes of a stream of objects, with checksums computed by an attacker.
//!
//! An input is a list of frames, each with its checksum corrected or not, behind a right beginning; or raw bytes.

use std::io::Read;

use adit_kvstore::stream::{Exporter, Importer, MAGIC, PIECE_BYTES};

use crate::input::Input;

/// Bytes of a frame before its body.
const HEAD_BYTES: usize = 16;

/// Runs one input: no panic, no more memory than the input and a frame, and what is read whole is written to the same
/// bytes.
pub fn target(data: &[u8]) {
    read(data);
    let mut stream = MAGIC.to_vec();
    stream.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    let (input, mut number) = (&mut Input::new(data), 0u64);
    while !input.is_spent() {
        frame(input, number, &mut stream);
        number += 1;
    }
    read(&stream);
}

/// Appends a frame: mostly a right one, so that those behind it are reached.
fn frame(input: &mut Input, number: u64, stream: &mut Vec<u8>) {
    let (kind, bytes) = (input.byte() % 6, usize::from(input.byte()));
    let body: Vec<u8> = (0..bytes).map(|_| input.byte()).collect();
    let mut head = [0; HEAD_BYTES];
    head[0] = kind;
    head[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
    head[8..].copy_from_slice(&number.to_le_bytes());
    if input.byte() == 1 {
        head[usize::from(input.byte()) % HEAD_BYTES] ^= input.byte();
    }
    let sum = crc_fast::crc32_iscsi(&[&head[..], &body].concat());
    stream.extend(head);
    stream.extend(body);
    stream.extend(sum.to_le_bytes());
}

fn read(bytes: &[u8]) {
    let Ok(mut stream) = Importer::new(bytes) else { return };
    let mut again = Exporter::new(Vec::new()).expect("memory takes everything");
    let mut data = Vec::new();
    loop {
        let entry = match stream.object() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(why) => return assert!(!why.to_string().is_empty()),
        };
        again.object(&entry).expect("written");
        data.clear();
        let whole = stream.read_to_end(&mut data);
        assert!(data.len() <= bytes.len(), "no byte is made up");
        data.chunks(PIECE_BYTES).for_each(|piece| again.piece(piece).expect("written"));
        match whole {
            Ok(read) => assert_eq!(read as u64, entry.bytes),
            Err(_) if stream.is_abandoned() => again.abandon().expect("written"),
            Err(_) => return,
        }
    }
    let (again, counts) = again.end().expect("written");
    assert_eq!(counts, stream.counts());
    assert!(again == bytes, "a stream has one form");
}
