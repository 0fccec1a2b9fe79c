//! Quantisation in an allreduce: its options and their checks.

use crate::Algorithm;
use skyphos_core::Endpoint;
use skyphos_core::stream::{Precision, QuantisedInput, check_finite};
use skyphos_kernels::stream::{QuantisedValues, View};
use skyphos_kernels::{Quantize, Scale};
use skyphos_types::names::all_variants;
use skyphos_types::{DType, Element, Error, ReduceOp, Result};
use strum::{IntoStaticStr, VariantArray};

/// The values of an allreduce that are quantised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Stage {
    /// Each owner's reduced part, before it is sent to all (SparCML §6). The owner keeps the quantised values, too.
    #[default]
    Result,
    /// Each rank's input (SparCML Algorithm 1). The rank uses the quantised values, too.
    Input,
    /// Inputs and results.
    Both,
}

impl Stage {
    /// All stages.
    pub const ALL: [Stage; 3] = all_variants();

    /// The name that users write.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Quantisation of an allreduce. All ranks pass the same.
///
/// Values and sums must be finite as float32. The random numbers depend on the seed, the call's number in its
/// group, the rank and the bucket: two calls with the same values give different results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QuantizeOptions {
    /// The quantiser.
    pub params: Quantize,
    /// The values that are quantised.
    pub stage: Stage,
}

impl QuantizeOptions {
    /// Whether reduced parts are quantised.
    pub fn quantises_results(&self) -> bool {
        self.stage != Stage::Input
    }

    /// Whether inputs are quantised.
    pub fn quantises_inputs(&self) -> bool {
        self.stage != Stage::Result
    }

    /// Words for the call's signature.
    pub(crate) fn words(&self) -> [u32; 4] {
        let (seed, scale) = (self.params.seed(), u32::from(self.params.scale() == Scale::Max));
        let quantiser = u32::from(self.params.bits()) | scale << 8 | (self.stage as u32 + 1) << 16;
        [quantiser, self.params.bucket() as u32, seed as u32, (seed >> 32) as u32]
    }

    /// Refuses operations and types that cannot be quantised.
    pub(crate) fn check(&self, op: &ReduceOp, dtype: DType, width: usize) -> Result<QuantisedValues> {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => QuantisedValues::new(self.params, dtype, width),
            other => Err(Error::bad_input(format!(
                "quantize= needs op=\"sum\" or \"mean\", whose results stay unbiased, not op={:?}",
                other.name()
            ))),
        }
    }

    /// Refuses algorithms without owners of parts, if results are quantised.
    pub(crate) fn check_algorithm(&self, algorithm: Algorithm) -> Result<()> {
        match algorithm {
            Algorithm::RecursiveDoubling | Algorithm::Allgather if self.quantises_results() => {
                Err(Error::bad_input(format!(
                    "algorithm={:?} has no owners of parts, which quantise results with where={:?}: use split_allgather, \
                     split_allgather_dense, butterfly, ring or auto, or where=\"input\"",
                    algorithm.name(),
                    self.stage.name()
                )))
            }
            dense if dense.is_dense() => Err(Error::bad_input(format!(
                "algorithm={:?} would have to quantise partial sums in every round: with quantize= use \
                 auto or an algorithm for sparse vectors",
                algorithm.name()
            ))),
            _ => Ok(()),
        }
    }

    /// The algorithm itself if it can quantise, else its substitute for `auto`.
    pub(crate) fn supported_or_substitute(&self, algorithm: Algorithm) -> Algorithm {
        match self.check_algorithm(algorithm) {
            Ok(()) => algorithm,
            Err(_) if algorithm.is_dense() => Algorithm::SplitAllgatherDense,
            Err(_) => Algorithm::Butterfly,
        }
    }

    /// Checks this rank's values, and quantises them if inputs are quantised. The parts lie between `bounds`.
    pub(crate) fn input_of<T: Element>(
        &self,
        ep: &Endpoint,
        view: View<'_, T>,
        codec: QuantisedValues,
        bounds: &[u64],
        sent: Option<&mut Vec<T>>,
    ) -> Result<Option<QuantisedInput>> {
        match self.quantises_inputs() {
            true => QuantisedInput::new(ep, view, codec, bounds, sent).map(Some),
            false => check_finite(view, codec.width()).map(|()| None),
        }
    }

    /// The quantisation of a reduction, for its parameters.
    pub(crate) fn precision<'a>(
        &self,
        codec: QuantisedValues,
        input: &'a Option<QuantisedInput>,
    ) -> Precision<'a> {
        Precision { codec, result: self.quantises_results(), input: input.as_ref() }
    }
}

/// Refuses quantisation for collectives without it.
pub(crate) fn refuse(quantize: &Option<QuantizeOptions>, call: &str) -> Result<()> {
    match quantize {
        None => Ok(()),
        Some(_) => Err(Error::bad_input(format!("{call} takes no quantize=: allreduce does"))),
    }
}
