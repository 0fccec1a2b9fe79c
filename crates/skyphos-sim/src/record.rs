//! What happened in a simulated call: by rank and round, and, if asked for, every frame and every stretch of work.

use std::collections::BTreeMap;

/// What one rank did in one round of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Nanosecond of the first frame sent or received, and of the last.
    pub first: u64,
    /// See `first`.
    pub last: u64,
    /// Messages sent to other ranks.
    pub messages: u64,
    /// Bytes of them, without the heads of frames.
    pub sent: u64,
    /// Bytes that came.
    pub received: u64,
}

/// A frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Who sent it.
    pub from: u32,
    /// To whom.
    pub to: u32,
    /// In which round.
    pub round: u32,
    /// Bytes of its payload.
    pub bytes: u32,
    /// Nanosecond at which it was posted.
    pub posted: u64,
    /// At which the link took it.
    pub left: u64,
    /// At which all of it was there.
    pub came: u64,
}

/// A stretch of time in which a rank worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Which rank.
    pub rank: u32,
    /// From this nanosecond.
    pub from: u64,
    /// To this one.
    pub to: u64,
}

/// What is kept of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// By rank, then by round.
    pub rounds: Vec<BTreeMap<u32, Round>>,
    /// Every frame of the ranks that are watched, in the order in which they came.
    pub flights: Vec<Flight>,
    /// Every stretch of work of them, in the order in which they ended.
    pub busy: Vec<Busy>,
    /// Ranks of which frames and stretches of work are kept, ascending.
    pub watched: Vec<u32>,
}

impl Record {
    /// Nothing yet, of so many ranks; of those in `watched`, ascending, all is kept.
    pub fn new(ranks: u32, watched: Vec<u32>) -> Record {
        let rounds = (0..ranks).map(|_| BTreeMap::new()).collect();
        Record { rounds, flights: Vec::new(), busy: Vec::new(), watched }
    }

    /// Whether all that a rank does is kept.
    pub fn is_watched(&self, rank: u32) -> bool {
        self.watched.binary_search(&rank).is_ok()
    }

    /// Takes note of a frame that is posted.
    pub fn sent(&mut self, rank: u32, round: u32, at: u64, first: bool, bytes: usize) {
        let seen = self.at(rank, round, at);
        seen.messages += u64::from(first);
        seen.sent += bytes as u64;
    }

    /// Takes note of a frame that is there.
    pub fn received(&mut self, rank: u32, round: u32, at: u64, bytes: usize) {
        self.at(rank, round, at).received += bytes as u64;
    }

    fn at(&mut self, rank: u32, round: u32, at: u64) -> &mut Round {
        let fresh = Round { first: at, last: at, ..Round::default() };
        let seen = self.rounds[rank as usize].entry(round).or_insert(fresh);
        seen.first = seen.first.min(at);
        seen.last = seen.last.max(at);
        seen
    }

    /// Takes note of work; what follows at once is one stretch.
    pub fn worked(&mut self, rank: u32, from: u64, to: u64) {
        if from == to || !self.is_watched(rank) {
            return;
        }
        match self.busy.last_mut() {
            Some(last) if last.rank == rank && last.to == from => last.to = to,
            _ => self.busy.push(Busy { rank, from, to }),
        }
    }

    /// All rounds of any rank: the earliest first frame, the latest last one, and sums.
    pub fn by_round(&self) -> BTreeMap<u32, Round> {
        let mut all: BTreeMap<u32, Round> = BTreeMap::new();
        for (number, round) in self.rounds.iter().flatten() {
            let seen = all.entry(*number).or_insert(Round { first: u64::MAX, ..Round::default() });
            *seen = Round {
                first: seen.first.min(round.first),
                last: seen.last.max(round.last),
                messages: seen.messages + round.messages,
                sent: seen.sent + round.sent,
                received: seen.received + round.received,
            };
        }
        all
    }
}
