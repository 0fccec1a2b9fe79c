//! Agreement of the surviving ranks of a group on its new members, as a state machine without network or clock.
//!
//! The leader is the lowest rank that is not lost. All ranks report their losses to it. It proposes the ranks that can all reach
//! each other, and commits once each of them has accepted. A rank that receives the commit from the leader forwards it to all
//! others before it continues, so no survivor waits for a rank that has gone. If the leader is lost, the next rank leads: it
//! proposes anew, or adopts the decision of a rank that has decided already. A rank stores commits from ranks other than the
//! leader and does not use them before it leads itself: the leader may have proposed other ranks since.
//!
//! ```text
//! join     to the leader      the ranks that I have lost
//! propose  to those ranks     you are to continue (attempt k)
//! accept   to the leader      I agree (attempt k)
//! commit   by all             these ranks continue
//! exclude  to an outsider     the others continue without you
//! leave    to all             I do not continue
//! ```
//!
//! **Promised**: if two ranks live, can reach each other and have decided, their decisions are the same. A rank whose process has
//! ended is known to be dead; a rank that is only silent may live behind a cut link and decide there too. So a group continues
//! only with more than half of the ranks that may live, or with half of them, the lowest included: of two parts of a group that
//! cannot reach each other at most one continues.
//!
//! **Needs**: messages between two ranks arrive in order or not at all; a lost rank stays lost, and nothing arrives from it
//! afterwards. `tests/model_checks/survivors.rs` checks every order of events at small sizes.

use crate::transport::Loss;

/// A rank's losses, by rank.
pub type Losses = Vec<Option<Loss>>;

/// A message between survivors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// The sender's losses.
    Join(Losses),
    /// The receiver and some others are to continue: the number of the attempt.
    Propose(u32),
    /// The sender agrees to an attempt.
    Accept(u32),
    /// These ranks continue.
    Commit(Vec<u32>),
    /// The others continue without the receiver.
    Exclude,
    /// The sender does not continue.
    Leave,
}

/// The reason why a rank does not continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// The others cannot reach it.
    Excluded,
    /// More ranks of the group may live elsewhere.
    Minority,
}

/// A rank's decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// These ranks continue.
    Continue(Vec<u32>),
    /// This rank does not continue.
    Stop(StopReason),
}

/// One rank's state of the agreement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Survivor {
    me: u32,
    losses: Losses,
    /// The losses that each rank has reported.
    joined: Vec<Option<Losses>>,
    /// The ranks that each rank has committed.
    committed: Vec<Option<Vec<u32>>>,
    /// As the leader: number of attempts, the proposed ranks, and the ranks that have accepted.
    attempts: u32,
    proposed: Vec<u32>,
    accepted: Vec<bool>,
    decision: Option<Decision>,
    /// Messages to be sent.
    outbox: Vec<(u32, Message)>,
}

impl Survivor {
    /// The state of rank `me` of a group, with its losses.
    pub fn new(me: u32, losses: Losses) -> Survivor {
        let size = losses.len();
        let mut survivor = Survivor {
            me,
            losses,
            joined: vec![None; size],
            committed: vec![None; size],
            attempts: 0,
            proposed: Vec::new(),
            accepted: vec![false; size],
            decision: None,
            outbox: Vec::new(),
        };
        survivor.report_losses();
        survivor
    }

    /// Whether this rank has lost another.
    pub fn has_lost(&self, rank: u32) -> bool {
        self.losses[rank as usize].is_some()
    }

    /// The decision, once there is one.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// The messages to send, with their receivers.
    pub fn take_messages(&mut self) -> Vec<(u32, Message)> {
        std::mem::take(&mut self.outbox)
    }

    /// Event: a rank is lost.
    pub fn lose(&mut self, rank: u32, loss: Loss) {
        let known = &mut self.losses[rank as usize];
        if known.is_some() {
            return;
        }
        *known = Some(loss);
        if self.decision.is_none() {
            self.report_losses();
        }
    }

    /// Event: a message arrives.
    pub fn receive(&mut self, from: u32, message: Message) {
        if self.losses[from as usize].is_some() {
            return;
        }
        match (message, &self.decision) {
            (Message::Join(_), Some(decision)) => {
                let excluded = matches!(decision, Decision::Continue(ranks) if !ranks.contains(&from));
                if excluded {
                    self.outbox.push((from, Message::Exclude));
                }
            }
            (_, Some(_)) => {}
            (Message::Leave, None) => self.lose(from, Loss::Left),
            (Message::Join(losses), None) => {
                self.joined[from as usize] = Some(losses);
                self.propose();
            }
            (Message::Propose(attempt), None) => {
                if from == self.leader() {
                    self.outbox.push((from, Message::Accept(attempt)));
                }
            }
            (Message::Accept(attempt), None) => {
                if self.leads() && attempt == self.attempts {
                    self.accepted[from as usize] = true;
                    self.commit_if_all_accepted();
                }
            }
            (Message::Commit(ranks), None) => {
                self.committed[from as usize] = Some(ranks);
                self.adopt_decision();
            }
            (Message::Exclude, None) => self.stop(StopReason::Excluded),
        }
    }

