//! Sparse vector, in sparse or dense form: the argument and result of collectives.

use super::bits::{AscendingBits, count_between, set_bits_between, set_run};
use crate::index::{Index, Indices};
use crate::simd;
use skyphos_types::{Element, Error, Result};
use std::collections::TryReserveError;

/// Largest number of bytes per row: a row, its index and the head must fit a frame of 128 KB.
pub const MAX_ROW_BYTES: usize = 127 * 1024;

/// Ascending indices, in 4 or 8 bytes each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexList {
    /// Below 2^32.
    Narrow(Vec<u32>),
    /// Of any size.
    Wide(Vec<u64>),
}

/// An empty list with capacity; fails if the system lacks the memory.
pub(crate) fn try_with_capacity<V>(capacity: usize) -> std::result::Result<Vec<V>, TryReserveError> {
    let mut empty = Vec::new();
    empty.try_reserve_exact(capacity)?;
    Ok(empty)
}

impl IndexList {
    /// An empty list with capacity; fails if the system lacks the memory.
    pub(super) fn try_with_capacity(
        wide: bool,
        capacity: usize,
    ) -> std::result::Result<IndexList, TryReserveError> {
        match wide {
            true => try_with_capacity(capacity).map(IndexList::Wide),
            false => try_with_capacity(capacity).map(IndexList::Narrow),
        }
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        match self {
            IndexList::Narrow(list) => list.len(),
            IndexList::Wide(list) => list.len(),
        }
    }

    /// Whether there are no indices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The indices at these positions of the list.
    pub fn pick(&self, positions: &[usize]) -> IndexList {
        match self {
            IndexList::Narrow(list) => IndexList::Narrow(positions.iter().map(|p| list[*p]).collect()),
            IndexList::Wide(list) => IndexList::Wide(positions.iter().map(|p| list[*p]).collect()),
        }
    }

    /// All indices as 64-bit numbers.
    pub fn to_vec(&self) -> Vec<u64> {
        match self {
            IndexList::Narrow(list) => list.iter().map(|i| u64::from(*i)).collect(),
            IndexList::Wide(list) => list.clone(),
        }
    }

    /// The indices, borrowed for a kernel.
    pub fn view(&self) -> Indices<'_> {
        match self {
            IndexList::Narrow(list) => Indices::U32(list),
            IndexList::Wide(list) => Indices::U64(list),
        }
    }
}

/// Entries of a vector, in sparse or dense form.
#[derive(Clone, Debug, PartialEq)]
pub enum Form<T> {
    /// Only entries.
    Sparse {
        /// Ascending indices.
        indices: IndexList,
        /// The rows of the entries.
        values: Vec<T>,
    },
    /// A row for every index. Without `present` every row is an entry. With it, entries are the rows whose bit is set; the
    /// other rows are the operation's identity.
    Dense {
        /// All rows.
        values: Vec<T>,
        /// A bit for each index, 64 per word.
        present: Option<Vec<u64>>,
    },
}

/// A vector of `n` rows of `width` numbers, most of which may be absent.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseVec<T> {
    /// Number of rows.
    pub n: u64,
    /// Numbers per row.
    pub width: usize,
    /// Entries.
    pub form: Form<T>,
}

/// A borrowed [`Form`].
#[derive(Clone, Copy, Debug)]
pub enum View<'a, T> {
    /// See [`Form::Sparse`].
    Sparse {
        /// Ascending indices.
        indices: Indices<'a>,
        /// The rows of the entries.
        values: &'a [T],
    },
    /// See [`Form::Dense`].
    Dense {
        /// All rows.
        values: &'a [T],
        /// A bit for each index, 64 per word.
        present: Option<&'a [u64]>,
    },
}

impl<T: Element> SparseVec<T> {
    /// A sparse vector. Indices must ascend and be below `n`, with a row for each.
    pub fn new(n: u64, width: usize, indices: IndexList, values: Vec<T>) -> Result<SparseVec<T>> {
        let vector = SparseVec { n, width, form: Form::Sparse { indices, values } };
        vector.view().check(n, width)?;
        Ok(vector)
    }

    /// A dense vector in which every row is an entry.
    pub fn dense(width: usize, values: Vec<T>) -> SparseVec<T> {
        SparseVec { n: (values.len() / width) as u64, width, form: Form::Dense { values, present: None } }
    }

