//! Reference-counted buffers from a pool: what frames carry.
//!
//! A [`PayloadMut`] is written by one owner, then frozen into a [`Payload`] that may be shared (a
//! broadcast, replicas) and read. When the last owner drops it, the buffer and its reference count
//! return to the pool together, so that a steady exchange allocates nothing.

use crate::shared_memory::arena::{Arena, Borrowed, Cut, Line};
use bytemuck::{Pod, Zeroable};
use std::sync::{Arc, Mutex, Weak};

/// Largest payload of one frame. Chunks of this size let calls interleave on a connection and are
/// still in the L2 cache when they are merged.
pub const CHUNK_BYTES: usize = 128 * 1024;

/// Sizes of buffers: for control frames and small messages, for segments of streams, and whole chunks.
const CAPACITIES: [usize; 4] = [4 * 1024, 16 * 1024, 48 * 1024, CHUNK_BYTES];

/// What the pool keeps for reuse at most, in bytes; more is given back to the system.
const KEEP_BYTES: usize = 64 << 20;

/// A growable byte vector whose data is aligned to a cache line.
#[derive(Clone, Default)]
pub struct AlignedVec {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedVec {
    /// Sets the length, keeping capacity; new bytes are zero or left from before.
    pub fn resize(&mut self, len: usize) {
        let lines = len.div_ceil(64);
        if lines > self.lines.len() {
            self.lines.resize(lines, Line::zeroed());
        }
        self.len = len;
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        let start = self.len;
        let lines = (start + bytes.len()).div_ceil(64);
        if lines > self.lines.len() {
            self.lines.resize(lines, Line::zeroed());
        }
        self.len += bytes.len();
        self.as_bytes_mut()[start..].copy_from_slice(bytes);
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// The bytes, to write.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }

    /// The bytes as numbers; the length must be a multiple of their size.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.as_bytes())
    }

    /// The bytes as numbers, to write.
    pub fn as_slice_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.as_bytes_mut())
    }
}

/// A message being written: one chunk of the pool if it fits, else memory of its own.
pub enum MessageMut {
    /// Goes out as it is.
    Chunk(PayloadMut),
    /// Is cut into chunks.
    Large(Large),
    /// A length without bytes: what a simulation without data sends.
    Sized(usize),
}

impl MessageMut {
    /// The bytes, to write; none where there is only their length.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        match self {
            MessageMut::Chunk(slab) => slab.as_bytes_mut(),
            MessageMut::Large(vec) => vec.as_bytes_mut(),
            MessageMut::Sized(_) => &mut [],
        }
    }
}

/// A message that came: its one chunk, or all of them joined. Aligned to a cache line either way.
#[derive(Debug)]
pub enum Message {
    /// As it came.
    Chunk(Payload),
    /// Joined.
    Large(Large),
}

/// Memory for a message of several chunks; goes back to the pool when dropped. The system gives fresh
/// memory page by page, which costs more than filling it.
pub struct Large {
    vec: AlignedVec,
    home: Weak<PoolInner>,
}

impl std::ops::Deref for Large {
    type Target = AlignedVec;
    fn deref(&self) -> &AlignedVec {
        &self.vec
    }
}

impl std::ops::DerefMut for Large {
    fn deref_mut(&mut self) -> &mut AlignedVec {
        &mut self.vec
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        if let Some(pool) = self.home.upgrade() {
            let mut shelf = pool.messages.lock().expect("pool lock");
            let kept: usize = shelf.iter().map(|v| v.lines.len() * 64).sum();
            if kept + self.vec.lines.len() * 64 < KEEP_BYTES {
                shelf.push(std::mem::take(&mut self.vec));
            }
        }
    }
}

impl std::fmt::Debug for Large {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.vec.fmt(f)
    }
}

impl Message {
    /// The bytes as numbers; `None` if there are not whole ones.
    pub fn as_slice<T: Pod>(&self) -> Option<&[T]> {
        numbers_of(self.as_bytes())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Message::Chunk(payload) => payload.as_bytes(),
            Message::Large(vec) => vec.as_bytes(),
        }
    }
}

fn numbers_of<T: Pod>(bytes: &[u8]) -> Option<&[T]> {
    match bytes {
        [] => Some(&[]), // no buffer need be there, aligned or not
        bytes => bytemuck::try_cast_slice(bytes).ok(),
    }
}

struct Slab {
    lines: Lines,
    home: Weak<PoolInner>,
}

/// Where a buffer lies.
enum Lines {
    Own(Box<[Line]>),
    /// Where other processes can read it.
    Cut(Cut),
    /// In another process's arena.
    Borrowed(Borrowed),
}

