//! Plain files: one per object, in 256 directories.
//!
//! | setting | value | why |
//! |---|---|---|
//! | a put | open, `pwrite` from the beginning, close; in place if the file exists | the least that stores an object |
//! | a get | open, `pread`, close | no cache of handles: there are as many files as objects |
//! | `files` | page cache | it is the cache, of `--cache` where that can be limited |
//! | `files-direct` | `O_DIRECT`, page-aligned memory | no cache |
//! | callers | a thread for each request in flight | the calls block |
//!
//! Nothing is verified and nothing is atomic: changed bytes are returned as they are, and a crash leaves partial
//! objects. Puts are not flushed; `settle` is one `syncfs`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{About, Engine, Setup, judge};
use crate::contents;
use crate::measured::Found;

const FOLDERS: u64 = 256;
const ALIGNMENT: usize = 4096;

pub(super) struct Files {
    folder: PathBuf,
    object_bytes: usize,
    is_direct: bool,
}

/// Memory aligned to a page.
pub(super) struct Aligned {
    memory: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    fn new(contents: &[u8]) -> Aligned {
        let mut memory = vec![0; contents.len() + ALIGNMENT];
        let from = memory.as_ptr().align_offset(ALIGNMENT);
        assert!(from < ALIGNMENT, "bytes can be aligned");
        memory[from..from + contents.len()].copy_from_slice(contents);
        Aligned { memory, from, len: contents.len() }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..self.from + self.len]
    }
}

impl Files {
    pub(super) fn open(setup: &Setup, is_direct: bool) -> Result<(Files, About)> {
        for number in 0..FOLDERS {
            let folder = setup.folder.join(format!("{number:02x}"));
            std::fs::create_dir(&folder)
                .with_context(|| format!("{} cannot be made", folder.display()))?;
        }
        let way = if is_direct { "O_DIRECT" } else { "page cache" };
        let about = About {
            setup: format!(
                "{FOLDERS} directories, {way}, open and close for each call; callers are {} threads",
                setup.depth
            ),
            promise: "what the page cache wrote back outlives a crash of the machine, halves of objects included; \
                      nothing is verified"
                .to_owned(),
        };
        let (folder, object_bytes) = (setup.folder.clone(), setup.object_bytes);
        Ok((Files { folder, object_bytes, is_direct }, about))
    }

    fn path(&self, object: u64) -> PathBuf {
        self.folder.join(format!("{:02x}/{object:x}", object % FOLDERS))
    }

    fn flags(&self) -> i32 {
        if self.is_direct { libc::O_DIRECT } else { 0 }
    }
}

impl Engine for Files {
    type Hands = Aligned;

    fn hands(&self) -> Result<Aligned> {
        Ok(Aligned::new(&contents::base(self.object_bytes)))
    }

    async fn put(&self, hands: &mut Aligned, object: u64) -> Result<()> {
        contents::stamp(hands.bytes(), object);
        let (path, mut options) = (self.path(object), OpenOptions::new());
        let file =
            options.write(true).create(true).truncate(false).custom_flags(self.flags()).open(&path);
        let written = file.and_then(|file| file.write_all_at(hands.bytes(), 0));
        written.with_context(|| format!("{} cannot be written", path.display()))
    }

    async fn get(&self, hands: &mut Aligned, object: u64) -> Result<Found> {
        let (path, mut options) = (self.path(object), OpenOptions::new());
        let file = options.read(true).custom_flags(self.flags()).open(&path);
        match file.and_then(|file| file.read_exact_at(hands.bytes(), 0)) {
            Ok(()) => Ok(judge(hands.bytes(), object, self.object_bytes)),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(Found::Miss),
            Err(why) => Err(why).with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    async fn settle(&self) -> Result<()> {
        Ok(nix::unistd::syncfs(&File::open(&self.folder)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_memory_begins_at_a_page_and_holds_what_it_was_given() {
        let contents = contents::base(8192);
        let mut aligned = Aligned::new(&contents);
        assert_eq!(aligned.bytes().as_ptr() as usize % ALIGNMENT, 0);
        assert_eq!(aligned.bytes(), contents);
    }
}
