//! The k largest entries of a sum of sparse vectors, with O(k) words per rank (Ok-Topk: Li & Hoefler, PPoPP 2022, §3).
//!
//! ```text
//! split:    cut the index space into ranges of about equally many entries; each rank reduces its range
//! select:   find the k-th largest magnitude of all ranges, digit by digit, from the ranks' histograms
//! balance:  if one rank has more than twice its share of the k entries, move entries until each rank has k/P
//! gather:   allgather of the entries
//! ```
//!
//! **Bound.** No rank sends or receives more than 6k words of entries, where an index or a value is a word: 2k + 4k/P in the
//! split, because ranges are cut again with a larger sample until none gets more than k + 2k/P entries; then either
//! 4k (P - 1)/P in the gather, or 2k to balance and 2k (P - 1)/P in the gather. Control messages come on top: a histogram
//! of 256 counts for each byte of the magnitude, and the samples. Indices are packed, so the bytes are fewer still.
//!
//! The paper estimates thresholds from earlier calls. Here both selections are exact: the result has the min(k, entries)
//! largest sums, among equal magnitudes those of lower index, and the same bits on all ranks.
//! Cost: 2 (P - 1) to 3 (P - 1) α, and (bytes of the type + 3) ⌈log2 P⌉ α for control.

use crate::butterfly::layers_by_rank;
use crate::collectives::allgather::{allgather_counts, allgather_numbers};
use crate::collectives::allreduce::butterfly::{Reduced, allgather_parts, reduce_scatter};
use crate::collectives::equal_entry_bounds;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::{Assembler, ReducedRange, ReductionParams, encode, exchange};
use skyphos_kernels::Magnitude;
use skyphos_kernels::stream::{Form, IndexList, View};
use skyphos_types::{Result, Round};

/// First rounds of the phases, each followed by free numbers for ⌈log2 P⌉ rounds or for layers.
const COUNT: Round = Round(0x600);
const DIGIT: Round = Round(0x700);
const SELECTED: Round = Round(0x800);
const BALANCE: Round = Round(0x900);
const FIRST_INDEX: Round = Round(0xa00);

/// Distance between the rounds of two attempts at a cut, and between those of two digits.
const STEP: u32 = 0x1_0000;

/// Rounds from a cut's samples to its counts: more than the ⌈log2 P⌉ rounds that the samples take.
const CUT_ROUNDS: u32 = 32;

/// Number of values that a digit of a magnitude, a byte, can have.
const DIGIT_VALUES: usize = 256;

/// The result, and its traffic.
pub struct Selected<T> {
    /// The entries, sparse.
    pub form: Form<T>,
    /// Words of entries that this rank sent.
    pub sent_words: u64,
    /// Words of entries that this rank received.
    pub received_words: u64,
}

/// The `k` largest entries of the sum of all ranks' vectors. Each vector has at most `k` entries, of one number each.
pub async fn topk_allreduce<T: Magnitude>(
    ep: &Endpoint,
    view: View<'_, T>,
    params: ReductionParams<'_>,
    k: u64,
) -> Result<Selected<T>> {
    let (me, size) = (ep.rank().index(), u64::from(ep.size()));
    let (bounds, counts) = balanced_bounds(ep, view, params.n, k).await?;
    let own: u64 = counts[me][me];
    let (mut sent, mut received) =
        (counts[me].iter().sum::<u64>() - own, counts.iter().map(|to| to[me]).sum::<u64>() - own);
    let all = layers_by_rank(&[ep.size()], ep.rank().0);
    let Reduced { part, bounds } = reduce_scatter(ep, view, params, &all, bounds).await?;
    let part = select_largest(ep, part, k).await?;
    let selected: Vec<u64> = allgather_counts(ep, SELECTED, &[part.view().nnz(1) as u64]).await?.concat();
    let total: u64 = selected.iter().sum();
    let unbalanced = selected.iter().any(|count| *count * size > 2 * total.max(size));
    let (part, bounds, moved) =
        if unbalanced { balance(ep, part, &selected, params).await? } else { (part, bounds, (0, 0)) };
    let mine = part.view().nnz(1) as u64;
    let form = allgather_parts(ep, &Reduced { part, bounds }, params, &all).await?;
    sent += moved.0 + mine * (size - 1);
    received += moved.1 + (total - mine);
    Ok(Selected { form, sent_words: 2 * sent, received_words: 2 * received })
}

