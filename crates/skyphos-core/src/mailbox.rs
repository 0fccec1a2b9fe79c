//! Matching: which frame belongs to which call, round and peer.
//!
//! One mailbox serves all groups of a process. A frame whose call has not begun here waits; one whose
//! call is over is dropped (a late duplicate is normal input). Storage is recycled, so that a steady
//! sequence of calls allocates nothing. Nothing here waits, sends or knows the time.

mod doubts;
mod messages;
mod outcomes;
#[cfg(test)]
mod tests;

pub(crate) use messages::{Envelope, Filter, MessageId};

use self::messages::{Messages, Post, is_pair};
use self::outcomes::Outcomes;
use crate::arguments::{Arguments, Differences};
use crate::endpoint::WINDOW_BYTES;
use crate::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use crate::slab::{CHUNK_BYTES, Payload};
use crate::topology::Topology;
use crate::transport::{Event, Health, Loss};
use skyphos_types::{Error, NO_MEMBER};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The ranks of a group, in group order, as ranks of the transport.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    /// Number that all members derive alike.
    pub comm: u64,
    /// Transport rank of each member.
    pub ranks: Vec<u32>,
    /// This process's place in `ranks`.
    pub me: u32,
    /// Where they are; all members must take the same to be true.
    pub topology: Topology,
    /// The group by whose ranks errors name members, where a user knows that one alone: this one was made inside a call of it.
    pub named_by: Option<Arc<Group>>,
}

impl Group {
    /// The number of a group that a call of another one agrees on: all derive the same. Parts of that one that know nothing of
    /// each other may share it.
    pub fn number_after(comm: u64, call: u64) -> u64 {
        let mixed = comm ^ call.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xb7e1_5162_8aed_2a6b) | 1
    }

    /// The number of a group of some who are left. It says who, for others may have agreed on more of them before somebody was lost.
    pub fn number_of_some(comm: u64, call: u64, ranks: &[u32]) -> u64 {
        let first = Group::number_after(comm, call);
        ranks.iter().fold(first, |number, rank| Group::number_after(number, u64::from(*rank)))
    }

    /// A group of ranks of which nothing is known.
    pub fn new(comm: u64, ranks: Vec<u32>, me: u32) -> Group {
        let topology = Topology::flat(ranks.len() as u32);
        Group { comm, ranks, me, topology, named_by: None }
    }

    /// The group by whose ranks errors name members.
    pub(crate) fn named(&self) -> &Group {
        self.named_by.as_deref().unwrap_or(self)
    }

    /// The place in the group of a rank of the transport, or [`NO_MEMBER`].
    pub(crate) fn place_of(&self, rank: u32) -> u32 {
        self.ranks.iter().position(|member| *member == rank).map_or(NO_MEMBER, |place| place as u32)
    }

    /// An error as the group's callers read it. Within the core, and on the way, errors have the transport's ranks.
    pub(crate) fn with_group_ranks(&self, error: Error) -> Error {
        error.renumbered(|rank| self.named().place_of(rank))
    }

    /// The way back.
    pub(crate) fn with_transport_ranks(&self, error: Error) -> Error {
        error.renumbered(|place| self.named().ranks.get(place as usize).copied().unwrap_or(place))
    }
}

/// A message on its way in: chunks in order, as far as they have come.
struct Stream {
    next_seq: u32,
    chunks: VecDeque<Payload>,
    total: u64,
}

/// Number of the call in which those who are left agree who they are: at no place of the program, for ranks were at
/// different ones.
pub(crate) const SHRINK_CALL: u64 = 1 << 47;

/// The round of an abort of which the program of the rank that sends it is not told.
pub(crate) const UNSEEN: u32 = 1;

/// Chunks that a sender of large messages may have on the way: a stream with room for so many never grows, or once where a
/// transport has smaller ones.
const MOST_CHUNKS: usize = WINDOW_BYTES as usize / CHUNK_BYTES + 1;
/// The same for messages of a chunk, which may be several segments.
const FEW_CHUNKS: usize = 4;