impl Lines {
    fn get(&self) -> &[Line] {
        match self {
            Lines::Own(lines) => lines,
            Lines::Cut(cut) => cut.lines(),
            Lines::Borrowed(borrowed) => borrowed.lines(),
        }
    }

    /// To write, if this process may.
    fn get_mut(&mut self) -> Option<&mut [Line]> {
        match self {
            Lines::Own(lines) => Some(lines),
            Lines::Cut(cut) => Some(cut.lines_mut()),
            Lines::Borrowed(_) => None,
        }
    }
}

#[derive(Default)]
struct PoolInner {
    /// By capacity.
    slabs: [Mutex<Vec<Arc<Slab>>>; CAPACITIES.len()],
    messages: Mutex<Vec<AlignedVec>>,
    /// Where buffers are cut from, while it lasts.
    arena: Option<Arc<Arena>>,
}

impl PoolInner {
    /// The capacity that holds `len` bytes, and the buffers of it that wait.
    fn shelf(&self, len: usize) -> (usize, &Mutex<Vec<Arc<Slab>>>) {
        let k = CAPACITIES.partition_point(|capacity| *capacity < len);
        (CAPACITIES[k], &self.slabs[k])
    }

    fn take(self: &Arc<PoolInner>, len: usize) -> PayloadMut {
        assert!(len <= CHUNK_BYTES, "a frame carries at most {CHUNK_BYTES} bytes, not {len}");
        let (capacity, shelf) = self.shelf(len);
        let found = shelf.lock().expect("pool lock").pop();
        let slab = found.unwrap_or_else(|| {
            let lines = match self.arena.as_ref().and_then(|arena| arena.cut(capacity / 64)) {
                Some(cut) => Lines::Cut(cut),
                None => Lines::Own(vec![Line::zeroed(); capacity / 64].into_boxed_slice()),
            };
            Arc::new(Slab { lines, home: Arc::downgrade(self) })
        });
        PayloadMut { slab: Some(slab), len }
    }
}

/// Where buffers come from and return to. Cloning shares the pool.
#[derive(Clone, Default)]
pub struct Pool {
    own: Arc<PoolInner>,
    /// Of buffers that can be lent.
    lending: Option<Arc<PoolInner>>,
}

impl Pool {
    /// One that has buffers too which can be lent to other processes.
    pub fn lending(arena: Arc<Arena>) -> Pool {
        let lending = PoolInner { arena: Some(arena), ..PoolInner::default() };
        Pool { lending: Some(Arc::new(lending)), ..Pool::default() }
    }

    /// Buffers that somebody holds.
    pub fn in_use(&self) -> usize {
        let held = |pool: &Arc<PoolInner>| {
            let waiting: usize = pool.slabs.iter().map(|shelf| shelf.lock().expect("pool lock").len()).sum();
            // All know where they come from, and those of whole messages forget it when they return.
            Arc::weak_count(pool) - waiting
        };
        held(&self.own) + self.lending.as_ref().map_or(0, held)
    }

    /// A buffer of `len` bytes (at most [`CHUNK_BYTES`]); its contents are arbitrary.
    pub fn take(&self, len: usize) -> PayloadMut {
        PoolInner::take(&self.own, len)
    }

    /// The same for what several ranks get: one that can be lent, if there are such. The smallest are sooner copied.
    pub fn take_for_several(&self, len: usize) -> PayloadMut {
        let lending = self.lending.as_ref().filter(|_| len > CAPACITIES[0]);
        PoolInner::take(lending.unwrap_or(&self.own), len)
    }

    /// Room for a message of `len` bytes; its contents are arbitrary.
    pub fn message(&self, len: usize) -> MessageMut {
        match len <= CHUNK_BYTES {
            true => MessageMut::Chunk(self.take(len)),
            false => MessageMut::Large(self.large(len)),
        }
    }

    /// Memory for a message of several chunks, of length `len`; its contents are arbitrary.
    pub fn large(&self, len: usize) -> Large {
        let mut vec = self.own.messages.lock().expect("pool lock").pop().unwrap_or_default();
        vec.resize(len);
        Large { vec, home: Arc::downgrade(&self.own) }
    }

    /// A buffer holding a copy of `bytes`.
    pub fn copy_of(&self, bytes: &[u8]) -> Payload {
        let mut slab = self.take(bytes.len());
        slab.as_bytes_mut().copy_from_slice(bytes);
        slab.freeze()
    }
}

/// A buffer with one owner, to write.
pub struct PayloadMut {
    /// None where there is no data, only its length.
    slab: Option<Arc<Slab>>,
    len: usize,
}

impl PayloadMut {
    /// A length without bytes: what a simulation without data sends.
    pub fn sized(len: usize) -> PayloadMut {
        PayloadMut { slab: None, len }
    }