/// Cuts the index space so that no range gets more than k + 2k/P entries (or P, if that is more: an index may have an entry on
/// every rank). Returns the bounds, and the numbers of entries by sender and receiver.
async fn balanced_bounds<T: Magnitude>(
    ep: &Endpoint,
    view: View<'_, T>,
    n: u64,
    k: u64,
) -> Result<(Vec<u64>, Vec<Vec<u64>>)> {
    let size = u64::from(ep.size());
    let View::Sparse { indices, .. } = view else { unreachable!("a selection is sparse") };
    let max_entries = (k + 2 * k / size).max(size);
    let (mut samples, mut round) = (64, COUNT);
    loop {
        let bounds = equal_entry_bounds(ep, round, view, n, samples).await?;
        let starts: Vec<u64> = bounds.iter().map(|b| indices.before(*b) as u64).collect();
        let mine: Vec<u64> = starts.windows(2).map(|w| w[1] - w[0]).collect();
        let counts = allgather_counts(ep, round + CUT_ROUNDS, &mine).await?;
        let largest = (0..size as usize).map(|to| counts.iter().map(|c| c[to]).sum()).max().unwrap_or(0);
        // A sample of every entry cannot be improved.
        if largest <= max_entries || samples as u64 >= k {
            return Ok((bounds, counts));
        }
        (samples, round) = (samples * 4, round + STEP);
    }
}

/// Reduces a part to its entries among the k largest of all parts.
async fn select_largest<T: Magnitude>(
    ep: &Endpoint,
    part: ReducedRange<T>,
    k: u64,
) -> Result<ReducedRange<T>> {
    let Form::Sparse { indices, values } = part.form else { unreachable!("reduced parts are sparse") };
    let keys: Vec<i64> = values.iter().map(|v| v.magnitude().into()).collect();
    let (mut prefix, mut left) = (0i64, k);
    let digits = size_of::<T>();
    // How many of this part's entries of the k-th largest magnitude are selected.
    let mut ties = u64::MAX;
    for digit in (0..digits).rev() {
        let shift = digit * 8;
        let mut histogram = vec![0u64; DIGIT_VALUES];
        for key in keys.iter().filter(|key| **key >> shift >> 8 == prefix) {
            histogram[(*key >> shift) as usize & (DIGIT_VALUES - 1)] += 1;
        }
        let all = allgather_counts(ep, DIGIT + STEP * digit as u32, &histogram).await?;
        let (mut above, mut chosen) = (0, None);
        for value in (0..DIGIT_VALUES).rev() {
            let count: u64 = all.iter().map(|h| h[value]).sum();
            if above + count >= left {
                chosen = Some(value);
                break;
            }
            above += count;
        }
        // Fewer than k entries in all: every entry is selected.
        let Some(value) = chosen else {
            return Ok(ReducedRange { form: Form::Sparse { indices, values }, ..part });
        };
        (prefix, left) = (prefix << 8 | value as i64, left - above);
        let before: u64 = all[..ep.rank().index()].iter().map(|h| h[value]).sum();
        ties = left.saturating_sub(before);
    }
    let mut selected = Vec::new();
    for (entry, key) in keys.iter().enumerate() {
        if *key > prefix {
            selected.push(entry);
        } else if *key == prefix && ties > 0 {
            ties -= 1;
            selected.push(entry);
        }
    }
    let values = selected.iter().map(|entry| values[*entry]).collect();
    let form = Form::Sparse { indices: indices.pick(&selected), values };
    Ok(ReducedRange { form, ..part })
}

