//! The parts of a message through one rank: what comes goes on at once, in the buffer it came in, to all who are as far; who is
//! further back, for it began with another rank that is lost, is sent what is there already.

use super::completion::{Came, Completion};
use super::message::{Ranges, Room};
use super::store::Store;
use super::tree::Leg;
use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::frame::ARRAYS;
use crate::message_stream::{Incoming, Outgoing};
use skyphos_types::{Error, Result};
use std::ops::Range;

/// Rounds of streams, those that were planned and those that were asked for.
const PLANNED: u32 = ARRAYS | 0x200;
const ASKED: u32 = ARRAYS | 0x0100_0000;

/// Bytes on their way here.
struct In {
    from: u32,
    incoming: Incoming,
    /// What of them has not come; and how many there were.
    rest: Range<usize>,
    all: usize,
    /// Where they go on.
    onward: Option<usize>,
}

impl In {
    fn new(from: u32, round: u32, rest: Range<usize>, onward: Option<usize>) -> In {
        In { from, incoming: Incoming::new(from, round), all: rest.len(), rest, onward }
    }
}

/// Bytes on their way to ranks that are all as far.
struct Out {
    rest: Range<usize>,
    sends: Vec<(u32, Outgoing)>,
}

impl Out {
    fn new(to: &[u32], round: u32, rest: Range<usize>) -> Out {
        let sends = to.iter().map(|to| (*to, Outgoing::new(*to, round, rest.len() as u64))).collect();
        Out { rest, sends }
    }

    fn may_send(&self, ep: &Endpoint) -> bool {
        self.sends.iter().all(|(_, send)| send.may_send(ep))
    }
}

/// See the module's text.
pub(super) struct Flow {
    total: usize,
    chunk_bytes: usize,
    have: Ranges,
    ins: Vec<In>,
    outs: Vec<Out>,
}

impl Flow {
    /// Of a message of so many bytes, in chunks of so many.
    pub(super) fn new(total: usize, chunk_bytes: usize) -> Flow {
        Flow { total, chunk_bytes, have: Ranges::default(), ins: Vec::new(), outs: Vec::new() }
    }

    /// All of it is here.
    pub(super) fn has_all(&mut self) {
        self.have.add(0..self.total);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.have.covers(&(0..self.total))
    }

    /// The parts of a route.
    pub(super) fn plan(&mut self, legs: Vec<Leg>) {
        for Leg { range, stream, from, to, onward } in legs {
            let out = (!to.is_empty()).then(|| {
                self.outs.push(Out::new(&to, PLANNED + onward, range.clone()));
                self.outs.len() - 1
            });
            self.ins.extend(from.map(|from| In::new(from, PLANNED + stream, range, out)));
        }
    }

    /// All of it from a rank that sends it beside the route, or to one.
    pub(super) fn plan_from(&mut self, from: u32) {
        self.ins.push(In::new(from, PLANNED, 0..self.total, None));
    }

    pub(super) fn plan_to(&mut self, to: u32) {
        self.outs.push(Out::new(&[to], PLANNED, 0..self.total));
    }

    /// All of it from the nearest rank that can be asked.
    pub(super) fn ask_for_all(&mut self, completion: &mut Completion<'_>, instead: Error) -> Result<()> {
        let (from, stream) = completion.ask_for_data(0..self.total, instead)?;
        self.ins.push(In::new(from, ASKED + stream, 0..self.total, None));
        Ok(())
    }

    /// Takes what has come and sends what may go; whether anything moved.
    pub(super) fn step<R: Room>(
        &mut self,
        completion: &mut Completion<'_>,
        store: &mut Store<'_, R>,
    ) -> Result<bool> {
        for (to, stream, range) in std::mem::take(&mut completion.of_data) {
            if range.end > self.total {
                return Err(completion.ep.corrupt(to, "it asks for more than there is of a broadcast"));
            }
            self.outs.push(Out::new(&[to], ASKED + stream, range));
        }
        let mut moved = false;
        for k in 0..self.ins.len() {
            moved |= self.receive(k, completion, store)?;
        }
        for out in &mut self.outs {
            if !out.rest.is_empty() {
                out.sends.retain(|(to, _)| !completion.is_gone(*to));
                moved |= send_what_is_here(out, &self.have, self.chunk_bytes, completion.ep, store);
            }
        }
        Ok(moved)
    }

    /// Who takes what comes in step holds it back if its link does: it stays where it is, up to the root.
    fn receive<R: Room>(
        &mut self,
        k: usize,
        completion: &mut Completion<'_>,
        store: &mut Store<'_, R>,
    ) -> Result<bool> {
        let (part, ep, mut moved) = (&mut self.ins[k], completion.ep, false);
        while !part.rest.is_empty() {
            let in_step = |out: &&mut Out| out.rest.start == part.rest.start;
            let onward = part.onward.map(|out| &mut self.outs[out]).filter(in_step);
            if onward.as_ref().is_some_and(|out| !out.may_send(ep)) {
                break;
            }
            let chunk = match completion.take(part.from, &mut part.incoming)? {
                Came::Chunk(chunk) => chunk,
                Came::Nothing => break,
                Came::Never(why) => {
                    let (from, stream) = completion.ask_for_data(part.rest.clone(), why)?;
                    *part = In::new(from, ASKED + stream, part.rest.clone(), part.onward);
                    moved = true;
                    continue;
                }
            };
            let (at, rest) = (part.rest.start, part.rest.len());
            if part.incoming.total() != part.all as u64 || chunk.is_empty() || chunk.len() > rest {
                let said = part.incoming.total();
                let what = format!("{} bytes of {said}, where {rest} of {} were left", chunk.len(), part.all);
                return Err(ep.corrupt(part.from, &what));
            }
            ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
            if !ep.is_sized() {
                store.put(at, chunk.as_bytes());
            }
            part.rest.start += chunk.len();
            self.have.add(at..part.rest.start);
            if let Some(out) = onward {
                out.rest.start += chunk.len();
                out.sends.iter_mut().for_each(|(_, send)| send.push_shared(ep, chunk.clone()));
            }
            moved = true;
        }
        Ok(moved)
    }
}

/// A chunk to all that are as far, copied once.
fn send_what_is_here<R: Room>(
    out: &mut Out,
    have: &Ranges,
    chunk_bytes: usize,
    ep: &Endpoint,
    store: &Store<'_, R>,
) -> bool {
    let len = chunk_bytes.min(out.rest.len());
    let range = out.rest.start..out.rest.start + len;
    if out.sends.is_empty() || !have.covers(&range) || !out.may_send(ep) {
        return false;
    }
    let mut chunk = ep.chunk(len);
    ep.spend(Effort::Dense { bytes: 2 * len });
    if !ep.is_sized() {
        store.copy_out(range.start, chunk.as_bytes_mut());
    }
    let chunk = chunk.freeze();
    out.sends.iter_mut().for_each(|(_, send)| send.push_shared(ep, chunk.clone()));
    out.rest.start = range.end;
    true
}