/// All that has come for one call.
#[derive(Default)]
struct CallBox {
    comm: u64,
    call: u64,
    /// How this rank called it; `None` until it does.
    own: Option<CallSig>,
    /// Arguments of which `own` has a hash.
    arguments: Arguments,
    /// The first signatures seen before this rank entered, and who sent them: two, if there were different ones.
    first: Option<(u32, CallSig)>,
    second: Option<(u32, CallSig)>,
    /// The error of a peer whose arguments have another hash, until it is known which one differs.
    disputed: Option<Error>,
    /// Peers whose frames say that their programs have seen other calls fail, and whether it is known that this fits.
    doubts: Vec<(u32, bool)>,
    /// Those who said so before this rank entered, if it is not what `first` says, and the [`Outcomes`] that came before.
    early: Vec<(u32, u16)>,
    early_outcomes: Vec<(u32, Payload)>,
    streams: Vec<Stream>,
    /// Round and sender of each stream, in order, and its place: a rank may hear from thousands.
    places: Vec<(u32, u32, u32)>,
    /// (peer, round, bytes it has consumed)
    credits: Vec<(u32, u32, u64)>,
    /// The error that ended the call, and whether it came from another rank.
    failed: Option<(Error, bool)>,
    /// Ranks that answered a probe.
    present: Vec<u32>,
    /// Ranks that take no more part in it, though they are not lost.
    apart: Vec<(u32, Absence)>,
    /// Counts everything that happened here; a waiter compares it.
    version: u64,
    /// What it is, if it is point-to-point.
    post: Option<Post>,
    /// The message that is sent or received here, once that is known.
    message: Option<MessageId>,
    /// The message that a receive has got, and whether it has begun to take it.
    envelope: Option<Envelope>,
    has_taken: bool,
    /// The call of the send with which a receive fails, if that fails first.
    beside: Option<u64>,
}

struct CommState {
    group: Arc<Group>,
    next_call: u64,
    /// Calls that ended since ranks had called different things.
    mismatches: u64,
    /// The last calls that ended with an error here, in ascending order of when they ended.
    failed_calls: VecDeque<u64>,
    /// What the program knows of calls before.
    outcomes: Outcomes,
    /// Set once a peer reports an error in a call that this rank has completed: no later call may succeed.
    diverged: Option<Error>,
}

/// How many failed calls a group remembers. A peer reports its own error in such a call at most once, soon after.
const FAILED_CALLS: usize = 1024;

/// Why a rank takes no part any more in a call that goes on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It has done its part, and knows that all have.
    Past,
    /// It makes no more calls in the group.
    Left,
    /// It is lost.
    Lost,
}

/// A rank that is gone.
struct Down {
    cause: String,
    loss: Loss,
}

impl Down {
    /// Whether a call ends by it: one in which a rank that left is needed finds out, and those who are left agree all the same.
    fn ends(&self, sig: CallSig) -> bool {
        self.loss != Loss::Left && !sig.outlives_losses()
    }
}

/// Why a rank makes no more calls in a group.
struct Over {
    error: Error,
    /// How many it has begun. `None`: it was lost, of which this rank has heard from others.
    begun: Option<u64>,
}

impl Over {
    /// What it means for one who makes a call that outlives losses; `None` if that cannot end well.
    fn absence(&self, call: u64) -> Option<Absence> {
        match self.begun {
            None => Some(Absence::Left),
            Some(begun) if begun > call => Some(Absence::Past),
            Some(_) => None,
        }
    }

    /// Whether a call ends by it.
    fn ends(&self, call: u64, sig: CallSig) -> bool {
        match sig.outlives_losses() {
            true => self.absence(call).is_none(),
            false => self.begun.is_none_or(|begun| begun <= call),
        }
    }
}

/// A reply that the mailbox owes a peer.
pub(crate) struct Reply {
    pub(crate) to: u32,
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

impl Reply {
    fn control(to: u32, kind: FrameKind, comm: u64, call: u64) -> Reply {
        Reply { to, header: Header::control(kind, comm, call), payload: Vec::new() }
    }
}

/// See the module's text.
pub(crate) struct Mailbox {
    calls: Vec<CallBox>,
    spare_calls: Vec<CallBox>,
    spare_chunks: Vec<VecDeque<Payload>>,
    comms: Vec<CommState>,
    closed: Vec<u64>,
    /// Ranks that are gone.
    down: BTreeMap<u32, Down>,
    /// Address of each peer, for errors.
    addresses: Arc<[String]>,
    /// Groups in which a rank makes no more calls, and that rank.
    over: BTreeMap<(u64, u32), Over>,
    /// Why a peer left a call that was already over here: the reason, should it go away next.
    last_words: BTreeMap<u32, Error>,
    messages: Messages,
    /// This rank in the transport.
    me: u32,
    pub(crate) replies: Vec<Reply>,
}

/// One read of a stream.
pub(crate) enum Next {
    Chunk(Payload, u64),
    Nothing,
}

impl Mailbox {
    pub(crate) fn new(me: u32, addresses: Arc<[String]>) -> Mailbox {
        Mailbox {
            calls: Vec::new(),
            spare_calls: Vec::new(),
            spare_chunks: Vec::new(),
            comms: Vec::new(),
            closed: Vec::new(),
            down: BTreeMap::new(),
            over: BTreeMap::new(),
            last_words: BTreeMap::new(),
            messages: Messages::default(),
            me,
            addresses,
            replies: Vec::new(),
        }
    }

