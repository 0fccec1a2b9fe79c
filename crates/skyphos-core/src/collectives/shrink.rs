//! Agrees with those who are left on who goes on ([`crate::survivors`]), over the connections that there still are.
//!
//! A call of its own number: survivors come to it from different places of the program. What a rank has said and heard is
//! kept between its tries, so that one who tries again after a time-out goes on where it was. Cost where one rank leads and
//! none is lost meanwhile: a word to all others, then four messages in a row, of some bytes a rank.

use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::survivors::{Decision, Survivor, Word};
use crate::transport::Loss;
use skyphos_types::Result;

/// The one round of it.
const ROUND: u32 = 0;

/// What a rank has said and heard so far.
pub struct Shrinking {
    survivor: Survivor,
    /// To each rank, and from it; nothing is to or from itself.
    to: Vec<Outgoing>,
    from: Vec<Incoming>,
}

impl Shrinking {
    /// Begins. Others may be in another call, and wait for this rank there.
    pub fn new(ep: &Endpoint) -> Shrinking {
        ep.leave_calls();
        let ranks = 0..ep.size();
        Shrinking {
            survivor: Survivor::new(ep.rank(), ep.losses()),
            to: ranks.clone().map(|rank| Outgoing::open(rank, ROUND)).collect(),
            from: ranks.map(|rank| Incoming::new(rank, ROUND)).collect(),
        }
    }

    /// Takes what has come, and says what there is to say; whether anything moved.
    fn step(&mut self, ep: &Endpoint) -> Result<bool> {
        let Shrinking { survivor, to, from } = self;
        let (mut moved, losses) = (false, ep.losses());
        for (rank, incoming) in (0..).zip(from).filter(|(rank, _)| *rank != ep.rank()) {
            // What came before a rank was lost still counts. An error says that nothing more does.
            while let Ok(Some(chunk)) = incoming.next(ep) {
                let word = decode(chunk.as_bytes(), ep.size(), ep.rank());
                survivor.hear(rank, word.ok_or_else(|| ep.corrupt(rank, "no word of survivors"))?);
                moved = true;
            }
            if let Some(loss) = losses[rank as usize].filter(|_| !survivor.has_lost(rank)) {
                survivor.lose(rank, loss);
                moved = true;
            }
        }
        for (rank, word) in survivor.take_out() {
            let bytes = encode(&word);
            let mut chunk = ep.chunk(bytes.len());
            chunk.as_bytes_mut().copy_from_slice(&bytes);
            to[rank as usize].push(ep, chunk);
            moved = true;
        }
        Ok(moved)
    }
}

/// Goes on until it is decided.
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

/// A letter, then numbers of 4 bytes: of a rank that is lost how, of ranks that go on their numbers.
fn encode(word: &Word) -> Vec<u8> {
    let loss = |loss: &Option<Loss>| match loss {
        None => 0,
        Some(Loss::Left) => 1,
        Some(Loss::Ended) => 2,
        Some(Loss::Silent) => 3,
    };
    let (letter, numbers): (u8, Vec<u32>) = match word {
        Word::Join(lost) => (b'j', lost.iter().map(loss).collect()),
        Word::Propose(attempt) => (b'p', vec![*attempt]),
        Word::Yes(attempt) => (b'y', vec![*attempt]),
        Word::Commit(ranks) => (b'c', ranks.clone()),
        Word::Out => (b'o', Vec::new()),
        Word::Leave => (b'l', Vec::new()),
    };
    [letter].into_iter().chain(numbers.into_iter().flat_map(u32::to_le_bytes)).collect()
}

/// `None` for what is no word to rank `me` of a group of so many.
fn decode(bytes: &[u8], size: u32, me: u32) -> Option<Word> {
    let (letter, rest) = bytes.split_first()?;
    let (numbers, more) = rest.as_chunks::<4>();
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
    match (letter, &numbers[..]) {
        _ if !more.is_empty() => None,
        (b'j', lost) if lost.len() == size as usize => {
            lost.iter().map(loss).collect::<Option<_>>().map(Word::Join)
        }
        (b'p', [attempt]) => Some(Word::Propose(*attempt)),
        (b'y', [attempt]) => Some(Word::Yes(*attempt)),
        // Who is left out hears so in another word.
        (b'c', ranks) if are_ranks(ranks) && ranks.contains(&me) => Some(Word::Commit(ranks.to_vec())),
        (b'o', []) => Some(Word::Out),
        (b'l', []) => Some(Word::Leave),
        _ => None,
    }
}

/// A survivor's word, and what it is encoded again.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_word(bytes: &[u8], size: u32, me: u32) -> Option<(Word, Vec<u8>)> {
    decode(bytes, size, me).map(|word| (word.clone(), encode(&word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_wire_and_nothing_else_is_one() {
        let words = [
            Word::Join(vec![None, Some(Loss::Left), Some(Loss::Ended), Some(Loss::Silent)]),
            Word::Propose(7),
            Word::Yes(7),
            Word::Commit(vec![1, 2]),
            Word::Out,
            Word::Leave,
        ];
        for word in words {
            let bytes = encode(&word);
            assert_eq!(decode(&bytes, 4, 2), Some(word));
            for cut in 0..bytes.len() {
                assert!(decode(&bytes[..cut], 4, 2).is_none_or(|other| matches!(other, Word::Commit(_))));
            }
        }
        assert_eq!(decode(&encode(&Word::Commit(vec![1, 4])), 4, 1), None, "no such rank");
        assert_eq!(decode(&encode(&Word::Commit(vec![1, 2])), 4, 3), None, "without the one that is told");
        assert_eq!(decode(&encode(&Word::Commit(vec![2, 1])), 4, 1), None);
        assert_eq!(decode(&encode(&Word::Join(vec![None])), 4, 1), None);
    }
}
