//! Barrier by dissemination (Hensgen, Finkel, Manber 1988).
//!
//! In round k each rank sends an empty message to rank + 2^k and receives one from rank - 2^k. After ⌈log2 P⌉ rounds each rank
//! has a message, directly or through others, from every rank. Cost: ⌈log2 P⌉ α. Works for any P.

use crate::endpoint::Endpoint;
use skyphos_types::{GroupRank, Result, Round};

/// Returns when every rank of the group has entered.
pub async fn barrier(ep: &Endpoint) -> Result<()> {
    barrier_from(ep, Round(0)).await
}

/// A barrier at the end of another collective, in ⌈log2 P⌉ rounds from `first_round`. No rank returns before all have done
/// their part, so an error on one rank is raised on all.
pub async fn barrier_from(ep: &Endpoint, first_round: Round) -> Result<()> {
    all_true(ep, first_round, true).await.map(|_| ())
}

/// A barrier that returns the logical and of all ranks' flags. An empty message means true, one of a byte means false.
pub async fn all_true(ep: &Endpoint, first_round: Round, flag: bool) -> Result<bool> {
    let (me, size) = (ep.rank().0, ep.size());
    let (mut step, mut round, mut all) = (1, first_round, flag);
    while step < size {
        let (to, from) = ((me + step) % size, (me + size - step) % size);
        let message = ep.message(usize::from(!all));
        let received = ep.exchange(round, vec![(GroupRank(to), message)], &[GroupRank(from)]).await?;
        all &= received[0].as_bytes().is_empty();
        (step, round) = (step * 2, round + 1);
    }
    Ok(all)
}