    pub(crate) fn open_comm(&mut self, group: Arc<Group>) {
        self.comms.push(CommState {
            group,
            next_call: 0,
            mismatches: 0,
            failed_calls: VecDeque::new(),
            outcomes: Outcomes::default(),
            diverged: None,
        });
    }

    /// Whether this rank's program will not be told how a call ended: it has closed the group, or has no `Work` any more.
    pub(crate) fn is_unseen(&mut self, comm: u64, call: u64) -> bool {
        self.closed.contains(&comm)
            || self.outcomes_of(comm).is_some_and(|outcomes| outcomes.is_forgotten(call))
    }

    pub(crate) fn close_comm(&mut self, comm: u64) {
        let cause = "its Comm was closed before the call had ended".to_owned();
        let closed = Error::Aborted { rank: self.me, cause };
        // Where nothing more could be called, the reason for that is the cause.
        let group = self.comm(comm).map(|state| state.group.clone());
        let error = group.and_then(|group| self.why_over(&group)).unwrap_or(closed);
        self.close_messages(comm);
        self.comms.retain(|c| c.group.comm != comm);
        self.over.retain(|(of, _), _| *of != comm);
        self.calls.retain(|b| b.comm != comm || b.own.is_some());
        for b in self.calls.iter_mut().filter(|b| b.comm == comm) {
            b.fail(error.clone(), false);
        }
        self.closed.push(comm);
    }

    pub(crate) fn open_comms(&self) -> usize {
        self.comms.len()
    }

    fn comm(&self, comm: u64) -> Option<&CommState> {
        self.comms.iter().find(|c| c.group.comm == comm)
    }

    /// Calls of a group that ended since ranks had called different things.
    pub(crate) fn mismatches(&self, comm: u64) -> u64 {
        self.comm(comm).map_or(0, |state| state.mismatches)
    }

    fn find(&mut self, comm: u64, call: u64) -> Option<&mut CallBox> {
        self.calls.iter_mut().find(|b| b.call == call && b.comm == comm)
    }

    /// The box of a call, made if the call has not begun; `None` if it is over.
    fn box_of(&mut self, comm: u64, call: u64) -> Option<usize> {
        if let Some(k) = self.calls.iter().position(|b| b.call == call && b.comm == comm) {
            return Some(k);
        }
        let over = match self.comm(comm) {
            Some(state) => call < state.next_call,
            None => self.closed.contains(&comm),
        };
        if over {
            return None;
        }
        let mut fresh = self.spare_calls.pop().unwrap_or_default();
        (fresh.comm, fresh.call) = (comm, call);
        self.calls.push(fresh);
        Some(self.calls.len() - 1)
    }

    /// This rank enters its next call: its number, and what its frames say of it.
    pub(crate) fn begin(&mut self, group: &Arc<Group>, sig: CallSig, arguments: Arguments) -> (u64, CallSig) {
        let CommState { next_call, ref outcomes, .. } = *self.comm(group.comm).expect("group is open");
        let (call, outcomes) = match sig.kind {
            CallKind::Shrink => (SHRINK_CALL, 0),
            _ => (next_call, outcomes.hash()),
        };
        let sig = CallSig { outcomes, ..sig };
        let k = self.box_of(group.comm, call).expect("the next call is not over");
        if call == next_call {
            let state = self.comms.iter_mut().find(|c| c.group.comm == group.comm).expect("open");
            state.next_call += 1;
            state.outcomes.begin(call);
        }
        let broken = self.down.iter().find(|(rank, down)| down.ends(sig) && group.ranks.contains(rank));
        let lost = broken.and_then(|(rank, _)| self.lost(*rank, Some(sig)));
        let me = group.ranks[group.me as usize];
        let mut over: Vec<(u32, &Over)> = self.over_in(group).collect();
        over.retain(|_| call != SHRINK_CALL);
        let apart: Vec<(u32, Option<Absence>)> =
            over.iter().map(|(rank, over)| (*rank, over.absence(call))).collect();
        let over = over.iter().find(|(_, over)| over.ends(call, sig)).map(|(_, over)| over.error.clone());
        let diverged = self.comm(group.comm).and_then(|state| state.diverged.clone());
        let b = &mut self.calls[k];
        (b.own, b.arguments) = (Some(sig), arguments);
        for (peer, theirs) in [b.first, b.second].into_iter().flatten() {
            if !theirs.fits(&sig) {
                self.disagree(k, (me, sig), (peer, theirs));
            }
        }
        let b = &mut self.calls[k];
        if let Some(error) = lost {
            b.fail(error, false);
        }
        if let Some(error) = over {
            b.fail(error, true);
        }
        if let Some(error) = diverged.filter(|_| call != SHRINK_CALL) {
            b.fail(error, false);
        }
        if sig.outlives_losses() {
            apart.into_iter().for_each(|(rank, why)| why.into_iter().for_each(|why| b.leaves(rank, why)));
        }
        self.doubt_all(k, sig);
        (call, sig)
    }

