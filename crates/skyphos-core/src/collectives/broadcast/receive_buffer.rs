//! A receiving rank's memory for the parts of a message.

use super::layout::Layout;
use crate::shared_memory::host_region::HostCopy;
use crate::shared_memory::piece_buffer::PieceBuffer;
use skyphos_types::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// A receiving rank's memory for a message's parts.
pub trait ReceiveBuffer: Send + Sync {
    /// Allocates memory for parts of these lengths. Called once, before all else.
    ///
    /// # Errors
    /// There is not enough memory.
    fn allocate(&mut self, lengths: &[usize]) -> Result<()>;

    /// Stores bytes at an offset. They fit the message, and each offset is stored once.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Copies bytes from an offset where they were stored before.
    fn read(&self, at: usize, bytes: &mut [u8]);

    /// Takes the whole message as a mapping of memory that this host's ranks share, with the range of each part.
    fn set_shared(&mut self, copy: HostCopy, parts: Vec<Range<usize>>);
}

/// A part of a received message.
pub enum ReceivedPart {
    /// In this rank's own memory.
    Own(Vec<u8>),
    /// In a copy-on-write mapping of memory that the host's ranks share.
    Shared(Arc<HostCopy>, Range<usize>),
}

impl AsRef<[u8]> for ReceivedPart {
    fn as_ref(&self) -> &[u8] {
        match self {
            ReceivedPart::Own(bytes) => bytes,
            ReceivedPart::Shared(copy, range) => copy.bytes(range.clone()),
        }
    }
}

/// A [`ReceiveBuffer`] in this rank's own memory, which is not zeroed before the message is written to it.
#[derive(Default)]
pub struct MessageBuffer {
    parts: Vec<PieceBuffer>,
    layout: Layout,
    shared: Option<(HostCopy, Vec<Range<usize>>)>,
}

impl MessageBuffer {
    /// The parts of a complete message; empty if the message is not complete.
    pub fn into_parts(self) -> Vec<ReceivedPart> {
        if let Some((copy, ranges)) = self.shared {
            let copy = Arc::new(copy);
            return ranges.into_iter().map(|range| ReceivedPart::Shared(copy.clone(), range)).collect();
        }
        let parts = self.parts.into_iter().map(|part| part.into_bytes().map(ReceivedPart::Own));
        parts.collect::<Option<_>>().unwrap_or_default()
    }
}

impl ReceiveBuffer for MessageBuffer {
    fn allocate(&mut self, lengths: &[usize]) -> Result<()> {
        self.layout = Layout::new(lengths.iter().copied());
        self.parts.clear();
        for len in lengths {
            self.parts.push(PieceBuffer::new(*len).map_err(|_| {
                Error::bad_input(format!("not enough memory for a part of {len} bytes of a broadcast"))
            })?);
        }
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (part, in_part, in_bytes) in self.layout.pieces(at..at + bytes.len()) {
            self.parts[part].write(in_part.start, &bytes[in_bytes]);
        }
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        for (part, in_part, in_bytes) in self.layout.pieces(at..at + bytes.len()) {
            bytes[in_bytes].copy_from_slice(self.parts[part].written(in_part));
        }
    }

    fn set_shared(&mut self, copy: HostCopy, parts: Vec<Range<usize>>) {
        self.shared = Some((copy, parts));
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::JoinedParts;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_read_and_stored_as_if_joined(
            lengths in prop::collection::vec(0usize..20, 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
        ) {
            let mut next = 0u8;
            let whole: Vec<Vec<u8>> = lengths
                .iter()
                .map(|len| (0..*len).map(|_| { next = next.wrapping_add(1); next }).collect())
                .collect();
            let parts = JoinedParts::of(&whole);
            let joined: Vec<u8> = whole.concat();
            prop_assert_eq!(&parts.joined(), &joined);
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(joined.len() + 1)).collect();
            ends.extend([0, joined.len()]);
            ends.sort_unstable();
            let mut copy = MessageBuffer::default();
            copy.allocate(&lengths).unwrap();
            for cut in ends.windows(2) {
                let mut bytes = vec![0; cut[1] - cut[0]];
                parts.read(cut[0], &mut bytes);
                prop_assert_eq!(&bytes[..], &joined[cut[0]..cut[1]]);
                copy.write(cut[0], &bytes);
            }
            let received: Vec<Vec<u8>> = copy.into_parts().iter().map(|part| part.as_ref().to_vec()).collect();
            prop_assert_eq!(received, whole);
        }
    }
}
