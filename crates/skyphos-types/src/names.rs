//! Enums whose variants users write by name.

use crate::{Error, Result};
use strum::VariantArray;

/// All variants of an enum, in the order of their declaration; `N` is their number.
pub const fn all_variants<T: VariantArray + Copy, const N: usize>() -> [T; N] {
    assert!(T::VARIANTS.len() == N, "N is the number of variants");
    *T::VARIANTS.first_chunk().expect("as many as that")
}

/// The variant that a user named. `noun`: the kind of thing, for the error's text.
pub fn variant_of_name<T: VariantArray + Copy + Into<&'static str>>(noun: &str, name: &str) -> Result<T> {
    let named = T::VARIANTS.iter().find(|one| (**one).into() == name);
    named.copied().ok_or_else(|| unknown_name(noun, name, T::VARIANTS.iter().map(|one| (*one).into())))
}

/// The error for a name that is none of the `known` ones.
pub fn unknown_name<'a>(noun: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known: Vec<&str> = known.collect();
    Error::bad_input(format!("unknown {noun} {name:?}: use one of {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn names_lead_to_variants() {
        let all: [DType; 9] = all_variants();
        for one in all {
            assert_eq!(variant_of_name("dtype", one.name()), Ok(one));
        }
        let error = variant_of_name::<DType>("dtype", "float").unwrap_err().to_string();
        assert!(error.starts_with("unknown dtype \"float\": use one of float32, float64, int32,"), "{error}");
    }
}
