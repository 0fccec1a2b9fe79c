//! Frames and losses that the transport below reports, and the calls that fail because of them.

use super::acknowledgements;
use super::chunk::{Chunk, ChunkMismatch};
use super::inflow::{Acknowledgement, Action};
use super::input_checksums::InputMismatch;
use super::sending::WANTS_ANSWER;
use super::transport::{RACED_BYTES, Replicated};
use crate::frame::{Frame, FrameKind, Header};
use crate::slab::Payload;
use crate::transport::{Event, Loss};
use skyphos_types::{CallNumber, CommId, Error, ProcessId};

impl Replicated {
    pub(super) fn receive(&mut self, from: ProcessId, frame: Frame, events: &mut Vec<Event>) {
        let now = self.clock.now();
        self.last_heard[from.index()] = now;
        let (rank, Frame { header, payload }) = (self.numbering.rank_of(from), frame);
        match header.kind {
            FrameKind::Data | FrameKind::Forward | FrameKind::Forwarded => {
                let origin = ProcessId(u32::from(header.origin));
                let by = if header.kind == FrameKind::Forwarded { origin } else { from };
                if by.0 >= self.numbering.processes() || self.numbering.rank_of(by) == self.numbering.rank() {
                    return self.damaged(
                        from,
                        "sent a chunk whose origin is not a process of another rank",
                        events,
                    );
                }
                let raced = payload.len() <= RACED_BYTES;
                let mismatch = self.inflow.chunk(from, by, header, payload, raced, &mut self.actions);
                self.fail_by_chunk(mismatch, events);
            }
            FrameKind::Acknowledge => {
                self.update_flow(now);
                // With this answer the system acknowledges the received bytes at once.
                if header.call == WANTS_ANSWER && self.lost[from.index()].is_none() {
                    let header = Header::control(FrameKind::Acknowledge, CommId(0), CallNumber(0));
                    self.send(from, Frame { header, payload: Payload::default() });
                }
                let Some(acknowledgements) = acknowledgements::decode(payload.as_bytes(), rank) else {
                    return self.damaged(from, "sent malformed acknowledgements", events);
                };
                for Acknowledgement { chunk, sum, by } in acknowledgements {
                    let over = self.inflow.over().has(chunk.comm, chunk.call);
                    let mismatch = self.out.acknowledge(now, from, chunk, sum, by, over);
                    self.fail_by_chunk(mismatch, events);
                }
            }
            FrameKind::InputChecksum if rank != self.numbering.rank() => {
                return self.damaged(from, "sent an input checksum of another rank", events);
            }
            FrameKind::InputChecksum => {
                let id = (header.comm, header.call);
                let mismatch = self.input_checksums.receive(from, id, header.total, self.inflow.over());
                self.fail_by_input(mismatch, events);
            }
            FrameKind::Abort if concerns_one(payload.as_bytes()) => {
                self.inflow.abort(from, header, payload, &mut self.actions);
            }
            _ if rank == self.numbering.rank() && header.kind != FrameKind::Abort => {}
            _ => events.push(Event::Frame { from: rank, frame: Frame { header, payload } }),
        }
        self.apply_actions(events);
    }

