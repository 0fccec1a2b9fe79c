//! Table of rows by key: folded as they are added, or listed.
//!
//! The first row of a key is stored; later ones are folded into it, or stored as well. The contents depend only on the order of
//! additions.

use super::block::{Block, Writer};
use super::fold::{fold_by_number, fold_custom};
use super::{Grouper, KeyStore, Keys, owner_of};
use crate::fold::with_op;
use crate::simd;
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::ops::Range;

/// Rows whose keys are looked up together, so that their numbers stay in the cache.
const LOOKUP_BATCH: usize = 4096;

/// Destination of keys that are left out of all blocks.
pub const NOWHERE: u32 = u32::MAX;

/// Treatment of the rows of one key.
#[derive(Clone, Debug)]
pub enum Merge {
    /// Fold them in the order of additions.
    Fold(ReduceOp),
    /// Store all rows of a key, in the order of additions.
    List,
}

/// Rows of `width` numbers by key.
pub struct Table<K, T> {
    keys: Grouper<K>,
    width: usize,
    merge: Merge,
    rows: Vec<T>,
    /// The key of each row, for a list.
    key_of_row: Vec<u32>,
}

impl<K: KeyStore, T: Element> Table<K, T> {
    /// An empty table for rows of `width` numbers.
    ///
    /// # Errors
    /// `BadInput` if the operation is not defined for such numbers, or is a mean, for which a table keeps no counts.
    pub fn new(width: usize, merge: Merge) -> Result<Table<K, T>> {
        if let Merge::Fold(op) = &merge {
            op.check(T::DTYPE)?;
            if matches!(op, ReduceOp::Mean | ReduceOp::MeanPresent) {
                let message =
                    format!("op={:?} does not work by key: use \"sum\", and count the rows", op.name());
                return Err(Error::bad_input(message));
            }
        }
        Ok(Table { keys: Grouper::default(), width, merge, rows: Vec::new(), key_of_row: Vec::new() })
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes of memory of the table.
    pub fn bytes(&self) -> usize {
        let rows = self.rows.capacity() * size_of::<T>() + 4 * self.key_of_row.capacity();
        self.keys.table_bytes() + self.keys.keys().bytes() + rows
    }

    /// Adds a row for each key of a batch.
    ///
    /// # Errors
    /// `BadInput` if rows and keys differ in number, or there are more than 2^32 - 1 distinct keys; an error of the operation.
    pub fn add(&mut self, batch: &K::Batch<'_>, rows: &[T]) -> Result<()> {
        if rows.len() != batch.len() * self.width {
            let (found, keys, width) = (rows.len(), batch.len(), self.width);
            return Err(Error::bad_input(format!(
                "{keys} keys of width {width} need {} numbers, not {found}",
                keys * width
            )));
        }
        self.check_row_count(batch.len())?;
        if let Merge::Fold(ReduceOp::Custom(custom)) = &self.merge {
            let (numbers, custom) = (self.keys.numbers(batch)?, custom.clone());
            return fold_custom(&*custom, &mut self.rows, numbers, rows, self.width);
        }
        let width = self.width;
        self.fold_batch(batch, |range| &rows[range.start * width..range.end * width])
    }

    /// Adds a row of ones for each key of a batch; their sum counts the occurrences of a key.
    ///
    /// # Errors
    /// As [`Table::add`].
    pub fn count(&mut self, batch: &K::Batch<'_>) -> Result<()> {
        self.check_row_count(batch.len())?;
        let width = self.width;
        let ones = vec![T::ONE; LOOKUP_BATCH.min(batch.len()) * width];
        self.fold_batch(batch, |range| &ones[..range.len() * width])
    }

    /// Adds the row of each key of a batch; `rows` gives those of a range of keys.
    fn fold_batch<'a>(&mut self, batch: &K::Batch<'_>, rows: impl Fn(Range<usize>) -> &'a [T]) -> Result<()> {
        let mut numbers = Vec::with_capacity(LOOKUP_BATCH.min(batch.len()));
        for start in (0..batch.len()).step_by(LOOKUP_BATCH) {
            let range = start..batch.len().min(start + LOOKUP_BATCH);
            numbers.clear();
            self.keys.numbers_of(batch, range.clone(), &mut numbers)?;
            self.fold(&numbers, rows(range));
        }
        Ok(())
    }

    /// Adds all rows of another table.
    ///
    /// # Errors
    /// As [`Table::add`].
    pub fn absorb(&mut self, other: &Table<K, T>) -> Result<()> {
        let batch = other.keys.keys().batch();
        match other.merge {
            Merge::Fold(_) => self.add(&batch, &other.rows),
            Merge::List => {
                let own = self.keys.numbers(&batch)?;
                let numbers = other.key_of_row.iter().map(|number| own[*number as usize]).collect();
                self.fold_any(numbers, &other.rows)
            }
        }
    }

