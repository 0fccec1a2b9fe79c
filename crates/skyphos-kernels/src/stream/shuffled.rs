//! Conversion of vectors to hashed indices and back. For any data, equally long ranges of hashed indices have about equally many
//! entries.
//!
//! The hash moves granules of neighbouring indices ([`BlockHash`]), so the runs of a sorted vector are sorted by their granule's new
//! number and copied. Cost: O(entries), and a sort of the granules with entries.

use super::bits::{clear_beyond, set_bits_between};
use super::vector::{Form, IndexList, SparseVec, View};
use crate::block::BLOCK_SIZE;
use crate::hash::BlockHash;
use crate::index::Index;
use crate::with_indices;
use skyphos_types::Element;

/// log2 of the indices in a granule.
fn granule_bits(hash: BlockHash) -> u32 {
    hash.granule_log2() + BLOCK_SIZE.ilog2()
}

/// Size of the hashed index space.
pub fn shuffled_len(hash: BlockHash) -> u64 {
    hash.range() * BLOCK_SIZE
}

/// Moves the entries of each granule to the granule `target(granule)`.
fn move_runs<T: Element, I: Index>(
    list: &[I],
    values: &[T],
    width: usize,
    granule_bits: u32,
    target: impl Fn(u64) -> u64,
) -> (Vec<u64>, Vec<T>) {
    let mut runs: Vec<(u64, u64, usize, usize)> = Vec::new();
    let mut start = 0;
    while start < list.len() {
        let granule = list[start].number() >> granule_bits;
        let len = list[start..].iter().take_while(|i| i.number() >> granule_bits == granule).count();
        runs.push((target(granule), granule, start, start + len));
        start += len;
    }
    runs.sort_unstable();
    let (mut indices, mut rows) = (Vec::with_capacity(list.len()), Vec::with_capacity(values.len()));
    for (to, from, start, end) in runs {
        indices.extend(
            list[start..end].iter().map(|i| i.number() - (from << granule_bits) + (to << granule_bits)),
        );
        rows.extend_from_slice(&values[start * width..end * width]);
    }
    (indices, rows)
}

/// The vector with hashed indices: sparse, of `shuffled_len` rows.
pub fn shuffle<T: Element>(view: View<'_, T>, width: usize, hash: BlockHash) -> SparseVec<T> {
    let granule_bits = granule_bits(hash);
    let hashed = |granule: u64| hash.forward(granule << hash.granule_log2()) >> hash.granule_log2();
    let (indices, values) = match view {
        View::Sparse { indices, values } => {
            with_indices!(indices, list => move_runs(list, values, width, granule_bits, hashed))
        }
        View::Dense { values, present } => {
            let rows = values.len() / width;
            let rows_present: Vec<u64> = match present {
                None => (0..rows as u64).collect(),
                Some(bits) => set_bits_between(bits, 0, rows).into_iter().map(|k| k as u64).collect(),
            };
            let row = |k: &u64| &values[*k as usize * width..][..width];
            let entries: Vec<T> = rows_present.iter().flat_map(row).copied().collect();
            move_runs(&rows_present, &entries, width, granule_bits, hashed)
        }
    };
    let n = shuffled_len(hash);
    let indices = match n <= 1 << 32 {
        true => IndexList::Narrow(indices.iter().map(|i| *i as u32).collect()),
        false => IndexList::Wide(indices),
    };
    SparseVec { n, width, form: Form::Sparse { indices, values } }
}