    /// Why nothing more can be called in a group here, if so. Of losses it knows its own: who has seen one tells all.
    pub(crate) fn why_over(&self, group: &Group) -> Option<Error> {
        let has_left = |rank: &u32| self.down.get(rank).is_some_and(|down| down.loss == Loss::Left);
        let (left, others): (Vec<u32>, Vec<u32>) = group.ranks.iter().partition(|rank| has_left(rank));
        let first = |ranks: Vec<u32>| ranks.into_iter().find_map(|rank| self.lost(rank, None));
        let over = || self.over_in(group).next().map(|(_, over)| over.error.clone());
        let diverged = || self.comm(group.comm)?.diverged.clone();
        // One that has left in order is seldom the cause.
        first(others).or_else(over).or_else(diverged).or_else(|| first(left))
    }

    /// Calls of a group that this rank has begun.
    pub(crate) fn begun(&self, comm: u64) -> u64 {
        self.comm(comm).map_or(0, |state| state.next_call)
    }

    /// Ranks that make no more calls in a group, and why.
    fn over_in(&self, group: &Group) -> impl Iterator<Item = (u32, &Over)> {
        let all = self.over.range((group.comm, 0)..=(group.comm, u32::MAX));
        all.filter(|((_, rank), _)| group.ranks.contains(rank)).map(|((_, rank), over)| (*rank, over))
    }

    /// Others have lost a rank: no call of a group that needs it can end well.
    pub(crate) fn miss(&mut self, rank: u32, error: &Error) {
        let groups = self.comms.iter().map(|state| &state.group).filter(|group| group.ranks.contains(&rank));
        for comm in groups.map(|group| group.comm) {
            self.over.entry((comm, rank)).or_insert_with(|| Over { error: error.clone(), begun: None });
        }
    }

    /// A rank makes no more calls in a group: who is in one that it has not made, or will be, need not wait for it. One that it has
    /// made it is past.
    fn end_calls_of(&mut self, from: u32, comm: u64, over: Over) {
        if self.closed.contains(&comm) {
            return;
        }
        self.doubt_for_good(from, Some(comm));
        if self.comm(comm).is_some_and(|state| state.group.ranks.contains(&from)) {
            for b in self.calls.iter_mut().filter(|b| b.comm == comm && b.call != SHRINK_CALL) {
                match b.own {
                    Some(_) if b.needs_of_message(from) => b.fail(over.error.clone(), true),
                    Some(_) if b.post.is_some() => {}
                    Some(sig) if over.ends(b.call, sig) => b.fail(over.error.clone(), true),
                    Some(sig) if sig.outlives_losses() => {
                        over.absence(b.call).into_iter().for_each(|why| b.leaves(from, why));
                    }
                    _ => {}
                }
            }
        }
        self.over.entry((comm, from)).or_insert(over);
    }

    /// The error for a rank that can send no more, to a rank in `sig`.
    pub(crate) fn lost(&self, rank: u32, sig: Option<CallSig>) -> Option<Error> {
        let cause = &self.down.get(&rank)?.cause;
        let words = self.last_words.get(&rank);
        let words = words.map_or(String::new(), |error| match error {
            Error::Aborted { rank: who, cause } if *who == rank => {
                format!(" (after an error there: {cause})")
            }
            _ => format!(" (after an error there: {error})"),
        });
        let here = sig.map_or(String::new(), |sig| format!("; this rank was in {sig}"));
        let address = self.addresses[rank as usize].clone();
        Some(Error::PeerLost { rank, address, cause: format!("{cause}{words}{here}") })
    }

