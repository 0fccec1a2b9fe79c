//! How ranks of a broadcast agree on its end, whoever is lost meanwhile.
//!
//! Ranks stand in an order, the root first. The first that is left collects: each tells it once it has the message, and when all
//! that are left have, it tells them so, and whom it has missed; who hears so tells those that have told it. Nobody goes before, for
//! others may want of it what somebody that is lost would have sent them: each asks the nearest that stands before it and is left, from
//! which no circle can come.
//!
//! ```text
//! table    to one before    send me the table of the parts
//! data     to one before    send me these bytes, as stream k
//! done     to the root, and to who collects in its place    I have all
//! collect  to all, by who is first when the root is lost    tell me when you have all
//! end      to all, by who collects    all have; these were lost
//! ```
//!
//! Two ranks may see different ranks as lost, where a link is cut: who collects is for each rank the first that it has not lost
//! itself. A word to one that has gone is answered by [`crate::frame::FrameKind::Past`]: all had the message then.

use super::tree::binomial;
use crate::endpoint::Endpoint;
use crate::mailbox::Absence;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_types::{Error, Result};
use std::ops::Range;
use std::time::Duration;

/// The round of words.
const WORDS: u32 = 0x120;

/// What ranks tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Table,
    Data(u32, Range<usize>),
    Done,
    Collect,
    End(Vec<u32>),
}

impl Word {
    /// A letter, then numbers of 8 bytes.
    fn encode(&self) -> Vec<u8> {
        let (letter, numbers): (u8, Vec<u64>) = match self {
            Word::Table => (b't', Vec::new()),
            Word::Data(stream, range) => {
                (b'd', vec![u64::from(*stream), range.start as u64, range.end as u64])
            }
            Word::Done => (b'o', Vec::new()),
            Word::Collect => (b'c', Vec::new()),
            Word::End(lost) => (b'e', lost.iter().map(|rank| u64::from(*rank)).collect()),
        };
        [letter].into_iter().chain(numbers.into_iter().flat_map(u64::to_le_bytes)).collect()
    }

    /// `None` for what is no word in a group of so many.
    fn decode(bytes: &[u8], size: u32) -> Option<Word> {
        let (letter, rest) = bytes.split_first()?;
        let (numbers, more) = rest.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
        let rank = |number: &u64| u32::try_from(*number).ok().filter(|rank| *rank < size);
        match (letter, &numbers[..]) {
            _ if !more.is_empty() => None,
            (b't', []) => Some(Word::Table),
            (b'd', [stream, start, end]) if start < end => {
                let range = usize::try_from(*start).ok()?..usize::try_from(*end).ok()?;
                Some(Word::Data(u32::try_from(*stream).ok()?, range))
            }
            (b'o', []) => Some(Word::Done),
            (b'c', []) => Some(Word::Collect),
            (b'e', lost) => lost.iter().map(rank).collect::<Option<_>>().map(Word::End),
            _ => None,
        }
    }
}

/// A read of a stream whose sender may be lost.
pub(super) enum Came {
    Chunk(Payload),
    Nothing,
    /// Nothing more will come, and why.
    Never(Error),
}

/// What is known of a rank.
#[derive(Clone, Default)]
struct Known {
    lost: bool,
    left: bool,
    past: bool,
    done: bool,
    ended: Option<Vec<u32>>,
}

impl Known {
    /// It takes no part any more.
    fn is_gone(&self) -> bool {
        self.lost || self.left || self.past
    }

    /// It has the message.
    fn has_all(&self) -> bool {
        self.done || self.past
    }
}

/// One rank's part in that.
pub(super) struct Completion<'a> {
    pub(super) ep: &'a Endpoint,
    order: &'a [u32],
    place: usize,
    /// By rank.
    known: Vec<Known>,
    absences: usize,
    to: Vec<Option<Outgoing>>,
    /// Who collects, and is to hear when this rank has all.
    waiting: Vec<u32>,
    complete: bool,
    /// The first that is left was told so, or this rank is it.
    told: u32,
    collecting: bool,
    missed_by_all: Vec<u32>,
    /// Who wants the table, and who what of the data as which stream, of this rank.
    pub(super) of_table: Vec<u32>,
    pub(super) of_data: Vec<(u32, u32, Range<usize>)>,
    asked: u32,
    /// How long who collects waits while nothing moves, and since when nothing has.
    window: Duration,
    moved_at: Duration,
}

