//! `sky.Quantize` as the native library takes it.

use skyphos::{Error, Quantize, QuantizeOptions, Result, Scale, Stage};

/// Bits, bucket, what is quantised, scale, seed.
pub type Quantised = (u8, u32, String, String, u64);

pub fn quantize((bits, bucket, stage, scale, seed): Quantised) -> Result<QuantizeOptions> {
    let stage = Stage::ALL.into_iter().find(|s| s.name() == stage).ok_or_else(|| {
        Error::bad_input(format!("where must be \"result\", \"input\" or \"both\", not {stage:?}"))
    })?;
    let scale = match scale.as_str() {
        "l2" => Scale::L2,
        "max" => Scale::Max,
        other => return Err(Error::bad_input(format!("scale must be \"l2\" or \"max\", not {other:?}"))),
    };
    Ok(QuantizeOptions { params: Quantize::new(bits, bucket, scale, seed)?, stage })
}
