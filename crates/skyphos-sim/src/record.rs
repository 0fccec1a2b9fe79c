//! The record of a simulated call: traffic by rank and round, and, for watched ranks, every frame and stretch of work.

use skyphos_types::Round;
use std::collections::BTreeMap;

/// One rank's traffic in one round of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedRound {
    /// Nanosecond of the first frame, sent or received, and of the last.
    pub first: u64,
    /// See `first`.
    pub last: u64,
    /// Messages sent to other ranks.
    pub messages: u64,
    /// Bytes sent, without headers.
    pub sent: u64,
    /// Bytes received, without headers.
    pub received: u64,
}

/// The journey of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// The round.
    pub round: Round,
    /// Bytes of its payload.
    pub bytes: u32,
    /// Nanosecond at which it was posted.
    pub posted: u64,
    /// Nanosecond at which the link began to carry it.
    pub left: u64,
    /// Nanosecond at which all of it had arrived.
    pub arrived: u64,
}

/// A stretch of time in which a rank worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// The rank.
    pub rank: u32,
    /// Its first nanosecond.
    pub from: u64,
    /// Its last nanosecond.
    pub to: u64,
}

/// The record of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// By rank, then by round.
    pub rounds: Vec<BTreeMap<Round, RecordedRound>>,
    /// Every frame of watched ranks, in the order of arrival.
    pub flights: Vec<Flight>,
    /// Every stretch of work of watched ranks, in the order of their ends.
    pub busy: Vec<Busy>,
    /// The watched ranks, ascending: their frames and stretches of work are recorded.
    pub watched: Vec<u32>,
}

impl Record {
    /// An empty record of `ranks` ranks, of which those in `watched` (ascending) are watched.
    pub fn new(ranks: u32, watched: Vec<u32>) -> Record {
        let rounds = (0..ranks).map(|_| BTreeMap::new()).collect();
        Record { rounds, flights: Vec::new(), busy: Vec::new(), watched }
    }

    /// Whether a rank is watched.
    pub fn is_watched(&self, rank: u32) -> bool {
        self.watched.binary_search(&rank).is_ok()
    }

    /// Records a posted frame. `first`: the frame begins a message.
    pub fn sent(&mut self, rank: u32, round: Round, at: u64, first: bool, bytes: usize) {
        let seen = self.at(rank, round, at);
        seen.messages += u64::from(first);
        seen.sent += bytes as u64;
    }

    /// Records a frame that has arrived.
    pub fn received(&mut self, rank: u32, round: Round, at: u64, bytes: usize) {
        self.at(rank, round, at).received += bytes as u64;
    }

    fn at(&mut self, rank: u32, round: Round, at: u64) -> &mut RecordedRound {
        let fresh = RecordedRound { first: at, last: at, ..RecordedRound::default() };
        let seen = self.rounds[rank as usize].entry(round).or_insert(fresh);
        seen.first = seen.first.min(at);
        seen.last = seen.last.max(at);
        seen
    }

    /// Records work. Work that follows at once extends the stretch.
    pub fn worked(&mut self, rank: u32, from: u64, to: u64) {
        if from == to || !self.is_watched(rank) {
            return;
        }
        match self.busy.last_mut() {
            Some(last) if last.rank == rank && last.to == from => last.to = to,
            _ => self.busy.push(Busy { rank, from, to }),
        }
    }

    /// The traffic of all ranks by round: the earliest first frame, the latest last frame, and sums.
    pub fn by_round(&self) -> BTreeMap<Round, RecordedRound> {
        let mut all: BTreeMap<Round, RecordedRound> = BTreeMap::new();
        for (number, round) in self.rounds.iter().flatten() {
            let seen =
                all.entry(*number).or_insert(RecordedRound { first: u64::MAX, ..RecordedRound::default() });
            *seen = RecordedRound {
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
