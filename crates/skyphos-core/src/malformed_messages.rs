//! Tests in which ranks send malformed messages: the receiver reports an error, and neither panics nor allocates memory for them.

use crate::collectives::allreduce::dense::with_bitmap;
use crate::collectives::configure::{Missing, Request, configure};
use crate::collectives::reduce::{DOWN, UP};
use crate::collectives::survey;
use crate::collectives::topk_allreduce::topk_allreduce;
use crate::frame::{CallKind, CallSig};
use crate::local::local_group;
use crate::stream::{Assembler, ReductionParams};
use crate::{Endpoint, Group, Node, Settings};
use skyphos_kernels::stream::{Shape, View};
use skyphos_kernels::{BlockHash, Indices};
use skyphos_types::{CommId, Error, GroupRank, ReduceOp, Result, Round, WorldRank};
use std::sync::Arc;
use std::time::Duration;

/// Rank 0's result of `call`, while the two other ranks send `malformed`: rounds with the bytes that go to all ranks.
fn result_at_rank_0<R: Send>(
    malformed: &[(Round, Vec<u8>)],
    call: impl AsyncFn(&Endpoint) -> Result<R> + Sync,
) -> Result<R> {
    let settings = Settings { timeout: Duration::from_secs(10), ..Settings::default() };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..)
            .zip(local_group(3))
            .map(|(rank, transport)| {
                let (settings, call) = (settings.clone(), &call);
                scope.spawn(move || {
                    let node = Node::new(Box::new(transport), settings).unwrap();
                    let group =
                        Arc::new(Group::new(CommId(1), (0..3).map(WorldRank).collect(), GroupRank(rank)));
                    node.open_group(group.clone());
                    let sig = CallSig::plain(CallKind::Barrier);
                    if rank == 0 {
                        return Some(node.call(&group, sig, async |ep| call(ep).await));
                    }
                    let others = [0, 3 - rank];
                    let ended = node.call(&group, sig, async |ep| {
                        for (round, bytes) in malformed {
                            let to_all = others.map(|to| (GroupRank(to), ep.message_of(bytes))).into();
                            ep.exchange(*round, to_all, &[]).await?;
                        }
                        Ok(())
                    });
                    // Rank 0's error ends the call here too.
                    drop(ended);
                    None
                })
            })
            .collect();
        ranks.into_iter().find_map(|rank| rank.join().unwrap()).expect("rank 0")
    })
}

fn numbers(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn assert_corrupt(error: &Error, what: &str) {
    assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains(what), "{error}");
}

#[test]
fn counts_of_unmet_indices_that_overflow() {
    // An empty set that is both contributed and wanted; then the largest count of unmet indices.
    let nothing = [&[1, 0][..], &[0; 16]].concat();
    let unmet = [&u64::MAX.to_le_bytes()[..], &[0]].concat();
    let examples = numbers(&[u64::MAX, 7, 7, 7, 7]);
    let malformed =
        [(DOWN, nothing), (UP, unmet), (Round(0x300), examples.clone()), (Round(0x301), examples)];
    let error = result_at_rank_0(&malformed, async |ep| {
        let hash = BlockHash::new(1000, 3);
        let set = || Indices::U64(&[5, 6]).prepare(1000, hash, "indices").unwrap();
        let request = Request {
            n: 1000,
            width: 1,
            degrees: vec![3],
            missing: Missing::Error,
            hash,
            contribute: set(),
            contribute_len: 2,
            want: set(),
            want_len: 2,
            considered: Vec::new(),
            id: 0,
            sizes: None,
        };
        configure(ep, request).await.map(drop)
    });
    assert!(matches!(error, Err(Error::Unmet { requests: u64::MAX, .. })), "{error:?}");
}

#[test]
fn samples_of_indices_beyond_the_space() {
    for numbers_sent in [[1001, 5], [1, 1000], [u64::MAX, u64::MAX]] {
        // Number of entries, 64 samples, 64 hashes.
        let block: Vec<u64> =
            [numbers_sent[0]].into_iter().chain([numbers_sent[1]; 64]).chain([u64::MAX; 64]).collect();
        let malformed = [(Round(0x400), numbers(&block)), (Round(0x401), numbers(&block))];
        let view = View::Sparse { indices: Indices::U64(&[1, 2]), values: &[1f32; 2] };
        let error = result_at_rank_0(&malformed, async |ep| survey(ep, view, 1, 1000, &[]).await.map(drop))
            .unwrap_err();
        assert_corrupt(&error, "indices outside the index space");
    }
}

#[test]
fn streams_with_impossible_numbers_of_entries() {
    for (n, what) in [(1000, "more entries than its range"), (1 << 60, "than fit this machine's memory")] {
        // The first segment of a stream of `n` entries; it has no entry itself.
        let segment = numbers(&[0, n, n, u64::from(u32::MAX) << 32]);
        let error = result_at_rank_0(&[], async |ep| {
            let shape = Shape { width: 1 << 30, wide: true, dense_above: f64::INFINITY, with_present: false };
            let mut whole = Assembler::<f32>::new(&[0, n], shape, 0.0);
            whole.take(ep, 1, 0, ep.node().pool().copy_of(&segment)).map(drop)
        });
        assert_corrupt(&error.unwrap_err(), what);
    }
}

#[test]
fn impossible_counts_of_entries() {
    let counts = numbers(&[u64::MAX; 3]);
    // Samples of two entries, then the number of entries for each rank.
    let block: Vec<u64> = [2].into_iter().chain([5; 64]).collect();
    let malformed = [
        (Round(0x600), numbers(&block)),
        (Round(0x601), numbers(&block)),
        (Round(0x620), counts.clone()),
        (Round(0x621), counts),
    ];
    let error = result_at_rank_0(&malformed, async |ep| {
        let view = View::Sparse { indices: Indices::U64(&[1, 2]), values: &[1f32; 2] };
        let shape = Shape { width: 1, wide: true, dense_above: f64::INFINITY, with_present: false };
        let params = ReductionParams { op: &ReduceOp::Sum, n: 1000, shape, precision: None };
        topk_allreduce(ep, view, params, 2).await.map(drop)
    });
    assert_corrupt(&error.unwrap_err(), "a count of more than 2^32 - 1 entries");
}

#[test]
fn bits_beyond_the_last_row() {
    // 100 rows take two words. A rank sends both words, then one, and then receives the other.
    let bitmap = Round(0x6000_0000);
    let all = |words: usize| numbers(&[u64::MAX, u64::MAX][..words]);
    let malformed = [(bitmap + 0x1000, all(2)), (bitmap + 0x1001, all(1)), (bitmap + 0x100_0002, all(1))];
    let united = result_at_rank_0(&malformed, async |ep| {
        let mut bits = vec![0; 2];
        with_bitmap(ep, async { Ok(()) }, Some(&mut bits), 100).await?;
        Ok(bits)
    });
    assert_eq!(united, Ok(vec![u64::MAX, (1 << 36) - 1]));
}
