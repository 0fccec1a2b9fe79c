//! A message down a tree, chunk by chunk: each rank passes on what comes, in the buffer it came in, while more comes.

use super::message::Source;
use super::{DATA, Place, Room, Way};
use crate::clock::Effort;
use crate::endpoint::{Endpoint, Incoming, Outgoing};
use skyphos_types::Result;

fn to(children: &[u32], total: usize) -> Vec<Outgoing> {
    children.iter().map(|child| Outgoing::new(*child, DATA, total as u64)).collect()
}

/// The part of who has the message. Each chunk is copied once, for all of its children.
pub(super) async fn send_down(ep: &Endpoint, parts: &impl Source, way: Way, children: &[u32]) -> Result<()> {
    let mut sends = to(children, parts.total());
    let most = way.chunk_bytes.min(ep.node().chunk_bytes());
    let mut at = 0;
    while at < parts.total() {
        if sends.iter().all(|send| send.may_send(ep)) {
            let mut chunk = ep.chunk(most.min(parts.total() - at));
            ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
            at += chunk.len();
            if !ep.is_sized() {
                parts.copy_out(at - chunk.len(), chunk.as_bytes_mut());
            }
            let chunk = chunk.freeze();
            sends.iter_mut().for_each(|send| send.push_shared(ep, chunk.clone()));
        } else {
            ep.progress().await?;
        }
    }
    Ok(())
}

/// Another rank's. What its children have no room for stays where its parent is held back by it.
pub(super) async fn pass_on(ep: &Endpoint, total: usize, room: &mut impl Room, place: &Place) -> Result<()> {
    let parent = place.parent.expect("not the root");
    let (mut sends, mut incoming) = (to(&place.children, total), Incoming::new(parent, DATA));
    let mut at = 0;
    while at < total {
        let chunk = match sends.iter().all(|send| send.may_send(ep)) {
            true => incoming.next(ep)?,
            false => None,
        };
        let Some(chunk) = chunk else {
            ep.progress().await?;
            continue;
        };
        if incoming.total() != total as u64 || chunk.is_empty() || chunk.len() > total - at {
            let what = format!("{} bytes after {at} of a message of {total}", chunk.len());
            return Err(ep.corrupt(parent, &what));
        }
        ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
        if !ep.is_sized() {
            room.put(at, chunk.as_bytes());
        }
        at += chunk.len();
        sends.iter_mut().for_each(|send| send.push_shared(ep, chunk.clone()));
    }
    Ok(())
}
