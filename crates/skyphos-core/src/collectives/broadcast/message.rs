//! A message of several parts: its table on the wire, and its bytes, numbered through all parts.
//!
//! An *offset* here counts bytes from the first byte of the first part, as if the parts were joined.

use super::route::{Route, SMALL_BYTES, Way};
use crate::endpoint::Endpoint;
use crate::host_region::HostCopy;
use skyphos_types::{Error, Result};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

/// A receiving rank's memory for a message's parts.
pub trait Room: Send + Sync {
    /// Allocates memory for parts of these lengths. Called once, before all else.
    ///
    /// # Errors
    /// There is not enough memory.
    fn make(&mut self, lengths: &[usize]) -> Result<()>;

    /// Stores bytes at an offset. They fit the message, and each offset is stored once.
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// Copies bytes from an offset where they were stored before.
    fn copy_out(&self, at: usize, bytes: &mut [u8]);

    /// Takes the whole message as a mapping of memory that this host's ranks share, with the range of each part.
    fn share(&mut self, copy: HostCopy, parts: Vec<Range<usize>>);
}

/// A set of offsets, as ascending ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Range<usize>>);

impl Ranges {
    /// Adds a range.
    pub(super) fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // The range, and all that overlap or touch it, become one.
        let first = self.0.partition_point(|one| one.end < range.start);
        let after = self.0.partition_point(|one| one.start <= range.end);
        let joined = self.0[first..after]
            .iter()
            .fold(range, |all, one| all.start.min(one.start)..all.end.max(one.end));
        self.0.splice(first..after, [joined]);
    }

    /// Whether a range is a subset.
    pub(super) fn covers(&self, range: &Range<usize>) -> bool {
        let at = self.0.partition_point(|one| one.end < range.end);
        range.is_empty() || self.0.get(at).is_some_and(|one| one.start <= range.start)
    }
}

/// The offsets of parts.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The first offset of each part, and the end of the last.
    starts: Vec<usize>,
}

impl Layout {
    /// The layout of parts of these lengths.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Layout {
        let mut starts = vec![0];
        lengths.into_iter().for_each(|len| starts.push(starts[starts.len() - 1] + len));
        Layout { starts }
    }

    /// Bytes of all parts.
    pub fn total(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Cuts a range of offsets by part: a part's number, the bytes within the part, and the bytes within the range.
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

/// Several pieces of memory, read as if they were joined.
pub struct Parts<P> {
    parts: Vec<P>,
    layout: Layout,
}

impl<P: AsRef<[u8]>> Parts<P> {
    /// Joins parts in order, without a copy.
    pub fn of(parts: impl IntoIterator<Item = P>) -> Parts<P> {
        let parts: Vec<P> = parts.into_iter().collect();
        let layout = Layout::new(parts.iter().map(|part| part.as_ref().len()));
        Parts { parts, layout }
    }

    /// A copy of all bytes.
    pub fn joined(&self) -> Vec<u8> {
        self.parts.iter().flat_map(|part| part.as_ref()).copied().collect()
    }

    /// Bytes of all parts.
    pub fn total(&self) -> usize {
        self.layout.total()
    }

    /// Copies bytes from an offset.
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            bytes[range].copy_from_slice(&self.parts[part].as_ref()[here]);
        }
    }
}

/// The root's message.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The parts.
    Parts(&'a [&'a [u8]]),
    /// Only the lengths of the parts, in a simulation without data.
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

    /// The parts, if there is data; adds them to the input checksum that replicas of this rank compare.
    pub(super) fn vouched_parts(self, ep: &Endpoint) -> Result<Option<Parts<&'a [u8]>>> {
        match self {
            Source::Parts(parts) => {
                ep.vouch(|sum| parts.iter().for_each(|part| sum.bytes(part)));
                Ok(Some(Parts::of(parts.iter().copied())))
            }
            Source::Counted(_) if ep.is_sized() => Ok(None),
            Source::Counted(_) => Err(Error::bad_input(
                "a broadcast takes lengths in place of bytes only in a simulation without data",
            )),
        }
    }
}

/// A part of a received message.
pub enum Part {
    /// In this rank's own memory.
    Own(Vec<u8>),
    /// In a copy-on-write mapping of memory that the host's ranks share.
    Shared(Arc<HostCopy>, Range<usize>),
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        match self {
            Part::Own(bytes) => bytes,
            // SAFETY: the range is within the mapping, which no rank writes while it is borrowed.
            Part::Shared(copy, range) => unsafe {
                std::slice::from_raw_parts(copy.at(range.clone()), range.len())
            },
        }
    }
}

