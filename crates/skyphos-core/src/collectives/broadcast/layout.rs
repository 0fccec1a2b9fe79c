//! Offsets in a message of several parts. An *offset* counts bytes from the first byte of the first part, as if the parts were
//! joined.

use std::ops::Range;

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

    /// Cuts a range of offsets by part: yields each part's number, and a piece's bytes within the part and within the range.
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
pub struct JoinedParts<P> {
    parts: Vec<P>,
    layout: Layout,
}

impl<P: AsRef<[u8]>> JoinedParts<P> {
    /// Joins parts in order, without a copy.
    pub fn of(parts: impl IntoIterator<Item = P>) -> JoinedParts<P> {
        let parts: Vec<P> = parts.into_iter().collect();
        let layout = Layout::new(parts.iter().map(|part| part.as_ref().len()));
        JoinedParts { parts, layout }
    }

    /// A copy of all bytes.
    pub fn joined(&self) -> Vec<u8> {
        self.parts.iter().flat_map(|part| part.as_ref()).copied().collect()
    }

    /// Copies bytes from an offset.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        for (part, in_part, in_bytes) in self.layout.pieces(at..at + bytes.len()) {
            bytes[in_bytes].copy_from_slice(&self.parts[part].as_ref()[in_part]);
        }
    }
}
