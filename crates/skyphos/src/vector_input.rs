//! Vectors as input of collectives: blocking calls may borrow them, non-blocking calls own them.

use skyphos_core::Endpoint;
use skyphos_core::collectives::gather::Item;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::stream::Assembler;
use skyphos_kernels::Indices;
use skyphos_kernels::stream::{Shape, SparseVec, View};
use skyphos_types::{Element, Error, Result};
use std::sync::Arc;

/// A vector of `n` rows of `width` numbers as input of a collective. Each method must return the same each time.
pub trait VectorInput<T>: Send + Sync {
    /// Number of rows, including those without an entry.
    fn n(&self) -> u64;
    /// Numbers per row.
    fn width(&self) -> usize;
    /// The entries.
    fn view(&self) -> View<'_, T>;
}

/// A vector whose entries are borrowed.
#[derive(Clone, Copy, Debug)]
pub struct VectorView<'a, T> {
    /// Number of rows, including those without an entry.
    pub n: u64,
    /// Numbers per row.
    pub width: usize,
    /// The entries.
    pub view: View<'a, T>,
}

impl<'a, T> VectorView<'a, T> {
    /// A vector of `n` rows of `width` numbers with these entries.
    pub fn new(n: u64, width: usize, view: View<'a, T>) -> VectorView<'a, T> {
        VectorView { n, width, view }
    }
}

impl<T: Element> VectorInput<T> for VectorView<'_, T> {
    fn n(&self) -> u64 {
        self.n
    }

    fn width(&self) -> usize {
        self.width
    }

    fn view(&self) -> View<'_, T> {
        self.view
    }
}

impl<T: Element> VectorInput<T> for SparseVec<T> {
    fn n(&self) -> u64 {
        self.n
    }

    fn width(&self) -> usize {
        self.width
    }

    fn view(&self) -> View<'_, T> {
        SparseVec::view(self)
    }
}

macro_rules! by_reference {
    ($($pointer:ty),*) => {$(
        impl<T, X: VectorInput<T>> VectorInput<T> for $pointer {
            fn n(&self) -> u64 {
                (**self).n()
            }

            fn width(&self) -> usize {
                (**self).width()
            }

            fn view(&self) -> View<'_, T> {
                (**self).view()
            }
        }
    )*};
}
by_reference!(&X, Arc<X>);

/// The signature of a call without an operation.
pub(crate) fn plain_sig<T: Element>(kind: CallKind, n: u64, width: usize, extra: u32) -> CallSig {
    let width = u32::try_from(width).unwrap_or(u32::MAX);
    CallSig { dtype: T::DTYPE as u8, width, n, extra, ..CallSig::plain(kind) }
}

/// Refuses a root that is not a rank of the group.
pub(crate) fn check_root(ep: &Endpoint, root: u32) -> Result<()> {
    match root < ep.size() {
        true => Ok(()),
        false => Err(Error::bad_input(format!("root={root} is not a rank of a group of {}", ep.size()))),
    }
}

/// Refuses a number of vectors other than the number of ranks.
pub(crate) fn check_count(ep: &Endpoint, count: usize) -> Result<()> {
    match count == ep.size() as usize {
        true => Ok(()),
        false => Err(Error::bad_input(format!("{count} vectors for {} ranks: pass one per rank", ep.size()))),
    }
}

/// Whether a view's indices take 8 bytes.
pub(crate) fn is_wide<T>(n: u64, view: &View<'_, T>) -> bool {
    n > 1 << 32 || matches!(view, View::Sparse { indices: Indices::I64(_) | Indices::U64(_), .. })
}

/// A vector from the segments that rank `from` sent. It is dense if every row is an entry.
pub(crate) fn decode<T: Element>(
    ep: &Endpoint,
    from: u32,
    (n, width, wide): (u64, usize, bool),
    item: &Item,
) -> Result<SparseVec<T>> {
    let dense_above = 1.0 - 0.5 / n.max(1) as f64;
    let shape = Shape { width, wide, dense_above, with_present: false };
    let mut assembler = Assembler::new(&[0, n], shape, T::ZERO);
    assembler.take_all(ep, from, 0, item)?;
    Ok(SparseVec { n, width, form: assembler.finish() })
}

/// Vectors from the segments of each rank.
pub(crate) fn decode_all<T: Element>(
    ep: &Endpoint,
    dims: (u64, usize, bool),
    items: &[Item],
) -> Result<Vec<SparseVec<T>>> {
    (0..).zip(items).map(|(rank, item)| decode(ep, rank, dims, item)).collect()
}
