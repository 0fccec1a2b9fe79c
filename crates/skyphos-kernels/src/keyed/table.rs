//! Rows of numbers by key, folded as they come or kept side by side.
//!
//! What comes first for a key becomes its row, what comes later is folded into that, or becomes a row beside it. So what
//! a table holds depends on the order of what is added, and on nothing else.

use super::block::{Block, Writer};
use super::{Grouper, Keys, Known, owner_of};
use crate::simd;
use skyphos_types::{CustomOp, Element, Error, ReduceOp, Result};

/// Rows whose keys are looked up at a time: their numbers stay in the cache.
const AT_ONCE: usize = 4096;

/// Leaves a key out of all blocks.
pub const NOWHERE: u32 = u32::MAX;

/// What becomes of rows of one key.
#[derive(Clone, Debug)]
pub enum Merge {
    /// They are folded, in the order in which they come.
    Fold(ReduceOp),
    /// They are kept, in the order in which they come.
    List,
}

/// See the module's text.
pub struct Table<K, T> {
    keys: Grouper<K>,
    width: usize,
    merge: Merge,
    rows: Vec<T>,
    /// Of a list: the key of each row.
    of_row: Vec<u32>,
}

impl<K: Known, T: Element> Table<K, T> {
    /// An empty one, for rows of so many numbers.
    ///
    /// # Errors
    /// `BadInput` where the operation has no meaning for such numbers, or goes by counts that nobody keeps.
    pub fn new(width: usize, merge: Merge) -> Result<Table<K, T>> {
        if let Merge::Fold(op) = &merge {
            op.check(T::DTYPE)?;
            if matches!(op, ReduceOp::Mean | ReduceOp::MeanPresent) {
                let message = format!("rows by key have no {:?}: sum them, and count them beside", op.name());
                return Err(Error::bad_input(message));
            }
        }
        Ok(Table { keys: Grouper::default(), width, merge, rows: Vec::new(), of_row: Vec::new() })
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        let rows = self.rows.capacity() * size_of::<T>() + 4 * self.of_row.capacity();
        self.keys.table_bytes() + self.keys.keys().bytes() + rows
    }

    /// Adds a row for each key of a batch.
    ///
    /// # Errors
    /// `BadInput` where there is not a row for each, or there are more than 2^32 - 1 different keys; what the operation says.
    pub fn add(&mut self, batch: &K::Batch<'_>, rows: &[T]) -> Result<()> {
        if rows.len() != batch.len() * self.width {
            let (have, keys, width) = (rows.len(), batch.len(), self.width);
            return Err(Error::bad_input(format!("{have} numbers for {keys} keys of {width} each")));
        }
        self.room_for(batch.len())?;
        if let Merge::Fold(ReduceOp::Custom(custom)) = &self.merge {
            let (numbers, custom) = (self.keys.numbers(batch)?, custom.clone());
            return self.fold_custom(&*custom, numbers, rows);
        }
        let mut numbers = Vec::with_capacity(AT_ONCE.min(batch.len()));
        for start in (0..batch.len()).step_by(AT_ONCE) {
            let some = start..batch.len().min(start + AT_ONCE);
            numbers.clear();
            self.keys.numbers_of(batch, some.clone(), &mut numbers)?;
            self.fold(&numbers, &rows[some.start * self.width..some.end * self.width]);
        }
        Ok(())
    }

    /// Adds a row of ones for each key of a batch: sums of them are how often there was each.
    ///
    /// # Errors
    /// As [`Table::add`].
    pub fn count(&mut self, batch: &K::Batch<'_>) -> Result<()> {
        self.room_for(batch.len())?;
        let ones = vec![T::ONE; AT_ONCE.min(batch.len()) * self.width];
        let mut numbers = Vec::with_capacity(AT_ONCE.min(batch.len()));
        for start in (0..batch.len()).step_by(AT_ONCE) {
            numbers.clear();
            self.keys.numbers_of(batch, start..batch.len().min(start + AT_ONCE), &mut numbers)?;
            self.fold(&numbers, &ones[..numbers.len() * self.width]);
        }
        Ok(())
    }

    /// Adds all of another.
    ///
    /// # Errors
    /// As [`Table::add`].
    pub fn absorb(&mut self, other: &Table<K, T>) -> Result<()> {
        let batch = other.keys.keys().batch();
        match other.merge {
            Merge::Fold(_) => self.add(&batch, &other.rows),
            Merge::List => {
                let here = self.keys.numbers(&batch)?;
                let numbers = other.of_row.iter().map(|number| here[*number as usize]).collect();
                self.fold_any(numbers, &other.rows)
            }
        }
    }

