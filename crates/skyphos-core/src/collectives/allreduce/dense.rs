//! Allreduce of dense arrays: three schedules that move the least bytes, 2 (P - 1)/P of the array each way.
//!
//! | | rounds | right for |
//! |---|---|---|
//! | [`direct`] | 2 | a switch between all ranks |
//! | [`rabenseifner`] | 2 ⌈log2 P⌉ (+ 2) | many ranks, medium sizes (Rabenseifner 2004) |
//! | [`ring`] | 2 (P - 1) | slow links between neighbours |
//!
//! In `direct` the two phases overlap: a block goes out as soon as it is reduced.

use crate::endpoint::{Endpoint, Incoming, Outgoing};
use crate::slab::{CHUNK_BYTES, Payload};
use skyphos_kernels::{fold_all, split_ranges};
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::collections::VecDeque;
use std::ops::Range;

/// Rounds of the phases (plus the step).
const REDUCE: u32 = 0x1000;
const GATHER: u32 = 0x100_0000;

/// Bytes reduced and sent at once.
const BLOCK_BYTES: usize = 64 * 1024;

/// Even ranges of `len` numbers, one a rank.
fn ranges(len: usize, parts: u32) -> Vec<Range<usize>> {
    split_ranges(0, len as u64, parts).windows(2).map(|w| w[0] as usize..w[1] as usize).collect()
}

fn finish<T: Element>(op: &ReduceOp, part: &mut [T], size: u32) {
    if matches!(op, ReduceOp::Mean | ReduceOp::MeanPresent) {
        // Of dense arrays every rank has every entry.
        part.iter_mut().for_each(|v| *v = v.divide(u64::from(size)));
    }
}

/// The numbers of a chunk, which must fit `range` after those before it.
fn numbers<'a, T: Element>(
    ep: &Endpoint,
    from: u32,
    chunk: &'a Payload,
    taken: usize,
    due: usize,
) -> Result<&'a [T]> {
    chunk.as_slice::<T>().filter(|n| taken + n.len() <= due).ok_or_else(|| Error::Corrupt {
        rank: ep.world_rank(from),
        message: format!("{} bytes after {taken} of {due} numbers", chunk.len()),
    })
}

/// What came of one source's copy of this rank's range.
struct Source {
    incoming: Incoming,
    chunks: VecDeque<Payload>,
    /// Numbers that came, and that were used: of all, and of the first chunk.
    came: usize,
    used: usize,
}