impl<'a> Completion<'a> {
    pub(super) fn new(ep: &'a Endpoint, order: &'a [u32], window: Duration) -> Completion<'a> {
        let (me, size) = (ep.rank(), ep.size() as usize);
        let place = order.iter().position(|rank| *rank == me).expect("a rank of the group");
        Completion {
            ep,
            order,
            place,
            known: vec![Known::default(); size],
            absences: 0,
            to: (0..size).map(|_| None).collect(),
            waiting: order[..1].to_vec(),
            complete: false,
            told: order[0],
            collecting: false,
            missed_by_all: Vec::new(),
            of_table: Vec::new(),
            of_data: Vec::new(),
            asked: 0,
            window,
            moved_at: ep.now(),
        }
    }

    /// Where this rank stands in the order.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// The ranks in order.
    pub(super) fn order(&self) -> &'a [u32] {
        self.order
    }

    /// Who sends this rank the table, and to whom it sends it.
    pub(super) fn table_parent(&self) -> Option<u32> {
        binomial(self.order, self.place).parent
    }

    pub(super) fn table_children(&self) -> Vec<u32> {
        binomial(self.order, self.place).children
    }

    /// Whether a rank takes no part any more.
    pub(super) fn is_gone(&self, rank: u32) -> bool {
        self.known[rank as usize].is_gone()
    }

    fn say(&mut self, to: u32, word: &Word) {
        if to == self.ep.rank() || self.known[to as usize].lost {
            return;
        }
        let bytes = word.encode();
        let stream = self.to[to as usize].get_or_insert_with(|| match self.ep.outlives_losses() {
            true => Outgoing::open(to, WORDS),
            // Each says one thing, and the end of a message is something to replicas.
            false => Outgoing::new(to, WORDS, bytes.len() as u64),
        });
        stream.push_shared(self.ep, self.ep.node().pool().copy_of(&bytes));
    }

    /// Takes what was said, and who is lost; whether there was anything.
    pub(super) fn look(&mut self) -> Result<bool> {
        let mut moved = false;
        while let Some((from, bytes)) = self.ep.take_from_any(WORDS) {
            moved = true;
            let word = Word::decode(bytes.as_bytes(), self.ep.size());
            match word.ok_or_else(|| self.ep.corrupt(from, "no word of a broadcast"))? {
                Word::Table => self.of_table.push(from),
                Word::Data(stream, range) => self.of_data.push((from, stream, range)),
                Word::Done => self.known[from as usize].done = true,
                Word::End(lost) => self.known[from as usize].ended = Some(lost),
                Word::Collect if self.complete => self.say(from, &Word::Done),
                Word::Collect => self.waiting.push(from),
            }
        }
        if self.ep.count_absences() != self.absences {
            self.absences = self.ep.count_absences();
            moved = true;
            for (rank, why) in self.ep.absences() {
                let known = &mut self.known[rank as usize];
                match why {
                    Absence::Lost => known.lost = true,
                    Absence::Left => known.left = true,
                    Absence::Past => known.past = true,
                }
            }
        }
        Ok(moved)
    }

    /// What has come of a message.
    pub(super) fn take(&self, from: u32, incoming: &mut Incoming) -> Result<Came> {
        match incoming.next(self.ep) {
            Ok(Some(chunk)) => Ok(Came::Chunk(chunk)),
            Ok(None) if self.ep.outlives_losses() && self.is_gone(from) => {
                Ok(Came::Never(self.ep.lost(from)))
            }
            Ok(None) => Ok(Came::Nothing),
            // Of that rank alone, or of the call.
            Err(error @ Error::PeerLost { .. }) if self.ep.outlives_losses() => {
                self.ep.version().map(|_| Came::Never(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Who is to be asked for what somebody that is gone would have sent: the nearest before this rank. The error if there is none.
    fn source(&self, error: Error) -> Result<u32> {
        let before = self.order[..self.place].iter().rev();
        before.copied().find(|rank| !self.is_gone(*rank)).ok_or(error)
    }

    /// Asks for the table; whom.
    pub(super) fn ask_for_table(&mut self, instead: Error) -> Result<u32> {
        let source = self.source(instead)?;
        self.say(source, &Word::Table);
        Ok(source)
    }

    /// Asks for bytes; whom, and as which stream they come.
    pub(super) fn ask_for_data(&mut self, range: Range<usize>, instead: Error) -> Result<(u32, u32)> {
        let source = self.source(instead)?;
        self.asked += 1;
        self.say(source, &Word::Data(self.asked, range));
        Ok((source, self.asked))
    }

    /// This rank has all.
    pub(super) fn complete(&mut self) {
        if !std::mem::replace(&mut self.complete, true) {
            for collector in std::mem::take(&mut self.waiting) {
                self.say(collector, &Word::Done);
            }
        }
    }

    /// Whether all that are left have the message, if this rank has; tells those who wait to hear so from it.
    ///
    /// # Errors
    /// `PeerLost` where a call ends by a loss, and who is needed has left.
    pub(super) fn is_over(&mut self) -> Result<bool> {
        let before = &self.order[..self.place];
        let known = |rank: &u32| &self.known[*rank as usize];
        if let Some(told) = before.iter().find_map(|rank| known(rank).ended.clone()) {
            self.tell_the_end(told);
            return Ok(true);
        }
        if before.iter().any(|rank| known(rank).past) {
            // Who has left may have had all: this rank has not asked.
            self.tell_the_end(self.without(|known| known.lost).collect());
            return Ok(true);
        }
        if !self.ep.outlives_losses() {
            let needed = if self.place == 0 { &self.order[1..] } else { &self.order[..1] };
            let gone = needed.iter().find(|rank| known(rank).is_gone() && !known(rank).has_all());
            gone.map_or(Ok(()), |rank| Err(self.ep.lost(*rank)))?;
        }
        if let Some(collector) = before.iter().copied().find(|rank| !known(rank).is_gone()) {
            if self.told != collector {
                self.told = collector;
                self.say(collector, &Word::Done);
            }
            return Ok(false);
        }
        if self.place > 0 && !std::mem::replace(&mut self.collecting, true) {
            self.order.iter().for_each(|rank| self.say(*rank, &Word::Collect));
        }
        let is_in = |known: &Known| known.has_all() || known.is_gone();
        let others = self.order.iter().filter(|rank| **rank != self.ep.rank());
        let over = others.into_iter().all(|rank| is_in(&self.known[*rank as usize]));
        if over {
            self.tell_the_end(self.missed());
        } else {
            self.check_window()?;
        }
        Ok(over)
    }

    /// Something has moved.
    pub(super) fn moved(&mut self) {
        self.moved_at = self.ep.now();
    }

    /// When nothing will have moved for too long, for who collects.
    pub(super) fn deadline(&self) -> Duration {
        match self.complete && (self.place == 0 || self.collecting) {
            true => self.moved_at.saturating_add(self.window),
            false => Duration::MAX,
        }
    }

    fn check_window(&self) -> Result<()> {
        if self.ep.now() < self.deadline() {
            return Ok(());
        }
        let others = self.order.iter().filter(|rank| **rank != self.ep.rank());
        let late = others.filter(|rank| {
            let known = &self.known[**rank as usize];
            !known.has_all() && !known.is_gone()
        });
        let missing = late.map(|rank| self.ep.world_rank(*rank)).collect();
        Err(Error::Timeout { missing, call: self.ep.sig().to_string(), after: self.window })
    }

    /// To all whose collector this rank may be: they have told it that they have all, or it has asked them.
    fn tell_the_end(&mut self, missed: Vec<u32>) {
        let word = Word::End(missed);
        for rank in self.order {
            let known = &self.known[*rank as usize];
            if !known.past && (known.done || self.place == 0 || self.collecting) {
                self.say(*rank, &word);
            }
        }
        let Word::End(missed) = word else { unreachable!("said above") };
        self.missed_by_all = missed;
    }

    /// Ranks of which something is known, and not that they have all.
    fn without(&self, of: fn(&Known) -> bool) -> impl Iterator<Item = u32> {
        let each = (0..).zip(&self.known);
        each.filter(move |(_, known)| of(known) && !known.has_all()).map(|(rank, _)| rank)
    }

    /// For who collects: who is lost; and then who has left, which may be for that.
    fn missed(&self) -> Vec<u32> {
        let left = self.without(|known| known.left && !known.lost);
        self.without(|known| known.lost).chain(left).collect()
    }

    /// The first of those whom who collects has missed; that one, if it has missed this rank.
    pub(super) fn first_missed(&self) -> Option<Error> {
        let me = self.ep.rank();
        let before = || self.order[..self.place].iter().copied();
        let told = |rank: &u32| self.known[*rank as usize].ended.is_some();
        let instead = || before().find(|rank| self.is_gone(*rank)).or_else(|| before().find(told));
        let missed = self.missed_by_all.iter().filter_map(|rank| match *rank == me {
            true => instead(),
            false => Some(*rank),
        });
        let missed: Vec<u32> = missed.collect();
        missed.iter().for_each(|rank| self.ep.miss(*rank));
        missed.first().map(|rank| self.ep.lost(*rank))
    }
}

/// A word of a broadcast, encoded again.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_word(bytes: &[u8], size: u32) -> Option<Vec<u8>> {
    Word::decode(bytes, size).map(|word| word.encode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_survive_the_wire() {
        let words = [Word::Table, Word::Data(3, 5..77), Word::Done, Word::Collect, Word::End(vec![1, 3])];
        for word in words {
            assert_eq!(Word::decode(&word.encode(), 4), Some(word));
        }
        assert_eq!(Word::decode(&Word::End(vec![4]).encode(), 4), None, "no such rank");
        assert_eq!(Word::decode(&Word::Data(1, 5..5).encode(), 4), None, "nothing");
    }

    proptest! {
        #[test]
        fn other_bytes_are_no_word(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(word) = Word::decode(&bytes, 4) {
                prop_assert_eq!(word.encode(), bytes);
            }
        }
    }
}
