//! Shrink: the surviving ranks of a group agree on its new members, over the connections that remain.
//!
//! [`crate::survivors`] decides; this module carries its messages. The call has a number of its own, since survivors enter it
//! from different points of the program. Its state survives a time-out, so a rank that tries again continues where it was.
//! Cost with one leader and no further loss: a message to all others, then four messages in sequence, of a few bytes per rank.

use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::survivors::{Decision, Message, Survivor};
use crate::transport::Loss;
use skyphos_types::{GroupRank, Result, Round};

/// The only round.
const ROUND: Round = Round(0);

/// One rank's state of the agreement.
pub struct Shrinking {
    survivor: Survivor,
    /// A stream to each rank and one from it; those of this rank itself stay unused.
    to: Vec<Outgoing>,
    from: Vec<Incoming>,
}

impl Shrinking {
    /// Begins the agreement. Leaves all other calls, in which other ranks may wait for this rank.
    pub fn new(ep: &Endpoint) -> Shrinking {
        ep.leave_calls();
        let ranks = 0..ep.size();
        Shrinking {
            survivor: Survivor::new(ep.rank().0, ep.losses()),
            to: ranks.clone().map(|rank| Outgoing::open(GroupRank(rank), ROUND)).collect(),
            from: ranks.map(|rank| Incoming::new(GroupRank(rank), ROUND)).collect(),
        }
    }

    /// Takes messages and losses, and sends the survivor's messages. Returns whether there were any.
    fn step(&mut self, ep: &Endpoint) -> Result<bool> {
        let Shrinking { survivor, to, from } = self;
        let (mut moved, losses) = (false, ep.losses());
        for (rank, incoming) in (0..).zip(from).filter(|(rank, _)| *rank != ep.rank().0) {
            // Messages that arrived before their sender was lost still count. An error means that there are no more.
            while let Ok(Some(chunk)) = incoming.next(ep) {
                let message = decode(chunk.as_bytes(), ep.size(), ep.rank().0);
                survivor.receive(
                    rank,
                    message.ok_or_else(|| ep.corrupt(GroupRank(rank), "not a message of a shrink"))?,
                );
                moved = true;
            }
            if let Some(loss) = losses[rank as usize].filter(|_| !survivor.has_lost(rank)) {
                survivor.lose(rank, loss);
                moved = true;
            }
        }
        for (rank, message) in survivor.take_messages() {
            let bytes = encode(&message);
            let mut chunk = ep.chunk(bytes.len());
            chunk.as_bytes_mut().copy_from_slice(&bytes);
            to[rank as usize].push(ep, chunk);
            moved = true;
        }
        Ok(moved)
    }
}

/// Runs the agreement until this rank knows the decision.
pub async fn shrink(ep: &Endpoint, shrinking: &mut Shrinking) -> Result<Decision> {
    loop {
        let moved = shrinking.step(ep)?;
        if let Some(decision) = shrinking.survivor.decision() {
            return Ok(decision.clone());
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

/// Encodes a message: one byte for the kind, then numbers of 4 bytes, which are losses by rank, an attempt, or ranks.
fn encode(message: &Message) -> Vec<u8> {
    let loss = |loss: &Option<Loss>| match loss {
        None => 0,
        Some(Loss::Left) => 1,
        Some(Loss::Ended) => 2,
        Some(Loss::Silent) => 3,
    };
    let (kind, numbers): (u8, Vec<u32>) = match message {
        Message::Join(lost) => (b'j', lost.iter().map(loss).collect()),
        Message::Propose(attempt) => (b'p', vec![*attempt]),
        Message::Accept(attempt) => (b'y', vec![*attempt]),
        Message::Commit(ranks) => (b'c', ranks.clone()),
        Message::Exclude => (b'o', Vec::new()),
        Message::Leave => (b'l', Vec::new()),
    };
    [kind].into_iter().chain(numbers.into_iter().flat_map(u32::to_le_bytes)).collect()
}

/// Decodes a message to rank `me` of a group of `size` ranks; `None` if the bytes are no such message.
fn decode(bytes: &[u8], size: u32, me: u32) -> Option<Message> {
    let (kind, rest) = bytes.split_first()?;
    let (numbers, odd_bytes) = rest.as_chunks::<4>();
    let numbers: Vec<u32> = numbers.iter().map(|number| u32::from_le_bytes(*number)).collect();
    let are_ranks =
        |ranks: &[u32]| ranks.is_sorted_by(|a, b| a < b) && ranks.last().is_none_or(|rank| *rank < size);
    let loss = |code: &u32| match code {
        0 => Some(None),
        1 => Some(Some(Loss::Left)),
        2 => Some(Some(Loss::Ended)),
        3 => Some(Some(Loss::Silent)),
        _ => None,
    };
    match (kind, &numbers[..]) {
        _ if !odd_bytes.is_empty() => None,
        (b'j', lost) if lost.len() == size as usize => {
            lost.iter().map(loss).collect::<Option<_>>().map(Message::Join)
        }
        (b'p', [attempt]) => Some(Message::Propose(*attempt)),
        (b'y', [attempt]) => Some(Message::Accept(*attempt)),
        // An excluded rank gets `Exclude` instead.
        (b'c', ranks) if are_ranks(ranks) && ranks.contains(&me) => Some(Message::Commit(ranks.to_vec())),
        (b'o', []) => Some(Message::Exclude),
        (b'l', []) => Some(Message::Leave),
        _ => None,
    }
}

/// A decoded message, and its encoding.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_message(bytes: &[u8], size: u32, me: u32) -> Option<(Message, Vec<u8>)> {
    decode(bytes, size, me).map(|message| (message.clone(), encode(&message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_other_bytes_are_refused() {
        let messages = [
            Message::Join(vec![None, Some(Loss::Left), Some(Loss::Ended), Some(Loss::Silent)]),
            Message::Propose(7),
            Message::Accept(7),
            Message::Commit(vec![1, 2]),
            Message::Exclude,
            Message::Leave,
        ];
        for message in messages {
            let bytes = encode(&message);
            assert_eq!(decode(&bytes, 4, 2), Some(message));
            for cut in 0..bytes.len() {
                assert!(decode(&bytes[..cut], 4, 2).is_none_or(|other| matches!(other, Message::Commit(_))));
            }
        }
        assert_eq!(decode(&encode(&Message::Commit(vec![1, 4])), 4, 1), None, "no such rank");
        assert_eq!(decode(&encode(&Message::Commit(vec![1, 2])), 4, 3), None, "without the receiver");
        assert_eq!(decode(&encode(&Message::Commit(vec![2, 1])), 4, 1), None);
        assert_eq!(decode(&encode(&Message::Join(vec![None])), 4, 1), None);
    }
}