    /// Carries out the actions that follow from frames.
    pub(super) fn apply_actions(&mut self, events: &mut Vec<Event>) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Deliver(from, header, payload) => {
                    events.push(Event::Frame { from, frame: Frame { header, payload } });
                }
                Action::Forward(header, payload) => {
                    for sibling in self.numbering.siblings() {
                        self.out.forward(sibling, header, payload.clone());
                    }
                }
                Action::Left(process, comm, call) => self.out.leave(process, comm, call),
            }
        }
        self.actions = actions;
    }

    /// Fails the call in which replicas sent different bytes, or the next one if it is over.
    pub(super) fn fail_by_chunk(&mut self, mismatch: Option<ChunkMismatch>, events: &mut Vec<Event>) {
        let Some(ChunkMismatch { chunk, processes: (one, other) }) = mismatch else { return };
        let (rank, one, other) = (self.numbering.rank_of(one), one.min(other), one.max(other));
        let Chunk { comm, call, round, seq, .. } = chunk;
        let message = format!(
            "its replicas, processes {one} and {other}, sent different bytes in call {call} of group {comm:x} (round {round}, chunk \
             {seq}). They differ, or have received messages of a rank whose replicas differ: all replicas of a rank must hold the \
             same data and make the same calls"
        );
        self.end_with(comm, call, Error::Corrupt { rank: rank.0, message }, events);
    }

    /// Fails the call to which replicas had different inputs, or the next one if it is over.
    pub(super) fn fail_by_input(&mut self, mismatch: Option<InputMismatch>, events: &mut Vec<Event>) {
        let Some(InputMismatch { comm, call, process }) = mismatch else { return };
        let (one, other) = (process.min(self.numbering.me()), process.max(self.numbering.me()));
        let message = format!(
            "its replicas, processes {one} and {other}, put different data into call {call} of group {comm:x}, or made different \
             calls there. All replicas of a rank must hold the same data and make the same calls"
        );
        self.end_with(comm, call, Error::Corrupt { rank: self.numbering.rank().0, message }, events);
    }

    pub(super) fn damaged(&mut self, from: ProcessId, what: &str, events: &mut Vec<Event>) {
        let message = format!("process {from} {what}");
        let error = Error::Corrupt { rank: self.numbering.rank_of(from).0, message };
        self.end_with(CommId(0), CallNumber(0), error, events);
    }

    /// Fails a call of a group here or, if it has ended, the group's first open one; all ranks get the error.
    pub(super) fn end_with(&mut self, comm: CommId, call: CallNumber, error: Error, events: &mut Vec<Event>) {
        let over = self.inflow.over();
        let call = if over.has(comm, call) { over.first_open(comm) } else { call };
        let header = Header::control(FrameKind::Abort, comm, call);
        let payload = self.facts.pool.copy_of(&error.to_wire());
        self.failure.get_or_insert((comm, call, error));
        events.push(Event::Frame { from: self.numbering.rank(), frame: Frame { header, payload } });
    }

    pub(super) fn lose(&mut self, process: ProcessId, loss: Loss, cause: String, events: &mut Vec<Event>) {
        self.lost[process.index()] = Some((loss, cause));
        self.out.lose(process);
        self.input_checksums.lose(process);
        let mut actions = std::mem::take(&mut self.actions);
        let last = self.inflow.lose(process, loss == Loss::Left, &mut actions);
        self.actions = actions;
        self.apply_actions(events);
        let rank = self.numbering.rank_of(process);
        if !last || rank == self.numbering.rank() {
            return;
        }
        let all: Vec<ProcessId> = self.numbering.processes_of(rank).collect();
        let lost = |process: &ProcessId| self.lost[process.index()].clone().expect("all are lost");
        let causes: Vec<String> = all
            .iter()
            .map(|process| {
                format!("process {process} at {}: {}", self.facts.addresses[process.index()], lost(process).1)
            })
            .collect();
        let losses: Vec<Loss> = all.iter().map(|process| lost(process).0).collect();
        // A process that has left had sent all chunks of its rank.
        let loss = [Loss::Left, Loss::Silent].into_iter().find(|loss| losses.contains(loss));
        let cause = match &causes[..] {
            [_] => causes[0].clone(),
            _ => format!("all its replicas are ({})", causes.join("; ")),
        };
        events.push(Event::PeerDown { rank, cause, loss: loss.unwrap_or(Loss::Ended) });
    }

    /// Handles the events of the transport below.
    pub(super) fn file_events(&mut self, events: &mut Vec<Event>) {
        let mut inner_events = std::mem::take(&mut self.inner_events);
        for event in inner_events.drain(..) {
            match event {
                Event::Frame { from, frame } => self.receive(from.process(), frame, events),
                Event::PeerDown { rank, cause, loss } => self.lose(rank.process(), loss, cause, events),
                // Reported by `report_writable`.
                Event::Writable { .. } => {}
            }
        }
        self.inner_events = inner_events;
    }
}

/// Whether an error concerns only the replica that has left the call.
fn concerns_one(error: &[u8]) -> bool {
    let error = Error::from_wire(error);
    matches!(error, Some(Error::Aborted { .. } | Error::Timeout { .. } | Error::PeerLost { .. }))
}