    /// The bytes, to write; none where there is only their length.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        let Some(slab) = &mut self.slab else { return &mut [] };
        let slab = Arc::get_mut(slab).expect("a PayloadMut is the only owner");
        let lines = slab.lines.get_mut().expect("a PayloadMut is of this process");
        &mut bytemuck::cast_slice_mut(lines)[..self.len]
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes as numbers, to write.
    pub fn as_slice_mut<T: Pod>(&mut self) -> &mut [T] {
        match self.as_bytes_mut() {
            // No bytes at all may lie anywhere.
            [] => &mut [],
            bytes => bytemuck::cast_slice_mut(bytes),
        }
    }

    /// Ends writing.
    pub fn freeze(self) -> Payload {
        Payload { slab: self.slab, len: self.len }
    }
}

impl std::fmt::Debug for AlignedVec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedVec({} bytes)", self.len)
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({} bytes)", self.len)
    }
}

/// A buffer to read, shared by its clones. In a simulation without data it has a length and no bytes.
#[derive(Clone, Default)]
pub struct Payload {
    slab: Option<Arc<Slab>>,
    len: usize,
}

impl Payload {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.slab.as_ref().map_or(&[], |slab| &bytemuck::cast_slice(slab.lines.get())[..self.len])
    }

    /// One that lies in another process's memory.
    pub(crate) fn borrowed(borrowed: Borrowed, len: usize) -> Payload {
        let slab = Slab { lines: Lines::Borrowed(borrowed), home: Weak::new() };
        Payload { slab: Some(Arc::new(slab)), len }
    }

    /// Where it lies, if other processes can read it there.
    pub(crate) fn cut(&self) -> Option<&Cut> {
        match &self.slab.as_ref()?.lines {
            Lines::Cut(cut) => Some(cut),
            _ => None,
        }
    }

    /// The bytes as numbers; `None` if the length is not a multiple of their size.
    pub fn as_slice<T: Pod>(&self) -> Option<&[T]> {
        numbers_of(self.as_bytes())
    }

    /// The buffer to write: this one if nobody shares it, else a copy in one that `take` gives.
    pub fn into_mut(mut self, take: impl FnOnce(usize) -> PayloadMut) -> PayloadMut {
        if let Some(mut slab) = self.slab.take() {
            if Arc::get_mut(&mut slab).is_some_and(|slab| slab.lines.get_mut().is_some()) {
                return PayloadMut { slab: Some(slab), len: self.len };
            }
            self.slab = Some(slab);
        }
        let mut copy = take(self.len);
        copy.as_bytes_mut().copy_from_slice(self.as_bytes());
        copy
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        let Some(mut slab) = self.slab.take() else { return };
        // Two clones dropped at the same moment both see another owner; then the buffer is freed
        // instead of reused, which is harmless.
        if Arc::get_mut(&mut slab).is_none() {
            return;
        }
        if let Some(pool) = slab.home.upgrade() {
            let (capacity, shelf) = pool.shelf(slab.lines.get().len() * 64);
            let mut shelf = shelf.lock().expect("pool lock");
            if shelf.len() * capacity < KEEP_BYTES {
                shelf.push(slab);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let pool = Pool::default();
        let first = pool.copy_of(&[1, 2, 3]);
        let place = first.as_bytes().as_ptr();
        let second = first.clone();
        drop(first);
        assert_ne!(pool.copy_of(&[0]).as_bytes().as_ptr(), place, "still owned by the clone");
        assert_eq!(second.as_bytes(), [1, 2, 3]);
        drop(second);
        let again = pool.copy_of(&[9]);
        assert_eq!(again.as_bytes().as_ptr(), place, "last owner gave it back");
        let shared = again.clone();
        let mut copy = again.into_mut(|len| pool.take(len));
        copy.as_bytes_mut()[0] = 7;
        assert_eq!((shared.as_bytes(), copy.freeze().as_bytes()), (&[9][..], &[7][..]));
        let mut own = shared.into_mut(|_| unreachable!("nobody shares it now"));
        own.as_bytes_mut()[0] = 8;
        assert_eq!((own.freeze().as_bytes(), place), (&[8][..], place));
    }

    #[test]
    fn aligned_vec_grows() {
        let mut v = AlignedVec::default();
        for k in 0..1000u64 {
            v.extend(&k.to_le_bytes());
        }
        assert_eq!(v.as_slice::<u64>(), (0..1000).collect::<Vec<u64>>());
        assert_eq!(v.as_bytes().as_ptr() as usize % 64, 0);
        v.resize(8);
        assert_eq!(v.as_slice::<u64>(), [0]);
    }
}
