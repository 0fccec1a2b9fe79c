//! Tests with ranks that send impossible messages: the receiver reports an error, and neither panics nor allocates memory for them.

use crate::collectives::allreduce::dense::with_bitmap;
use crate::collectives::configure::{Missing, Request, configure};
use crate::collectives::reduce::{DOWN, UP};
use crate::collectives::survey;
use crate::collectives::topk_allreduce::topk_allreduce;
use crate::frame::{CallKind, CallSig};
use crate::local::local_group;
use crate::stream::{Assembler, Terms};
use crate::{Endpoint, Group, Node, Settings};
use skyphos_kernels::stream::{Shape, View};
use skyphos_kernels::{BlockHash, Indices};
use skyphos_types::{CommId, Error, GroupRank, ReduceOp, Result, Round, WorldRank};
use std::sync::Arc;
use std::time::Duration;

/// Rank 0's result of a call in which the two others send `lies`: in each of these rounds, these bytes to all.
fn hears<R: Send>(lies: &[(Round, Vec<u8>)], call: impl AsyncFn(&Endpoint) -> Result<R> + Sync) -> Result<R> {
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
                    let told = node.call(&group, sig, async |ep| {
                        for (round, lie) in lies {
                            let to_all = others.map(|to| (GroupRank(to), ep.message_of(lie))).into();
                            ep.exchange(*round, to_all, &[]).await?;
                        }
                        Ok(())
                    });
                    // Rank 0's error ends the call here too.
                    drop(told);
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

fn says(error: &Error, what: &str) {
    assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains(what), "{error}");
}

#[test]
fn counts_of_unmet_indices_that_no_number_holds() {
    // An empty set, equal to the wanted one; then the largest possible number of unmet indices.
    let nothing = [&[1, 0][..], &[0; 16]].concat();
    let unmet = [&u64::MAX.to_le_bytes()[..], &[0]].concat();
    let examples = numbers(&[u64::MAX, 7, 7, 7, 7]);
    let lies = [(DOWN, nothing), (UP, unmet), (Round(0x300), examples.clone()), (Round(0x301), examples)];
    let error = hears(&lies, async |ep| {
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
    for lie in [[1001, 5], [1, 1000], [u64::MAX, u64::MAX]] {
        // Entries, 64 samples, as many hashes.
        let block: Vec<u64> = [lie[0]].into_iter().chain([lie[1]; 64]).chain([u64::MAX; 64]).collect();
        let lies = [(Round(0x400), numbers(&block)), (Round(0x401), numbers(&block))];
        let view = View::Sparse { indices: Indices::U64(&[1, 2]), values: &[1f32; 2] };
        let error = hears(&lies, async |ep| survey(ep, view, 1, 1000, &[]).await.map(drop)).unwrap_err();
        says(&error, "indices that there are not");
    }
}

#[test]
fn streams_of_more_entries_than_can_be() {
    for (n, what) in [(1000, "more entries than its range"), (1 << 60, "than fit this machine's memory")] {
        // A segment without entries that announces 2^32 - 1 entries.
        let segment = numbers(&[0, n, n, u64::from(u32::MAX) << 32]);
        let error = hears(&[], async |ep| {
            let shape = Shape { width: 1 << 30, wide: true, dense_above: f64::INFINITY, with_present: false };
            let mut whole = Assembler::<f32>::new(&[0, n], shape, 0.0);
            whole.take(ep, 1, 0, ep.node().pool().copy_of(&segment)).map(drop)
        });
        says(&error.unwrap_err(), what);
    }
}

#[test]
fn counts_of_entries_that_no_rank_can_have() {
    let counts = numbers(&[u64::MAX; 3]);
    // Samples of two entries, then how many are for each rank.
    let block: Vec<u64> = [2].into_iter().chain([5; 64]).collect();
    let lies = [
        (Round(0x600), numbers(&block)),
        (Round(0x601), numbers(&block)),
        (Round(0x620), counts.clone()),
        (Round(0x621), counts),
    ];
    let error = hears(&lies, async |ep| {
        let view = View::Sparse { indices: Indices::U64(&[1, 2]), values: &[1f32; 2] };
        let shape = Shape { width: 1, wide: true, dense_above: f64::INFINITY, with_present: false };
        let terms = Terms { op: &ReduceOp::Sum, n: 1000, shape, precision: None };
        topk_allreduce(ep, view, terms, 2).await.map(drop)
    });
    says(&error.unwrap_err(), "a count of more than 2^32 - 1 entries");
}

#[test]
fn bits_of_rows_that_there_are_not() {
    // 100 rows in two words; ranks that unite them hand over both, then one, and then get the other.
    let bitmap = Round(0x6000_0000);
    let all = |words: usize| numbers(&[u64::MAX, u64::MAX][..words]);
    let lies = [(bitmap + 0x1000, all(2)), (bitmap + 0x1001, all(1)), (bitmap + 0x100_0002, all(1))];
    let united = hears(&lies, async |ep| {
        let mut bits = vec![0; 2];
        with_bitmap(ep, async { Ok(()) }, Some(&mut bits), 100).await?;
        Ok(bits)
    });
    assert_eq!(united, Ok(vec![u64::MAX, (1 << 36) - 1]));
}