/// A [`Room`] in this rank's own memory, which is not zeroed before the message is written to it.
#[derive(Default)]
pub struct Memory {
    parts: Vec<Vec<MaybeUninit<u8>>>,
    layout: Layout,
    /// Bytes stored so far.
    stored: usize,
    shared: Option<(HostCopy, Vec<Range<usize>>)>,
}

impl Memory {
    /// The parts of a complete message; empty if the message is not complete.
    pub fn into_parts(self) -> Vec<Part> {
        if let Some((copy, ranges)) = self.shared {
            let copy = Arc::new(copy);
            return ranges.into_iter().map(|range| Part::Shared(copy.clone(), range)).collect();
        }
        let whole = self.stored == self.layout.total();
        let parts = self.parts.into_iter().filter(|_| whole);
        parts
            .map(|part| {
                let mut part = std::mem::ManuallyDrop::new(part);
                // SAFETY: every offset is stored at most once, and as many bytes are stored as the parts have, so all bytes
                // are initialised. Pointer, length and capacity are those of the vector, whose alignment is that of bytes.
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
        self.stored = 0;
        self.parts.clear();
        for len in lengths {
            let mut part = Vec::new();
            if part.try_reserve_exact(*len).is_err() {
                return Err(Error::bad_input(format!(
                    "not enough memory for a part of {len} bytes of a broadcast"
                )));
            }
            // SAFETY: the capacity is at least this length, and `MaybeUninit` needs no initialisation.
            unsafe { part.set_len(*len) };
            self.parts.push(part);
        }
        Ok(())
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.stored += bytes.len();
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            let (to, from) = (&mut self.parts[part][here], &bytes[range]);
            // SAFETY: both slices have this length, and they are distinct allocations.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
        }
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            let (from, to) = (&self.parts[part][here], &mut bytes[range]);
            // SAFETY: both slices have this length, they are distinct allocations, and the bytes were stored before.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_mut_ptr(), to.len()) };
        }
    }

    fn share(&mut self, copy: HostCopy, parts: Vec<Range<usize>>) {
        self.shared = Some((copy, parts));
    }
}

/// The header of a message: the root's choice of route, and the length of each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) way: Way,
    pub(super) lengths: Vec<usize>,
}

/// Bytes of three numbers of 8 bytes: route, chunk length, number of parts. The length of each part follows.
const HEAD_BYTES: usize = 24;

impl Table {
    pub(super) fn new(way: Way, lengths: Vec<usize>) -> Table {
        Table { way, lengths }
    }

    /// Bytes of all parts.
    pub(super) fn total(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Whether the parts travel in the same message.
    pub(super) fn is_small(&self) -> bool {
        self.total() <= SMALL_BYTES
    }

    /// The bytes of the table, followed by `small`: the parts of a small message, else empty.
    pub(super) fn encode(&self, small: &[u8]) -> Vec<u8> {
        let numbers = [self.way.route as usize, self.way.chunk_bytes, self.lengths.len()];
        let all = numbers.iter().chain(&self.lengths).flat_map(|number| (*number as u64).to_le_bytes());
        all.chain(small.iter().copied()).collect()
    }

    /// The table, and the bytes after it; `None` if the bytes are no table.
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

/// A decoded table and the bytes after it, encoded again.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_table(bytes: &[u8]) -> Option<Vec<u8>> {
    Table::decode(bytes).map(|(table, small)| table.encode(small))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_of_ranges_covers_exactly_the_bytes_added(
            all in prop::collection::vec((0usize..40, 0usize..12), 0..20),
            asked in (0usize..40, 0usize..12),
        ) {
            let (mut ranges, mut added) = (Ranges::default(), [false; 60]);
            for (start, len) in all {
                ranges.add(start..start + len);
                added[start..start + len].fill(true);
            }
            let asked = asked.0..asked.0 + asked.1;
            prop_assert_eq!(ranges.covers(&asked), added[asked.clone()].iter().all(|added| *added));
            prop_assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn parts_are_read_and_stored_as_if_joined(
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
            let received: Vec<Vec<u8>> = copy.into_parts().iter().map(|part| part.as_ref().to_vec()).collect();
            prop_assert_eq!(received, whole);
        }

        #[test]
        fn tables_round_trip(
            lengths in prop::collection::vec(0usize..1 << 40, 0..20),
            route in prop::sample::select(&Route::ALL[..]),
            small in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let table = Table::new(Way { route, chunk_bytes: 77 }, lengths);
            let bytes = table.encode(&small);
            prop_assert_eq!(Table::decode(&bytes), Some((table, &small[..])));
        }

        #[test]
        fn arbitrary_bytes_decode_to_what_encodes_to_them_or_to_nothing(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some((table, small)) = Table::decode(&bytes) {
                prop_assert_eq!(table.encode(small), bytes);
            }
        }
    }
}
