//! Decoders of small messages: the error in an abort frame, acknowledgements between replicas, the agreement on a shrink, the messages of
//! rank 0 at a group's start, and the table and control messages of a broadcast.

use crate::allocation::{Limits, within};
use crate::split_kind;
use skyphos_core::collectives::{broadcast, shrink::fuzz_message};
use skyphos_core::replicated::fuzz_acknowledgements;
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_core::survivors::{Decision, Survivor};
use skyphos_core::transport::Loss;
use skyphos_types::{Error, WorldRank};

/// An item of 4 or 8 bytes takes at most 40 bytes in memory, and a growing list exists twice.
const LIMITS: Limits = Limits { one: 8 * CHUNK_BYTES, all: 16 * CHUNK_BYTES };

/// Ranks of the group that shrinks, and of the group of a broadcast.
const RANKS: u32 = 5;

/// The first byte selects the decoder of the rest.
pub fn run(data: &[u8]) {
    let (kind, data) = split_kind(data, 6);
    let data = &data[..data.len().min(CHUNK_BYTES)];
    match kind {
        0 => error(data),
        1 => acknowledgements(data),
        2 => survivors(data),
        3 => group_start(data),
        4 => assert!(within(LIMITS, || broadcast::fuzz_table(data)).is_none_or(|wire| wire == data)),
        _ => assert!(within(LIMITS, || broadcast::fuzz_control(data, RANKS)).is_none_or(|wire| wire == data)),
    }
}

fn error(data: &[u8]) {
    let Some(error) = within(LIMITS, || Error::from_wire(data)) else { return };
    let _ = (error.to_string(), error.is_agreed(), error.as_seen_by_others(3).to_string());
    let wire = error.to_wire();
    let again = Error::from_wire(&wire).expect("an encoded error");
    // Long texts are cut when an error is encoded; a second encoding cuts nothing.
    assert_eq!(again.to_wire(), wire);
    if wire.len() == data.len() {
        assert_eq!(again, error);
    }
}

fn acknowledgements(data: &[u8]) {
    let Some((all, wire)) = within(LIMITS, || fuzz_acknowledgements(data, WorldRank(3))) else { return };
    assert!(all.len() * 8 <= data.len() && all.iter().all(|ack| ack.chunk.rank == WorldRank(3)));
    assert_eq!(fuzz_acknowledgements(&wire, WorldRank(3)), Some((all, wire)));
}

/// Events of a survivor: each is a message (sender, length, bytes) or, if empty, the loss of the sender.
fn survivors(mut data: &[u8]) {
    let mut survivor = Survivor::new(0, vec![None; RANKS as usize]);
    while let Some(([from, len], rest)) = data.split_first_chunk() {
        let (message, rest) = rest.split_at(rest.len().min(*len as usize));
        let from = 1 + u32::from(*from) % (RANKS - 1);
        if message.is_empty() {
            survivor.lose(from, Loss::Ended);
        } else if let Some((message, wire)) =
            within(LIMITS, || fuzz_message(&data[2..2 + message.len()], RANKS, 0))
        {
            assert_eq!(wire, &data[2..2 + wire.len()]);
            within(LIMITS, || survivor.receive(from, message));
        }
        assert!(survivor.take_messages().iter().all(|(to, _)| *to < RANKS));
        if let Some(Decision::Continue(ranks)) = survivor.decision() {
            assert!(ranks.is_sorted_by(|a, b| a < b) && ranks.iter().all(|rank| *rank < RANKS));
            assert!(ranks.contains(&0), "goes on without itself");
        }
        data = rest;
    }
}

/// Profile and topology that rank 0 sends.
fn group_start(data: &[u8]) {
    if let Some((profile, _, wire)) = within(LIMITS, || skyphos::fuzzing::start(data)) {
        if let Some(profile) = profile {
            assert!(profile.numbers().iter().all(|number| number.is_finite() && *number >= 0.0));
        }
        assert_eq!(skyphos::fuzzing::start(&wire).expect("an encoded profile").0, profile);
    }
    let Ok((topology, wire)) = within(LIMITS, || skyphos::fuzzing::topology(data)) else { return };
    let size = (data.len() / 8) as u32;
    assert!(topology.hosts().len() == size as usize && topology.ranks_per_host() <= size.max(1));
    assert!((0..size).all(|rank| topology.rank_at(topology.index_of(rank)) == rank));
    assert_eq!(skyphos::fuzzing::topology(&wire).expect("an encoded topology").0, topology);
    let every_other: Vec<u32> = (0..size).step_by(2).collect();
    assert_eq!(topology.of_group(&every_other).hosts().len(), every_other.len());
}