/// The vector of `n` rows whose [`shuffle`] is `form`, with indices of 8 bytes if `wide`. Some hashed indices belong to
/// no row: `None` if a sparse form has such an entry; a dense form's rows beyond `n` are left out.
pub fn unshuffle<T: Element>(
    form: Form<T>,
    n: u64,
    width: usize,
    wide: bool,
    hash: BlockHash,
) -> Option<Form<T>> {
    let granule_bits = granule_bits(hash);
    let origin = |granule: u64| hash.inverse(granule << hash.granule_log2()) >> hash.granule_log2();
    match form {
        Form::Sparse { indices, values } => {
            let (indices, values) =
                with_indices!(indices.view(), list => move_runs(list, &values, width, granule_bits, origin));
            if indices.last().is_some_and(|last| *last >= n) {
                return None;
            }
            let indices = match wide {
                true => IndexList::Wide(indices),
                false => IndexList::Narrow(indices.iter().map(|i| *i as u32).collect()),
            };
            Some(Form::Sparse { indices, values })
        }
        Form::Dense { values, present } => {
            let mut rows = Vec::with_capacity(n as usize * width);
            let mut bits = present.as_ref().map(|_| vec![0u64; n.div_ceil(64) as usize]);
            for granule in 0..n.div_ceil(1 << granule_bits) {
                let from = hash.forward(granule << hash.granule_log2()) as usize * BLOCK_SIZE as usize;
                let (to, len) = (
                    (granule << granule_bits) as usize,
                    (n - (granule << granule_bits)).min(1 << granule_bits) as usize,
                );
                rows.extend_from_slice(&values[from * width..(from + len) * width]);
                if let (Some(bits), Some(present)) = (&mut bits, &present) {
                    // A block of indices is a word of the bitmap.
                    let words = len.div_ceil(64);
                    bits[to / 64..to / 64 + words].copy_from_slice(&present[from / 64..from / 64 + words]);
                }
            }
            bits.iter_mut().for_each(|bits| clear_beyond(bits, n));
            Some(Form::Dense { values: rows, present: bits })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unshuffle_reverses_shuffle(n in 1u64..200_000, ranks in 1u32..9, width in 1usize..3, dense: bool, seed in any::<u64>()) {
            let list: Vec<u64> = (0..n).filter(|i| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == 0).collect();
            let values: Vec<f32> = list.iter().flat_map(|i| (0..width).map(move |w| *i as f32 + w as f32)).collect();
            let hash = BlockHash::new(n, ranks);
            let x = SparseVec::new(n, width, IndexList::Wide(list.clone()), values.clone()).unwrap();
            let shuffled = shuffle(x.view(), width, hash);
            shuffled.view().check(shuffled.n, width).unwrap();
            let form = if dense {
                let (indices, rows) = shuffled.entries();
                let mut all = vec![0.0; shuffled.n as usize * width];
                let mut bits = vec![0u64; shuffled.n.div_ceil(64) as usize];
                for (i, row) in indices.iter().zip(rows.chunks(width)) {
                    all[*i as usize * width..][..width].copy_from_slice(row);
                    bits[*i as usize / 64] |= 1 << (i % 64);
                }
                Form::Dense { values: all, present: Some(bits) }
            } else {
                shuffled.form
            };
            let back = SparseVec { n, width, form: unshuffle(form, n, width, true, hash).unwrap() };
            back.view().check(n, width).unwrap();
            prop_assert_eq!(back.entries(), (list, values));
        }
    }

    #[test]
    fn an_entry_beyond_the_last_row_is_refused() {
        let (n, hash) = (1000, BlockHash::new(1000, 2));
        let one =
            |index: u64| Form::Sparse { indices: IndexList::Narrow(vec![index as u32]), values: vec![1f32] };
        let found: Vec<Option<Form<f32>>> =
            (0..shuffled_len(hash)).map(|index| unshuffle(one(index), n, 1, false, hash)).collect();
        assert_eq!(found.iter().filter(|form| form.is_some()).count(), 1000);
        assert!(found.len() > 1000);
    }

    #[test]
    fn rows_of_an_array_beyond_the_last_are_left_out() {
        let (n, hash) = (1000, BlockHash::new(1000, 2));
        let all = shuffled_len(hash);
        let present = Some(vec![u64::MAX; all.div_ceil(64) as usize]);
        let form = Form::Dense { values: vec![1f32; all as usize], present };
        let back = SparseVec { n, width: 1, form: unshuffle(form, n, 1, false, hash).unwrap() };
        back.view().check(n, 1).unwrap();
        assert_eq!(back.entries().0, (0..n).collect::<Vec<_>>());
    }
}
