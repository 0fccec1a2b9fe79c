//! Assembly of the whole vector from the reduced ranges of all ranks, as their segments arrive.
//!
//! A rank's range is a *leaf*; leaves follow each other in the index space. The first segment of a leaf has the leaf's number
//! of entries. So once every leaf has begun, the size and the form of the result are known and it is allocated. Segments are
//! decoded into it in any order. Cost: one pass over the entries.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::quantised::plain;
use skyphos_kernels::ArrayBuilder;
use skyphos_kernels::stream::{
    Form, IndexList, Offsets, QuantisedValues, Reader, STEP, Segment, Shape, dense_form, entries,
    list_bitmap, put_bitmap, put_entries, set_run,
};
use skyphos_types::{Element, GroupRank, Result};

/// The vector under assembly.
pub struct Assembler<T> {
    shape: Shape,
    n: u64,
    identity: T,
    leaves: Vec<Leaf>,
    /// Number of leaves that have not begun.
    not_begun: usize,
    /// Segments that arrived before the result was allocated.
    early: Vec<(SegmentStart, Payload)>,
    result: Partial<T>,
    codec: Option<QuantisedValues>,
}

/// The result, filled in part.
enum Partial<T> {
    /// The memory is not cleared, and not touched before entries are stored there.
    Sparse {
        indices: Indices,
        values: ArrayBuilder<T>,
    },
    Dense {
        values: Vec<T>,
        present: Option<Vec<u64>>,
    },
}

enum Indices {
    Narrow(ArrayBuilder<u32>),
    Wide(ArrayBuilder<u64>),
}

impl Indices {
    fn put(&mut self, at: usize, count: usize, indices: impl Iterator<Item = u64>) {
        match self {
            Indices::Narrow(list) => list.put_each(at..at + count, indices.map(|index| index as u32)),
            Indices::Wide(list) => list.put_each(at..at + count, indices),
        }
    }

    fn finish(self) -> Option<IndexList> {
        match self {
            Indices::Narrow(list) => list.finish().map(IndexList::Narrow),
            Indices::Wide(list) => list.finish().map(IndexList::Wide),
        }
    }
}

/// One rank's range.
struct Leaf {
    hi: u64,
    /// Number of entries; `None` before the first segment.
    entries: Option<u32>,
    /// Entries received.
    received: u32,
    /// Indices below this one are complete.
    reached: u64,
    /// Position of the first entry in the result.
    start: usize,
}

impl Leaf {
    fn complete(&self) -> bool {
        self.entries == Some(self.received)
    }
}

/// The start of a segment in its leaf.
#[derive(Clone, Copy)]
struct SegmentStart {
    leaf: usize,
    /// Entries of the leaf in earlier segments.
    entry: u32,
    /// A lower bound of the segment's indices.
    lo: u64,
}

impl<T: Element> Assembler<T> {
    /// Begins a vector of leaves with these bounds, which cover `0..n`.
    pub fn new(bounds: &[u64], shape: Shape, identity: T) -> Assembler<T> {
        let leaf = |w: &[u64]| Leaf { hi: w[1], entries: None, received: 0, reached: w[0], start: 0 };
        let leaves: Vec<Leaf> = bounds.windows(2).map(leaf).collect();
        Assembler {
            shape,
            n: *bounds.last().expect("bounds"),
            identity,
            not_begun: leaves.len(),
            leaves,
            early: Vec::new(),
            result: Partial::Sparse {
                indices: Indices::Narrow(ArrayBuilder::new(0)),
                values: ArrayBuilder::new(0),
            },
            codec: None,
        }
    }

    /// With a codec, also takes segments with quantised values.
    pub fn quantised(self, codec: Option<QuantisedValues>) -> Assembler<T> {
        Assembler { codec, ..self }
    }

    /// Takes the next segment of a leaf, sent by rank `from`. Returns whether the leaf is complete.
    pub fn take(&mut self, ep: &Endpoint, from: u32, leaf: usize, segment: Payload) -> Result<bool> {
        let row_bytes = self.shape.width * size_of::<T>();
        ep.spend(Effort::Place { entries: entries(segment.as_bytes()), row_bytes });
        let segment = plain(ep, self.codec, from, segment)?;
        self.push(leaf, segment).map_err(|what| ep.corrupt(GroupRank(from), what))
    }

    /// Takes all segments of a leaf.
    pub fn take_all(&mut self, ep: &Endpoint, from: u32, leaf: usize, segments: &[Payload]) -> Result<()> {
        for segment in segments {
            self.take(ep, from, leaf, segment.clone())?;
        }
        self.check_complete(ep, from, leaf)
    }

    /// Whether the size of the result is known and its memory allocated.
    pub(super) fn is_allocated(&self) -> bool {
        self.not_begun == 0
    }

    /// Whether the first segment of a leaf has arrived.
    pub(super) fn has_begun(&self, leaf: usize) -> bool {
        self.leaves[leaf].entries.is_some()
    }

    /// Refuses an incomplete leaf.
    fn check_complete(&self, ep: &Endpoint, from: u32, leaf: usize) -> Result<()> {
        match self.leaves[leaf].complete() {
            true => Ok(()),
            false => Err(ep.corrupt(GroupRank(from), "its stream ended before its range did")),
        }
    }

