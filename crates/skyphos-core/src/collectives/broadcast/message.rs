//! A message of several parts: its table on the wire, and its bytes as one stretch.

use super::route::{Route, SMALL_BYTES, Way};
use crate::endpoint::Endpoint;
use crate::host_region::HostCopy;
use skyphos_types::{Error, Result};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

/// Memory at a rank for a message's parts.
pub trait Room: Send + Sync {
    /// Makes room for parts of these lengths. Called once, first.
    ///
    /// # Errors
    /// There is none.
    fn make(&mut self, lengths: &[usize]) -> Result<()>;

    /// Puts bytes at a place of the stretch that all parts form, which is within it. Each place is put once.
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// Copies what was put there.
    fn copy_out(&self, at: usize, bytes: &mut [u8]);

    /// Takes, in place of all that, memory that the ranks of this host share, and where in it the parts are.
    fn share(&mut self, copy: HostCopy, parts: Vec<Range<usize>>);
}

/// Ranges that have come, in order and apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Range<usize>>);

impl Ranges {
    /// One more.
    pub(super) fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // All that touch it become one.
        let first = self.0.partition_point(|one| one.end < range.start);
        let after = self.0.partition_point(|one| one.start <= range.end);
        let joined = self.0[first..after]
            .iter()
            .fold(range, |all, one| all.start.min(one.start)..all.end.max(one.end));
        self.0.splice(first..after, [joined]);
    }

    /// Whether all of a range is among them.
    pub(super) fn covers(&self, range: &Range<usize>) -> bool {
        let at = self.0.partition_point(|one| one.end < range.end);
        range.is_empty() || self.0.get(at).is_some_and(|one| one.start <= range.start)
    }
}

/// Where parts lie in the stretch that they form.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Where each begins, and the end.
    starts: Vec<usize>,
}

impl Layout {
    /// Of parts of these lengths.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Layout {
        let mut starts = vec![0];
        lengths.into_iter().for_each(|len| starts.push(starts[starts.len() - 1] + len));
        Layout { starts }
    }

    /// Bytes of all.
    pub fn total(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// What of each part lies in a range of the stretch: its number, the range in it, and in that range.
    pub fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
        let first = self.starts.partition_point(|start| *start <= range.start).saturating_sub(1);
        let ends = self.starts.windows(2).enumerate().skip(first);
        let within = ends.take_while({
            let end = range.end;
            move |(_, part)| part[0] < end
        });
        within.filter_map(move |(number, part)| {
            let (from, to) = (range.start.max(part[0]), range.end.min(part[1]));
            (from < to).then(|| (number, from - part[0]..to - part[0], from - range.start..to - range.start))
        })
    }
}

/// Several stretches of memory as one.
pub struct Parts<P> {
    parts: Vec<P>,
    layout: Layout,
}

impl<P: AsRef<[u8]>> Parts<P> {
    /// Of these, in order.
    pub fn of(parts: impl IntoIterator<Item = P>) -> Parts<P> {
        let parts: Vec<P> = parts.into_iter().collect();
        let layout = Layout::new(parts.iter().map(|part| part.as_ref().len()));
        Parts { parts, layout }
    }

    /// All in one.
    pub fn joined(&self) -> Vec<u8> {
        self.parts.iter().flat_map(|part| part.as_ref()).copied().collect()
    }
}

impl<P: AsRef<[u8]>> Parts<P> {
    /// Bytes of all.
    pub fn total(&self) -> usize {
        self.layout.total()
    }

    /// Copies some of them.
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            bytes[range].copy_from_slice(&self.parts[part].as_ref()[here]);
        }
    }
}

/// What a root has.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The parts.
    Parts(&'a [&'a [u8]]),
    /// How long they would be, in a simulation without data.
    Counted(&'a [usize]),
}

impl<'a> Source<'a> {
    /// Bytes of each part.
    pub fn lengths(self) -> Vec<usize> {
        match self {
            Source::Parts(parts) => parts.iter().map(|part| part.len()).collect(),
            Source::Counted(lengths) => lengths.to_vec(),
        }
    }

