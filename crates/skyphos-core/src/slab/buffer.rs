//! Buffers of a few sizes, and the shelves that hold them between uses.

use super::aligned_vec::AlignedVec;
use crate::shared_memory::arena::{Arena, Borrowed, Cut, Line};
use bytemuck::Zeroable;
use std::sync::{Arc, Mutex, Weak};

/// Largest payload of one frame. Chunks of this size let calls interleave on a connection and are still in the L2 cache when
/// they are merged.
pub const CHUNK_BYTES: usize = 128 * 1024;

/// Sizes of buffers: for control frames and small messages, for segments of streams (two sizes), and for whole chunks.
pub(super) const CAPACITIES: [usize; 4] = [4 * 1024, 16 * 1024, 48 * 1024, CHUNK_BYTES];

/// Upper bound on the bytes of unused buffers of each kind. Buffers beyond it are freed.
const MAX_SHELVED_BYTES: usize = 64 << 20;

/// A buffer, and the shelves that it returns to.
pub(super) struct Buffer {
    pub(super) memory: Memory,
    home: Weak<Shelves>,
}

/// The memory of a buffer.
pub(super) enum Memory {
    Own(Box<[Line]>),
    /// In this process's arena, where other processes can read it.
    Cut(Cut),
    /// In another process's arena.
    Borrowed(Borrowed),
}

impl Memory {
    pub(super) fn lines(&self) -> &[Line] {
        match self {
            Memory::Own(lines) => lines,
            Memory::Cut(cut) => cut.lines(),
            Memory::Borrowed(borrowed) => borrowed.lines(),
        }
    }

    /// The lines, to write; `None` if they are another process's.
    pub(super) fn lines_mut(&mut self) -> Option<&mut [Line]> {
        match self {
            Memory::Own(lines) => Some(lines),
            Memory::Cut(cut) => Some(cut.lines_mut()),
            Memory::Borrowed(_) => None,
        }
    }
}

impl Buffer {
    /// A buffer in another process's arena. It returns to no shelf.
    pub(super) fn borrowed(borrowed: Borrowed) -> Arc<Buffer> {
        Arc::new(Buffer { memory: Memory::Borrowed(borrowed), home: Weak::new() })
    }

    /// Returns the buffer to its shelf, unless it has other owners.
    pub(super) fn put_back(mut self: Arc<Buffer>) {
        // Two clones dropped at the same moment both see another owner. Then the buffer is freed instead of reused, which is
        // harmless.
        if Arc::get_mut(&mut self).is_none() {
            return;
        }
        if let Some(home) = self.home.upgrade() {
            let (capacity, shelf) = home.shelf(size_of_val(self.memory.lines()));
            let mut shelf = shelf.lock().expect("pool lock");
            if shelf.len() * capacity < MAX_SHELVED_BYTES {
                shelf.push(self);
            }
        }
    }
}

/// Unused buffers.
#[derive(Default)]
pub(super) struct Shelves {
    /// By index in [`CAPACITIES`].
    buffers: [Mutex<Vec<Arc<Buffer>>>; CAPACITIES.len()],
    /// Memory for messages of several chunks.
    large: Mutex<Vec<AlignedVec>>,
    /// The arena that new buffers are cut from while it has memory.
    arena: Option<Arc<Arena>>,
}

impl Shelves {
    /// Shelves whose buffers are cut from an arena.
    pub(super) fn of_arena(arena: Arc<Arena>) -> Shelves {
        Shelves { arena: Some(arena), ..Shelves::default() }
    }

    /// The capacity that holds `len` bytes, and its shelf.
    fn shelf(&self, len: usize) -> (usize, &Mutex<Vec<Arc<Buffer>>>) {
        let k = CAPACITIES.partition_point(|capacity| *capacity < len);
        (CAPACITIES[k], &self.buffers[k])
    }

    /// A buffer for `len` bytes without other owners. Its contents are arbitrary.
    pub(super) fn take(self: &Arc<Shelves>, len: usize) -> Arc<Buffer> {
        assert!(len <= CHUNK_BYTES, "a frame carries at most {CHUNK_BYTES} bytes, not {len}");
        let (capacity, shelf) = self.shelf(len);
        let found = shelf.lock().expect("pool lock").pop();
        found.unwrap_or_else(|| {
            let lines = capacity / size_of::<Line>();
            let memory = match self.arena.as_ref().and_then(|arena| arena.cut(lines)) {
                Some(cut) => Memory::Cut(cut),
                None => Memory::Own(vec![Line::zeroed(); lines].into_boxed_slice()),
            };
            Arc::new(Buffer { memory, home: Arc::downgrade(self) })
        })
    }

    /// Memory for a message of several chunks.
    pub(super) fn take_large(&self) -> AlignedVec {
        self.large.lock().expect("pool lock").pop().unwrap_or_default()
    }

    /// Returns memory of a message of several chunks.
    pub(super) fn put_back_large(&self, vec: AlignedVec) {
        let mut shelf = self.large.lock().expect("pool lock");
        let shelved: usize = shelf.iter().map(AlignedVec::capacity).sum();
        if shelved + vec.capacity() < MAX_SHELVED_BYTES {
            shelf.push(vec);
        }
    }

    /// Number of buffers that are not on a shelf.
    pub(super) fn in_use(self: &Arc<Shelves>) -> usize {
        let shelved: usize = self.buffers.iter().map(|shelf| shelf.lock().expect("pool lock").len()).sum();
        // Each buffer refers to its shelves, and so does memory of a large message in use.
        Arc::weak_count(self) - shelved
    }
}
