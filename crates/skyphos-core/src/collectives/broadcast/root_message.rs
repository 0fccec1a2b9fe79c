//! The message of a broadcast's root: its parts, or only their lengths in a simulation without data.

use super::layout::JoinedParts;
use crate::endpoint::Endpoint;
use skyphos_types::{Error, Result};

/// The root's message.
#[derive(Clone, Copy, Debug)]
pub enum RootMessage<'a> {
    /// The parts.
    Parts(&'a [&'a [u8]]),
    /// Only the lengths of the parts, in a simulation without data.
    Lengths(&'a [usize]),
}

impl<'a> RootMessage<'a> {
    /// Bytes of each part.
    pub fn lengths(self) -> Vec<usize> {
        match self {
            RootMessage::Parts(parts) => parts.iter().map(|part| part.len()).collect(),
            RootMessage::Lengths(lengths) => lengths.to_vec(),
        }
    }

    /// The parts, if there is data; adds them to the input checksum that replicas of this rank compare.
    pub(super) fn checksummed_parts(self, ep: &Endpoint) -> Result<Option<JoinedParts<&'a [u8]>>> {
        match self {
            RootMessage::Parts(parts) => {
                ep.checksum_input(|sum| parts.iter().for_each(|part| sum.add(part)));
                Ok(Some(JoinedParts::of(parts.iter().copied())))
            }
            RootMessage::Lengths(_) if ep.is_sized() => Ok(None),
            RootMessage::Lengths(_) => Err(Error::bad_input(
                "a broadcast takes lengths in place of bytes only in a simulation without data",
            )),
        }
    }
}
