//! The named arguments of a call, on which all ranks must agree: if they do not, the error shows the differing ones.
//!
//! A frame carries their hash ([`CallSig::extra`](crate::frame::CallSig)). A rank that receives a different hash sends its
//! arguments to the frame's sender. The sender compares them with its own, and reports the differing ones to all ranks. The
//! arguments become text only then.

use std::sync::Arc;

/// The names and values of arguments, as text.
pub type Named = Vec<(String, String)>;

/// The arguments of a call.
#[derive(Clone, Default)]
pub enum Arguments {
    /// No arguments beside those in the call's signature.
    #[default]
    None,
    /// The default arguments, which cost nothing to keep.
    Defaults(fn() -> Named),
    /// Other arguments.
    Given(Arc<dyn Fn() -> Named + Send + Sync>),
}

/// Upper bound on the encoded arguments, so that they fit one frame.
const MAX_BYTES: usize = 32 * 1024;

impl Arguments {
    /// Arguments that differ from the default ones.
    pub fn given(named: impl Fn() -> Named + Send + Sync + 'static) -> Arguments {
        Arguments::Given(Arc::new(named))
    }

    fn named(&self) -> Option<Named> {
        match self {
            Arguments::None => None,
            Arguments::Defaults(named) => Some(named()),
            Arguments::Given(named) => Some(named()),
        }
    }

    /// Encodes the arguments for a peer, each name and value after its length; `None` if there are none.
    pub(crate) fn to_wire(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for (name, value) in self.named()? {
            if out.len() + name.len() + value.len() + 8 > MAX_BYTES {
                break;
            }
            for text in [name, value] {
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(text.as_bytes());
            }
        }
        Some(out)
    }

    /// The arguments that differ from a peer's.
    pub(crate) fn differences(&self, theirs: &[u8]) -> Differences {
        let (ours, theirs) = (self.named().unwrap_or_default(), from_wire(theirs));
        let value = |all: &Named, name: &str| {
            all.iter()
                .find(|(other, _)| other == name)
                .map_or("(none)".to_owned(), |(_, value)| value.clone())
        };
        let function_of =
            |all: &Named| all.iter().find(|(name, _)| name == FUNCTION).map(|(_, value)| value.clone());
        let mut differ = Differences {
            our_function: function_of(&ours).unwrap_or_default(),
            their_function: function_of(&theirs).unwrap_or_default(),
            ..Differences::default()
        };
        let (mut our_values, mut their_values) = (Vec::new(), Vec::new());
        let only_theirs = theirs.iter().filter(|(name, _)| !ours.iter().any(|(ours, _)| ours == name));
        for (name, _) in ours.iter().chain(only_theirs).filter(|(name, _)| name != FUNCTION) {
            let (our_value, their_value) = (value(&ours, name), value(&theirs, name));
            if our_value != their_value {
                our_values.push(format!("{name}={our_value}"));
                their_values.push(format!("{name}={their_value}"));
            }
        }
        (differ.ours, differ.theirs) = (our_values.join(", "), their_values.join(", "));
        differ
    }
}

/// The argument that holds the function's name, for functions that share one kind of call.
pub const FUNCTION: &str = "function";

/// The arguments that differ, as text (empty if none differ), and the names of the functions if the signatures lack them.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Differences {
    pub(crate) our_function: String,
    pub(crate) ours: String,
    pub(crate) their_function: String,
    pub(crate) theirs: String,
}

/// Decodes the bytes of [`Arguments::to_wire`], up to the first malformed name or value.
fn from_wire(bytes: &[u8]) -> Named {
    fn text(bytes: &mut &[u8]) -> Option<String> {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        *bytes = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }
    let (mut bytes, mut all) = (bytes, Named::new());
    while let (Some(name), Some(value)) = (text(&mut bytes), text(&mut bytes)) {
        all.push((name, value));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(pairs: &'static [(&str, &str)]) -> Arguments {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        Arguments::given(move || pairs.iter().map(owned).collect())
    }

    #[test]
    fn differing_arguments_are_named_with_both_values() {
        let ours = arguments(&[("algorithm", "ring"), ("split", "even"), ("k", "3")]);
        let theirs = arguments(&[("split", "even"), ("algorithm", "auto"), ("shape", "(2, 3)")]);
        let theirs = theirs.to_wire().unwrap();
        let differ = ours.differences(&theirs);
        assert_eq!(differ.ours, "algorithm=ring, k=3, shape=(none)");
        assert_eq!(differ.theirs, "algorithm=auto, k=(none), shape=(2, 3)");
        assert_eq!(ours.differences(&ours.to_wire().unwrap()), Differences::default());
    }

    #[test]
    fn malformed_bytes_decode_without_a_panic() {
        let bytes = arguments(&[("a", "1"), ("b", "2")]).to_wire().unwrap();
        for cut in 0..bytes.len() {
            assert!(from_wire(&bytes[..cut]).len() < 2);
        }
        assert!(from_wire(&[255; 40]).is_empty());
    }
}
