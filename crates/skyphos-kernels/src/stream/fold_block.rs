//! Fold of one source's entries into one block of positions (`fold.rs`).

use super::bitmap::{mark_word, take_word};
use super::segment::Segment;
use super::source::Source;
use crate::simd;
use skyphos_types::Element;

/// Resets rows to the identity: all, or only the marked ones.
#[inline(always)]
pub(super) fn clear<T: Copy>(rows: &mut [T], marks: Option<&[u8]>, width: usize, identity: T) {
    let Some(marks) = marks else { return rows.fill(identity) };
    for (row, mark) in rows.chunks_exact_mut(width).zip(marks) {
        if *mark != 0 {
            row.fill(identity);
        }
    }
}

/// A block of positions under reduction.
pub(super) struct Block<'a, T> {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) width: usize,
    pub(super) rows: &'a mut [T],
    pub(super) marks: &'a mut [u8],
    pub(super) counts: &'a mut [u32],
}

/// Folds a source's entries in the block.
#[inline(always)]
pub(super) fn fold_source<T: Element, B: AsRef<[u8]>>(
    source: &mut Source<B>,
    block: &mut Block<'_, T>,
    op: impl Fn(T, T) -> T + Copy,
    hi: u64,
    identity: T,
) -> Result<(), &'static str> {
    let (row, width, isa) = (block.width * size_of::<T>(), block.width, simd::detected());
    while let Some(index) = source.peek(row, hi)? {
        if index >= block.end {
            break;
        }
        let bytes = source.segments.front().expect("peek found an entry");
        let segment = Segment::parse(bytes.as_ref(), row, 0, hi)?;
        let (base, limit) = (segment.head.first, block.end - segment.head.first);
        let values = &segment.values::<T>()[source.entry * width..];
        let taken = if source.run.1 > 0 {
            let (start, count) = ((base + source.run.0 - block.first) as usize, source.run.1);
            let count = count.min((limit - source.run.0) as usize);
            fold_run(block, start, count, values, op);
            source.run = (source.run.0 + count as u64, source.run.1 - count);
            count
        } else if source.word.1 != 0 {
            let mut taken = 0;
            while source.word.0 < limit {
                let (at, bits) = source.word;
                // Words and blocks may begin at different positions.
                let in_block = if at + 64 <= limit { bits } else { bits & ((1 << (limit - at)) - 1) };
                let skip = block.first.saturating_sub(base + at);
                let start = (base + at + skip - block.first) as usize;
                take_word(isa, in_block >> skip, &values[taken..], &mut block.rows[start..], identity, op);
                mark_word(isa, in_block >> skip, &mut block.marks[start..]);
                taken += in_block.count_ones() as usize;
                source.word.1 = bits & !in_block;
                if source.word.1 != 0 {
                    break;
                }
                match source.reader.step_word(&segment)? {
                    Some(word) => source.word = word,
                    None => break,
                }
            }
            taken
        } else {
            let offsets = &source.offsets[source.used..source.listed];
            let all = offsets[offsets.len() - 1] < limit;
            let count = if all { offsets.len() } else { offsets.partition_point(|o| *o < limit) };
            fold_listed(block, base.wrapping_sub(block.first), &offsets[..count], values, op);
            source.used += count;
            count
        };
        source.entry += taken;
    }
    Ok(())
}

#[inline(always)]
fn fold_run<T: Element>(
    block: &mut Block<'_, T>,
    start: usize,
    count: usize,
    values: &[T],
    op: impl Fn(T, T) -> T + Copy,
) {
    let width = block.width;
    block.marks[start..start + count].fill(1);
    let rows = &mut block.rows[start * width..(start + count) * width];
    rows.iter_mut().zip(values).for_each(|(a, v)| *a = op(*a, *v));
    if !block.counts.is_empty() {
        block.counts[start..start + count].iter_mut().for_each(|c| *c += 1);
    }
}

/// Entries that are tested together for being consecutive.
const STRETCH: usize = 16;

/// Folds entries at these offsets; `shift` plus an offset is the position in the block.
#[inline(always)]
fn fold_listed<T: Element>(
    block: &mut Block<'_, T>,
    shift: u64,
    offsets: &[u64],
    values: &[T],
    op: impl Fn(T, T) -> T + Copy,
) {
    let width = block.width;
    let rows = &mut *block.rows;
    if width == 1 {
        let mut at = 0;
        for offsets in offsets.chunks(STRETCH) {
            let (values, start) = (&values[at..at + offsets.len()], offsets[0].wrapping_add(shift) as usize);
            at += offsets.len();
            // Offsets ascend, so their ends prove whether they are consecutive.
            if offsets.len() == STRETCH && offsets[STRETCH - 1] - offsets[0] == STRETCH as u64 - 1 {
                block.marks[start..start + STRETCH].fill(1);
                let rows = &mut rows[start..start + STRETCH];
                rows.iter_mut().zip(values).for_each(|(a, v)| *a = op(*a, *v));
                continue;
            }
            for (offset, value) in offsets.iter().zip(values) {
                let at = offset.wrapping_add(shift) as usize;
                block.marks[at] = 1;
                rows[at] = op(rows[at], *value);
            }
        }
    } else {
        for (offset, values) in offsets.iter().zip(values.chunks_exact(width)) {
            let at = offset.wrapping_add(shift) as usize;
            block.marks[at] = 1;
            let row = &mut rows[at * width..(at + 1) * width];
            row.iter_mut().zip(values).for_each(|(a, v)| *a = op(*a, *v));
        }
    }
    if !block.counts.is_empty() {
        offsets.iter().for_each(|offset| block.counts[offset.wrapping_add(shift) as usize] += 1);
    }
}
