//! `Quantize`: options of quantisation.

use crate::errors::unreported;
use pyo3::prelude::*;
use skyphos::{Error, QuantizeOptions, Result, Scale, Stage};

/// Quantisation of an allreduce: see `skyphos.Quantize`.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct Quantize(pub QuantizeOptions);

#[pymethods]
impl Quantize {
    #[new]
    fn new(
        py: Python<'_>,
        bits: u8,
        bucket: u32,
        r#where: &str,
        scale: &str,
        seed: u64,
    ) -> PyResult<Quantize> {
        let checked = options((bits, bucket, seed), r#where, scale);
        checked.map(Quantize).map_err(|error| unreported(py, &error))
    }
}

fn options((bits, bucket, seed): (u8, u32, u64), stage: &str, scale: &str) -> Result<QuantizeOptions> {
    let stage = Stage::ALL.into_iter().find(|s| s.name() == stage).ok_or_else(|| {
        Error::bad_input(format!("where must be \"result\", \"input\" or \"both\", not {stage:?}"))
    })?;
    let scale = match scale {
        "l2" => Scale::L2,
        "max" => Scale::Max,
        other => return Err(Error::bad_input(format!("scale must be \"l2\" or \"max\", not {other:?}"))),
    };
    Ok(QuantizeOptions { params: skyphos::Quantize::new(bits, bucket, scale, seed)?, stage })
}