    /// Adds what a block holds.
    ///
    /// # Errors
    /// `BadInput` where it is none, or one of other keys or values.
    pub fn add_block(&mut self, block: &[u8]) -> Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        let block = Block::read(block)?;
        if (block.kind, block.dtype, block.width) != (K::KIND, T::DTYPE, self.width) {
            return Err(Error::bad_input("a block of other keys or values than were to come"));
        }
        let mut room = K::Room::default();
        let batch = K::decode(&block, &mut room)?;
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

    /// Rows of a list are counted in 32 bits.
    fn room_for(&self, rows: usize) -> Result<()> {
        match self.of_row.len() + rows < u32::MAX as usize {
            true => Ok(()),
            false => Err(Error::bad_input("more than 2^32 - 2 rows at a time in a list on a rank")),
        }
    }

    fn fold_any(&mut self, numbers: Vec<u32>, rows: &[T]) -> Result<()> {
        self.room_for(numbers.len())?;
        match &self.merge {
            Merge::Fold(ReduceOp::Custom(custom)) => {
                let custom = custom.clone();
                self.fold_custom(&*custom, numbers, rows)
            }
            _ => {
                self.fold(&numbers, rows);
                Ok(())
            }
        }
    }

    /// Adds rows of known keys.
    fn fold(&mut self, numbers: &[u32], rows: &[T]) {
        let Table { width, rows: acc, .. } = self;
        let width = *width;
        match &self.merge {
            Merge::List => {
                self.of_row.extend_from_slice(numbers);
                acc.extend_from_slice(rows);
            }
            Merge::Fold(op) => match op {
                ReduceOp::Sum => simd::dispatch!(fold_by_number(T::add, acc, numbers, rows, width)),
                ReduceOp::Prod => simd::dispatch!(fold_by_number(T::mul, acc, numbers, rows, width)),
                ReduceOp::Min => simd::dispatch!(fold_by_number(T::least, acc, numbers, rows, width)),
                ReduceOp::Max => simd::dispatch!(fold_by_number(T::greatest, acc, numbers, rows, width)),
                ReduceOp::Or => simd::dispatch!(fold_by_number(T::or, acc, numbers, rows, width)),
                ReduceOp::And => simd::dispatch!(fold_by_number(T::and, acc, numbers, rows, width)),
                ReduceOp::Mean | ReduceOp::MeanPresent | ReduceOp::Custom(_) => {
                    unreachable!("refused, or folded as a whole")
                }
            },
        }
    }

    /// The same for an operation of the caller's, which works on whole arrays: rows of a key are folded two by two, neighbours
    /// with neighbours, until there is one; that goes into what was there.
    fn fold_custom(&mut self, custom: &dyn CustomOp, numbers: Vec<u32>, rows: &[T]) -> Result<()> {
        let width = self.width;
        let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
        order.sort_by_key(|at| numbers[*at as usize]);
        let row = |at: u32| &rows[at as usize * width..][..width];
        let mut folded: Vec<T> = order.iter().flat_map(|at| row(*at).iter().copied()).collect();
        let mut of: Vec<u32> = order.iter().map(|at| numbers[*at as usize]).collect();
        while of.windows(2).any(|two| two[0] == two[1]) {
            let (mut left, mut right, mut pairs, mut singles) = (vec![], vec![], vec![], vec![]);
            let (mut next, mut at) = (Vec::new(), 0);
            while at < of.len() {
                let first = &folded[at * width..][..width];
                if of.get(at + 1) == Some(&of[at]) {
                    pairs.push(next.len());
                    left.extend_from_slice(first);
                    right.extend_from_slice(&folded[(at + 1) * width..][..width]);
                    next.push(of[at]);
                    at += 2;
                } else {
                    singles.push((next.len(), at));
                    next.push(of[at]);
                    at += 1;
                }
            }
            custom.combine(T::DTYPE, bytemuck::cast_slice_mut(&mut left), bytemuck::cast_slice(&right))?;
            let mut fewer = vec![T::ZERO; next.len() * width];
            for (to, at) in singles {
                fewer[to * width..][..width].copy_from_slice(&folded[at * width..][..width]);
            }
            for (to, row) in pairs.into_iter().zip(left.chunks_exact(width)) {
                fewer[to * width..][..width].copy_from_slice(row);
            }
            (of, folded) = (next, fewer);
        }
        // New keys have the highest numbers.
        let known = of.partition_point(|number| (*number as usize) < self.rows.len() / width);
        let mut there: Vec<T> = Vec::with_capacity(known * width);
        for number in &of[..known] {
            there.extend_from_slice(&self.rows[*number as usize * width..][..width]);
        }
        let (of_known, of_new) = folded.split_at(known * width);
        custom.combine(T::DTYPE, bytemuck::cast_slice_mut(&mut there), bytemuck::cast_slice(of_known))?;
        for (number, row) in of[..known].iter().zip(there.chunks_exact(width)) {
            self.rows[*number as usize * width..][..width].copy_from_slice(row);
        }
        self.rows.extend_from_slice(of_new);
        Ok(())
    }