    /// How ranks of a group were lost, by their places in it.
    pub(crate) fn losses(&self, group: &Group) -> Vec<Option<Loss>> {
        group.ranks.iter().map(|rank| self.down.get(rank).map(|down| down.loss)).collect()
    }

    /// The next word that a rank of the group has said in a round of a call, and who.
    pub(crate) fn word(&mut self, group: &Group, call: u64, round: u32) -> Option<(u32, Payload)> {
        let b = self.find(group.comm, call)?;
        let first = b.places.partition_point(|(at, ..)| *at < round);
        let of_round = b.places[first..].iter().take_while(|(at, ..)| *at == round);
        for (_, from, stream) in of_round {
            if let Some(word) = b.streams[*stream as usize].chunks.pop_front() {
                let place = group.ranks.iter().position(|rank| rank == from)?;
                return Some((place as u32, word));
            }
        }
        None
    }

    /// Counts what [`Mailbox::absences`] would tell.
    pub(crate) fn count_absences(&mut self, group: &Group, call: u64) -> usize {
        let lost = self.down.len();
        lost + self.find(group.comm, call).map_or(0, |b| b.apart.len())
    }

    /// Who takes no part any more in a call that outlives losses, by places in the group.
    pub(crate) fn absences(&mut self, group: &Group, call: u64) -> Vec<(u32, Absence)> {
        let apart = self.find(group.comm, call).map_or(Vec::new(), |b| b.apart.clone());
        let why = |down: &Down| if down.loss == Loss::Left { Absence::Left } else { Absence::Lost };
        let all = self.down.iter().map(|(rank, down)| (*rank, why(down))).chain(apart);
        let place = |rank: u32| group.ranks.iter().position(|one| *one == rank);
        all.filter_map(|(rank, why)| Some((place(rank)? as u32, why))).collect()
    }

    /// How ranks that are processes are.
    pub(crate) fn health(&self) -> Vec<Health> {
        let of = |(rank, address): (usize, &String)| {
            let (rank, (won, lost_races)) = (rank as u32, Default::default());
            let lost = self.down.get(&rank).map(|down| (down.loss, down.cause.clone()));
            let address = address.clone();
            Health {
                process: rank,
                rank,
                replica: 0,
                address,
                lost,
                late: false,
                silent: None,
                won,
                lost_races,
            }
        };
        self.addresses.iter().enumerate().map(of).collect()
    }

    /// The call is over here, completed or failed; what still comes for it is dropped.
    pub(crate) fn end(&mut self, comm: u64, call: u64, completed: bool) {
        let Some(k) = self.calls.iter().position(|b| b.call == call && b.comm == comm) else { return };
        if call == SHRINK_CALL {
            // It may be entered again, and goes on where it was.
            (self.calls[k].own, self.calls[k].failed) = (None, None);
            return;
        }
        let mut done = self.calls.swap_remove(k);
        let is_post = done.post.is_some();
        if is_post {
            self.end_post(&mut done);
        }
        if !completed
            && !is_post
            && let Some(state) = self.comms.iter_mut().find(|c| c.group.comm == comm)
        {
            state.mismatches += u64::from(matches!(done.failed, Some((Error::Mismatch { .. }, _))));
            if state.failed_calls.len() == FAILED_CALLS {
                state.failed_calls.pop_front();
            }
            state.failed_calls.push_back(call);
        }
        if let Some((error @ Error::PeerLost { rank, .. }, _)) = &done.failed
            && !is_post
        {
            self.miss(*rank, error);
        }
        for mut stream in done.streams.drain(..) {
            stream.chunks.clear();
            self.spare_chunks.push(stream.chunks);
        }
        done.places.clear();
        done.credits.clear();
        done.present.clear();
        done.apart.clear();
        done.doubts.clear();
        done.early.clear();
        done.early_outcomes.clear();
        let (own, first, second, disputed, failed) = (None, None, None, None, None);
        let arguments = Arguments::None;
        self.spare_calls.push(CallBox {
            own,
            arguments,
            first,
            second,
            disputed,
            failed,
            version: 0,
            post: None,
            message: None,
            envelope: None,
            has_taken: false,
            beside: None,
            ..done
        });
    }

    /// Counts what has happened in a call, or says why it failed (and whether another rank said so).
    pub(crate) fn look(&mut self, comm: u64, call: u64) -> Result<u64, (Error, bool)> {
        let b = self.find(comm, call).expect("an open call");
        match &b.failed {
            Some(failed) => Err(failed.clone()),
            None => Ok(b.version),
        }
    }

