//! Barrier by dissemination (Hensgen, Finkel, Manber 1988).
//!
//! In round k each rank tells rank + 2^k and hears from rank - 2^k; after ⌈log2 P⌉ rounds everyone has
//! heard, directly or not, from everyone. Cost: ⌈log2 P⌉ α. Needs nothing of P.

use crate::endpoint::Endpoint;
use skyphos_types::Result;

/// Returns when every rank of the group has entered.
pub async fn barrier(ep: &Endpoint) -> Result<()> {
    barrier_from(ep, 0).await
}

/// The same as the end of another collective, in ⌈log2 P⌉ rounds from `first_round`: none returns before all have
/// done their part, so that an error of one is an error of all.
pub async fn barrier_from(ep: &Endpoint, first_round: u32) -> Result<()> {
    all_say(ep, first_round, true).await.map(|_| ())
}

/// Whether all ranks say yes, known when all have entered: who hears a no passes it on. A yes takes no byte.
pub async fn all_say(ep: &Endpoint, first_round: u32, yes: bool) -> Result<bool> {
    let (me, size) = (ep.rank(), ep.size());
    let (mut step, mut round, mut yes) = (1, first_round, yes);
    while step < size {
        let (to, from) = ((me + step) % size, (me + size - step) % size);
        let message = ep.message(usize::from(!yes));
        let heard = ep.exchange(round, vec![(to, message)], &[from]).await?;
        yes &= heard[0].as_bytes().is_empty();
        (step, round) = (step * 2, round + 1);
    }
    Ok(yes)
}