    /// The other ranks that this rank has not lost.
    fn others(&self) -> impl Iterator<Item = u32> {
        let ranks = 0..self.losses.len() as u32;
        ranks.filter(|rank| *rank != self.me && self.losses[*rank as usize].is_none())
    }

    fn leader(&self) -> u32 {
        self.others().next().map_or(self.me, |rank| rank.min(self.me))
    }

    fn leads(&self) -> bool {
        self.leader() == self.me
    }

    /// Reports this rank's losses to the leader, which may be this rank.
    fn report_losses(&mut self) {
        self.joined[self.me as usize] = Some(self.losses.clone());
        self.adopt_decision();
        if self.decision.is_some() {
            return;
        }
        match self.leads() {
            true => self.propose(),
            false => self.outbox.push((self.leader(), Message::Join(self.losses.clone()))),
        }
    }

    /// Adopts the leader's decision, or, as the leader, that of any other rank.
    fn adopt_decision(&mut self) {
        let committed = |rank: u32| self.committed[rank as usize].clone();
        let ranks = if self.leads() { self.others().find_map(committed) } else { committed(self.leader()) };
        if let Some(ranks) = ranks {
            self.commit(ranks);
        }
    }

    /// As the leader: once all others have reported their losses, proposes the ranks that continue, unless they are proposed
    /// already.
    fn propose(&mut self) {
        if !self.leads() || self.others().any(|rank| self.joined[rank as usize].is_none()) {
            return;
        }
        let ranks = self.connected_ranks();
        if ranks == self.proposed {
            return;
        }
        if !self.is_majority(&ranks) {
            return self.stop(StopReason::Minority);
        }
        self.attempts += 1;
        self.accepted.fill(false);
        self.proposed = ranks;
        for rank in self.proposed.iter().filter(|rank| **rank != self.me) {
            self.outbox.push((*rank, Message::Propose(self.attempts)));
        }
        self.commit_if_all_accepted();
    }

    /// Ranks that can all reach each other. While some cannot, removes the rank with the most broken connections (among equals, the
    /// highest).
    fn connected_ranks(&self) -> Vec<u32> {
        let has_lost = |a: u32, b: u32| {
            let losses = self.joined[a as usize].as_ref().expect("all have joined");
            losses[b as usize].is_some()
        };
        let mut ranks: Vec<u32> = [self.me].into_iter().chain(self.others()).collect();
        loop {
            let broken =
                |rank: u32| ranks.iter().filter(|one| has_lost(**one, rank) || has_lost(rank, **one)).count();
            let others = ranks.iter().copied().filter(|rank| *rank != self.me);
            match others.map(|rank| (broken(rank), rank)).max() {
                Some((1.., worst)) => ranks.retain(|rank| *rank != worst),
                _ => return ranks,
            }
        }
    }

    /// Whether no other part of the group can continue: `ranks` are more than half of those that may live, or half with the lowest.
    fn is_majority(&self, ranks: &[u32]) -> bool {
        let has_ended = |rank: u32| {
            let reports = |losses: &Losses| matches!(losses[rank as usize], Some(Loss::Ended | Loss::Left));
            self.joined.iter().flatten().any(reports)
        };
        let all = 0..self.losses.len() as u32;
        let may_live: Vec<u32> = all.filter(|rank| ranks.contains(rank) || !has_ended(*rank)).collect();
        match (2 * ranks.len()).cmp(&may_live.len()) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => ranks.contains(&may_live[0]),
            std::cmp::Ordering::Less => false,
        }
    }

    fn commit_if_all_accepted(&mut self) {
        let all = self.proposed.iter().all(|rank| *rank == self.me || self.accepted[*rank as usize]);
        if all && !self.proposed.is_empty() {
            self.commit(self.proposed.clone());
        }
    }

    /// Sends the decision to all others, then adopts it.
    fn commit(&mut self, ranks: Vec<u32>) {
        for rank in self.others().collect::<Vec<_>>() {
            let message = match ranks.contains(&rank) {
                true => Message::Commit(ranks.clone()),
                false => Message::Exclude,
            };
            self.outbox.push((rank, message));
        }
        self.decision = Some(Decision::Continue(ranks));
    }

    /// Decides that this rank leaves, and sends `Leave` to all others, which may continue.
    fn stop(&mut self, reason: StopReason) {
        let others: Vec<u32> = self.others().collect();
        self.outbox.extend(others.into_iter().map(|rank| (rank, Message::Leave)));
        self.decision = Some(Decision::Stop(reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_most_others_have_lost_is_excluded() {
        let mut leader = Survivor::new(0, vec![None; 6]);
        let no_losses = vec![None; 6];
        let mut without_1 = no_losses.clone();
        without_1[1] = Some(Loss::Silent);
        leader.receive(1, Message::Join(no_losses));
        (2..6).for_each(|rank| leader.receive(rank, Message::Join(without_1.clone())));
        let proposed: Vec<(u32, Message)> = (2..6).map(|rank| (rank, Message::Propose(1))).collect();
        assert_eq!(leader.take_messages(), proposed);
    }
}
