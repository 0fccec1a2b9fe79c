//! Reduce operations: associative, commutative, with an identity that stands for "absent".

use crate::names::unknown_name;
use crate::{DType, Element, Error, Result};
use std::mem::discriminant;
use std::sync::Arc;
use strum::IntoStaticStr;

/// A reduction that the caller supplies (a NumPy ufunc, say).
///
/// It must be associative and commutative on the values it sees, with the stated identity. It runs on the thread that called
/// the collective, never on a merge thread.
pub trait CustomOp: Send + Sync {
    /// Its name, the same on all ranks: they compare it to check that all called the same thing.
    fn name(&self) -> &str;
    /// Writes the identity of `dtype` into `out` (`dtype.size()` bytes).
    fn identity(&self, dtype: DType, out: &mut [u8]) -> Result<()>;
    /// `acc[k] = op(acc[k], src[k])` for two arrays of `dtype`, given as equally many bytes.
    fn combine(&self, dtype: DType, acc: &mut [u8], src: &[u8]) -> Result<()>;
}

/// How values of the same index combine.
#[derive(Clone, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ReduceOp {
    /// Σ.
    Sum,
    /// Π.
    Prod,
    /// Smallest; NaN wins.
    Min,
    /// Largest; NaN wins.
    Max,
    /// Bitwise or (integers).
    Or,
    /// Bitwise and (integers).
    And,
    /// Sum over the group divided by the group's size (floats).
    Mean,
    /// Sum divided by the number of ranks that contribute the index (floats).
    MeanPresent,
    /// A reduction that the caller supplies.
    Custom(Arc<dyn CustomOp>),
}

impl std::fmt::Debug for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl ReduceOp {
    /// The named operations, in the order of their codes.
    pub const NAMED: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Or,
        ReduceOp::And,
        ReduceOp::Mean,
        ReduceOp::MeanPresent,
    ];

    /// The name that users write.
    pub fn name(&self) -> &str {
        match self {
            ReduceOp::Custom(op) => op.name(),
            built_in => built_in.into(),
        }
    }

    /// The operation a user named.
    pub fn from_name(name: &str) -> Result<ReduceOp> {
        let named = ReduceOp::NAMED.into_iter().find(|op| op.name() == name);
        named.ok_or_else(|| unknown_name("operation", name, ReduceOp::NAMED.iter().map(ReduceOp::name)))
    }

    /// The number that stands for the operation in a frame's header (0: a custom one).
    pub fn code(&self) -> u8 {
        let is_same = |op: &ReduceOp| discriminant(op) == discriminant(self);
        ReduceOp::NAMED.iter().position(is_same).map_or(0, |place| place as u8 + 1)
    }

    /// Refuses combinations without a meaning: bits of floats, the mean of integers.
    pub fn check(&self, dtype: DType) -> Result<()> {
        match self {
            ReduceOp::Or | ReduceOp::And if dtype.is_float() => Err(Error::bad_input(format!(
                "op={:?} works on bits: values must be integers, not {dtype}",
                self.name()
            ))),
            ReduceOp::Mean | ReduceOp::MeanPresent if !dtype.is_float() => Err(Error::bad_input(format!(
                "op={:?} needs floating-point values, not {dtype}",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    /// The operation's identity: the value of an index without an entry.
    pub fn identity<T: Element>(&self) -> Result<T> {
        Ok(match self {
            ReduceOp::Sum | ReduceOp::Or | ReduceOp::Mean | ReduceOp::MeanPresent => T::ZERO,
            ReduceOp::Prod => T::ONE,
            ReduceOp::Min => T::HIGHEST,
            ReduceOp::Max => T::LOWEST,
            ReduceOp::And => T::ALL_BITS,
            ReduceOp::Custom(op) => {
                let mut value = T::ZERO;
                op.identity(T::DTYPE, bytemuck::bytes_of_mut(&mut value))?;
                value
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_are_distinct() {
        for (k, op) in ReduceOp::NAMED.iter().enumerate() {
            assert_eq!(op.code() as usize, k + 1);
            assert_eq!(ReduceOp::from_name(op.name()).unwrap().name(), op.name());
        }
        assert!(ReduceOp::from_name("median").unwrap_err().to_string().contains("mean_present"));
    }

    #[test]
    fn custom_operations_have_no_code_whatever_their_name() {
        struct Named(&'static str);
        impl CustomOp for Named {
            fn name(&self) -> &str {
                self.0
            }
            fn identity(&self, _: DType, _: &mut [u8]) -> Result<()> {
                Ok(())
            }
            fn combine(&self, _: DType, _: &mut [u8], _: &[u8]) -> Result<()> {
                Ok(())
            }
        }
        for name in ["sum", "mean_present", "hypot"] {
            let op = ReduceOp::Custom(Arc::new(Named(name)));
            assert_eq!((op.code(), op.name()), (0, name));
        }
    }

    #[test]
    fn identity_changes_nothing() {
        assert_eq!(ReduceOp::Min.identity::<f32>().unwrap().least(3.0), 3.0);
        assert_eq!(ReduceOp::And.identity::<u8>().unwrap().and(0x5a), 0x5a);
        assert_eq!(ReduceOp::Max.identity::<i64>().unwrap().greatest(-7), -7);
        assert_eq!(ReduceOp::Prod.identity::<f64>().unwrap().mul(-7.5), -7.5);
    }
}