    /// Counts what has happened in a call; `None` if it failed or is over.
    pub(crate) fn version(&mut self, comm: u64, call: u64) -> Option<u64> {
        self.find(comm, call).filter(|b| b.failed.is_none()).map(|b| b.version)
    }

    /// Counts something that has happened in a call outside of the network.
    pub(crate) fn touch(&mut self, comm: u64, call: u64) {
        self.find(comm, call).into_iter().for_each(|b| b.version += 1);
    }

    /// Ends a call with an error found on this rank.
    pub(crate) fn fail(&mut self, comm: u64, call: u64, error: Error) {
        if let Some(b) = self.find(comm, call) {
            b.fail(error, false);
        }
    }

    /// The next chunk of a stream and its message's length, if it has come.
    pub(crate) fn take(&mut self, comm: u64, call: u64, from: u32, round: u32) -> Result<Next, Error> {
        let b = self.find(comm, call).expect("an open call");
        if let Some((error, _)) = &b.failed {
            return Err(error.clone());
        }
        if b.waits_for_word() {
            return Ok(Next::Nothing); // whatever has come, the call may fail
        }
        if let Ok(place) = b.place_of(from, round) {
            let stream = &mut b.streams[b.places[place].2 as usize];
            if let Some(chunk) = stream.chunks.pop_front() {
                return Ok(Next::Chunk(chunk, stream.total));
            }
        }
        let own = b.own;
        self.lost(from, own).map_or(Ok(Next::Nothing), Err)
    }

    /// Bytes that a peer has consumed of the stream sent to it. Without end for a peer that is gone:
    /// nobody will grant more, and what is sent to it is dropped.
    pub(crate) fn credit(&mut self, comm: u64, call: u64, peer: u32, round: u32) -> u64 {
        if self.down.contains_key(&peer) {
            return u64::MAX / 2;
        }
        let b = self.find(comm, call).expect("an open call");
        b.credits.iter().find(|(p, r, _)| (*p, *r) == (peer, round)).map_or(0, |(_, _, bytes)| *bytes)
    }

    /// The error of a peer that called something else, which has not said yet what. Meanwhile the call does not go on.
    pub(crate) fn disputed(&mut self, comm: u64, call: u64) -> Option<Error> {
        self.find(comm, call)?.disputed.clone()
    }

    /// Whether a call whose part is done here may end: `Err` if it failed, `false` while a peer is to say what it called.
    pub(crate) fn may_end(&mut self, comm: u64, call: u64) -> Result<bool, Error> {
        let b = self.find(comm, call).expect("an open call");
        match &b.failed {
            Some((error, _)) => Err(error.clone()),
            None => Ok(!b.waits_for_word()),
        }
    }

    /// Ranks that have answered a probe of this call.
    pub(crate) fn present(&mut self, comm: u64, call: u64) -> Vec<u32> {
        self.find(comm, call).map_or(Vec::new(), |b| b.present.clone())
    }

    /// Files one event.
    pub(crate) fn deliver(&mut self, event: Event) {
        match event {
            Event::Frame { from, frame } => self.deliver_frame(from, frame),
            Event::Writable { rank } => {
                for b in &mut self.calls {
                    if self.comms.iter().any(|c| c.group.comm == b.comm && c.group.ranks.contains(&rank)) {
                        b.version += 1;
                    }
                }
            }
            Event::PeerDown { rank, cause, loss } => {
                self.down.insert(rank, Down { cause, loss });
                self.doubt_for_good(rank, None);
                for k in 0..self.calls.len() {
                    let b = &self.calls[k];
                    let Some(sig) = b.own else { continue };
                    let member = match b.post {
                        // What a receive has got, or may get from others, still counts.
                        Some(_) => b.is_send() && b.needs_of_message(rank),
                        None => self.comm(b.comm).is_some_and(|c| c.group.ranks.contains(&rank)),
                    };
                    let lost =
                        if member && self.down[&rank].ends(sig) { self.lost(rank, Some(sig)) } else { None };
                    let b = &mut self.calls[k];
                    b.version += 1;
                    if let Some(error) = lost {
                        b.fail(error, false);
                    }
                }
            }
        }
    }