    /// A borrowed view.
    pub fn view(&self) -> View<'_, T> {
        match &self.form {
            Form::Sparse { indices, values } => View::Sparse { indices: indices.view(), values },
            Form::Dense { values, present } => View::Dense { values, present: present.as_deref() },
        }
    }

    /// Whether the form is dense.
    pub fn is_dense(&self) -> bool {
        matches!(self.form, Form::Dense { .. })
    }

    /// Number of entries.
    pub fn nnz(&self) -> usize {
        self.view().nnz(self.width)
    }

    /// Number of entries with indices in `from..to`.
    pub fn nnz_between(&self, from: u64, to: u64) -> usize {
        match &self.form {
            Form::Sparse { indices, .. } => indices.view().before(to) - indices.view().before(from),
            Form::Dense { present: None, .. } => (to - from) as usize,
            Form::Dense { present: Some(bits), .. } => count_between(bits, from as usize, to as usize),
        }
    }

    /// The entries: indices and rows.
    pub fn entries(&self) -> (Vec<u64>, Vec<T>) {
        match &self.form {
            Form::Sparse { indices, values } => (indices.to_vec(), values.clone()),
            Form::Dense { values, present: None } => ((0..self.n).collect(), values.clone()),
            Form::Dense { values, present: Some(bits) } => {
                let positions = set_bits_between(bits, 0, self.n as usize);
                let rows = positions.iter().flat_map(|p| &values[p * self.width..][..self.width]);
                let rows = rows.copied().collect();
                (positions.iter().map(|p| *p as u64).collect(), rows)
            }
        }
    }

    /// All rows, with `fill` for absent ones.
    pub fn to_dense(&self, fill: T) -> Vec<T> {
        if let Form::Dense { values, present: None } = &self.form {
            return values.clone();
        }
        let mut all = vec![fill; self.n as usize * self.width];
        let (indices, values) = self.entries();
        put_rows(&mut all, self.width, indices.iter().map(|index| *index as usize), &values);
        all
    }
}

/// Writes rows to these positions (row numbers) of a dense array.
pub fn put_rows<T: Copy>(all: &mut [T], width: usize, positions: impl Iterator<Item = usize>, rows: &[T]) {
    if width == 1 {
        positions.zip(rows).for_each(|(position, value)| all[position] = *value);
        return;
    }
    for (position, row) in positions.zip(rows.chunks_exact(width)) {
        all[position * width..][..width].copy_from_slice(row);
    }
}

/// Writes rows to these ascending positions of a dense array, and sets their bits.
pub fn put_entries<T: Copy>(
    all: &mut [T],
    bits: Option<&mut [u64]>,
    width: usize,
    positions: impl DoubleEndedIterator<Item = usize> + Clone,
    rows: &[T],
) {
    let Some(bits) = bits else { return put_rows(all, width, positions, rows) };
    let (Some(first), Some(last)) = (positions.clone().next(), positions.clone().next_back()) else { return };
    let mut ascending = AscendingBits::new(rows.len() / width, first, last);
    if width == 1 {
        for (position, value) in positions.zip(rows) {
            all[position] = *value;
            ascending.set(bits, position);
        }
    } else {
        put_rows(all, width, positions.clone(), rows);
        positions.for_each(|position| ascending.set(bits, position));
    }
    ascending.finish(bits);
}

/// The first position whose next index is not larger.
#[inline(always)]
fn descent<I: Index>(list: &[I]) -> Option<usize> {
    // Pairs that are compared together, by vectors.
    const PIECE: usize = 256;
    let descends = |from: usize, to: usize| {
        let pairs = list[from..to].iter().zip(&list[from + 1..=to]);
        pairs.fold(false, |any, (a, b)| any | (a >= b))
    };
    let pairs = list.len().saturating_sub(1);
    let piece = (0..pairs).step_by(PIECE).find(|from| descends(*from, (from + PIECE).min(pairs)))?;
    (piece..pairs).find(|k| list[*k] >= list[k + 1])
}

impl<'a, T: Element> View<'a, T> {
    /// Writes the entries into a dense form without entries.
    pub fn put_into(&self, values: &mut [T], present: Option<&mut [u64]>, width: usize) {
        match self {
            View::Sparse { indices, values: rows } => crate::with_indices!(*indices, list => {
                let positions = list.iter().map(|i| i.number() as usize);
                put_entries(values, present, width, positions, rows);
            }),
            View::Dense { values: rows, present: None } => {
                values.copy_from_slice(rows);
                if let Some(bits) = present {
                    set_run(bits, 0, rows.len() / width);
                }
            }
            View::Dense { values: rows, present: Some(from) } => {
                for position in set_bits_between(from, 0, rows.len() / width) {
                    values[position * width..][..width].copy_from_slice(&rows[position * width..][..width]);
                }
                if let Some(bits) = present {
                    bits.iter_mut().zip(*from).for_each(|(bits, from)| *bits |= from);
                }
            }
        }
    }