    /// The keys.
    pub fn keys(&self) -> &K {
        self.keys.keys()
    }

    /// The owner of each key, of so many ranks.
    pub fn owners(&self, ranks: u32) -> Vec<u32> {
        self.hashes().map(|hash| owner_of(hash, ranks)).collect()
    }

    /// The hash of each key.
    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        (0..self.len() as u32).map(|number| self.keys.keys().hash(number))
    }

    /// What goes where, as bytes: a block each. [`NOWHERE`] goes nowhere.
    pub fn blocks(&self, to: &[u32], blocks: u32) -> Vec<Vec<u8>> {
        let (order, starts) = sorted_by(to, blocks);
        let lists = self.lists();
        let row_bytes = self.width * size_of::<T>();
        let block = |numbers: &[u32]| {
            if numbers.is_empty() {
                return Vec::new();
            }
            let room = numbers.len() * (8 + row_bytes);
            let mut writer = Writer::new(K::KIND, T::DTYPE, self.width, numbers.len(), room);
            writer.keys(|bytes| self.keys.keys().encode(numbers, bytes));
            let row = |at: usize| bytemuck::cast_slice::<T, u8>(&self.rows[at * self.width..][..self.width]);
            let Some((rows, ends)) = &lists else {
                return writer.rows(numbers.len() as u64, |bytes| {
                    numbers.iter().for_each(|number| bytes.extend_from_slice(row(*number as usize)));
                });
            };
            let range = |number: &u32| ends[*number as usize] as usize..ends[*number as usize + 1] as usize;
            let counts = || numbers.iter().map(|number| range(number).len() as u64);
            writer.counts(counts().max().unwrap_or(0), counts());
            writer.rows(counts().sum(), |bytes| {
                let all = numbers.iter().flat_map(|number| &rows[range(number)]);
                all.for_each(|at| bytes.extend_from_slice(row(*at as usize)));
            })
        };
        starts.windows(2).map(|ends| block(&order[ends[0] as usize..ends[1] as usize])).collect()
    }

    /// Of a list: rows by key, and where each key's begin.
    fn lists(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        matches!(self.merge, Merge::List).then(|| sorted_by(&self.of_row, self.len() as u32))
    }

    /// Keys and rows; of a list how many rows each key has, too, whose rows lie one after the other.
    pub fn into_parts(self) -> (K, Vec<T>, Option<Vec<u64>>) {
        let Some((rows, starts)) = self.lists() else { return (self.keys.into_keys(), self.rows, None) };
        let row = |at: &u32| &self.rows[*at as usize * self.width..][..self.width];
        let sorted = rows.iter().flat_map(|at| row(at).iter().copied()).collect();
        let counts = starts.windows(2).map(|ends| u64::from(ends[1] - ends[0])).collect();
        (self.keys.into_keys(), sorted, Some(counts))
    }
}

/// Places by what they are sorted by, in order, and where each of `kinds` begins and the last ends.
fn sorted_by(of: &[u32], kinds: u32) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; kinds as usize + 1];
    of.iter().filter(|kind| **kind != NOWHERE).for_each(|kind| starts[*kind as usize + 1] += 1);
    for kind in 1..starts.len() {
        starts[kind] += starts[kind - 1];
    }
    let (mut next, mut order) = (starts.clone(), vec![0u32; starts[kinds as usize] as usize]);
    for (at, kind) in (0..).zip(of).filter(|(_, kind)| **kind != NOWHERE) {
        order[next[*kind as usize] as usize] = at;
        next[*kind as usize] += 1;
    }
    (order, starts)
}

