//! Allreduce by the schedules for dense arrays: of arrays, and of sparse vectors as arrays, which pays where nearly every
//! index is some rank's.

use crate::algorithm::{Algorithm, choose_dense};
use skyphos_core::Endpoint;
use skyphos_core::clock::Effort;
use skyphos_core::collectives::allreduce::dense;
use skyphos_core::stream::Terms;
use skyphos_kernels::stream::{Addend, Form, View, dense_form};
use skyphos_types::{Element, ReduceOp, Result};

/// Reduces `values` of all ranks into `out`, which is as long. Returns the schedule that was used; `None` if
/// `algorithm` is none for arrays.
pub(crate) async fn reduce_array<T: Element>(
    ep: &Endpoint,
    algorithm: Algorithm,
    op: &ReduceOp,
    values: &[T],
    out: &mut [T],
) -> Result<Option<Algorithm>> {
    let algorithm = match algorithm {
        Algorithm::Auto => choose_dense(ep.size(), size_of_val(values)),
        named => named,
    };
    match algorithm {
        Algorithm::Dense => dense::direct(ep, op, values, out).await?,
        Algorithm::DenseRing => dense::ring(ep, op, values, out).await?,
        Algorithm::DenseRabenseifner => {
            out.copy_from_slice(values);
            dense::rabenseifner(ep, op, out).await?;
        }
        _ => return Ok(None),
    }
    Ok(Some(algorithm))
}

/// Reduces sparse vectors as arrays, and a bitmap of who had an entry beside them.
pub(crate) async fn reduce_as_dense<T: Element>(
    ep: &Endpoint,
    algorithm: Algorithm,
    view: View<'_, T>,
    terms: Terms<'_>,
) -> Result<Form<T>> {
    let Terms { op, n, shape, .. } = terms;
    let entries = view.nnz(shape.width);
    ep.spend(Effort::Place { entries, row_bytes: shape.width * size_of::<T>() });
    if algorithm == Algorithm::DenseRing {
        let vector = Addend::new(view, n, shape.width, op)?;
        let mut present = shape.with_present.then(|| vector.bitmap().to_vec());
        let array = dense::ring_of_entries(ep, op, &vector, n as usize * shape.width);
        let values = dense::with_bitmap(ep, array, present.as_mut()).await?;
        return Ok(Form::Dense { values, present });
    }
    let mut form = dense_form(shape, n, op.identity::<T>()?);
    let Form::Dense { values, present } = &mut form else { unreachable!("asked for") };
    view.put_into(values, present.as_deref_mut(), shape.width);
    let bits = present.as_mut();
    if algorithm == Algorithm::DenseRabenseifner {
        dense::with_bitmap(ep, dense::rabenseifner(ep, op, values), bits).await?;
    } else {
        let mut out = vec![T::ZERO; values.len()];
        dense::with_bitmap(ep, dense::direct(ep, op, values, &mut out), bits).await?;
        *values = out;
    }
    Ok(form)
}
