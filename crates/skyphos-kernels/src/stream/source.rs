//! Source of a reduction: the received segments of one stream, and how far they have been read.

use super::reader::{Offsets, Reader, STEP};
use super::segment::Segment;
use skyphos_types::{Element, Error};
use std::collections::VecDeque;

/// Error of a reduction of streams.
#[derive(Clone, Debug)]
pub enum FoldError {
    /// A source's segment is damaged.
    Damaged {
        /// Number of the source.
        source: usize,
        /// Description of the damage.
        damage: &'static str,
    },
    /// The operation failed.
    Op(Error),
}

impl From<Error> for FoldError {
    fn from(error: Error) -> FoldError {
        FoldError::Op(error)
    }
}

/// Adds the source's number to an error of its segment.
pub(super) fn of_source<R>(source: usize, result: Result<R, &'static str>) -> Result<R, FoldError> {
    result.map_err(|damage| FoldError::Damaged { source, damage })
}

/// Receiver of reduced blocks.
pub trait Sink<T> {
    /// Takes a block of positions from index `first` on: a mark (1 for an entry, else 0) and a row for each; rows without an entry
    /// are the identity. `counts` has the number of sources with an entry at each position, or is empty if the reduction does not
    /// count.
    fn block(&mut self, first: u64, marks: &[u8], rows: &[T], counts: &[u32]);

    /// Takes entries at these ascending offsets from index `base`, a row for each, all beyond the earlier ones. `counts` has the
    /// number of sources with each entry, or is empty.
    fn entries(&mut self, base: u64, offsets: &[u32], rows: &[T], counts: &[u32]);
}

/// The received segments of a stream, and the reading position.
pub(super) struct Source<B> {
    pub(super) segments: VecDeque<B>,
    /// All entries below this index have been received.
    pub(super) reached: u64,
    pub(super) reader: Reader,
    /// Offsets that were read from the first segment and are not folded yet: `offsets[used..listed]`, or `run`.
    pub(super) offsets: Box<[u64; STEP]>,
    pub(super) used: usize,
    pub(super) listed: usize,
    /// The first offset of a run's entries that are not folded yet, and their number.
    pub(super) run: (u64, usize),
    /// Whether bitmaps are read word by word.
    pub(super) by_words: bool,
    /// The current word: the offset of its first bit, and the bits that are not folded yet.
    pub(super) word: (u64, u64),
    /// Entries of the first segment that have been folded.
    pub(super) entry: usize,
}

impl<B: AsRef<[u8]>> Source<B> {
    /// A stream without segments, for a range that begins at `lo`.
    pub(super) fn new(lo: u64, by_words: bool) -> Source<B> {
        Source {
            segments: VecDeque::new(),
            reached: lo,
            reader: Reader::default(),
            offsets: Box::new([0; STEP]),
            used: 0,
            listed: 0,
            run: (0, 0),
            by_words,
            word: (0, 0),
            entry: 0,
        }
    }

    /// The index of the next entry, if it has arrived; reads ahead if necessary.
    pub(super) fn peek(&mut self, row: usize, hi: u64) -> Result<Option<u64>, &'static str> {
        loop {
            let Some(bytes) = self.segments.front() else { return Ok(None) };
            let segment = Segment::parse(bytes.as_ref(), row, 0, hi)?;
            if self.used < self.listed {
                return Ok(Some(segment.head.first + self.offsets[self.used]));
            }
            if self.run.1 > 0 {
                return Ok(Some(segment.head.first + self.run.0));
            }
            if self.word.1 != 0 {
                return Ok(Some(segment.head.first + self.word.0 + u64::from(self.word.1.trailing_zeros())));
            }
            if self.by_words && segment.is_bitmap() {
                match self.reader.step_word(&segment)? {
                    Some(word) => self.word = word,
                    None => self.pop(),
                }
                continue;
            }
            match self.reader.step(&segment, &mut self.offsets)? {
                Some(Offsets::Listed(count)) => (self.used, self.listed) = (0, count),
                Some(Offsets::Run(at, count)) => self.run = (at, count),
                None => self.pop(),
            }
        }
    }

    /// Drops the first segment.
    fn pop(&mut self) {
        self.segments.pop_front();
        (self.reader, self.used, self.listed, self.entry) = (Reader::default(), 0, 0, 0);
    }

    /// Moves the entries that were read to `indices` and `values`, at most [`STEP`] of a run.
    pub(super) fn take_read<T: Element>(
        &mut self,
        indices: &mut Vec<u64>,
        values: &mut Vec<T>,
        hi: u64,
    ) -> Result<(), &'static str> {
        let Some(bytes) = self.segments.front() else { return Ok(()) };
        let segment = Segment::parse(bytes.as_ref(), size_of::<T>(), 0, hi)?;
        let base = segment.head.first;
        let taken = if self.run.1 > 0 {
            let count = self.run.1.min(STEP);
            let from = base + self.run.0;
            indices.extend(from..from + count as u64);
            self.run = (self.run.0 + count as u64, self.run.1 - count);
            count
        } else {
            indices.extend(self.offsets[self.used..self.listed].iter().map(|o| base + o));
            self.listed - std::mem::replace(&mut self.used, self.listed)
        };
        values.extend_from_slice(&segment.values::<T>()[self.entry..self.entry + taken]);
        self.entry += taken;
        Ok(())
    }
}
