//! The checksum of a call's input, by which replicas compare it: see [`Endpoint::checksum_input`].

use skyphos_core::{Endpoint, InputChecksum};
use skyphos_kernels::Indices;
use skyphos_kernels::stream::{View, set_bits_between};
use skyphos_types::Element;

/// Adds vectors with rows of `width` numbers.
pub(crate) fn views<T: Element>(ep: &Endpoint, width: usize, views: &[View<'_, T>]) {
    ep.checksum_input(|sum| views.iter().for_each(|view| put_view(sum, width, *view)));
}

/// Adds an array.
pub(crate) fn values<T: Element>(ep: &Endpoint, values: &[T]) {
    ep.checksum_input(|sum| sum.add(bytemuck::cast_slice(values)));
}

/// Adds lists of indices, and the values of the first list.
pub(crate) fn lists<T: Element>(ep: &Endpoint, lists: [Indices<'_>; 2], values: &[T]) {
    ep.checksum_input(|sum| {
        lists.into_iter().for_each(|list| put_indices(sum, list));
        sum.add(bytemuck::cast_slice(values));
    });
}

fn put_view<T: Element>(sum: &mut InputChecksum, width: usize, view: View<'_, T>) {
    match view {
        View::Sparse { indices, values } => {
            put_indices(sum, indices);
            sum.add(bytemuck::cast_slice(values));
        }
        View::Dense { values, present: None } => sum.add(bytemuck::cast_slice(values)),
        // Rows without an entry carry no value, so the checksum skips them.
        View::Dense { values, present: Some(bits) } => {
            for row in set_bits_between(bits, 0, values.len() / width.max(1)) {
                sum.add(&row.to_le_bytes());
                sum.add(bytemuck::cast_slice(&values[row * width..][..width]));
            }
        }
    }
}

fn put_indices(sum: &mut InputChecksum, indices: Indices<'_>) {
    sum.add(&indices.len().to_le_bytes());
    match indices {
        Indices::I32(list) => sum.add(bytemuck::cast_slice(list)),
        Indices::I64(list) => sum.add(bytemuck::cast_slice(list)),
        Indices::U32(list) => sum.add(bytemuck::cast_slice(list)),
        Indices::U64(list) => sum.add(bytemuck::cast_slice(list)),
    }
}