    fn push(&mut self, number: usize, payload: Payload) -> std::result::Result<bool, &'static str> {
        let row = self.shape.width * size_of::<T>();
        let leaf = &mut self.leaves[number];
        if leaf.complete() {
            return Err("more segments than its range has");
        }
        let segment = Segment::parse(payload.as_bytes(), row, leaf.reached, leaf.hi)?;
        let head = segment.head;
        if leaf.entries.is_some_and(|entries| entries != head.total)
            || head.total - leaf.received < head.count
        {
            return Err("segments that disagree on the number of entries of their stream");
        }
        let segment_start = SegmentStart { leaf: number, entry: leaf.received, lo: leaf.reached };
        let first = leaf.entries.is_none();
        if first && u64::from(head.total) > leaf.hi - leaf.reached {
            return Err("a stream of more entries than its range has");
        }
        (leaf.entries, leaf.received, leaf.reached) =
            (Some(head.total), leaf.received + head.count, head.end);
        let complete = leaf.complete();
        if complete && leaf.reached != leaf.hi {
            return Err("a stream that ends before its range does");
        }
        if first {
            self.not_begun -= 1;
            if self.not_begun == 0 {
                self.allocate()?;
                for (early_start, payload) in std::mem::take(&mut self.early) {
                    self.decode(early_start, &payload)?;
                }
            }
        }
        match self.not_begun {
            0 => self.decode(segment_start, &payload)?,
            _ => self.early.push((segment_start, payload)),
        }
        Ok(complete)
    }

    /// Allocates the result, whose size is known.
    fn allocate(&mut self) -> std::result::Result<(), &'static str> {
        let mut total = 0;
        for leaf in &mut self.leaves {
            leaf.start = total;
            total += leaf.entries.unwrap_or(0) as usize;
        }
        self.result = if total as f64 > self.shape.dense_above * self.n as f64 {
            let Form::Dense { values, present } = dense_form(self.shape, self.n, self.identity) else {
                unreachable!("a dense form")
            };
            Partial::Dense { values, present }
        } else {
            let sparse = || {
                let indices = match self.shape.wide {
                    true => Indices::Wide(ArrayBuilder::try_new(total).ok()?),
                    false => Indices::Narrow(ArrayBuilder::try_new(total).ok()?),
                };
                let values = ArrayBuilder::try_new(total.checked_mul(self.shape.width)?).ok()?;
                Some(Partial::Sparse { indices, values })
            };
            sparse().ok_or("streams of more entries than fit this machine's memory")?
        };
        Ok(())
    }

    /// Decodes a segment into the result.
    fn decode(&mut self, at: SegmentStart, payload: &Payload) -> std::result::Result<(), &'static str> {
        let (width, leaf) = (self.shape.width, &self.leaves[at.leaf]);
        let segment = Segment::parse(payload.as_bytes(), width * size_of::<T>(), at.lo, leaf.hi)?;
        let (rows, count, first) = (segment.values::<T>(), segment.head.count as usize, segment.head.first);
        let start = leaf.start + at.entry as usize;
        if let Partial::Sparse { values, .. } = &mut self.result {
            values.put(start * width, rows);
        }
        if segment.is_bitmap() {
            match &mut self.result {
                Partial::Dense { values, present } if width == 1 => {
                    return put_bitmap(&segment, values, present.as_deref_mut(), self.identity);
                }
                Partial::Sparse { indices: Indices::Narrow(list), .. } => {
                    return list_bitmap(&segment, list, start);
                }
                _ => {}
            }
        }
        let (mut reader, mut offsets, mut done) = (Reader::default(), [0; STEP], 0);
        while let Some(step) = reader.step(&segment, &mut offsets)? {
            let (Offsets::Listed(rows_of_step) | Offsets::Run(_, rows_of_step)) = step;
            match (&mut self.result, step) {
                (Partial::Sparse { indices, .. }, Offsets::Listed(_)) => {
                    indices.put(start + done, rows_of_step, offsets.iter().map(|offset| first + offset));
                }
                (Partial::Sparse { indices, .. }, Offsets::Run(from, _)) => {
                    indices.put(start + done, rows_of_step, first + from..);
                }
                (Partial::Dense { values, present }, Offsets::Run(from, _)) => {
                    let row = (first + from) as usize;
                    values[row * width..][..rows_of_step * width]
                        .copy_from_slice(&rows[done * width..][..rows_of_step * width]);
                    if let Some(bits) = present {
                        set_run(bits, row, rows_of_step);
                    }
                }
                (Partial::Dense { values, present }, Offsets::Listed(_)) => {
                    let positions = offsets[..rows_of_step].iter().map(|offset| (first + offset) as usize);
                    put_entries(values, present.as_deref_mut(), width, positions, &rows[done * width..]);
                }
            }
            done += rows_of_step;
        }
        debug_assert_eq!(done, count);
        Ok(())
    }

    /// The whole vector, once every leaf is complete.
    pub fn finish(self) -> Form<T> {
        match self.result {
            Partial::Sparse { indices, values } => Form::Sparse {
                indices: indices.finish().expect("every leaf is complete"),
                values: values.finish().expect("every leaf is complete"),
            },
            Partial::Dense { values, present } => Form::Dense { values, present },
        }
    }
}
