//! Core's collectives over TCP: a first conformance check.

use crate::common::{each_connection, on_all, on_each};
use skyphos_core::collectives::{allgather::allgather_bytes, barrier::barrier};
use skyphos_core::frame::WINDOW_BYTES;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_types::{GroupRank, Round};

#[test]
fn barrier_allgather_and_exchange_at_every_size() {
    for size in 1..=8 {
        let got = on_all(size, |rank, node, group| {
            for _ in 0..3 {
                node.call(&group, CallSig::plain(CallKind::Barrier), barrier).unwrap();
            }
            let block = [rank as u8; 5];
            let sig = CallSig::plain(CallKind::AllgatherBytes);
            let all = node.call(&group, sig, async |ep| allgather_bytes(ep, Round(0), &block).await).unwrap();
            let others: Vec<u32> = (0..size).filter(|r| *r != rank).collect();
            let message = |to: u32| vec![(rank * 16 + to) as u8; 300_000 + rank as usize];
            let sig = CallSig::plain(CallKind::Barrier);
            let received = node.call(&group, sig, async |ep| {
                let messages =
                    others.iter().map(|to| (GroupRank(*to), ep.message_of(&message(*to)))).collect();
                let sources: Vec<GroupRank> = others.iter().copied().map(GroupRank).collect();
                ep.exchange(Round(0), messages, &sources).await
            });
            for (from, bytes) in others.iter().zip(received.unwrap()) {
                assert_eq!(bytes.as_bytes().len(), 300_000 + *from as usize);
                assert!(bytes.as_bytes().iter().all(|b| *b == (from * 16 + rank) as u8));
            }
            all
        });
        let want: Vec<Vec<u8>> = (0..size).map(|r| vec![r as u8; 5]).collect();
        assert!(got.iter().all(|g| *g == want), "P = {size}");
    }
}

#[test]
fn messages_larger_than_window_and_socket_buffers_flow_both_ways() {
    let len = WINDOW_BYTES as usize * 3 + 17;
    for group in each_connection(2) {
        on_each(group, |rank, node, group| {
            let message: Vec<u8> = (0..len).map(|k| (k * 7 + rank as usize) as u8).collect();
            let other = 1 - rank;
            let sig = CallSig::plain(CallKind::Barrier);
            let received = node.call(&group, sig, async |ep| {
                ep.exchange(Round(0), vec![(GroupRank(other), ep.message_of(&message))], &[GroupRank(other)])
                    .await
            });
            let received = received.unwrap().remove(0);
            assert!((0..len).all(|k| received.as_bytes()[k] == (k * 7 + other as usize) as u8));
        });
    }
}

#[test]
fn waiting_for_a_rank_that_closed_its_comm_fails_and_names_that_rank() {
    for group in each_connection(3) {
        let got = on_each(group, |rank, node, group| {
            if rank == 2 {
                return String::new();
            }
            node.call(&group, CallSig::plain(CallKind::Barrier), barrier).unwrap_err().to_string()
        });
        for text in &got[..2] {
            assert!(text.contains("rank 2") && text.contains("closed its Comm"), "{text}");
        }
    }
}
