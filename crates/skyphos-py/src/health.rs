//! `Health`: the state of a process of a group.

use pyo3::prelude::*;
use skyphos::Loss;

/// A process as this one sees it: see `skyphos.Health`.
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
    fn from(one: skyphos::Health) -> Health {
        let (lost, cause) = one.lost.unzip();
        Health {
            process: one.process,
            rank: one.rank,
            replica: one.replica,
            address: one.address,
            lost: lost.map(|loss| match loss {
                Loss::Left => "left",
                Loss::Ended => "ended",
                Loss::Silent => "silent",
            }),
            cause,
            late: one.late,
            silent_s: one.silent.map(|time| time.as_secs_f64()),
            won: one.won,
            beaten: one.lost_races,
        }
    }
}
