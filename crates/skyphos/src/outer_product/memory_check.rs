//! The memory check of a sum: refuses a sum that needs more memory than a host has free, before anything is sent.

use super::options::OuterAlgorithm;
use skyphos_core::Endpoint;
use skyphos_core::collectives::outer_product::ProductShape;
use skyphos_kernels::product::Factor;
use skyphos_tune::outer::OuterNumbers;
use skyphos_types::{Error, Result};

/// Bytes that one rank needs for a fresh result and for buffers.
pub(super) fn needed_bytes<T: Factor>(
    ranks: u32,
    shape: &ProductShape,
    (algorithm, grid): (OuterAlgorithm, (u32, u32)),
    (factors, scatter, fresh): (bool, bool, bool),
) -> f64 {
    let (n, m, pairs) = (shape.n as f64, shape.m as f64, shape.all_pairs() as f64);
    let (number, sum) = (size_of::<T>() as f64, size_of::<T::Sum>() as f64);
    let gathered = pairs * (n + m);
    if factors {
        return gathered * (sum + number);
    }
    let result = if scatter { n * m / f64::from(ranks) } else { n * m };
    let widened = if number < sum { n * m * sum } else { 0.0 };
    let buffers = match algorithm {
        OuterAlgorithm::Allgather | OuterAlgorithm::Auto => gathered * sum,
        OuterAlgorithm::Rabenseifner => pairs * (n / f64::from(grid.0) + m / f64::from(grid.1)) * sum,
        OuterAlgorithm::Ring if scatter => n * m * sum,
        OuterAlgorithm::Ring | OuterAlgorithm::Butterfly => widened,
        OuterAlgorithm::Allreduce => n * m * sum + widened,
    };
    result * if fresh { number } else { 0.0 } + buffers
}

/// Refuses a sum whose ranks on one host need more memory than the host has free. All ranks get the same answer.
pub(super) fn check_memory<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    layout: (OuterAlgorithm, (u32, u32)),
    (factors, scatter): (bool, bool),
    all: &[OuterNumbers],
) -> Result<()> {
    let hosts = ep.topology().hosts();
    for (rank, host) in hosts.iter().enumerate() {
        if hosts[..rank].contains(host) {
            continue;
        }
        let of_host = || all.iter().zip(hosts).filter(|(_, other)| *other == host).map(|(one, _)| one);
        let need =
            |one: &OuterNumbers| needed_bytes::<T>(ep.size(), shape, layout, (factors, scatter, one.fresh));
        let needed: f64 = of_host().map(need).sum();
        let free = of_host().map(|one| one.free_bytes).fold(f64::INFINITY, f64::min);
        if needed > free {
            let gigabytes = |bytes: f64| bytes / 1e9;
            let (n, m, count) = (shape.n, shape.m, of_host().count());
            return Err(Error::bad_input(format!(
                "rank {rank}: a sum of {n} by {m} {} numbers by {:?} takes {:.1} GB on the {count} ranks of its host, which \
                 has {:.1} GB free; scatter=True gives each rank only its rows, factors=True only the factors",
                T::DTYPE,
                layout.0.name(),
                gigabytes(needed),
                gigabytes(free),
            )));
        }
    }
    Ok(())
}
