//! Checksum of a rank's input to a call. Replicas of a rank compare it, because their inputs must be the same.

use crate::endpoint::Endpoint;

/// A checksum under way.
pub struct InputChecksum(crc_fast::Digest);

impl InputChecksum {
    /// Appends bytes to the sequence that the checksum covers.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

impl Endpoint {
    /// Sends the checksum of this rank's input to its replicas. `add_input` adds the input's bytes.
    pub fn checksum_input(&self, add_input: impl FnOnce(&mut InputChecksum)) {
        if !self.node().is_replicated() || self.is_sized() {
            return;
        }
        let mut checksum = InputChecksum(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme));
        checksum.add(self.sig().with_hashes().as_bytes());
        add_input(&mut checksum);
        let (comm, call) = self.frame_id().expect("a call with input");
        self.node().transport().set_input_checksum(comm, call, checksum.0.finalize());
    }
}