    fn deliver_frame(&mut self, from: u32, frame: Frame) {
        let Header { comm, call, round, seq, total, sig, kind, .. } = frame.header;
        if is_pair(comm) {
            return self.deliver_message(from, frame);
        }
        if kind == FrameKind::Probe {
            let over = self.comm(comm).is_some_and(|c| call < c.next_call) || self.closed.contains(&comm);
            let here = over || self.find(comm, call).is_some_and(|b| b.own.is_some());
            if here {
                self.replies.push(Reply::control(from, FrameKind::Present, comm, call));
            }
            return;
        }
        if kind == FrameKind::Outcomes {
            let asks = round == 0;
            match self.box_of(comm, call) {
                Some(k) if self.calls[k].own.is_some() => {
                    self.hear_outcomes(k, from, frame.payload.as_bytes(), asks)
                }
                Some(k) => {
                    let early = &mut self.calls[k].early_outcomes;
                    early.retain(|(peer, _)| *peer != from);
                    early.push((from, frame.payload));
                }
                None if asks => self.tell_outcomes(from, comm, call, 1),
                None => {}
            }
            return;
        }
        let Some(k) = self.box_of(comm, call) else {
            // Only who has lost somebody says anything so late.
            if kind == FrameKind::Data && sig.kind != CallKind::Shrink && sig.outlives_losses() {
                self.replies.push(Reply::control(from, FrameKind::Past, comm, call));
            }
            if kind == FrameKind::Abort
                && let Some(error) = Error::from_wire(frame.payload.as_bytes())
            {
                // Where it is a group that this call has agreed on here, that rank will not be in it.
                let over = Over { error: error.clone(), begun: Some(0) };
                self.end_calls_of(from, Group::number_after(comm, call), over);
                match error {
                    Error::PeerLost { rank, .. } => self.miss(rank, &error),
                    Error::Diverged { .. } => self.part(comm, call, &error),
                    // A program that is not told repeats nothing: no call will be paired with another.
                    _ if round == UNSEEN => {}
                    _ => self.diverge(comm, call, from, &error),
                }
                self.last_words.insert(from, error);
            }
            return;
        };
        let me = self.comm(comm).map(|c| c.group.ranks[c.group.me as usize]);
        let b = &mut self.calls[k];
        if kind != FrameKind::Present {
            b.version += 1; // an answer to "are you here?" is no progress
        }
        match kind {
            FrameKind::Data => {
                self.last_words.remove(&from); // it has gone on
                match (b.own, me) {
                    (Some(own), Some(me)) if !own.fits(&sig) => {
                        return self.disagree(k, (me, own), (from, sig));
                    }
                    (Some(own), _) if own.outcomes != sig.outcomes && own.is_call_of(&sig) => {
                        self.doubt(k, from);
                    }
                    (None, _) if b.first.is_none_or(|(_, first)| first == sig) => b.first = Some((from, sig)),
                    (None, _) if b.first.is_some_and(|(_, first)| first.is_call_of(&sig)) => {
                        b.early.retain(|(peer, _)| *peer != from);
                        b.early.push((from, sig.outcomes));
                    }
                    // Which argument differs, or that programs have seen other calls fail, is known once this rank has
                    // entered.
                    (None, _)
                        if b.first.is_some_and(|(_, first)| {
                            first.differs_in_hash(&sig) || first.outcomes != sig.outcomes
                        }) =>
                    {
                        b.second = Some((from, sig));
                    }
                    (None, _) => {
                        let (peer, theirs) = b.first.expect("checked");
                        b.fail(mismatch((peer, theirs), (from, sig)), false);
                    }
                    _ => {}
                }
                let b = &mut self.calls[k];
                let stream = match b.place_of(from, round) {
                    Ok(place) => &mut b.streams[b.places[place].2 as usize],
                    Err(place) => {
                        let mut chunks = self.spare_chunks.pop().unwrap_or_default();
                        // Of a stream whose end its own bytes tell nobody knows how long it is.
                        let is_long = total > CHUNK_BYTES as u64 && total < u64::MAX;
                        let most = if is_long { MOST_CHUNKS } else { FEW_CHUNKS };
                        chunks.reserve(most);
                        b.places.insert(place, (round, from, b.streams.len() as u32));
                        b.streams.push(Stream { next_seq: 0, total, chunks });
                        b.streams.last_mut().expect("just pushed")
                    }
                };
                if seq != stream.next_seq || total != stream.total {
                    let message = format!(
                        "chunk {seq} of {total} bytes where chunk {} of {} was due",
                        stream.next_seq, stream.total
                    );
                    b.fail(Error::Corrupt { rank: from, message }, false);
                    return;
                }
                stream.next_seq += 1;
                stream.chunks.push_back(frame.payload);
            }
            FrameKind::Credit => b.take_credit(from, round, total),
            FrameKind::Abort => {
                let error = Error::from_wire(frame.payload.as_bytes())
                    .unwrap_or(Error::Aborted { rank: from, cause: "it did not say why".to_owned() });
                match call {
                    // Each rank has a time-out of its own there, and may try again.
                    SHRINK_CALL => self.end_calls_of(from, comm, Over { error, begun: Some(total) }),
                    _ => {
                        b.fail(error.clone(), true);
                        if matches!(error, Error::Diverged { .. }) {
                            self.part(comm, call, &error);
                        }
                    }
                }
            }
            FrameKind::Arguments => {
                if let (Some(own), Some(me)) = (b.own, me) {
                    let differ = b.arguments.differences(frame.payload.as_bytes());
                    let error = mismatch_named((me, own), (from, sig), differ);
                    b.fail(error, false);
                }
            }
            FrameKind::Present => b.present.push(from),
            FrameKind::Past => b.leaves(from, Absence::Past),
            // The last are between replicas, below here.
            FrameKind::Probe | FrameKind::Bye | FrameKind::GivenUp | FrameKind::Outcomes => {}
            FrameKind::Have | FrameKind::PassOn | FrameKind::Passed | FrameKind::Vouch => {}
        }
    }
}

impl CallBox {
    /// The place of a stream in `places`; `Err` says where it would be.
    fn place_of(&self, from: u32, round: u32) -> Result<usize, usize> {
        self.places.binary_search_by_key(&(round, from), |(round, from, _)| (*round, *from))
    }

