//! Which ranks go on after some are lost: what one rank says and decides, without network or clock.
//!
//! The lowest rank that is not lost leads. All tell it whom they have lost; it proposes those that all of them can reach, and
//! when each of these has said yes, commits. Who hears so from the leader tells all the others before going on, so that no
//! survivor is left asking one that has gone. A leader that is lost is followed by the next rank, which asks again, and
//! goes by what it hears from one that has decided already. What others than the leader say waits until they lead: they may
//! be the last that knew of it, and gone, while the leader has asked anew.
//!
//! ```text
//! join     to the leader   whom I have lost
//! propose  to some         you go on, try k
//! yes      to the leader   so be it, try k
//! commit   by all          these ranks go on
//! out      to one left out others go on without you
//! leave    to all          I do not go on
//! ```
//!
//! **Promised**: two ranks that live, can reach each other and have decided have decided the same. A rank whose process has
//! ended is known to be gone; one that is only silent may live on behind a cut link, and decide there as well. So those who
//! go on must be more than half of all that may live, or half of them with the lowest of those: of two parts of a group that
//! cannot see each other at most one goes on.
//!
//! **Needs**: messages between two ranks arrive in order or not at all; who is lost stays so; nothing of it comes after.
//! Checked for every order of events at small sizes in `tests/survivors.rs`.

use crate::transport::Loss;

/// Whom a rank has lost, by rank.
pub type Losses = Vec<Option<Loss>>;

/// What ranks tell each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// "I am here, and have lost these."
    Join(Losses),
    /// "You and some others are to go on": the try.
    Propose(u32),
    /// "So be it."
    Yes(u32),
    /// "These go on."
    Commit(Vec<u32>),
    /// "Others go on without you."
    Out,
    /// "I do not go on."
    Leave,
}

/// Why a rank does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Others cannot reach it.
    LeftOut,
    /// More of the group may live elsewhere.
    TooFew,
}

/// What it comes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// These ranks go on.
    GoOn(Vec<u32>),
    /// This one does not.
    Stop(Why),
}

/// One rank's part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Survivor {
    me: u32,
    lost: Losses,
    /// What each rank has said of its losses.
    joined: Vec<Option<Losses>>,
    /// What each has said goes on.
    committed: Vec<Option<Vec<u32>>>,
    /// As the leader: tries so far, what is proposed, and who has said yes.
    tries: u32,
    proposed: Vec<u32>,
    yes: Vec<bool>,
    decision: Option<Decision>,
    /// What is to be sent.
    out: Vec<(u32, Word)>,
}

impl Survivor {
    /// Rank `me` of a group, which has lost these.
    pub fn new(me: u32, lost: Losses) -> Survivor {
        let size = lost.len();
        let mut survivor = Survivor {
            me,
            lost,
            joined: vec![None; size],
            committed: vec![None; size],
            tries: 0,
            proposed: Vec::new(),
            yes: vec![false; size],
            decision: None,
            out: Vec::new(),
        };
        survivor.tell();
        survivor
    }

    /// Whether it has lost a rank.
    pub fn has_lost(&self, rank: u32) -> bool {
        self.lost[rank as usize].is_some()
    }

    /// What it has decided.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// What is to be sent, and to whom.
    pub fn take_out(&mut self) -> Vec<(u32, Word)> {
        std::mem::take(&mut self.out)
    }

    /// A rank is lost.
    pub fn lose(&mut self, rank: u32, loss: Loss) {
        let known = &mut self.lost[rank as usize];
        if known.is_some() {
            return;
        }
        *known = Some(loss);
        if self.decision.is_none() {
            self.tell();
        }
    }

    /// A rank has spoken.
    pub fn hear(&mut self, from: u32, word: Word) {
        if self.lost[from as usize].is_some() {
            return;
        }
        match (word, &self.decision) {
            (Word::Join(_), Some(decision)) => {
                let left_out = matches!(decision, Decision::GoOn(ranks) if !ranks.contains(&from));
                if left_out {
                    self.out.push((from, Word::Out));
                }
            }
            (_, Some(_)) => {}
            (Word::Leave, None) => self.lose(from, Loss::Left),
            (Word::Join(lost), None) => {
                self.joined[from as usize] = Some(lost);
                self.lead();
            }
            (Word::Propose(attempt), None) => {
                if from == self.leader() {
                    self.out.push((from, Word::Yes(attempt)));
                }
            }
            (Word::Yes(attempt), None) => {
                if self.leads() && attempt == self.tries {
                    self.yes[from as usize] = true;
                    self.commit_if_all();
                }
            }
            (Word::Commit(ranks), None) => {
                self.committed[from as usize] = Some(ranks);
                self.follow();
            }
            (Word::Out, None) => self.stop(Why::LeftOut),
        }
    }

