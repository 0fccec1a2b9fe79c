use super::*;
use crate::keyed::{Numbers, StringBatch, Strings, wave_of};
use proptest::prelude::*;
use skyphos_types::{CustomOp, DType};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A custom sum that counts its calls.
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
        let by = |f: fn(i64, i64) -> i64| {
            let two = |a: Vec<i64>, b: Vec<i64>| a.into_iter().zip(b).map(|(a, b)| f(a, b)).collect();
            vec![rows.iter().cloned().reduce(two).expect("a row")]
        };
        match merge {
            Merge::List => rows.clone(),
            Merge::Fold(ReduceOp::Min) => by(i64::min),
            Merge::Fold(ReduceOp::Max) => by(i64::max),
            Merge::Fold(_) => by(i64::wrapping_add),
        }
    };
    lists.iter().map(|(key, rows)| (key.clone(), fold(rows))).collect()
}

/// The contents of a table, by key.
fn contents<K: KeyStore, R: Ord>(table: Table<K, i64>, keys: impl Fn(&K, usize) -> R) -> Lists<R> {
    let (len, width) = (table.len(), table.width);
    let (known, rows, counts) = table.into_parts();
    let counts = counts.unwrap_or_else(|| vec![1; len]);
    let mut rows = rows.chunks(width).map(<[i64]>::to_vec);
    let list_of =
        |(at, count): (usize, &u64)| (keys(&known, at), rows.by_ref().take(*count as usize).collect());
    counts.iter().enumerate().map(list_of).collect()
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
    /// The rows of several ranks are added in batches, sent to owners as blocks in waves, and added there.
    #[test]
    fn owners_have_all_rows_that_ranks_added(
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
                let hashed = owners.iter().zip(table.hashes());
                let to: Vec<u32> = hashed.map(|(to, hash)| if wave_of(hash, waves) == wave { *to } else { NOWHERE }).collect();
                for (owner, block) in owned.iter_mut().zip(table.blocks(&to, ranks)) {
                    owner.add_block(&block).unwrap();
                }
            }
        }
        let got: Lists<u64> = owned.into_iter().flat_map(|table| contents(table, |known, at| known[at])).collect();
        prop_assert_eq!(got, folded(&lists, &merge()));
    }

    #[test]
    fn owners_have_all_rows_of_string_keys(
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
        prop_assert_eq!(contents(other, string_of), folded(&lists, &merge()));
    }

    /// A damaged block gives an error or other rows; it does not panic.
    #[test]
    fn damaged_blocks_do_not_panic(
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
fn a_fold_takes_the_blocks_of_a_list() {
    let keys = [7u64, 8, 7, 7];
    let mut list = Table::<Numbers, i32>::new(1, Merge::List).unwrap();
    list.add(&&keys[..], &[1, 2, 3, 4]).unwrap();
    let mut sums = Table::<Numbers, i32>::new(1, Merge::Fold(ReduceOp::Sum)).unwrap();
    sums.add_block(&list.blocks(&[0, 0], 1)[0]).unwrap();
    assert_eq!(sums.into_parts(), (vec![7, 8], vec![8, 2], None));
}

#[test]
fn undefined_operations_are_refused() {
    assert!(Table::<Numbers, i32>::new(1, Merge::Fold(ReduceOp::Mean)).is_err());
    assert!(Table::<Numbers, f64>::new(1, Merge::Fold(ReduceOp::Mean)).is_err());
    assert!(Table::<Numbers, f64>::new(1, Merge::Fold(ReduceOp::Or)).is_err());
}

/// Small keys take few bytes.
#[test]
fn blocks_are_compact() {
    let keys: Vec<u64> = (0..1000).map(|key| 1_000_000 + 3 * key).collect();
    let mut table = Table::<Numbers, i64>::new(1, Merge::Fold(ReduceOp::Sum)).unwrap();
    table.count(&&keys[..]).unwrap();
    let len = table.blocks(&vec![0; 1000], 1)[0].len();
    assert!(len <= 32 + 1000 * (2 + 8), "{len}");
}