/// Folds rows into those of their numbers; the first of a number becomes its row.
#[inline(always)]
fn fold_by_number<T: Element>(
    op: impl Fn(T, T) -> T + Copy,
    acc: &mut Vec<T>,
    numbers: &[u32],
    rows: &[T],
    width: usize,
) {
    if width == 1 {
        for (number, value) in numbers.iter().zip(rows) {
            match acc.get_mut(*number as usize) {
                Some(there) => *there = op(*there, *value),
                None => acc.push(*value),
            }
        }
        return;
    }
    for (number, row) in numbers.iter().zip(rows.chunks_exact(width)) {
        match acc.get_mut(*number as usize * width..(*number as usize + 1) * width) {
            Some(there) => there.iter_mut().zip(row).for_each(|(a, b)| *a = op(*a, *b)),
            None => acc.extend_from_slice(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::{Numbers, StringBatch, Strings, wave_of};
    use proptest::prelude::*;
    use skyphos_types::DType;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// Sums, as a caller's operation; counts how often it was called.
    struct Plus(std::sync::atomic::AtomicUsize);

    impl CustomOp for Plus {
        fn name(&self) -> &str {
            "plus"
        }

        fn identity(&self, _: DType, out: &mut [u8]) -> Result<()> {
            out.fill(0);
            Ok(())
        }

        fn combine(&self, _: DType, acc: &mut [u8], src: &[u8]) -> Result<()> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (acc, src): (&mut [i64], &[i64]) = (bytemuck::cast_slice_mut(acc), bytemuck::cast_slice(src));
            acc.iter_mut().zip(src).for_each(|(a, b)| *a += b);
            Ok(())
        }
    }

    fn plus() -> Merge {
        Merge::Fold(ReduceOp::Custom(Arc::new(Plus(0.into()))))
    }

    /// Rows of each key, in order.
    type Lists<K> = BTreeMap<K, Vec<Vec<i64>>>;

    fn rows_of(width: usize, count: usize, salt: i64) -> Vec<i64> {
        (0..(count * width) as i64).map(|at| at * 37 % 101 - 50 + salt).collect()
    }

    fn folded<K: Ord + Clone>(lists: &Lists<K>, merge: &Merge) -> Lists<K> {
        let fold = |rows: &Vec<Vec<i64>>| {
            let each = |f: fn(i64, i64) -> i64| {
                let two = |a: Vec<i64>, b: Vec<i64>| a.into_iter().zip(b).map(|(a, b)| f(a, b)).collect();
                vec![rows.iter().cloned().reduce(two).expect("a row")]
            };
            match merge {
                Merge::List => rows.clone(),
                Merge::Fold(ReduceOp::Min) => each(i64::min),
                Merge::Fold(ReduceOp::Max) => each(i64::max),
                Merge::Fold(_) => each(|a, b| a.wrapping_add(b)),
            }
        };
        lists.iter().map(|(key, rows)| (key.clone(), fold(rows))).collect()
    }

    /// What a table holds, by key.
    fn held<K: Known, R: Ord>(table: Table<K, i64>, keys: impl Fn(&K, usize) -> R) -> Lists<R> {
        let (len, width) = (table.len(), table.width);
        let (known, rows, counts) = table.into_parts();
        let counts = counts.unwrap_or_else(|| vec![1; len]);
        let mut rows = rows.chunks(width).map(<[i64]>::to_vec);
        let of = |at: usize, count: u64| (keys(&known, at), rows.by_ref().take(count as usize).collect());
        counts
            .iter()
            .enumerate()
            .map({
                let mut of = of;
                move |(at, count)| of(at, *count)
            })
            .collect()
    }

    const MERGES: [fn() -> Merge; 5] = [
        || Merge::List,
        || Merge::Fold(ReduceOp::Sum),
        || Merge::Fold(ReduceOp::Min),
        || Merge::Fold(ReduceOp::Max),
        plus,
    ];

    fn string_of(strings: &Strings, at: usize) -> Vec<u8> {
        let (offsets, bytes) = strings.clone().into_parts();
        bytes[offsets[at] as usize..offsets[at + 1] as usize].to_vec()
    }

    proptest! {
        /// Several ranks' rows, added in batches, sent as blocks in waves to owners, and added there.
        #[test]
        fn owners_hold_what_ranks_added(
            keys in prop::collection::vec(prop::collection::vec(prop_oneof![0u64..9, any::<u64>()], 0..60), 1..5),
            width in 1usize..4,
            merge in 0usize..5,
            cut in any::<prop::sample::Index>(),
            waves in 1u32..4,
        ) {
            let (merge, ranks) = (MERGES[merge], keys.len() as u32);
            let new = || Table::<Numbers, i64>::new(width, merge()).unwrap();
            let (mut owned, mut lists): (Vec<_>, Lists<u64>) = ((0..ranks).map(|_| new()).collect(), BTreeMap::new());
            for (salt, keys) in (0..).zip(&keys) {
                let rows = rows_of(width, keys.len(), salt);
                keys.iter().zip(rows.chunks(width)).for_each(|(key, row)| lists.entry(*key).or_default().push(row.to_vec()));
                let at = cut.index(keys.len() + 1);
                let (mut table, mut second) = (new(), new());
                table.add(&&keys[..at], &rows[..at * width]).unwrap();
                second.add(&&keys[at..], &rows[at * width..]).unwrap();
                table.absorb(&second).unwrap();
                prop_assert!(table.add(&&keys[..], &vec![0; keys.len() * width + 1]).is_err());
                let owners = table.owners(ranks);
                for wave in 0..waves {
                    let waved = owners.iter().zip(table.hashes());
                    let to: Vec<u32> = waved.map(|(to, hash)| if wave_of(hash, waves) == wave { *to } else { NOWHERE }).collect();
                    for (owner, block) in owned.iter_mut().zip(table.blocks(&to, ranks)) {
                        owner.add_block(&block).unwrap();
                    }
                }
            }
            let got: Lists<u64> = owned.into_iter().flat_map(|table| held(table, |known, at| known[at])).collect();
            prop_assert_eq!(got, folded(&lists, &merge()));
        }

        #[test]
        fn strings_too(
            keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..300), 0..60),
            merge in 0usize..5,
        ) {
            let (merge, rows) = (MERGES[merge], rows_of(2, keys.len(), 0));
            let mut lists: Lists<Vec<u8>> = BTreeMap::new();
            keys.iter().zip(rows.chunks(2)).for_each(|(key, row)| lists.entry(key.clone()).or_default().push(row.to_vec()));
            let ends = keys.iter().scan(0, |end, key| { *end += key.len() as i64; Some(*end) });
            let (offsets, bytes): (Vec<i64>, _) = ([0].into_iter().chain(ends).collect(), keys.concat());
            let mut table = Table::<Strings, i64>::new(2, merge()).unwrap();
            table.add(&StringBatch::new(&offsets, &bytes).unwrap(), &rows).unwrap();
            let mut other = Table::<Strings, i64>::new(2, merge()).unwrap();
            for block in table.blocks(&table.owners(3), 3) {
                other.add_block(&block).unwrap();
            }
            prop_assert_eq!(held(other, string_of), folded(&lists, &merge()));
        }

        /// Damage is found, or gives other rows: it does nothing else.
        #[test]
        fn damaged_blocks(
            keys in prop::collection::vec(0u64..1000, 1..40),
            list in any::<bool>(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let merge = || if list { Merge::List } else { Merge::Fold(ReduceOp::Sum) };
            let mut table = Table::<Numbers, f32>::new(1, merge()).unwrap();
            table.count(&&keys[..]).unwrap();
            let mut block = table.blocks(&vec![0; table.len()], 1).remove(0);
            let at = at.index(block.len());
            block[at] = byte;
            block.truncate(cut.map_or(block.len(), |cut| cut.index(block.len() + 1)));
            let mut other = Table::<Numbers, f32>::new(1, merge()).unwrap();
            let mut strings = Table::<Strings, f32>::new(1, merge()).unwrap();
            let _ = (other.add_block(&block), strings.add_block(&block));
            prop_assert!(other.len() <= block.len() && strings.len() <= block.len());
        }
    }

    #[test]
    fn rows_of_a_list_go_into_a_fold() {
        let keys = [7u64, 8, 7, 7];
        let mut list = Table::<Numbers, i32>::new(1, Merge::List).unwrap();
        list.add(&&keys[..], &[1, 2, 3, 4]).unwrap();
        let mut sums = Table::<Numbers, i32>::new(1, Merge::Fold(ReduceOp::Sum)).unwrap();
        sums.add_block(&list.blocks(&[0, 0], 1)[0]).unwrap();
        assert_eq!(sums.into_parts(), (vec![7, 8], vec![8, 2], None));
    }

    #[test]
    fn operations_without_a_meaning() {
        assert!(Table::<Numbers, i32>::new(1, Merge::Fold(ReduceOp::Mean)).is_err());
        assert!(Table::<Numbers, f64>::new(1, Merge::Fold(ReduceOp::Mean)).is_err());
        assert!(Table::<Numbers, f64>::new(1, Merge::Fold(ReduceOp::Or)).is_err());
    }

    /// Small keys take few bytes: those of a word count's 8.
    #[test]
    fn blocks_are_about_as_long_as_what_they_hold() {
        let keys: Vec<u64> = (0..1000).map(|key| 1_000_000 + 3 * key).collect();
        let mut table = Table::<Numbers, i64>::new(1, Merge::Fold(ReduceOp::Sum)).unwrap();
        table.count(&&keys[..]).unwrap();
        let len = table.blocks(&vec![0; 1000], 1)[0].len();
        assert!(len <= 32 + 1000 * (2 + 8), "{len}");
    }
}