    /// The parts, if they are there, which replicas of this rank are told of.
    pub(super) fn vouched_parts(self, ep: &Endpoint) -> Result<Option<Parts<&'a [u8]>>> {
        match self {
            Source::Parts(parts) => {
                ep.vouch(|sum| parts.iter().for_each(|part| sum.bytes(part)));
                Ok(Some(Parts::of(parts.iter().copied())))
            }
            Source::Counted(_) if ep.is_sized() => Ok(None),
            Source::Counted(_) => {
                Err(Error::bad_input("lengths stand for a broadcast's bytes only where nobody has bytes"))
            }
        }
    }
}

/// A part of a message that has come.
pub enum Part {
    /// In memory of its own.
    Own(Vec<u8>),
    /// In memory that ranks of the host share, of which pages that are written to become this rank's own.
    Shared(Arc<HostCopy>, Range<usize>),
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        match self {
            Part::Own(bytes) => bytes,
            // SAFETY: within the mapping, which nobody writes while it is borrowed.
            Part::Shared(copy, range) => unsafe {
                std::slice::from_raw_parts(copy.at(range.clone()), range.len())
            },
        }
    }
}

/// A [`Room`] in memory of its own, which is not written before the message is.
#[derive(Default)]
pub struct Memory {
    parts: Vec<Vec<MaybeUninit<u8>>>,
    layout: Layout,
    /// Bytes that were put.
    came: usize,
    shared: Option<(HostCopy, Vec<Range<usize>>)>,
}

impl Memory {
    /// The parts, once a broadcast has brought all of them; nothing before.
    pub fn into_parts(self) -> Vec<Part> {
        if let Some((copy, ranges)) = self.shared {
            let copy = Arc::new(copy);
            return ranges.into_iter().map(|range| Part::Shared(copy.clone(), range)).collect();
        }
        let whole = self.came == self.layout.total();
        let parts = self.parts.into_iter().filter(|_| whole);
        parts
            .map(|part| {
                let mut part = std::mem::ManuallyDrop::new(part);
                // SAFETY: as many bytes as were put, each place once, are all; they have the layout of the memory they lie in.
                let part =
                    unsafe { Vec::from_raw_parts(part.as_mut_ptr().cast(), part.len(), part.capacity()) };
                Part::Own(part)
            })
            .collect()
    }
}

impl Room for Memory {
    fn make(&mut self, lengths: &[usize]) -> Result<()> {
        self.layout = Layout::new(lengths.iter().copied());
        self.came = 0;
        self.parts.clear();
        for len in lengths {
            let mut part = Vec::new();
            if part.try_reserve_exact(*len).is_err() {
                return Err(Error::bad_input(format!("there is no memory for {len} bytes of a broadcast")));
            }
            // SAFETY: there is so much room, and what may hold anything may hold what is there.
            unsafe { part.set_len(*len) };
            self.parts.push(part);
        }
        Ok(())
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.came += bytes.len();
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            let (to, from) = (&mut self.parts[part][here], &bytes[range]);
            // SAFETY: as many bytes, of two pieces of memory.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
        }
    }
    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            let (from, to) = (&self.parts[part][here], &mut bytes[range]);
            // SAFETY: as many bytes, which were put there, of two pieces of memory.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_mut_ptr(), to.len()) };
        }
    }

    fn share(&mut self, copy: HostCopy, parts: Vec<Range<usize>>) {
        self.shared = Some((copy, parts));
    }
}

/// What goes before the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) way: Way,
    pub(super) lengths: Vec<usize>,
}

/// Route, and numbers of 8 bytes: the chunk's length, how many parts there are, and the length of each.
const HEAD_BYTES: usize = 24;

impl Table {
    pub(super) fn new(way: Way, lengths: Vec<usize>) -> Table {
        Table { way, lengths }
    }

