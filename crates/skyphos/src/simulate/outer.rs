//! Simulated calls of a sum of outer products, with factors of ones, or with only their lengths.

use super::choices::{Choices, Slot, put};
use super::scenario::Scenario;
use crate::{Comm, OuterAlgorithm, OuterOptions, OuterShape};
use skyphos_core::Call;
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_kernels::product::Factor;
use skyphos_types::{Error, Result};

/// Refuses impossible parameters.
pub(super) fn check(scenario: &Scenario) -> Result<()> {
    let refuse = |message: String| Err(Error::bad_input(message));
    if !matches!(scenario.row_bytes, 4 | 8) {
        return refuse(format!(
            "numbers of {} bytes: a product takes numbers of 4 or 8 bytes",
            scenario.row_bytes
        ));
    }
    if scenario.cols == 0 || scenario.cols > 1 << 40 || scenario.n > 1 << 40 {
        return refuse(format!(
            "a sum of {} by {} numbers: each must be 1 to 2^40",
            scenario.n, scenario.cols
        ));
    }
    if scenario.sized && scenario.outer == OuterAlgorithm::Butterfly {
        return refuse(
            "a sum of outer products by butterfly cannot run with lengths in place of data".to_owned(),
        );
    }
    Ok(())
}

/// An upper bound on the frames of a sum: those of a ring, which moves the most bytes.
pub(super) fn frames(scenario: &Scenario) -> f64 {
    let (ranks, numbers) = (f64::from(scenario.network.ranks), scenario.n as f64 * scenario.cols as f64);
    let factors = scenario.entries * (scenario.n as f64 + scenario.cols as f64);
    let bytes = (2.0 * numbers + ranks * factors) * scenario.row_bytes as f64;
    ranks * (bytes / CHUNK_BYTES as f64 + 4.0 * ranks)
}

/// Numbers in a rank's memory, if data is real.
pub(super) fn numbers(scenario: &Scenario) -> f64 {
    let (n, m) = (scenario.n as f64, scenario.cols as f64);
    2.0 * n * m + f64::from(scenario.network.ranks) * scenario.entries * (n + m)
}

/// The call of a rank.
pub(super) fn outer_call(comm: &Comm, scenario: &Scenario, choices: &Slot<Choices>) -> Result<Call<()>> {
    match scenario.row_bytes {
        4 => call::<f32>(comm, scenario, choices),
        _ => call::<f64>(comm, scenario, choices),
    }
}

fn call<T: Factor>(comm: &Comm, scenario: &Scenario, choices: &Slot<Choices>) -> Result<Call<()>> {
    let shape = OuterShape {
        n: scenario.n as usize,
        m: scenario.cols as usize,
        pairs: scenario.entries.round() as usize,
    };
    let ones = |numbers: usize| vec![T::ONE; if scenario.sized { 0 } else { numbers }];
    let factors = (ones(shape.pairs * shape.n), ones(shape.pairs * shape.m));
    let options = OuterOptions { algorithm: scenario.outer, ..OuterOptions::default() };
    let call = comm.outer_product_sum(shape, factors, ones(shape.n * shape.m)).options(options).prepare()?;
    let (choices, algorithm, is_rank_0) = (choices.clone(), scenario.algorithm, comm.rank() == 0);
    Ok(call.map(move |done| {
        if is_rank_0 {
            put(
                &choices,
                Choices { algorithm, degrees: Vec::new(), route: None, outer: Some(done.report.choice) },
            );
        }
    }))
}
