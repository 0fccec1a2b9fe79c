//! Calls of a group that end with errors: lost ranks, ranks that have left, programs that disagree.

use super::{Mailbox, UNSEEN};
use crate::arguments::Arguments;
use crate::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use crate::group::Group;
use crate::slab::{Payload, Pool};
use crate::transport::{Event, Loss};
use skyphos_types::{CallNumber, CommId, Error, GroupRank, Round, WorldRank};
use std::sync::Arc;

const COMM: CommId = CommId(7);

/// Rank 0 of three, which has begun two barriers.
fn in_two_calls() -> (Mailbox, Arc<Group>) {
    let mut mail = Mailbox::new(WorldRank(0), (0..3).map(|rank| format!("host {rank}")).collect());
    let group = Arc::new(Group::new(COMM, vec![WorldRank(0), WorldRank(1), WorldRank(2)], GroupRank(0)));
    mail.open_comm(group.clone());
    for call in 0..2 {
        let begun = mail.begin(&group, CallSig::plain(CallKind::Barrier), Arguments::None);
        assert_eq!(begun.0, CallNumber(call));
    }
    (mail, group)
}

fn error_of(mail: &mut Mailbox, call: CallNumber) -> Option<String> {
    mail.look(COMM, call).err().map(|(error, _)| error.to_string())
}

/// Rank 2 reports the loss of rank 1, in call 1; this rank takes the error of that call.
fn report_loss(mail: &mut Mailbox) {
    let cause = "its process was killed".to_owned();
    let lost = Error::PeerLost { rank: 1, address: "host 1".to_owned(), cause };
    let payload: Payload = Pool::default().copy_of(&lost.to_wire());
    let header = Header::control(FrameKind::Abort, COMM, CallNumber(1));
    mail.deliver(Event::Frame { from: WorldRank(2), frame: Frame { header, payload } });
    assert!(error_of(mail, CallNumber(1)).unwrap().contains("killed"));
    mail.end(COMM, CallNumber(1), false);
}

fn leave_in_order(mail: &mut Mailbox, rank: WorldRank) {
    mail.deliver(Event::PeerDown { rank, cause: "it has left".to_owned(), loss: Loss::Left });
}

#[test]
fn calls_under_way_when_a_comm_closes_name_an_earlier_loss() {
    let (mut mail, _) = in_two_calls();
    report_loss(&mut mail);
    assert_eq!(error_of(&mut mail, CallNumber(0)), None, "it may still end well");
    mail.close_comm(COMM);
    let error = error_of(&mut mail, CallNumber(0)).unwrap();
    assert!(error.contains("rank 1") && error.contains("killed"), "{error}");
}

#[test]
fn calls_under_way_when_a_comm_closes_name_the_close_if_no_rank_is_lost() {
    let (mut mail, _) = in_two_calls();
    mail.close_comm(COMM);
    let error = error_of(&mut mail, CallNumber(0)).unwrap();
    assert!(error.contains("closed before the call had ended"), "{error}");
}

#[test]
fn a_loss_is_a_likelier_reason_than_a_rank_that_has_left_in_order() {
    let (mut mail, group) = in_two_calls();
    leave_in_order(&mut mail, WorldRank(2));
    assert!(mail.reason_to_stop(&group).unwrap().to_string().contains("rank 2"));
    report_loss(&mut mail);
    assert!(mail.reason_to_stop(&group).unwrap().to_string().contains("rank 1"));
}

/// A peer's first frame of a call.
fn enter(mail: &mut Mailbox, from: WorldRank, call: CallNumber, sig: CallSig) {
    let header = Header { sig, ..Header::control(FrameKind::Data, COMM, call) };
    mail.deliver(Event::Frame { from, frame: Frame { header, payload: Payload::default() } });
}

#[test]
fn different_calls_after_different_failures_are_no_mismatch() {
    let (mut mail, group) = in_two_calls();
    for call in 0..2 {
        mail.end(COMM, CallNumber(call), true);
        mail.report_success(COMM, CallNumber(call));
    }
    // Rank 1 counts call 1 as failed and repeats a barrier; rank 2 is in the next step, and this rank will be too.
    let mut theirs = mail.outcomes_of(COMM).unwrap().clone();
    theirs.begin(CallNumber(2));
    theirs.fail(CallNumber(1), CallNumber(2), false);
    let next = CallSig::plain(CallKind::AllreduceDense);
    enter(
        &mut mail,
        WorldRank(1),
        CallNumber(2),
        CallSig { outcomes: theirs.hash(), ..CallSig::plain(CallKind::Barrier) },
    );
    enter(&mut mail, WorldRank(2), CallNumber(2), next);
    mail.begin(&group, next, Arguments::None);
    assert_eq!(error_of(&mut mail, CallNumber(2)), None, "rank 1 is asked for its outcomes first");
    assert!(
        mail.replies.iter().any(|reply| reply.to == WorldRank(1) && reply.header.kind == FrameKind::Outcomes)
    );
    let payload: Payload = Pool::default().copy_of(&theirs.to_wire());
    let header = Header { round: Round(1), ..Header::control(FrameKind::Outcomes, COMM, CallNumber(2)) };
    mail.deliver(Event::Frame { from: WorldRank(1), frame: Frame { header, payload } });
    let error = error_of(&mut mail, CallNumber(2)).unwrap();
    assert!(error.contains("ranks 0 and 1 no longer agree"), "{error}");
}

#[test]
fn only_an_error_that_the_program_sees_contradicts_a_completed_call() {
    for (round, is_seen) in [(UNSEEN, false), (Round(0), true)] {
        let (mut mail, _) = in_two_calls();
        mail.end(COMM, CallNumber(0), true);
        let left = Error::Aborted { rank: 2, cause: "its Comm was closed".to_owned() };
        let payload: Payload = Pool::default().copy_of(&left.to_wire());
        let header = Header { round, ..Header::control(FrameKind::Abort, COMM, CallNumber(0)) };
        mail.deliver(Event::Frame { from: WorldRank(2), frame: Frame { header, payload } });
        let error = error_of(&mut mail, CallNumber(1));
        assert_eq!(error.is_some_and(|error| error.contains("no longer agree")), is_seen);
    }
}
