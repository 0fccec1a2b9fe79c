//! Ranks that are lost or have left, and the calls of a group without them.

use super::absence::{Departure, LostPeer};
use super::calls::SHRINK_CALL;
use super::state::Mailbox;
use crate::frame::CallSig;
use crate::group::Group;
use crate::transport::{Health, Loss};
use skyphos_types::{CommId, Error, WorldRank};

impl Mailbox {
    /// The reason why no call of a group can succeed here any more; `None` if calls can. Only losses that this rank has detected count,
    /// because a rank that detects one reports it to all.
    pub(crate) fn reason_to_stop(&self, group: &Group) -> Option<Error> {
        let has_left =
            |rank: &WorldRank| self.lost_peers.get(rank).is_some_and(|peer| peer.loss == Loss::Left);
        let (left, others): (Vec<WorldRank>, Vec<WorldRank>) =
            group.ranks.iter().partition(|rank| has_left(rank));
        let first = |ranks: Vec<WorldRank>| ranks.into_iter().find_map(|rank| self.loss_error(rank, None));
        let departed = || self.departures_in(group).next().map(|(_, departure)| departure.error.clone());
        let diverged = || self.group(group.comm)?.diverged.clone();
        // A rank that has left in order is seldom the cause.
        first(others).or_else(departed).or_else(diverged).or_else(|| first(left))
    }

    /// Ranks that make no more calls in a group.
    pub(super) fn departures_in(&self, group: &Group) -> impl Iterator<Item = (WorldRank, &Departure)> {
        let all = self.departed.range((group.comm, WorldRank(0))..=(group.comm, WorldRank(u32::MAX)));
        all.filter(|((_, rank), _)| group.ranks.contains(rank))
            .map(|((_, rank), departure)| (*rank, departure))
    }

    /// Records that other ranks have lost a rank: no call of its groups can succeed any more.
    pub(crate) fn note_lost_elsewhere(&mut self, rank: WorldRank, error: &Error) {
        let groups = self.groups.iter().map(|state| &state.group).filter(|group| group.ranks.contains(&rank));
        for comm in groups.map(|group| group.comm) {
            self.departed
                .entry((comm, rank))
                .or_insert_with(|| Departure { error: error.clone(), begun: None });
        }
    }

    /// A rank makes no more calls in a group. Calls that it has not begun end, now or when this rank begins them.
    pub(super) fn end_calls_of(&mut self, from: WorldRank, comm: CommId, departure: Departure) {
        if self.closed.contains(&comm) {
            return;
        }
        self.confirm_doubts(from, Some(comm));
        if self.group(comm).is_some_and(|state| state.group.ranks.contains(&from)) {
            for b in self.calls.iter_mut().filter(|b| b.comm == comm && b.call != SHRINK_CALL) {
                match b.own_sig {
                    Some(_) if b.message_needs(from) => b.fail(departure.error.clone(), true),
                    Some(_) if b.post.is_some() => {}
                    Some(sig) if departure.ends(b.call, sig) => b.fail(departure.error.clone(), true),
                    Some(sig) if sig.outlives_losses() => {
                        departure.absence(b.call).into_iter().for_each(|why| b.set_absent(from, why));
                    }
                    _ => {}
                }
            }
        }
        self.departed.entry((comm, from)).or_insert(departure);
    }

    /// The error for a rank that is gone, in a call of signature `sig`. A rank that has left because another one was lost is not
    /// the cause: the error is then the one of that loss.
    pub(crate) fn loss_error(&self, rank: WorldRank, sig: Option<CallSig>) -> Option<Error> {
        let LostPeer { cause, loss } = self.lost_peers.get(&rank)?;
        let last_error = match self.last_errors.get(&rank) {
            Some(error @ Error::PeerLost { rank: cause, .. })
                if *loss == Loss::Left && *cause != self.me.0 =>
            {
                return Some(error.clone());
            }
            Some(Error::Aborted { rank: by, cause }) if *by == rank.0 => {
                format!(" (after an error there: {cause})")
            }
            Some(error) => format!(" (after an error there: {error})"),
            None => String::new(),
        };
        let here = sig.map_or(String::new(), |sig| format!("; this rank was in {sig}"));
        let address = self.addresses[rank.index()].clone();
        Some(Error::PeerLost { rank: rank.0, address, cause: format!("{cause}{last_error}{here}") })
    }

    /// The losses of a group, by rank.
    pub(crate) fn losses(&self, group: &Group) -> Vec<Option<Loss>> {
        group.ranks.iter().map(|rank| self.lost_peers.get(rank).map(|peer| peer.loss)).collect()
    }

