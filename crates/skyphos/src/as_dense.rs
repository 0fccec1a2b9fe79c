//! Allreduce by the schedules for dense arrays. They reduce arrays, and sparse vectors of which nearly every index has an entry on
//! some rank.

use crate::native_allreduce::{check_native, native_may_be_faster};
use skyphos_core::Endpoint;
use skyphos_core::clock::Effort;
use skyphos_core::collectives::allreduce::dense;
use skyphos_core::stream::ReductionParams;
use skyphos_kernels::ArrayBuilder;
use skyphos_kernels::stream::{Addend, Form, Shape, View, absent_number, as_entries, bitmap_of_entries};
use skyphos_tune::{Algorithm, choose_dense};
use skyphos_types::{Element, ReduceOp, Result};

/// Reduces `values` of all ranks into `out` of the same length. Returns the schedule that was used, or `None` if `algorithm` is
/// not for arrays.
pub(crate) async fn reduce_array<T: Element>(
    ep: &Endpoint,
    algorithm: Algorithm,
    op: &ReduceOp,
    values: &[T],
    out: &mut [T],
) -> Result<Option<Algorithm>> {
    let by_rule = |has_native| choose_dense(ep.size(), size_of_val(values), has_native);
    let mut algorithm = match algorithm {
        Algorithm::Auto => by_rule(native_may_be_faster(ep, op, T::DTYPE)),
        named => named,
    };
    check_native(algorithm, ep, op, T::DTYPE)?;
    if algorithm == Algorithm::DenseMpi && !dense::native(ep, op, values, out).await? {
        // Another call is running in the MPI library, or has failed there.
        algorithm = by_rule(false);
    }
    match algorithm {
        Algorithm::DenseMpi => {}
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

/// Reduces sparse vectors as arrays. If the array's values cannot show which rows are entries, a bitmap is reduced as well.
pub(crate) async fn reduce_as_dense<T: Element>(
    ep: &Endpoint,
    algorithm: Algorithm,
    view: View<'_, T>,
    params: ReductionParams<'_>,
) -> Result<Form<T>> {
    let ReductionParams { op, shape, .. } = params;
    let entries = view.nnz(shape.width);
    ep.spend(Effort::Place { entries, row_bytes: shape.width * size_of::<T>() });
    match absent_number::<T>(op).filter(|_| shape.with_present) {
        Some(absent) => {
            let values = as_entries(view.values());
            reduce_marked_by_values(ep, algorithm, view.with_values(&values), params, absent).await
        }
        None => reduce_with_bitmap(ep, algorithm, view, params).await,
    }
}

async fn reduce_marked_by_values<T: Element>(
    ep: &Endpoint,
    algorithm: Algorithm,
    view: View<'_, T>,
    ReductionParams { op, n, shape: Shape { width, .. }, .. }: ReductionParams<'_>,
    absent: T,
) -> Result<Form<T>> {
    let len = n as usize * width;
    if algorithm != Algorithm::DenseRing {
        let mut values = vec![absent; len];
        view.put_into(&mut values, None, width);
        let mut values = reduce_in_place(ep, algorithm, op, values).await?;
        let present = Some(bitmap_of_entries(&mut values, width));
        return Ok(Form::Dense { values, present });
    }
    let vector = Addend::new(view, width, absent);
    let (mut values, mut present) = (ArrayBuilder::new(len), vec![0; n.div_ceil(64) as usize]);
    dense::ring_of_entries(ep, op, &vector, len, |first, piece| {
        values.put_entries(first, piece, width, &mut present);
    })
    .await?;
    Ok(Form::Dense { values: finished(values), present: Some(present) })
}

async fn reduce_with_bitmap<T: Element>(
    ep: &Endpoint,
    algorithm: Algorithm,
    view: View<'_, T>,
    ReductionParams { op, n, shape, .. }: ReductionParams<'_>,
) -> Result<Form<T>> {
    let (len, identity) = (n as usize * shape.width, op.identity::<T>()?);
    if algorithm != Algorithm::DenseRing {
        let mut values = vec![identity; len];
        let mut present = shape.with_present.then(|| vec![0; n.div_ceil(64) as usize]);
        view.put_into(&mut values, present.as_deref_mut(), shape.width);
        let reduced = reduce_in_place(ep, algorithm, op, values);
        let values = dense::with_bitmap(ep, reduced, present.as_mut(), n).await?;
        return Ok(Form::Dense { values, present });
    }
    let vector = Addend::new(view, shape.width, identity);
    let (mut values, mut present) =
        (ArrayBuilder::new(len), shape.with_present.then(|| view.bitmap(n, shape.width)));
    let ring = dense::ring_of_entries(ep, op, &vector, len, |first, piece| values.put(first, piece));
    dense::with_bitmap(ep, ring, present.as_mut(), n).await?;
    Ok(Form::Dense { values: finished(values), present })
}

fn finished<T: Element>(values: ArrayBuilder<T>) -> Vec<T> {
    values.finish().expect("each step of the ring brought its whole range")
}

async fn reduce_in_place<T: Element>(
    ep: &Endpoint,
    algorithm: Algorithm,
    op: &ReduceOp,
    mut values: Vec<T>,
) -> Result<Vec<T>> {
    if algorithm == Algorithm::DenseRabenseifner {
        dense::rabenseifner(ep, op, &mut values).await?;
        return Ok(values);
    }
    let mut out = vec![T::ZERO; values.len()];
    reduce_array(ep, algorithm, op, &values, &mut out).await?;
    Ok(out)
}