    /// Adds the rows of a block.
    ///
    /// # Errors
    /// `BadInput` if it is damaged, or has other kinds of keys or values.
    pub fn add_block(&mut self, block: &[u8]) -> Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        let block = Block::read(block)?;
        if (block.kind, block.dtype, block.width) != (K::KIND, T::DTYPE, self.width) {
            return Err(Error::bad_input("a block has other kinds of keys or values than this table"));
        }
        let mut buffer = K::DecodeBuffer::default();
        let batch = K::decode(&block, &mut buffer)?;
        let copied: Vec<T>;
        let rows = match bytemuck::try_cast_slice(block.rows) {
            Ok(rows) => rows,
            Err(_) => {
                copied = bytemuck::pod_collect_to_vec(block.rows);
                &copied
            }
        };
        let Some(counts) = block.counts() else { return self.add(&batch, rows) };
        let numbers = self.keys.numbers(&batch)?;
        let each = numbers.iter().zip(counts);
        let numbers = each.flat_map(|(number, count)| std::iter::repeat_n(*number, count as usize)).collect();
        self.fold_any(numbers, rows)
    }

    /// Checks that a list's rows can still be numbered in 32 bits.
    fn check_row_count(&self, rows: usize) -> Result<()> {
        match self.key_of_row.len() + rows < u32::MAX as usize {
            true => Ok(()),
            false => Err(Error::bad_input("a list takes at most 2^32 - 2 rows at a time on a rank")),
        }
    }

    /// Adds rows by the numbers of their keys.
    fn fold_any(&mut self, numbers: Vec<u32>, rows: &[T]) -> Result<()> {
        self.check_row_count(numbers.len())?;
        match &self.merge {
            Merge::Fold(ReduceOp::Custom(custom)) => {
                let custom = custom.clone();
                fold_custom(&*custom, &mut self.rows, numbers, rows, self.width)
            }
            _ => {
                self.fold(&numbers, rows);
                Ok(())
            }
        }
    }

    /// Adds rows by the numbers of their keys, except for a custom operation.
    fn fold(&mut self, numbers: &[u32], rows: &[T]) {
        let Table { width, rows: acc, .. } = self;
        let width = *width;
        match &self.merge {
            Merge::List => {
                self.key_of_row.extend_from_slice(numbers);
                acc.extend_from_slice(rows);
            }
            Merge::Fold(op) => {
                with_op!(op, T, f => simd::dispatch!(fold_by_number(f, acc, numbers, rows, width)), _ => {
                    unreachable!("`fold_any` handles custom operations")
                })
            }
        }
    }

    /// The keys, by number.
    pub fn keys(&self) -> &K {
        self.keys.keys()
    }

    /// The owner, of `ranks` ranks, of each key.
    pub fn owners(&self, ranks: u32) -> Vec<u32> {
        self.hashes().map(|hash| owner_of(hash, ranks)).collect()
    }

    /// The hash of each key.
    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        (0..self.len() as u32).map(|number| self.keys.keys().hash(number))
    }

    /// Encodes the rows of each destination as a block; `to` is the destination of each key. Keys for [`NOWHERE`] are left out.
    pub fn blocks(&self, to: &[u32], blocks: u32) -> Vec<Vec<u8>> {
        let (order, starts) = sorted_by(to, blocks);
        let lists = self.lists();
        let row_bytes = self.width * size_of::<T>();
        let block = |numbers: &[u32]| {
            if numbers.is_empty() {
                return Vec::new();
            }
            let capacity = numbers.len() * (8 + row_bytes);
            let mut writer = Writer::new(K::KIND, T::DTYPE, self.width, numbers.len(), capacity);
            writer.keys(|bytes| self.keys.keys().encode(numbers, bytes));
            let row = |at: usize| bytemuck::cast_slice::<T, u8>(&self.rows[at * self.width..][..self.width]);
            let Some((rows, starts)) = &lists else {
                return writer.rows(numbers.len() as u64, |bytes| {
                    numbers.iter().for_each(|number| bytes.extend_from_slice(row(*number as usize)));
                });
            };
            let range =
                |number: &u32| starts[*number as usize] as usize..starts[*number as usize + 1] as usize;
            let counts = || numbers.iter().map(|number| range(number).len() as u64);
            writer.counts(counts().max().unwrap_or(0), counts());
            writer.rows(counts().sum(), |bytes| {
                let all = numbers.iter().flat_map(|number| &rows[range(number)]);
                all.for_each(|at| bytes.extend_from_slice(row(*at as usize)));
            })
        };
        starts.windows(2).map(|bounds| block(&order[bounds[0] as usize..bounds[1] as usize])).collect()
    }

    /// For a list: the rows ordered by key, and the start of each key's rows.
    fn lists(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        matches!(self.merge, Merge::List).then(|| sorted_by(&self.key_of_row, self.len() as u32))
    }

    /// The keys and their rows; for a list, the rows are ordered by key, and the third part is the number of each key's rows.
    pub fn into_parts(self) -> (K, Vec<T>, Option<Vec<u64>>) {
        let Some((rows, starts)) = self.lists() else { return (self.keys.into_keys(), self.rows, None) };
        let row = |at: &u32| &self.rows[*at as usize * self.width..][..self.width];
        let sorted = rows.iter().flat_map(|at| row(at).iter().copied()).collect();
        let counts = starts.windows(2).map(|bounds| u64::from(bounds[1] - bounds[0])).collect();
        (self.keys.into_keys(), sorted, Some(counts))
    }
}

/// Positions ordered by their group (counting sort), the start of each of the `groups`, and the end of the last. Positions in the
/// group [`NOWHERE`] are left out.
fn sorted_by(group_of: &[u32], groups: u32) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; groups as usize + 1];
    group_of.iter().filter(|group| **group != NOWHERE).for_each(|group| starts[*group as usize + 1] += 1);
    for group in 1..starts.len() {
        starts[group] += starts[group - 1];
    }
    let (mut next, mut order) = (starts.clone(), vec![0u32; starts[groups as usize] as usize]);
    for (at, group) in (0..).zip(group_of).filter(|(_, group)| **group != NOWHERE) {
        order[next[*group as usize] as usize] = at;
        next[*group as usize] += 1;
    }
    (order, starts)
}

#[cfg(test)]
mod tests;