    /// The health of all ranks, where each is one process.
    pub(crate) fn health(&self) -> Vec<Health> {
        let health_of = |(rank, address): (usize, &String)| {
            let rank = rank as u32;
            let lost = self.lost_peers.get(&WorldRank(rank)).map(|peer| (peer.loss, peer.cause.clone()));
            Health {
                process: rank,
                rank,
                replica: 0,
                address: address.clone(),
                lost,
                late: false,
                silent: None,
                won: 0,
                lost_races: 0,
            }
        };
        self.addresses.iter().enumerate().map(health_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use crate::frame::{CallKind, Frame, FrameKind, Header};
    use crate::slab::Pool;
    use crate::transport::Event;
    use skyphos_types::{CallNumber, GroupRank};
    use std::sync::Arc;

    const GROUP: CommId = CommId(7);

    /// Rank 0 of three, in a barrier.
    fn in_a_call() -> (Mailbox, Arc<Group>, CallNumber) {
        let mut mail = Mailbox::new(WorldRank(0), (0..3).map(|rank| format!("host {rank}")).collect());
        let group = Arc::new(Group::new(GROUP, (0..3).map(WorldRank).collect(), GroupRank(0)));
        mail.open_comm(group.clone());
        let (call, _) = mail.begin(&group, CallSig::plain(CallKind::Barrier), Arguments::None);
        (mail, group, call)
    }

    fn lose(mail: &mut Mailbox, rank: u32, loss: Loss) {
        mail.deliver(Event::PeerDown { rank: WorldRank(rank), cause: format!("cause {rank}"), loss });
    }

    fn depart(mail: &mut Mailbox, rank: u32, begun: Option<u64>) {
        let error = Error::bad_input(format!("departure {rank}"));
        mail.end_calls_of(WorldRank(rank), GROUP, Departure { error, begun: begun.map(CallNumber) });
    }

    #[test]
    fn a_group_stops_for_the_likeliest_cause() {
        type Case = (&'static str, fn(&mut Mailbox), Option<&'static str>);
        let table: [Case; 6] = [
            ("all ranks are there", |_| {}, None),
            ("a rank has left", |mail| lose(mail, 1, Loss::Left), Some("cause 1")),
            ("a process has ended", |mail| lose(mail, 2, Loss::Ended), Some("cause 2")),
            (
                "a process has ended after another rank had left",
                |mail| {
                    lose(mail, 1, Loss::Left);
                    lose(mail, 2, Loss::Ended);
                },
                Some("cause 2"),
            ),
            (
                "a rank has left, and another makes no more calls",
                |mail| {
                    lose(mail, 1, Loss::Left);
                    depart(mail, 2, Some(0));
                },
                Some("departure 2"),
            ),
            ("a rank makes no more calls", |mail| depart(mail, 2, None), Some("departure 2")),
        ];
        for (case, happens, cause) in table {
            let (mut mail, group, _) = in_a_call();
            happens(&mut mail);
            let reason = mail.reason_to_stop(&group).map(|error| error.to_string());
            match cause {
                None => assert_eq!(reason, None, "{case}"),
                Some(cause) => {
                    assert!(reason.as_ref().is_some_and(|r| r.contains(cause)), "{case}: {reason:?}")
                }
            }
        }
    }

    #[test]
    fn a_departure_ends_the_calls_that_the_rank_has_not_begun() {
        for (begun, ends) in [(None, true), (Some(0), true), (Some(1), false), (Some(2), false)] {
            let (mut mail, _, call) = in_a_call();
            assert_eq!(call, CallNumber(0));
            depart(&mut mail, 1, begun);
            assert_eq!(mail.look(GROUP, call).is_err(), ends, "begun: {begun:?}");
        }
    }

    #[test]
    fn a_rank_that_left_because_of_a_loss_is_not_its_cause() {
        for (lost, named) in [(2, 2), (0, 1)] {
            let (mut mail, group, call) = in_a_call();
            mail.end(GROUP, call, true);
            // Rank 1 leaves that call with the loss of a rank, then the group.
            let error =
                Error::PeerLost { rank: lost, address: format!("host {lost}"), cause: "killed".to_owned() };
            let header = Header::control(FrameKind::Abort, GROUP, call);
            let frame = Frame { header, payload: Pool::default().copy_of(&error.to_wire()) };
            mail.deliver(Event::Frame { from: WorldRank(1), frame });
            mail.begin(&group, CallSig::plain(CallKind::Barrier), Arguments::None);
            lose(&mut mail, 1, Loss::Left);
            let error = mail.loss_error(WorldRank(1), None);
            assert!(matches!(error, Some(Error::PeerLost { rank, .. }) if rank == named), "{error:?}");
        }
    }

    #[test]
    fn losses_are_listed_by_rank_with_their_health() {
        let (mut mail, group, _) = in_a_call();
        lose(&mut mail, 2, Loss::Silent);
        assert_eq!(mail.losses(&group), [None, None, Some(Loss::Silent)]);
        let health = mail.health();
        assert_eq!(health.iter().map(|h| h.lost.is_some()).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!((health[2].rank, health[2].address.as_str()), (2, "host 2"));
    }

    #[test]
    fn a_loss_that_others_report_counts_in_all_groups_with_the_rank() {
        let (mut mail, group, _) = in_a_call();
        let without = Arc::new(Group::new(CommId(9), vec![WorldRank(0), WorldRank(1)], GroupRank(0)));
        mail.open_comm(without.clone());
        mail.note_lost_elsewhere(WorldRank(2), &Error::bad_input("reported"));
        assert!(mail.reason_to_stop(&group).is_some_and(|error| error.to_string().contains("reported")));
        assert_eq!(mail.reason_to_stop(&without), None);
    }
}