    /// A peer has called something else, and its program has seen the same calls fail. If only the hashes of arguments differ
    /// it is sent those of this rank, and tells all which one it is.
    fn disagree(&mut self, own: (u32, CallSig), other: (u32, CallSig)) -> Option<Reply> {
        let error = mismatch(own, other);
        let payload = self.arguments.to_wire().filter(|_| own.1.differs_in_hash(&other.1));
        match payload {
            Some(payload) if self.disputed.is_none() => {
                self.disputed = Some(error);
                let header =
                    Header { sig: own.1, ..Header::control(FrameKind::Arguments, self.comm, self.call) };
                return Some(Reply { to: other.0, header, payload });
            }
            Some(_) => {}
            None => self.fail(error, false),
        }
        None
    }

    fn take_credit(&mut self, from: u32, round: u32, consumed: u64) {
        match self.credits.iter_mut().find(|(p, r, _)| (*p, *r) == (from, round)) {
            Some((_, _, bytes)) => *bytes = (*bytes).max(consumed),
            None => self.credits.push((from, round, consumed)),
        }
    }

    fn leaves(&mut self, rank: u32, why: Absence) {
        self.version += 1;
        if !self.apart.contains(&(rank, why)) {
            self.apart.push((rank, why));
        }
    }

    fn fail(&mut self, error: Error, remote: bool) {
        self.version += 1;
        if self.failed.is_none() {
            self.failed = Some((error, remote));
        }
    }
}

fn mismatch(one: (u32, CallSig), other: (u32, CallSig)) -> Error {
    let ((left, left_sig), (right, right_sig)) = if one.0 <= other.0 { (one, other) } else { (other, one) };
    let (mut left_call, mut right_call) = (left_sig.to_string(), right_sig.to_string());
    if left_call == right_call {
        (left_call, right_call) = (left_sig.with_hashes(), right_sig.with_hashes());
    }
    Error::Mismatch { left, left_call, right, right_call }
}

/// The same where it is known which arguments differ, in words; none, if it is not what the caller passed.
fn mismatch_named(one: (u32, CallSig), other: (u32, CallSig), differ: Differences) -> Error {
    let call = |(rank, sig): (u32, CallSig), function: &str, differ: &str| match (function, differ) {
        ("", "") => (rank, format!("{sig}, going by other calls before")),
        ("", _) => (rank, format!("{sig} with {differ}")),
        (_, "") => (rank, function.to_owned()),
        (_, _) => (rank, format!("{function}({differ})")),
    };
    let here = call(one, &differ.function, &differ.here);
    let there = call(other, &differ.other_function, &differ.there);
    let ((left, left_call), (right, right_call)) =
        if here.0 <= there.0 { (here, there) } else { (there, here) };
    Error::Mismatch { left, left_call, right, right_call }
}