    /// The numbers of all stored rows.
    pub fn values(&self) -> &'a [T] {
        match self {
            View::Sparse { values, .. } | View::Dense { values, .. } => values,
        }
    }

    /// The same entries with other numbers.
    pub fn with_values<'b>(&self, values: &'b [T]) -> View<'b, T>
    where
        'a: 'b,
    {
        match *self {
            View::Sparse { indices, .. } => View::Sparse { indices, values },
            View::Dense { present, .. } => View::Dense { values, present },
        }
    }

    /// A bit for each of `n` rows, set if it is an entry.
    pub fn bitmap(&self, n: u64, width: usize) -> Vec<u64> {
        let mut bits = vec![0; n.div_ceil(64) as usize];
        match self {
            View::Sparse { indices, .. } => crate::with_indices!(*indices, list => {
                if let (Some(first), Some(last)) = (list.first(), list.last()) {
                    let (first, last) = (first.number() as usize, last.number() as usize);
                    let mut ascending = AscendingBits::new(list.len(), first, last);
                    list.iter().for_each(|index| ascending.set(&mut bits, index.number() as usize));
                    ascending.finish(&mut bits);
                }
            }),
            View::Dense { values, present: None } => set_run(&mut bits, 0, values.len() / width),
            View::Dense { present: Some(from), .. } => bits.copy_from_slice(from),
        }
        bits
    }

    /// Number of entries.
    pub fn nnz(&self, width: usize) -> usize {
        match self {
            View::Sparse { indices, .. } => indices.len(),
            View::Dense { values, present: None } => values.len() / width,
            View::Dense { present: Some(bits), .. } => bits.iter().map(|w| w.count_ones() as usize).sum(),
        }
    }

    /// Checks that this is a vector of `n` rows of `width` numbers.
    pub fn check(&self, n: u64, width: usize) -> Result<()> {
        let row = width.saturating_mul(size_of::<T>());
        if row > MAX_ROW_BYTES {
            return Err(Error::bad_input(format!(
                "a row of width={width} takes {row} bytes; a row takes at most {MAX_ROW_BYTES}"
            )));
        }
        let rows = |values: &[T]| values.len() as u64 / width as u64;
        match self {
            View::Sparse { indices, values } => {
                if width == 0 || values.len() != indices.len() * width {
                    return Err(Error::bad_input(format!(
                        "{} indices of width {width} need {} values, not {}",
                        indices.len(),
                        indices.len() * width,
                        values.len()
                    )));
                }
                if indices.len() >= u32::MAX as usize {
                    return Err(Error::bad_input("one rank takes at most 2^32 - 2 entries"));
                }
                indices.check_ascending(n)
            }
            View::Dense { values, present } => {
                if width == 0 || rows(values) != n || !values.len().is_multiple_of(width) {
                    return Err(Error::bad_input(format!(
                        "a dense vector of n = {n}, width {width} cannot hold {} values",
                        values.len()
                    )));
                }
                let fits = |bits: &[u64]| {
                    bits.len() as u64 == n.div_ceil(64)
                        && (n.is_multiple_of(64) || bits.last().is_none_or(|last| last >> (n % 64) == 0))
                };
                match present {
                    Some(bits) if !fits(bits) => {
                        Err(Error::bad_input("the bitmap of a dense vector does not have one bit per row"))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl Indices<'_> {
    /// All indices as 64-bit numbers; none may be negative.
    pub fn to_vec(self) -> Vec<u64> {
        crate::with_indices!(self, list => list.iter().map(|i| i.number()).collect())
    }

    /// Number of ascending indices below `bound`.
    pub fn before(self, bound: u64) -> usize {
        crate::with_indices!(self, list => list.partition_point(|i| i.number() < bound))
    }

    /// Checks that indices ascend strictly and lie in `0..n`.
    pub fn check_ascending(self, n: u64) -> Result<()> {
        fn check<I: Index>(list: &[I], n: u64) -> Result<()> {
            let outside = |i: &&I| i.get().is_none_or(|i| i >= n);
            if let Some(position) = simd::dispatch!(descent(list)) {
                let (a, b) = (list[position], list[position + 1]);
                return Err(Error::bad_input(format!(
                    "indices must ascend, but indices[{position}] = {a} and indices[{}] = {b}",
                    position + 1
                )));
            }
            match list.first().filter(outside).or(list.last().filter(outside)) {
                None => Ok(()),
                Some(index) => Err(Error::bad_input(format!(
                    "index {index} is outside the index space 0 <= index < n = {n}"
                ))),
            }
        }
        crate::with_indices!(self, list => check(list, n))
    }
}
