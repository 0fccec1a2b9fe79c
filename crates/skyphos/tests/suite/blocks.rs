//! Exchange of blocks on every transport: order of delivery, and bounds on blocks in memory.

use crate::common::{MakeGroup, local, on_all, shared_memory, tcp};
use proptest::prelude::*;
use skyphos::{BlockLimits, Comm, Error, Result, Traffic};

const TRANSPORTS: [(&str, MakeGroup); 3] = [("local", local), ("shared memory", shared_memory), ("tcp", tcp)];

/// Blocks with their senders.
type ReceivedBlocks = Vec<(u32, Vec<u8>)>;

/// The blocks received, in order, and the call's traffic.
fn exchange(comm: &Comm, blocks: Vec<Vec<u8>>, limits: BlockLimits) -> Result<(ReceivedBlocks, Traffic)> {
    let mut exchange = comm.exchange_blocks(blocks, limits)?.start();
    let mut received = Vec::new();
    while let Some(next) = exchange.next_block()? {
        received.push(next);
    }
    exchange.finish().map(|traffic| (received, traffic))
}

fn block(from: u32, to: u32, len: usize) -> Vec<u8> {
    (0..len).map(|k| (k * 13 + from as usize * 31 + to as usize * 7) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(25))]

    #[test]
    fn blocks_are_delivered_in_order_of_distance(
        size in 1u32..9,
        lens in prop::collection::vec(prop_oneof![Just(0usize), 1usize..100, 1000usize..400_000], 81),
        push_bytes in prop_oneof![Just(0usize), 0usize..5000, Just(1 << 20)],
        fetches in 1usize..4,
    ) {
        let len = |from: u32, to: u32| lens[(from * 9 + to) as usize];
        for (name, make) in TRANSPORTS {
            let got = on_all(make(size), |comm| {
                let me = comm.rank();
                let blocks = (0..size).map(|to| block(me, to, len(me, to))).collect();
                let (received, traffic) = exchange(comm, blocks, BlockLimits { push_bytes, fetches }).unwrap();
                let others = (0..size).filter(|to| *to != me).map(|to| len(me, to));
                let sent: usize = others.map(|len| len + if len > push_bytes { 8 } else { 0 }).sum();
                assert_eq!(traffic.sent_bytes, sent as u64);
                received
            });
            for (me, received) in (0..).zip(got) {
                let want: Vec<_> = (1..size)
                    .map(|far| (me + far) % size)
                    .map(|from| (from, block(from, me, len(from, me))))
                    .collect();
                prop_assert!(received == want, "{} rank {} of {}", name, me, size);
            }
        }
    }
}

#[test]
fn a_receiver_that_takes_nothing_is_sent_only_the_requested_blocks() {
    let limits = BlockLimits { push_bytes: 0, fetches: 2 };
    for (name, make) in TRANSPORTS {
        on_all(make(6), |comm| {
            let blocks = (0..6).map(|to| block(comm.rank(), to, 50_000)).collect();
            let mut exchange = comm.exchange_blocks(blocks, limits).unwrap().start();
            // Other calls give all ranks time to send.
            for _ in 0..20 {
                comm.barrier().run().unwrap();
            }
            assert!(exchange.waiting() <= 2, "{name}: {}", exchange.waiting());
            let mut from = Vec::new();
            while let Some((rank, _)) = exchange.next_block().unwrap() {
                from.push(rank);
            }
            assert_eq!(from, (1..6).map(|far| (comm.rank() + far) % 6).collect::<Vec<_>>());
            exchange.finish().unwrap();
        });
    }
}

#[test]
fn errors_raise_on_all_ranks() {
    let limits = BlockLimits { push_bytes: 10, fetches: 1 };
    for (_, make) in TRANSPORTS {
        on_all(make(3), |comm| {
            // Too few blocks on one rank: ranks that wait for blocks get its error.
            let count = if comm.rank() == 1 { 2 } else { 3 };
            let error = exchange(comm, vec![vec![1; 5000]; count], limits).unwrap_err().to_string();
            assert!(error.contains("2 blocks for 3 ranks"), "{error}");
            // Limits that differ between ranks.
            let limits = BlockLimits { fetches: 1 + comm.rank() as usize, ..limits };
            let done = exchange(comm, vec![vec![1; 5000]; 3], limits).map(|_| ());
            assert!(matches!(done, Err(Error::Mismatch { .. })), "{done:?}");
            comm.barrier().run().unwrap();
        });
    }
}