/// Reduces `values` of all ranks into `out`: each rank one range, sent to it by all, sent on by it to all.
pub async fn direct<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<()> {
    let (me, size) = (ep.rank(), ep.size());
    let ranges = ranges(values.len(), size);
    let mine = ranges[me as usize].clone();
    let bytes = |range: &Range<usize>| (range.len() * size_of::<T>()) as u64;
    let peers: Vec<u32> = (1..size).map(|step| (me + step) % size).collect();
    let mut scatter: Vec<Outgoing> =
        peers.iter().map(|p| Outgoing::new(*p, REDUCE, bytes(&ranges[*p as usize]))).collect();
    let mut spread: Vec<(Outgoing, usize)> =
        peers.iter().map(|p| (Outgoing::new(*p, GATHER, bytes(&mine)), 0)).collect();
    let mut sources: Vec<Option<Source>> = (0..size)
        .map(|rank| {
            (rank != me).then(|| Source {
                incoming: Incoming::new(rank, REDUCE),
                chunks: VecDeque::new(),
                came: 0,
                used: 0,
            })
        })
        .collect();
    let mut results: Vec<(Incoming, usize)> = peers.iter().map(|p| (Incoming::new(*p, GATHER), 0)).collect();
    // Reduced blocks on their way out, as many as the slowest peer has not been sent yet.
    let mut reduced: VecDeque<Payload> = VecDeque::new();
    let (mut first_block, mut done) = (0, 0);
    let block = (BLOCK_BYTES / size_of::<T>()).max(1);
    if mine.is_empty() {
        reduced.push_back(Payload::default());
    }
    loop {
        let mut moved = false;
        for (send, peer) in scatter.iter_mut().zip(&peers) {
            if let Some(range) = send.next_range(ep, CHUNK_BYTES) {
                let mut chunk = ep.chunk(range.len());
                let start = ranges[*peer as usize].start;
                let from = start + range.start / size_of::<T>()..start + range.end / size_of::<T>();
                chunk.as_slice_mut().copy_from_slice(&values[from]);
                send.push(ep, chunk);
                moved = true;
            }
        }
        for (rank, source) in sources.iter_mut().enumerate() {
            let Some(source) = source else { continue };
            while let Some(chunk) = source.incoming.next(ep)? {
                source.came += numbers::<T>(ep, rank as u32, &chunk, source.came, mine.len())?.len();
                if !chunk.is_empty() {
                    source.chunks.push_back(chunk);
                }
                moved = true;
            }
        }
        // Blocks that all sources have sent.
        let ready = sources.iter().flatten().map(|s| s.came).min().unwrap_or(mine.len());
        while done < mine.len() && (ready == mine.len() || done + block <= ready) {
            let end = (done + block).min(mine.len());
            let acc = &mut out[mine.start + done..mine.start + end];
            for (rank, source) in sources.iter_mut().enumerate() {
                match source {
                    None if rank == 0 => acc.copy_from_slice(&values[mine.start + done..mine.start + end]),
                    None => fold_all(op, acc, &values[mine.start + done..mine.start + end])?,
                    Some(source) => source.take(op, acc, rank == 0)?,
                }
            }
            finish(op, acc, size);
            let mut chunk = ep.chunk(size_of_val(acc));
            chunk.as_slice_mut().copy_from_slice(acc);
            reduced.push_back(chunk.freeze());
            (done, moved) = (end, true);
        }
        for (send, next) in &mut spread {
            if *next < first_block + reduced.len() && send.may_send(ep) {
                send.push_shared(ep, reduced[*next - first_block].clone());
                *next += 1;
                moved = true;
            }
        }
        let sent = spread.iter().map(|(_, next)| *next).min().unwrap_or(first_block);
        reduced.drain(..sent - first_block);
        first_block = sent;
        for ((incoming, taken), peer) in results.iter_mut().zip(&peers) {
            let theirs = ranges[*peer as usize].clone();
            while let Some(chunk) = incoming.next(ep)? {
                let numbers = numbers::<T>(ep, *peer, &chunk, *taken, theirs.len())?;
                out[theirs.start + *taken..][..numbers.len()].copy_from_slice(numbers);
                *taken += numbers.len();
                moved = true;
            }
        }
        let sent = scatter.iter().all(Outgoing::done) && spread.iter().all(|(send, _)| send.done());
        if sent && done == mine.len() && results.iter().all(|(incoming, _)| incoming.done()) {
            let whole = results.iter().zip(&peers).all(|((_, taken), p)| *taken == ranges[*p as usize].len());
            return match whole {
                true => Ok(()),
                false => Err(Error::bad_input("ranks do not agree how long their arrays are")),
            };
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

impl Source {
    /// Takes the next numbers into a block: the first source's are the block, the others' are added.
    fn take<T: Element>(&mut self, op: &ReduceOp, mut acc: &mut [T], first: bool) -> Result<()> {
        while !acc.is_empty() {
            let chunk = self.chunks.front().expect("numbers that came");
            let numbers = &chunk.as_slice::<T>().expect("checked as it came")[self.used..];
            let count = numbers.len().min(acc.len());
            let (here, rest) = acc.split_at_mut(count);
            match first {
                true => here.copy_from_slice(&numbers[..count]),
                false => fold_all(op, here, &numbers[..count])?,
            }
            acc = rest;
            self.used += count;
            if count == numbers.len() {
                self.chunks.pop_front();
                self.used = 0;
            }
        }
        Ok(())
    }
}

/// Sends one range of `array` and takes another: over what is there, or added to it.
async fn swap<T: Element>(
    ep: &Endpoint,
    round: u32,
    array: &mut [T],
    send: Option<(u32, Range<usize>)>,
    take: Option<(u32, Range<usize>)>,
    add: Option<&ReduceOp>,
) -> Result<()> {
    let mut out =
        send.map(|(to, range)| (Outgoing::new(to, round, (range.len() * size_of::<T>()) as u64), range));
    let mut incoming = take.map(|(from, range)| (Incoming::new(from, round), from, range, 0));
    loop {
        let mut moved = false;
        if let Some((send, range)) = &mut out {
            while let Some(bytes) = send.next_range(ep, CHUNK_BYTES) {
                let mut chunk = ep.chunk(bytes.len());
                let start = range.start + bytes.start / size_of::<T>();
                chunk.as_slice_mut().copy_from_slice(&array[start..start + bytes.len() / size_of::<T>()]);
                send.push(ep, chunk);
                moved = true;
            }
        }
        if let Some((incoming, from, range, taken)) = &mut incoming {
            while let Some(chunk) = incoming.next(ep)? {
                let numbers = numbers::<T>(ep, *from, &chunk, *taken, range.len())?;
                let here = &mut array[range.start + *taken..][..numbers.len()];
                match add {
                    None => here.copy_from_slice(numbers),
                    Some(op) => fold_all(op, here, numbers)?,
                }
                *taken += numbers.len();
                moved = true;
            }
        }
        let received = incoming.as_ref().is_none_or(|(incoming, ..)| incoming.done());
        if out.as_ref().is_none_or(|(send, _)| send.done()) && received {
            return match incoming {
                Some((_, from, range, taken)) if taken != range.len() => Err(Error::Corrupt {
                    rank: ep.world_rank(from),
                    message: format!("{taken} numbers where {} are due", range.len()),
                }),
                _ => Ok(()),
            };
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

/// Reduces `array` of all ranks in place, around a ring.
pub async fn ring<T: Element>(ep: &Endpoint, op: &ReduceOp, array: &mut [T]) -> Result<()> {
    let (me, size) = (ep.rank() as usize, ep.size() as usize);
    let (next, before) = (((me + 1) % size) as u32, ((me + size - 1) % size) as u32);
    let ranges = ranges(array.len(), size as u32);
    for step in 1..size {
        let (out, part) =
            (ranges[(me + size - step) % size].clone(), ranges[(me + 2 * size - step - 1) % size].clone());
        swap(ep, REDUCE + step as u32, array, Some((next, out)), Some((before, part)), Some(op)).await?;
    }
    finish(op, &mut array[ranges[me].clone()], size as u32);
    for step in 1..size {
        let (out, part) =
            (ranges[(me + size - step + 1) % size].clone(), ranges[(me + size - step) % size].clone());
        swap(ep, GATHER + step as u32, array, Some((next, out)), Some((before, part)), None).await?;
    }
    Ok(())
}

/// Reduces `array` of all ranks in place, by recursive halving and doubling; ranks beyond the largest power of
/// two hand theirs to a partner first and get the result last.
pub async fn rabenseifner<T: Element>(ep: &Endpoint, op: &ReduceOp, array: &mut [T]) -> Result<()> {
    let (me, size) = (ep.rank(), ep.size());
    let core = 1 << size.ilog2();
    let all = 0..array.len();
    if me >= core {
        swap(ep, REDUCE, array, Some((me - core, all.clone())), None, None).await?;
        return swap(ep, GATHER, array, None, Some((me - core, all)), None).await;
    }
    if me + core < size {
        swap(ep, REDUCE, array, None, Some((me + core, all.clone())), Some(op)).await?;
    }
    let parts = ranges(array.len(), core);
    let span = |first: u32, count: u32| parts[first as usize].start..parts[(first + count - 1) as usize].end;
    // The parts held, halved each time.
    let (mut first, mut count, mut round) = (0, core, 1);
    while count > 1 {
        let (half, upper) = (count / 2, me & (count / 2) != 0);
        let (keep, give) = if upper { (first + half, first) } else { (first, first + half) };
        let (send, take) = ((me ^ half, span(give, half)), (me ^ half, span(keep, half)));
        swap(ep, REDUCE + round, array, Some(send), Some(take), Some(op)).await?;
        (first, count, round) = (keep, half, round + 1);
    }
    finish(op, &mut array[span(first, 1)], size);
    while count < core {
        let theirs = first ^ count;
        let (send, take) = ((me ^ count, span(first, count)), (me ^ count, span(theirs, count)));
        swap(ep, GATHER + round, array, Some(send), Some(take), None).await?;
        (first, count, round) = (first.min(theirs), count * 2, round + 1);
    }
    if me + core < size {
        swap(ep, GATHER, array, Some((me + core, all)), None, None).await?;
    }
    Ok(())
}
