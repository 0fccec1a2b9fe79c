//! Indices of the caller: slices of four integer types.

use crate::block::BLOCK_BITS;

/// An integer type of indices.
pub trait Index: bytemuck::Pod + PartialOrd + Send + Sync + std::fmt::Display {
    /// As an unsigned 64-bit number; `None` if negative.
    fn get(self) -> Option<u64>;

    /// A non-negative index as an unsigned number.
    fn number(self) -> u64;

    /// The block of a non-negative index.
    fn block(self) -> u64;

    /// The bit of an index in its block.
    fn bit(self) -> u32;
}

macro_rules! index {
    ($($t:ty),*) => {$(
        impl Index for $t {
            #[inline(always)]
            #[allow(clippy::useless_conversion, reason = "u64 to u64 in one of four instances")]
            fn get(self) -> Option<u64> { u64::try_from(self).ok() }

            #[inline(always)]
            fn number(self) -> u64 { self as u64 }

            #[inline(always)]
            fn block(self) -> u64 { self as u64 >> BLOCK_BITS }

            #[inline(always)]
            fn bit(self) -> u32 { self as u32 & 63 }
        }
    )*};
}
index!(i32, i64, u32, u64);

/// Indices of the caller, of any of the integer types.
#[derive(Clone, Copy, Debug)]
pub enum Indices<'a> {
    /// int32
    I32(&'a [i32]),
    /// int64
    I64(&'a [i64]),
    /// uint32
    U32(&'a [u32]),
    /// uint64
    U64(&'a [u64]),
}

macro_rules! indices_from {
    ($($variant:ident: $t:ty),*) => {$(
        impl<'a> From<&'a [$t]> for Indices<'a> {
            fn from(slice: &'a [$t]) -> Indices<'a> { Indices::$variant(slice) }
        }
        impl<'a> From<&'a Vec<$t>> for Indices<'a> {
            fn from(list: &'a Vec<$t>) -> Indices<'a> { Indices::$variant(list) }
        }
        impl<'a, const N: usize> From<&'a [$t; N]> for Indices<'a> {
            fn from(list: &'a [$t; N]) -> Indices<'a> { Indices::$variant(list) }
        }
    )*};
}
indices_from!(I32: i32, I64: i64, U32: u32, U64: u64);

/// Runs `$body` with the typed slice.
#[macro_export]
macro_rules! with_indices {
    ($indices:expr, $slice:ident => $body:expr) => {
        match $indices {
            $crate::Indices::I32($slice) => $body,
            $crate::Indices::I64($slice) => $body,
            $crate::Indices::U32($slice) => $body,
            $crate::Indices::U64($slice) => $body,
        }
    };
}

impl Indices<'_> {
    /// Number of indices, repeats included.
    pub fn len(self) -> usize {
        with_indices!(self, slice => slice.len())
    }

    /// Whether there are no indices.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One more than the largest index; negative ones are ignored.
    pub fn end(self) -> u64 {
        with_indices!(self, slice => slice.iter().filter_map(|i| i.get()).max().map_or(0, |i| i.saturating_add(1)))
    }

    /// Whether both are the same slice of memory.
    pub fn is_same_memory(self, other: Indices<'_>) -> bool {
        let address = |indices: Indices<'_>| with_indices!(indices, slice => slice.as_ptr().cast::<u8>());
        self.len() == other.len()
            && std::mem::discriminant(&self) == std::mem::discriminant(&other)
            && address(self) == address(other)
    }
}