    /// Bytes of all parts.
    pub(super) fn total(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Whether the parts go with it.
    pub(super) fn is_small(&self) -> bool {
        self.total() <= SMALL_BYTES
    }

    /// As bytes, before what goes with it.
    pub(super) fn encode(&self, inside: &[u8]) -> Vec<u8> {
        let numbers = [self.way.route as usize, self.way.chunk_bytes, self.lengths.len()];
        let all = numbers.iter().chain(&self.lengths).flat_map(|number| (*number as u64).to_le_bytes());
        all.chain(inside.iter().copied()).collect()
    }

    /// The table, and what came with it; `None` if it is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Table, &[u8])> {
        let number = |at: usize| -> Option<usize> {
            let eight = bytes.get(at..at.checked_add(8)?)?;
            usize::try_from(u64::from_le_bytes(eight.try_into().ok()?)).ok()
        };
        let route = Route::from_code(u8::try_from(number(0)?).ok()?)?;
        let (chunk_bytes, count) = (number(8)?, number(16)?);
        let end = count.checked_mul(8)?.checked_add(HEAD_BYTES).filter(|end| *end <= bytes.len())?;
        let lengths: Vec<usize> = (0..count).map(|k| number(HEAD_BYTES + 8 * k)).collect::<Option<_>>()?;
        lengths.iter().try_fold(0usize, |sum, len| sum.checked_add(*len))?;
        let way = Way { route, chunk_bytes: Some(chunk_bytes).filter(|bytes| *bytes > 0)? };
        Some((Table { way, lengths }, &bytes[end..]))
    }
}

/// The table of a broadcast and what came with it, encoded again.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_table(bytes: &[u8]) -> Option<Vec<u8>> {
    Table::decode(bytes).map(|(table, inside)| table.encode(inside))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_the_bytes_they_hold(
            all in prop::collection::vec((0usize..40, 0usize..12), 0..20),
            asked in (0usize..40, 0usize..12),
        ) {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 60]);
            for (start, len) in all {
                ranges.add(start..start + len);
                bytes[start..start + len].fill(true);
            }
            let asked = asked.0..asked.0 + asked.1;
            prop_assert_eq!(ranges.covers(&asked), bytes[asked.clone()].iter().all(|here| *here));
            prop_assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn parts_are_one_stretch(
            lengths in prop::collection::vec(0usize..20, 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
        ) {
            let mut next = 0u8;
            let whole: Vec<Vec<u8>> = lengths
                .iter()
                .map(|len| (0..*len).map(|_| { next = next.wrapping_add(1); next }).collect())
                .collect();
            let parts = Parts::of(&whole);
            let joined: Vec<u8> = whole.concat();
            prop_assert_eq!(parts.total(), joined.len());
            prop_assert_eq!(&parts.joined(), &joined);
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(joined.len() + 1)).collect();
            ends.extend([0, joined.len()]);
            ends.sort_unstable();
            let mut copy = Memory::default();
            copy.make(&lengths).unwrap();
            for cut in ends.windows(2) {
                let mut bytes = vec![0; cut[1] - cut[0]];
                parts.copy_out(cut[0], &mut bytes);
                prop_assert_eq!(&bytes[..], &joined[cut[0]..cut[1]]);
                copy.put(cut[0], &bytes);
            }
            let came: Vec<Vec<u8>> = copy.into_parts().iter().map(|part| part.as_ref().to_vec()).collect();
            prop_assert_eq!(came, whole);
        }

        #[test]
        fn tables_come_back(
            lengths in prop::collection::vec(0usize..1 << 40, 0..20),
            route in prop::sample::select(&Route::ALL[..]),
            inside in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let table = Table::new(Way { route, chunk_bytes: 77 }, lengths);
            let bytes = table.encode(&inside);
            prop_assert_eq!(Table::decode(&bytes), Some((table, &inside[..])));
        }

        #[test]
        fn other_bytes_are_no_table(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some((table, inside)) = Table::decode(&bytes) {
                prop_assert_eq!(table.encode(inside), bytes);
            }
        }
    }
}
