//! Shrink: ranks leave in the middle of a program; the remaining ranks agree on the new group and continue, any number of times.

use crate::common::{LOCAL_AND_TCP, on_all};
use proptest::prelude::*;
use skyphos::{Comm, Error, Result};

/// The sum of `number` over the ranks of `comm`.
fn sum(comm: &Comm, number: u32) -> Result<i64> {
    let mut out = [0i64];
    comm.allreduce_dense(&[i64::from(number)], &mut out).run()?;
    Ok(out[0])
}

/// Makes calls until only the ranks of `stay` remain and have the right sum, or until this rank leaves, after `leaves_after`
/// calls. Returns the number of shrinks.
fn shrink_until(first: &Comm, leaves_after: Option<u32>, stay: &[u32]) -> usize {
    let (me, want) = (first.rank(), stay.iter().map(|rank| i64::from(*rank)).sum::<i64>());
    let mut groups: Vec<Comm> = Vec::new();
    for call in 0.. {
        if leaves_after == Some(call) {
            return groups.len();
        }
        let comm = groups.last().unwrap_or(first);
        match sum(comm, me) {
            Ok(got) if comm.size() as usize == stay.len() => {
                assert_eq!(got, want);
                return groups.len();
            }
            Ok(_) => {}
            Err(Error::PeerLost { .. }) => {
                let smaller = comm.shrink().unwrap();
                assert!(smaller.size() < comm.size());
                // A group shrinks only once.
                assert!(comm.shrink().err().unwrap().to_string().contains("before"));
                groups.push(smaller);
            }
            Err(other) => panic!("rank {me}: {other}"),
        }
    }
    unreachable!()
}

proptest! {
    #![proptest_config(crate::common::random(40))]

    #[test]
    fn any_ranks_leave_at_any_call(leaves in proptest::collection::vec(proptest::option::of(0u32..6), 2..7)) {
        let stay: Vec<u32> = (0..leaves.len() as u32).filter(|rank| leaves[*rank as usize].is_none()).collect();
        prop_assume!(!stay.is_empty());
        for (_, make) in LOCAL_AND_TCP {
            on_all(make(leaves.len() as u32), |comm| {
                let leaves_after = leaves[comm.rank() as usize];
                shrink_until(comm, leaves_after, &stay);
                if leaves_after.is_some() {
                    comm.close().unwrap();
                }
            });
        }
    }
}

#[test]
fn a_group_without_losses_stays_the_same() {
    for (_, make) in LOCAL_AND_TCP {
        for size in [1, 2, 5] {
            on_all(make(size), |comm| {
                let again = comm.shrink().unwrap();
                assert_eq!((again.rank(), again.size()), (comm.rank(), size));
                assert_eq!(sum(&again, 1).unwrap(), i64::from(size));
                assert_eq!(sum(comm, 1).unwrap(), i64::from(size), "no rank was lost");
            });
        }
    }
}
