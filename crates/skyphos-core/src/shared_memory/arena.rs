//! Memory for buffers that other processes of the host can read.
//!
//! A process cuts buffers from its own [`Arena`] ([`Cut`]), and reads buffers in another process's arena ([`Borrowed`]).
//! [`crate::loan`] decides which buffers are lent to which process.

use super::memory_file::{HEAD_BYTES, Mapping, MemoryFile, Token};
use bytemuck::{Pod, Zeroable};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// One cache line. Buffers are made of lines, so that any number type is aligned in them.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

/// Slots of a lender and a borrower, of one byte each.
pub const SLOTS: usize = 256;

/// Bytes of an arena. The system provides them as they are used.
pub const ARENA_BYTES: usize = 16 << 20;

/// Memory of this process that buffers are cut from, and that other processes can map.
pub struct Arena {
    map: Mapping,
    free: Mutex<FreeLines>,
}

#[derive(Default)]
struct FreeLines {
    /// The lines from this one on have never been cut.
    used: usize,
    /// The first lines of returned buffers, by the buffers' number of lines.
    returned: BTreeMap<usize, Vec<usize>>,
}

impl Arena {
    /// A new arena, and its file.
    pub fn make(token: &Token) -> io::Result<(Arc<Arena>, MemoryFile)> {
        let file = MemoryFile::make(ARENA_BYTES, token)?;
        let map = file.map_shared(ARENA_BYTES)?;
        Ok((Arc::new(Arena { map, free: Mutex::default() }), file))
    }

    /// Cuts a buffer of `lines` lines, with arbitrary contents; `None` if the arena has not that much free memory.
    pub(crate) fn cut(self: &Arc<Arena>, lines: usize) -> Option<Cut> {
        let mut free = self.free.lock().expect("arena lock");
        let line = match free.returned.get_mut(&lines).and_then(Vec::pop) {
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

/// The address of a line in the mapping of an arena.
fn line_ptr(map: &Mapping, line: usize) -> *mut Line {
    // SAFETY: every caller's line is within the arena, and so within its mapping. The head is a whole number of lines.
    unsafe { map.as_ptr().add(HEAD_BYTES).cast::<Line>().add(line) }
}

/// A buffer cut from this process's arena. It returns to the arena when it is dropped.
pub(crate) struct Cut {
    pub(crate) arena: Arc<Arena>,
    pub(crate) line: usize,
    lines: usize,
}

impl Cut {
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: the arena has cut these lines for this buffer alone, and writes need `&mut self`. Any bytes are lines.
        unsafe { std::slice::from_raw_parts(line_ptr(&self.arena.map, self.line), self.lines) }
    }

    pub(crate) fn lines_mut(&mut self) -> &mut [Line] {
        // SAFETY: the arena has cut these lines for this buffer alone, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(line_ptr(&self.arena.map, self.line), self.lines) }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.arena.free.lock().expect("arena lock").returned.entry(self.lines).or_default().push(self.line);
    }
}

/// The slots of a lender and a borrower: [`SLOTS`] bytes of memory that both have mapped. A set slot stands for a buffer on loan.
#[derive(Clone)]
pub(crate) struct Slots {
    map: Arc<Mapping>,
    offset: usize,
}

impl Slots {
    /// The slots at an offset of a mapping.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn new(map: Arc<Mapping>, offset: usize) -> Slots {
        assert!(offset + SLOTS <= map.len(), "the slots do not fit the mapping");
        Slots { map, offset }
    }

    /// The slot of the loan with this number.
    pub(crate) fn slot(&self, loan: u64) -> &AtomicU8 {
        // SAFETY: `new` has checked that the slots are within the mapping. Both processes access them as atomics only.
        unsafe { &*self.map.as_ptr().add(self.offset + loan as usize % SLOTS).cast() }
    }
}

/// A buffer in another process's arena. Dropping it clears its slot, which returns it to the lender.
pub(crate) struct Borrowed {
    memory: Arc<Mapping>,
    slots: Slots,
    slot: u32,
    line: usize,
    lines: usize,
}

impl Borrowed {
    /// Lines of another process's arena, mapped as `memory`; `None` if they are not within it, or there is no such slot.
    pub(crate) fn new(
        memory: Arc<Mapping>,
        slots: Slots,
        slot: u32,
        line: usize,
        lines: usize,
    ) -> Option<Borrowed> {
        let end = HEAD_BYTES + (line + lines) * size_of::<Line>();
        (end <= memory.len() && (slot as usize) < SLOTS).then(|| Borrowed {
            memory,
            slots,
            slot,
            line,
            lines,
        })
    }

    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: `new` has checked that the lines are within the mapping. Their owner does not write them while the slot is set.
        unsafe { std::slice::from_raw_parts(line_ptr(&self.memory, self.line), self.lines) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Release: this process has finished reading before the lender sees the slot clear.
        self.slots.slot(u64::from(self.slot)).store(0, Ordering::Release);
    }
}
