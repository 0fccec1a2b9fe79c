//! The inbox: a posted buffer for each peer's next header or small frame.
//!
//! Each receive names its sender. A few receives from any sender would suffice, but MPICH 5.0.2 over UCX then lost messages in most
//! runs (8 processes that send and receive in three rounds). One call tests all requests.

use crate::Library;
use crate::abi::Handle;
use skyphos_core::frame::HEADER_BYTES;
use std::ffi::c_int;

/// Bytes of all buffers together, and of one at most: MPICH sends messages of up to 16 KB or more without a handshake.
const TOTAL_BYTES: usize = 16 << 20;
const MAX_BUFFER_BYTES: usize = 8 * 1024;

/// The tag of headers and small frames. MPI guarantees tags up to 32,767.
pub(crate) const HEAD_TAG: c_int = 0;

/// Bytes of a buffer in a group of `size` processes. Frames up to this size are one message.
pub(crate) fn small_bytes(size: usize) -> usize {
    (TOTAL_BYTES / size / 64 * 64).clamp(8 * HEADER_BYTES, MAX_BUFFER_BYTES)
}

/// Posted receives, one per peer.
pub(crate) struct Inbox {
    library: &'static Library,
    comm: Handle,
    /// The sender of each slot.
    peers: Vec<u32>,
    /// The requests, each as wide as the library's handles. MPI writes them.
    requests: Vec<u64>,
    posted: Vec<bool>,
    buffers: Vec<Box<[u8]>>,
    completed_slots: Vec<c_int>,
}

impl Inbox {
    /// Buffers for all others of a communicator; nothing is posted yet.
    pub(crate) fn new(library: &'static Library, comm: Handle, rank: u32, size: u32) -> Inbox {
        let peers: Vec<u32> = (0..size).filter(|peer| *peer != rank).collect();
        let buffer = |_: &u32| vec![0; small_bytes(size as usize)].into_boxed_slice();
        let buffers = peers.iter().map(buffer).collect();
        let (posted, completed_slots) = (vec![false; peers.len()], vec![0; peers.len()]);
        Inbox { library, comm, requests: vec![0; peers.len()], posted, buffers, completed_slots, peers }
    }

    /// Number of slots, one per peer.
    pub(crate) fn slots(&self) -> usize {
        self.peers.len()
    }

    fn request(&mut self, slot: usize) -> *mut Handle {
        debug_assert!(slot < self.requests.len());
        // SAFETY: within the memory, since no handle is wider than its numbers.
        unsafe {
            self.requests.as_mut_ptr().cast::<u8>().add(slot * self.library.constants.handle_bytes).cast()
        }
    }

    /// Posts the buffer for a peer's next message.
    pub(crate) fn post_receive(&mut self, slot: usize) -> Result<(), String> {
        let request = self.request(slot);
        let buffer = &mut self.buffers[slot];
        // SAFETY: the buffer is not moved before the request is complete or cancelled, or is leaked.
        let code = unsafe {
            (self.library.call.irecv)(
                buffer.as_mut_ptr().cast(),
                buffer.len() as c_int,
                self.library.constants.byte,
                self.peers[slot] as c_int,
                HEAD_TAG,
                self.comm,
                request,
            )
        };
        self.library.check(code, "MPI_Irecv")?;
        self.posted[slot] = true;
        Ok(())
    }

    /// Number of messages that have arrived since the last call. [`Inbox::arrived`] returns them.
    pub(crate) fn test(&mut self) -> Result<usize, String> {
        let mut count: c_int = 0;
        let (slots, requests) = (self.peers.len() as c_int, self.requests.as_mut_ptr().cast());
        // SAFETY: there are as many requests as slots, and room for as many results. MPI skips complete and unposted requests.
        let code = unsafe {
            (self.library.call.testsome)(
                slots,
                requests,
                &mut count,
                self.completed_slots.as_mut_ptr(),
                self.library.constants.status_ignore,
            )
        };
        self.library.check(code, "MPI_Testsome")?;
        // Negative if no request is active.
        let count = count.max(0) as usize;
        for slot in &self.completed_slots[..count] {
            self.posted[*slot as usize] = false;
        }
        Ok(count)
    }

    /// A message that has arrived: its slot, its sender, and its buffer, which begins with the message.
    pub(crate) fn arrived(&self, k: usize) -> (usize, u32, &[u8]) {
        let slot = self.completed_slots[k] as usize;
        (slot, self.peers[slot], &self.buffers[slot])
    }

    /// Cancels all receives.
    pub(crate) fn close(&mut self) {
        for slot in 0..self.peers.len() {
            if std::mem::take(&mut self.posted[slot]) {
                let request = self.request(slot);
                // SAFETY: an active request of this inbox. Cancelling a receive completes it.
                unsafe {
                    (self.library.call.cancel)(request);
                    (self.library.call.wait)(request, self.library.constants.status_ignore);
                }
            }
        }
    }

    /// Leaks the memory that MPI may still write to.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.requests));
        std::mem::forget(std::mem::take(&mut self.buffers));
        (self.peers, self.posted) = Default::default();
    }
}
