//! Blocks of keyed rows, as a shuffle sends them (`skyphos-kernels`, `keyed/block.rs`), and the tables that decode them.

use crate::allocation::{Limits, within};
use crate::number;
use arbitrary::{Result, Unstructured};
use skyphos_kernels::keyed::{KeyStore, Merge, Numbers, StringBatch, Strings, Table};
use skyphos_types::{Element, ReduceOp};

/// The input is a block of raw bytes, or draws a table whose block is changed or cut.
pub fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let (list, into_list, strings) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    let width = u.int_in_range(1..=3)?;
    match (strings, u.arbitrary()?) {
        (false, false) => check_block::<Numbers, f32>(u, (list, into_list), width),
        (false, true) => check_block::<Numbers, u8>(u, (list, into_list), width),
        (true, false) => check_block::<Strings, i64>(u, (list, into_list), width),
        (true, true) => check_block::<Strings, u8>(u, (list, into_list), width),
    }
}

/// A kind of keys that can be drawn from the input.
trait Drawn: KeyStore {
    fn add_drawn<T: Element>(u: &mut Unstructured<'_>, table: &mut Table<Self, T>) -> Result<()>;
}

impl Drawn for Numbers {
    fn add_drawn<T: Element>(u: &mut Unstructured<'_>, table: &mut Table<Numbers, T>) -> Result<()> {
        let keys: Vec<u64> = (0..u.int_in_range(0..=40)?).map(|_| number(u)).collect::<Result<_>>()?;
        table.count(&&keys[..]).expect("a batch");
        Ok(())
    }
}

impl Drawn for Strings {
    fn add_drawn<T: Element>(u: &mut Unstructured<'_>, table: &mut Table<Strings, T>) -> Result<()> {
        let (mut offsets, mut bytes) = (vec![0], Vec::new());
        for _ in 0..u.int_in_range(0..=40)? {
            let len = u.int_in_range(0..=5)?;
            bytes.extend_from_slice(u.bytes(len)?);
            offsets.push(bytes.len() as i64);
        }
        table.count(&StringBatch::new(&offsets, &bytes).expect("strings")).expect("a batch");
        Ok(())
    }
}

fn table<K: Drawn, T: Element>(list: bool, width: usize) -> Table<K, T> {
    let merge = if list { Merge::List } else { Merge::Fold(ReduceOp::Max) };
    Table::new(width, merge).expect("a table")
}

fn check_block<K: Drawn, T: Element>(
    u: &mut Unstructured<'_>,
    lists: (bool, bool),
    width: usize,
) -> Result<()> {
    let mut block = match u.ratio(3, 4)? {
        true => {
            let mut drawn = table::<K, T>(lists.0, width);
            K::add_drawn(u, &mut drawn)?;
            let mut block = drawn.blocks(&vec![0; drawn.len()], 1).remove(0);
            for _ in 0..u.int_in_range(0..=6)? {
                let at = u.choose_index(block.len().max(1))?;
                if let Some(byte) = block.get_mut(at) {
                    *byte = u.arbitrary()?;
                }
            }
            if u.ratio(1, 8)? {
                block.truncate(u.choose_index(block.len() + 1)?);
            }
            block
        }
        false => Vec::new(),
    };
    let more = if u.ratio(3, 4)? { 0 } else { u.len() };
    block.extend(u.bytes(more)?);
    let mut into = table::<K, T>(lists.1, width);
    // A key of one byte takes 8 bytes in a batch, 8 bytes in the table's list of keys, and a slot in its hash table.
    let limits = Limits { one: 64 * block.len() + 4096, all: 256 * block.len() + (64 << 10) };
    if within(limits, || into.add_block(&block)).is_err() {
        return Ok(());
    }
    let mut again = table::<K, T>(lists.1, width);
    for part in into.blocks(&into.owners(3), 3) {
        again.add_block(&part).expect("a block of ours");
    }
    assert_eq!(again.len(), into.len());
    let keys = into.len();
    let (_, rows, counts) = into.into_parts();
    let row_count = counts.map_or(keys as u64, |counts| counts.iter().sum());
    assert_eq!(rows.len() as u64, row_count * width as u64);
    let (_, others, _) = again.into_parts();
    assert_eq!(others.len(), rows.len());
    Ok(())
}
