//! The core of Skyphos: frames, the mailbox that matches them to calls, and the collectives, over any transport.
//!
//! Read in this order: [`transport`] (the trait of all transports), [`local`] (the smallest one), [`frame`], [`group`], `mailbox` (which
//! frame belongs to which call), [`node`] and `driver` (which thread polls the transport), [`endpoint`] (a collective's view of its
//! call), `calls` and `blocking` (from a call to its result), [`collectives::barrier`] (the simplest collective).

#![deny(unsafe_code)]

pub mod arguments;
mod background;
mod blocking;
pub mod butterfly;
mod call_guard;
mod calls;
pub mod clock;
pub mod collectives;
mod driver;
pub mod endpoint;
mod exchange;
pub mod extensions;
pub mod frame;
pub mod group;
pub mod host;
mod input_checksum;
mod join;
pub mod loan;
pub mod local;
mod loss;
mod mailbox;
mod message_stream;
pub mod node;
pub mod plan;
pub mod point_to_point;
#[allow(unsafe_code, reason = "system calls")]
mod process;
mod ranges;
pub mod replicated;
#[allow(unsafe_code, reason = "memory shared with other processes, or not initialised")]
pub mod shared_memory;
pub mod slab;
pub mod stream;
pub mod survivors;
mod tasks;
pub mod topology;
pub mod transport;
mod watch;
pub mod work;

pub use arguments::{Arguments, Named};
pub use calls::CallRequest;
pub use endpoint::{Endpoint, Traffic};
pub use group::Group;
pub use input_checksum::InputChecksum;
pub use message_stream::{Incoming, Outgoing};
pub use node::{Node, Settings};
pub use plan::Plan;
pub use topology::Topology;
pub use work::{Call, Steps, Work};

#[cfg(test)]
mod malformed_messages;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::frame::{CallKind, CallSig};
    use skyphos_types::{CommId, GroupRank, Round, WorldRank};
    use std::sync::Arc;
    use std::time::Duration;

    /// Runs `body` on all ranks of a group, a thread for each. `timeout`: seconds.
    pub(crate) fn on_all<R: Send>(
        size: u32,
        timeout: f64,
        body: impl Fn(u32, Arc<Node>, Arc<Group>) -> R + Sync,
    ) -> Vec<R> {
        let settings = Settings { timeout: Duration::from_secs_f64(timeout), ..Settings::default() };
        std::thread::scope(|scope| {
            let tasks: Vec<_> = local::local_group(size)
                .into_iter()
                .enumerate()
                .map(|(rank, transport)| {
                    let (body, settings) = (&body, settings.clone());
                    scope.spawn(move || {
                        let node = Node::new(Box::new(transport), settings).unwrap();
                        let group = Arc::new(Group::new(
                            CommId(1),
                            (0..size).map(WorldRank).collect(),
                            GroupRank(rank as u32),
                        ));
                        node.open_group(group.clone());
                        body(rank as u32, node, group)
                    })
                })
                .collect();
            tasks.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn barrier_and_allgather_at_every_size() {
        for size in 1..=13 {
            let got = on_all(size, 10.0, |rank, node, group| {
                for _ in 0..3 {
                    node.call(&group, CallSig::plain(CallKind::Barrier), collectives::barrier::barrier)
                        .unwrap();
                }
                let block = [rank as u8; 3];
                node.call(&group, CallSig::plain(CallKind::AllgatherBytes), async |ep| {
                    collectives::allgather::allgather_bytes(ep, Round(0), &block).await
                })
                .unwrap()
            });
            let want: Vec<Vec<u8>> = (0..size).map(|r| vec![r as u8; 3]).collect();
            assert!(got.iter().all(|g| *g == want), "P = {size}");
        }
    }

    #[test]
    fn different_calls_are_a_mismatch_on_all() {
        let got = on_all(4, 10.0, |rank, node, group| {
            let kind = if rank == 2 { CallKind::Split } else { CallKind::Barrier };
            node.call(&group, CallSig::plain(kind), collectives::barrier::barrier).unwrap_err().to_string()
        });
        for text in got {
            assert!(text.contains("barrier(") && text.contains("rank 2 is in split("), "{text}");
        }
    }

    #[test]
    fn a_rank_that_does_not_enter_the_call_is_named_by_all() {
        let others_gave_up = std::sync::Barrier::new(5);
        let got = on_all(5, 0.2, |rank, node, group| {
            let text = match rank {
                3 => "away".to_owned(), // and alive, until the others have given up
                _ => node
                    .call(&group, CallSig::plain(CallKind::Barrier), collectives::barrier::barrier)
                    .unwrap_err()
                    .to_string(),
            };
            others_gave_up.wait();
            text
        });
        for (rank, text) in got.iter().enumerate().filter(|(r, _)| *r != 3) {
            assert!(text.contains("rank 3 did not come"), "rank {rank}: {text}");
        }
    }

    #[test]
    fn a_lost_rank_is_named_and_an_error_inside_reaches_all() {
        let got = on_all(4, 10.0, |rank, node, group| {
            let sig = CallSig::plain(CallKind::Barrier);
            let inside = node.call(&group, sig, async |ep| {
                if rank == 1 {
                    return Err(skyphos_types::Error::bad_input("the values are wrong"));
                }
                collectives::barrier::barrier(ep).await
            });
            let text = inside.unwrap_err().to_string();
            assert!(text.contains("the values are wrong"), "{text}");
            if rank == 0 {
                return String::new();
            }
            node.call(&group, sig, collectives::barrier::barrier).unwrap_err().to_string()
        });
        for text in &got[1..] {
            assert!(text.contains("rank 0") && text.contains("lost"), "{text}");
        }
    }

    #[test]
    fn messages_larger_than_the_window_flow_both_ways() {
        let len = frame::WINDOW_BYTES as usize * 3 + 17;
        let got = on_all(2, 20.0, |rank, node, group| {
            let message = vec![rank as u8 + 1; len];
            node.call(&group, CallSig::plain(CallKind::Barrier), async |ep| {
                ep.exchange(
                    Round(0),
                    vec![(GroupRank(1 - rank), ep.message_of(&message))],
                    &[GroupRank(1 - rank)],
                )
                .await
            })
            .unwrap()
            .remove(0)
        });
        for (rank, bytes) in got.iter().enumerate() {
            assert_eq!(bytes.as_bytes().len(), len);
            assert!(bytes.as_bytes().iter().all(|b| *b == 2 - rank as u8));
        }
    }
}