    fn living(&self) -> impl Iterator<Item = u32> {
        (0..self.lost.len() as u32).filter(|rank| *rank != self.me && self.lost[*rank as usize].is_none())
    }

    fn leader(&self) -> u32 {
        self.living().next().map_or(self.me, |rank| rank.min(self.me))
    }

    fn leads(&self) -> bool {
        self.leader() == self.me
    }

    /// Says whom it has lost to who leads, which may be itself.
    fn tell(&mut self) {
        self.joined[self.me as usize] = Some(self.lost.clone());
        self.follow();
        if self.decision.is_some() {
            return;
        }
        match self.leads() {
            true => self.lead(),
            false => self.out.push((self.leader(), Word::Join(self.lost.clone()))),
        }
    }

    /// Goes by what the leader has said, or, as the leader, anybody that lives.
    fn follow(&mut self) {
        let said = |rank: u32| self.committed[rank as usize].clone();
        let ranks = if self.leads() { self.living().find_map(said) } else { said(self.leader()) };
        if let Some(ranks) = ranks {
            self.commit(ranks);
        }
    }

    /// Proposes who goes on, if all that live have said whom they have lost and it is not what is proposed already.
    fn lead(&mut self) {
        if !self.leads() || self.living().any(|rank| self.joined[rank as usize].is_none()) {
            return;
        }
        let ranks = self.who_can();
        if ranks == self.proposed {
            return;
        }
        if !self.are_enough(&ranks) {
            return self.stop(Why::TooFew);
        }
        self.tries += 1;
        self.yes.fill(false);
        self.proposed = ranks;
        for rank in self.proposed.iter().filter(|rank| **rank != self.me) {
            self.out.push((*rank, Word::Propose(self.tries)));
        }
        self.commit_if_all();
    }

    /// Ranks that can all reach each other: without whoever is apart from most, the highest of several, until there is nobody.
    fn who_can(&self) -> Vec<u32> {
        let loses = |a: u32, b: u32| {
            let said = self.joined[a as usize].as_ref().expect("all have joined");
            said[b as usize].is_some()
        };
        let mut ranks: Vec<u32> = [self.me].into_iter().chain(self.living()).collect();
        loop {
            let apart =
                |rank: u32| ranks.iter().filter(|one| loses(**one, rank) || loses(rank, **one)).count();
            let others = ranks.iter().copied().filter(|rank| *rank != self.me);
            match others.map(|rank| (apart(rank), rank)).max() {
                Some((1.., worst)) => ranks.retain(|rank| *rank != worst),
                _ => return ranks,
            }
        }
    }

    /// Whether no others can go on as well: those of the group that may live elsewhere are fewer.
    fn are_enough(&self, ranks: &[u32]) -> bool {
        let ended = |rank: u32| {
            let says = |said: &Losses| matches!(said[rank as usize], Some(Loss::Ended | Loss::Left));
            self.joined.iter().flatten().any(says)
        };
        let may_live: Vec<u32> =
            (0..self.lost.len() as u32).filter(|rank| ranks.contains(rank) || !ended(*rank)).collect();
        match (2 * ranks.len()).cmp(&may_live.len()) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => ranks.contains(&may_live[0]),
            std::cmp::Ordering::Less => false,
        }
    }

    fn commit_if_all(&mut self) {
        let all = self.proposed.iter().all(|rank| *rank == self.me || self.yes[*rank as usize]);
        if all && !self.proposed.is_empty() {
            self.commit(self.proposed.clone());
        }
    }

    /// All hear of it before it counts.
    fn commit(&mut self, ranks: Vec<u32>) {
        for rank in self.living().collect::<Vec<_>>() {
            let goes_on = ranks.contains(&rank);
            self.out.push((rank, if goes_on { Word::Commit(ranks.clone()) } else { Word::Out }));
        }
        self.decision = Some(Decision::GoOn(ranks));
    }

    /// Others may still go on.
    fn stop(&mut self, why: Why) {
        let all: Vec<u32> = self.living().collect();
        all.into_iter().for_each(|rank| self.out.push((rank, Word::Leave)));
        self.decision = Some(Decision::Stop(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_most_have_lost_is_left_out_though_it_has_lost_nobody() {
        let mut leader = Survivor::new(0, vec![None; 6]);
        let nobody = vec![None; 6];
        let mut without_1 = nobody.clone();
        without_1[1] = Some(Loss::Silent);
        leader.hear(1, Word::Join(nobody));
        (2..6).for_each(|rank| leader.hear(rank, Word::Join(without_1.clone())));
        let proposed: Vec<(u32, Word)> = (2..6).map(|rank| (rank, Word::Propose(1))).collect();
        assert_eq!(leader.take_out(), proposed);
    }
}
