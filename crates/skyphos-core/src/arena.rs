//! Memory that other processes of the host have open, and pieces of it.
//!
//! A process cuts buffers from its own [`Arena`] ([`Cut`]) and reads pieces of another one's ([`Borrowed`]). Which pieces are lent to whom
//! is [`crate::loan`]'s part.

use crate::memory::{Backing, HEAD_BYTES, Map, Mark};
use bytemuck::{Pod, Zeroable};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// One cache line; buffers are made of these, so that any number type is aligned in them.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

/// Slots of a lender and a borrower, and so the bytes that the row of them needs.
pub const SLOTS: usize = 256;

/// Bytes of an arena. They are taken from the system as they are used.
pub const ARENA_BYTES: usize = 16 << 20;

/// Memory that buffers are cut from, which other processes may have open.
pub struct Arena {
    map: Map,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Lines from the beginning that were cut off once.
    used: usize,
    /// Where lie those that came back, by how long they are.
    back: BTreeMap<usize, Vec<usize>>,
}

impl Arena {
    /// A new one, and the file that it is in.
    pub fn make(mark: &Mark) -> io::Result<(Arc<Arena>, Backing)> {
        let backing = Backing::make(ARENA_BYTES, mark)?;
        let map = backing.shared(ARENA_BYTES)?;
        Ok((Arc::new(Arena { map, free: Mutex::default() }), backing))
    }

    /// So many lines that nobody else has, if there are any left. They hold what was last written there.
    pub(crate) fn cut(self: &Arc<Arena>, lines: usize) -> Option<Cut> {
        let mut free = self.free.lock().expect("arena lock");
        let line = match free.back.get_mut(&lines).and_then(Vec::pop) {
            Some(line) => line,
            None if (free.used + lines) * size_of::<Line>() <= ARENA_BYTES => {
                free.used += lines;
                free.used - lines
            }
            None => return None,
        };
        Some(Cut { arena: self.clone(), line, lines })
    }
}

/// Where a line of the arena in this mapping lies.
fn place(map: &Map, line: usize) -> *mut Line {
    // SAFETY: inside of the mapping, of which the head is a whole number of lines.
    unsafe { map.at().add(HEAD_BYTES).cast::<Line>().add(line) }
}

/// A piece of an arena that nobody else writes to.
pub(crate) struct Cut {
    pub(crate) arena: Arc<Arena>,
    pub(crate) line: usize,
    lines: usize,
}

impl Cut {
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: this process's own, which nobody writes to while it is shared; any bytes are lines.
        unsafe { std::slice::from_raw_parts(place(&self.arena.map, self.line), self.lines) }
    }

    pub(crate) fn lines_mut(&mut self) -> &mut [Line] {
        // SAFETY: nobody else has this piece.
        unsafe { std::slice::from_raw_parts_mut(place(&self.arena.map, self.line), self.lines) }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.arena.free.lock().expect("arena lock").back.entry(self.lines).or_default().push(self.line);
    }
}

/// The slots of a lender and a borrower: [`SLOTS`] bytes of memory that both have.
#[derive(Clone)]
pub(crate) struct Slots {
    map: Arc<Map>,
    at: usize,
}

impl Slots {
    pub(crate) fn new(map: Arc<Map>, at: usize) -> Slots {
        assert!(at + SLOTS <= map.len(), "no room for the slots");
        Slots { map, at }
    }

    pub(crate) fn slot(&self, number: u64) -> &AtomicU8 {
        // SAFETY: inside of the mapping; any byte is such a value.
        unsafe { &*self.map.at().add(self.at + number as usize % SLOTS).cast() }
    }
}

/// A piece of another process's arena, until it is dropped.
pub(crate) struct Borrowed {
    pub(crate) memory: Arc<Map>,
    pub(crate) slots: Slots,
    pub(crate) slot: u32,
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

impl Borrowed {
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: inside of the mapping; its owner does not write there before the slot is clear.
        unsafe { std::slice::from_raw_parts(place(&self.memory, self.line), self.lines) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Release: all reads are before.
        self.slots.slot(u64::from(self.slot)).store(0, Ordering::Release);
    }
}
