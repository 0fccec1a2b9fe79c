//! A checksum of a call's input, by which replicas of a rank find that they differ.

use crate::endpoint::Endpoint;

/// A checksum of a rank's input to a call.
pub struct Vouch(crc_fast::Digest);

impl Vouch {
    /// Adds bytes, without padding.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

impl Endpoint {
    /// Sends the checksum of this rank's input to its replicas, whose input must be the same.
    pub fn vouch(&self, put_in: impl FnOnce(&mut Vouch)) {
        if !self.node().is_replicated() || self.is_sized() {
            return;
        }
        let mut vouch = Vouch(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme));
        vouch.bytes(self.sig().with_hashes().as_bytes());
        put_in(&mut vouch);
        let (comm, call) = self.wire().expect("a call with input");
        self.node().transport().set_input_checksum(comm, call, vouch.0.finalize());
    }
}
