//! Index lists as input of collectives: blocking calls may borrow them, non-blocking calls own them.

use skyphos_kernels::Indices;
use std::sync::Arc;

/// A list of indices as input of a collective. The method must return the same list each time.
pub trait IndexInput: Send + Sync {
    /// The indices.
    fn indices(&self) -> Indices<'_>;
}

impl IndexInput for Indices<'_> {
    fn indices(&self) -> Indices<'_> {
        *self
    }
}

impl<I: Send + Sync> IndexInput for Vec<I>
where
    for<'a> Indices<'a>: From<&'a [I]>,
{
    fn indices(&self) -> Indices<'_> {
        self.as_slice().into()
    }
}

impl<I: Send + Sync> IndexInput for [I]
where
    for<'a> Indices<'a>: From<&'a [I]>,
{
    fn indices(&self) -> Indices<'_> {
        self.into()
    }
}

impl<I: Send + Sync, const N: usize> IndexInput for [I; N]
where
    for<'a> Indices<'a>: From<&'a [I]>,
{
    fn indices(&self) -> Indices<'_> {
        self.as_slice().into()
    }
}

impl<X: IndexInput + ?Sized> IndexInput for &X {
    fn indices(&self) -> Indices<'_> {
        (**self).indices()
    }
}

impl<X: IndexInput + ?Sized> IndexInput for Arc<X> {
    fn indices(&self) -> Indices<'_> {
        (**self).indices()
    }
}
