//! Names and values of the arguments that all ranks must share. Frames carry them as a hash; errors name those that differ.

use crate::outer_product::OuterOptions;
use crate::signature::Shape;
use crate::{AllreduceOptions, Comm, ConfigureOptions, DenseThreshold, QuantizeOptions};
use skyphos_core::arguments::FUNCTION;
use skyphos_core::collectives::Split;
use skyphos_core::collectives::barrier::barrier;
use skyphos_core::collectives::outer_product::Level;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{Arguments, Named};
use skyphos_kernels::Scale;
use skyphos_types::Result;

fn shape_text(shape: &Shape) -> String {
    match shape.as_deref() {
        None => "one-dimensional".to_owned(),
        Some([]) => "()".to_owned(),
        Some(shape) => format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn pair(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

fn list(name: &str, value: &Option<Vec<u32>>) -> (String, String) {
    pair(name, value.as_ref().map_or("None".to_owned(), |list| format!("{list:?}")))
}

fn optional(name: &str, value: Option<impl ToString>) -> (String, String) {
    pair(name, value.map_or("None".to_owned(), |value| value.to_string()))
}

/// The arguments of a call on arrays.
pub(crate) fn array_arguments(shape: Shape, others: Named) -> Arguments {
    match shape.is_none() && others.is_empty() {
        true => Arguments::Defaults(|| vec![pair("shape", shape_text(&None))]),
        false => Arguments::given(move || [vec![pair("shape", shape_text(&shape))], others.clone()].concat()),
    }
}

/// One argument.
pub(crate) fn single(name: &'static str, value: String) -> Arguments {
    Arguments::given(move || vec![pair(name, &value)])
}

fn quantize_text(quantize: &QuantizeOptions) -> String {
    let params = &quantize.params;
    let scale = if params.scale() == Scale::Max { "max" } else { "l2" };
    format!(
        "Quantize(bits={}, bucket={}, where={:?}, scale={scale:?}, seed={})",
        params.bits(),
        params.bucket(),
        quantize.stage.name(),
        params.seed()
    )
}

impl AllreduceOptions {
    fn named(&self) -> Named {
        let split = match self.split {
            Split::Even => "even",
            Split::Quantiles => "quantiles",
            Split::Hash => "hash",
        };
        let threshold = match self.dense_threshold {
            DenseThreshold::Auto => "None".to_owned(),
            DenseThreshold::Paper => "paper".to_owned(),
            DenseThreshold::Entries(entries) => entries.to_string(),
        };
        vec![
            pair("algorithm", self.algorithm.name()),
            list("degrees", &self.degrees),
            pair("split", split),
            pair("dense_threshold", threshold),
            optional("quantize", self.quantize.as_ref().map(quantize_text)),
            optional("expected_nnz", self.expected_nnz),
            pair("shape", shape_text(&self.shape)),
        ]
    }

    /// Names and values. Default arguments allocate nothing.
    pub(crate) fn arguments(&self) -> Arguments {
        let AllreduceOptions {
            algorithm,
            degrees,
            split,
            dense_threshold,
            quantize,
            expected_nnz,
            shape,
            ..
        } = self;
        let defaults = AllreduceOptions::default();
        let are_defaults = (algorithm, degrees, split)
            == (&defaults.algorithm, &defaults.degrees, &defaults.split)
            && *dense_threshold == defaults.dense_threshold
            && (quantize.is_none(), expected_nnz.is_none(), shape.is_none()) == (true, true, true);
        if are_defaults {
            return Arguments::Defaults(|| AllreduceOptions::default().named());
        }
        let own = self.clone();
        Arguments::given(move || own.named())
    }
}

impl ConfigureOptions {
    pub(crate) fn arguments(&self) -> Arguments {
        let ConfigureOptions { degrees, min_packet_bytes, expected_nnz, .. } = self;
        let named = |degrees: &Option<Vec<u32>>, packet: Option<f64>, expected: Option<u64>| {
            let packet = optional("min_packet", packet);
            vec![list("degrees", degrees), packet, optional("expected_nnz", expected)]
        };
        let (degrees, packet, expected) = (degrees.clone(), *min_packet_bytes, *expected_nnz);
        Arguments::given(move || named(&degrees, packet, expected))
    }
}

impl OuterOptions {
    pub(crate) fn arguments(&self, factors: bool) -> Arguments {
        let own = *self;
        Arguments::given(move || {
            let level = own.level.map(|level| match level {
                Level::Rank => "rank",
                Level::Host => "host",
                Level::Rack => "rack",
                Level::All => "all",
            });
            vec![
                pair("algorithm", own.algorithm.name()),
                optional("exchange", own.exchange.map(|schedule| schedule.name())),
                optional("owners", level),
                optional("grid", own.grid.map(|grid| format!("{grid:?}"))),
                pair("scatter", if own.scatter { "True" } else { "False" }),
                pair("factors", if factors { "True" } else { "False" }),
            ]
        })
    }
}

impl Comm {
    /// Checks that all ranks pass the same function and arguments; the error names those that differ. For functions that make
    /// several calls, before the first of them. Collective; ⌈log2 P⌉ α.
    pub fn agree_arguments(&self, function: &str, arguments: Named) -> Result<()> {
        let mut all = vec![pair(FUNCTION, function)];
        all.extend(arguments);
        let hash = |salt: u64| {
            let bytes = all.iter().flat_map(|(name, value)| [name.as_bytes(), &[0], value.as_bytes(), &[1]]);
            bytes.flatten().fold(salt, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
        };
        let sig =
            CallSig { extra: (hash(0xcbf2_9ce4_8422_2325) >> 32) as u32, ..CallSig::plain(CallKind::Agree) };
        self.call((sig, Arguments::given(move || all.clone())), barrier)
    }
}
