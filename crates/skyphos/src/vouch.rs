//! What a rank puts into a call, told to its replicas: see [`Endpoint::checksum_input`].

use skyphos_core::{Endpoint, InputChecksum};
use skyphos_kernels::Indices;
use skyphos_kernels::stream::{View, set_bits_between};
use skyphos_types::Element;

/// Vectors of rows of `width` numbers.
pub(crate) fn views<T: Element>(ep: &Endpoint, width: usize, views: &[View<'_, T>]) {
    ep.checksum_input(|checksum| views.iter().for_each(|view| put_view(checksum, width, *view)));
}

/// Arrays of numbers.
pub(crate) fn values<T: Element>(ep: &Endpoint, values: &[T]) {
    ep.checksum_input(|checksum| checksum.add(bytemuck::cast_slice(values)));
}

/// Lists of indices, and rows that go with them.
pub(crate) fn lists<T: Element>(ep: &Endpoint, lists: [Indices<'_>; 2], values: &[T]) {
    ep.checksum_input(|checksum| {
        lists.into_iter().for_each(|list| put_indices(checksum, list));
        checksum.add(bytemuck::cast_slice(values));
    });
}

fn put_view<T: Element>(checksum: &mut InputChecksum, width: usize, view: View<'_, T>) {
    match view {
        View::Sparse { indices, values } => {
            put_indices(checksum, indices);
            checksum.add(bytemuck::cast_slice(values));
        }
        View::Dense { values, present: None } => checksum.add(bytemuck::cast_slice(values)),
        // What stands in rows that are not there is nobody's.
        View::Dense { values, present: Some(bits) } => {
            for row in set_bits_between(bits, 0, values.len() / width.max(1)) {
                checksum.add(&row.to_le_bytes());
                checksum.add(bytemuck::cast_slice(&values[row * width..][..width]));
            }
        }
    }
}

fn put_indices(checksum: &mut InputChecksum, indices: Indices<'_>) {
    checksum.add(&indices.len().to_le_bytes());
    match indices {
        Indices::I32(list) => checksum.add(bytemuck::cast_slice(list)),
        Indices::I64(list) => checksum.add(bytemuck::cast_slice(list)),
        Indices::U32(list) => checksum.add(bytemuck::cast_slice(list)),
        Indices::U64(list) => checksum.add(bytemuck::cast_slice(list)),
    }
}