/// Moves entries so that every rank has an even share of them, in the order of indices. `entries`: how many entries each
/// rank has before. Returns the new part, the new bounds, and the numbers of entries that this rank sent and received.
async fn balance<T: Magnitude>(
    ep: &Endpoint,
    part: ReducedRange<T>,
    entries: &[u64],
    params: ReductionParams<'_>,
) -> Result<(ReducedRange<T>, Vec<u64>, (u64, u64))> {
    let (me, size) = (ep.rank().index(), entries.len());
    let total: u64 = entries.iter().sum();
    let share = |rank: usize| total * rank as u64 / size as u64;
    let start_of = |rank: usize| entries[..rank].iter().sum::<u64>();
    // The range of entries, numbered across all ranks, that move from one rank to another.
    let common = |from: usize, to: usize| {
        let (lo, hi) = (start_of(from).max(share(to)), start_of(from + 1).min(share(to + 1)));
        (lo < hi).then_some((lo, hi))
    };
    let Form::Sparse { indices, values } = &part.form else { unreachable!("reduced parts are sparse") };
    let list = indices.to_vec();
    let piece = |to: usize| {
        let (lo, hi) = common(me, to)?;
        let (lo, hi) = ((lo - start_of(me)) as usize, (hi - start_of(me)) as usize);
        let view = View::Sparse { indices: (&list[lo..hi]).into(), values: &values[lo..hi] };
        Some(encode(ep, view, 1, 0, 0, params.n))
    };
    let pieces: Vec<(u32, Vec<Payload>)> = (0..size).filter_map(|to| Some((to as u32, piece(to)?))).collect();
    let sends: Vec<(u32, &[Payload])> =
        pieces.iter().filter(|(to, _)| *to as usize != me).map(|(to, p)| (*to, p.as_slice())).collect();
    let sources: Vec<u32> =
        (0..size).filter(|from| *from != me && common(*from, me).is_some()).map(|r| r as u32).collect();
    let mut received: Vec<(u32, Vec<Payload>)> = sources.iter().map(|from| (*from, Vec::new())).collect();
    exchange(ep, BALANCE, &sends, &sources, |j, segment| {
        received[j].1.push(segment);
        Ok(())
    })
    .await?;
    received.extend(pieces.iter().find(|(to, _)| *to as usize == me).cloned());
    received.sort_unstable_by_key(|(from, _)| *from);
    let (mut all_indices, mut all_values) = (Vec::new(), Vec::new());
    for (from, segments) in &received {
        let mut whole = Assembler::new(&[0, params.n], params.shape, T::ZERO);
        whole.take_all(ep, *from, 0, segments)?;
        let Form::Sparse { indices, values } = whole.finish() else {
            unreachable!("reduced parts are sparse")
        };
        all_indices.extend(indices.to_vec());
        all_values.extend(values);
    }
    // The range of a rank without entries is empty: it begins where the next rank's begins.
    let first = all_indices.first().copied().unwrap_or(u64::MAX);
    let mut bounds: Vec<u64> = allgather_numbers(ep, FIRST_INDEX, &[first]).await?.concat();
    bounds.push(params.n);
    for rank in (0..size).rev() {
        bounds[rank] = bounds[rank].min(bounds[rank + 1]);
    }
    bounds[0] = 0;
    let moved = |to_me: bool| -> u64 {
        (0..size)
            .filter(|r| *r != me)
            .filter_map(|r| if to_me { common(r, me) } else { common(me, r) })
            .map(|(lo, hi)| hi - lo)
            .sum()
    };
    let counts = (moved(false), moved(true));
    let indices = match params.shape.wide {
        true => IndexList::Wide(all_indices),
        false => IndexList::Narrow(all_indices.iter().map(|i| *i as u32).collect()),
    };
    let form = Form::Sparse { indices, values: all_values };
    Ok((ReducedRange { lo: bounds[me], hi: bounds[me + 1], form, counts: Vec::new() }, bounds, counts))
}
