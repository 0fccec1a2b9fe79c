//! `Health`: the state of a process of a group.

use pyo3::prelude::*;
use skyphos::Loss;

/// A process's state, as known to this one: see `skyphos.Health`.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct Health {
    process: u32,
    rank: u32,
    replica: u32,
    address: String,
    lost: Option<&'static str>,
    cause: Option<String>,
    late: bool,
    silent_s: Option<f64>,
    won: u64,
    beaten: u64,
}

impl From<skyphos::Health> for Health {
    fn from(health: skyphos::Health) -> Health {
        let (lost, cause) = health.lost.unzip();
        Health {
            process: health.process,
            rank: health.rank,
            replica: health.replica,
            address: health.address,
            lost: lost.map(|loss| match loss {
                Loss::Left => "left",
                Loss::Ended => "ended",
                Loss::Silent => "silent",
            }),
            cause,
            late: health.late,
            silent_s: health.silent.map(|time| time.as_secs_f64()),
            won: health.won,
            beaten: health.lost_races,
        }
    }
}
