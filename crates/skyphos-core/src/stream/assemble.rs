//! From the reduced parts of all ranks to the whole vector, as their segments come.
//!
//! The parts ("leaves") lie one after the other in the index space. Once the first segment of each has come
//! the number of entries is known, so the result has its size and form, and each segment is decoded to where
//! it belongs, in any order. Cost: one pass over the entries.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::quantised::open;
use skyphos_kernels::ArrayBuilder;
use skyphos_kernels::stream::{
    Form, IndexList, Offsets, QuantisedValues, Reader, STEP, Segment, Shape, dense_form, entries,
    list_bitmap, put_bitmap, put_entries, set_run,
};
use skyphos_types::{Element, Result};

/// See the module's text.
pub struct Assembler<T> {
    shape: Shape,
    n: u64,
    identity: T,
    leaves: Vec<Leaf>,
    /// Leaves of which nothing has come.
    unknown: usize,
    /// What came before the result had a size.
    early: Vec<(Place, Payload)>,
    room: Room<T>,
    codec: Option<QuantisedValues>,
}

/// What becomes the result.
enum Room<T> {
    /// No memory is touched, nor cleared, before its entries come.
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

struct Leaf {
    hi: u64,
    /// Entries, once known.
    of: Option<u32>,
    came: u32,
    /// All below this has come.
    reached: u64,
    /// Place of its first entry in the result.
    start: usize,
}

impl Leaf {
    fn complete(&self) -> bool {
        self.of == Some(self.came)
    }
}

/// Where a segment's entries belong.
#[derive(Clone, Copy)]
struct Place {
    leaf: usize,
    /// Entries of the leaf before it.
    entry: u32,
    /// The least index it may have.
    lo: u64,
}

impl<T: Element> Assembler<T> {
    /// For leaves with these bounds, which cover `0..n`.
    pub fn new(bounds: &[u64], shape: Shape, identity: T) -> Assembler<T> {
        let leaf = |w: &[u64]| Leaf { hi: w[1], of: None, came: 0, reached: w[0], start: 0 };
        let leaves: Vec<Leaf> = bounds.windows(2).map(leaf).collect();
        Assembler {
            shape,
            n: *bounds.last().expect("bounds"),
            identity,
            unknown: leaves.len(),
            leaves,
            early: Vec::new(),
            room: Room::Sparse {
                indices: Indices::Narrow(ArrayBuilder::new(0)),
                values: ArrayBuilder::new(0),
            },
            codec: None,
        }
    }

    /// Takes segments with quantised values too.
    pub fn quantised(self, codec: Option<QuantisedValues>) -> Assembler<T> {
        Assembler { codec, ..self }
    }

    /// Takes the next segment of a leaf, from a rank. Returns whether the leaf is complete.
    pub fn take(&mut self, ep: &Endpoint, from: u32, leaf: usize, segment: Payload) -> Result<bool> {
        let row_bytes = self.shape.width * size_of::<T>();
        ep.spend(Effort::Place { entries: entries(segment.as_bytes()), row_bytes });
        let segment = open(ep, self.codec, from, segment)?;
        self.push(leaf, segment).map_err(|what| ep.corrupt(from, what))
    }

    /// Takes all segments of a leaf.
    pub fn take_all(&mut self, ep: &Endpoint, from: u32, leaf: usize, segments: &[Payload]) -> Result<()> {
        for segment in segments {
            self.take(ep, from, leaf, segment.clone())?;
        }
        self.check_complete(ep, from, leaf)
    }

    /// Whether it is known how large the result is.
    pub(super) fn has_room(&self) -> bool {
        self.unknown == 0
    }

    /// Whether any of a leaf has come.
    pub(super) fn has_begun(&self, leaf: usize) -> bool {
        self.leaves[leaf].of.is_some()
    }

    /// Refuses a leaf of which something is missing.
    fn check_complete(&self, ep: &Endpoint, from: u32, leaf: usize) -> Result<()> {
        match self.leaves[leaf].complete() {
            true => Ok(()),
            false => Err(ep.corrupt(from, "its stream ended before its range did")),
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
        if leaf.of.is_some_and(|of| of != head.of) || head.of - leaf.came < head.count {
            return Err("segments that do not agree how many entries their stream has");
        }
        let place = Place { leaf: number, entry: leaf.came, lo: leaf.reached };
        let first = leaf.of.is_none();
        if first && u64::from(head.of) > leaf.hi - leaf.reached {
            return Err("a stream of more entries than its range has");
        }
        (leaf.of, leaf.came, leaf.reached) = (Some(head.of), leaf.came + head.count, head.end);
        let complete = leaf.complete();
        if complete && leaf.reached != leaf.hi {
            return Err("a stream that ends before its range does");
        }
        if first {
            self.unknown -= 1;
            if self.unknown == 0 {
                self.make_room()?;
                for (place, payload) in std::mem::take(&mut self.early) {
                    self.decode(place, &payload)?;
                }
            }
        }
        match self.unknown {
            0 => self.decode(place, &payload)?,
            _ => self.early.push((place, payload)),
        }
        Ok(complete)
    }

    fn make_room(&mut self) -> std::result::Result<(), &'static str> {
        let mut total = 0;
        for leaf in &mut self.leaves {
            leaf.start = total;
            total += leaf.of.unwrap_or(0) as usize;
        }
        self.room = if total as f64 > self.shape.dense_above * self.n as f64 {
            let Form::Dense { values, present } = dense_form(self.shape, self.n, self.identity) else {
                unreachable!("a dense form")
            };
            Room::Dense { values, present }
        } else {
            let room = || {
                let indices = match self.shape.wide {
                    true => Indices::Wide(ArrayBuilder::try_new(total).ok()?),
                    false => Indices::Narrow(ArrayBuilder::try_new(total).ok()?),
                };
                let values = ArrayBuilder::try_new(total.checked_mul(self.shape.width)?).ok()?;
                Some(Room::Sparse { indices, values })
            };
            room().ok_or("streams of more entries than this machine can hold")?
        };
        Ok(())
    }

    fn decode(&mut self, place: Place, payload: &Payload) -> std::result::Result<(), &'static str> {
        let (width, leaf) = (self.shape.width, &self.leaves[place.leaf]);
        let segment = Segment::parse(payload.as_bytes(), width * size_of::<T>(), place.lo, leaf.hi)?;
        let (rows, count, first) = (segment.values::<T>(), segment.head.count as usize, segment.head.first);
        let start = leaf.start + place.entry as usize;
        if let Room::Sparse { values, .. } = &mut self.room {
            values.put(start * width, rows);
        }
        if segment.is_bitmap() {
            match &mut self.room {
                Room::Dense { values, present } if width == 1 => {
                    return put_bitmap(&segment, values, present.as_deref_mut(), self.identity);
                }
                Room::Sparse { indices: Indices::Narrow(list), .. } => {
                    return list_bitmap(&segment, list, start);
                }
                _ => {}
            }
        }
        let (mut reader, mut offsets, mut at) = (Reader::default(), [0; STEP], 0);
        while let Some(some) = reader.step(&segment, &mut offsets)? {
            let listed = match some {
                Offsets::Listed(count) => count,
                Offsets::Run(_, count) => count,
            };
            match (&mut self.room, some) {
                (Room::Sparse { indices, .. }, Offsets::Listed(_)) => {
                    indices.put(start + at, listed, offsets.iter().map(|offset| first + offset));
                }
                (Room::Sparse { indices, .. }, Offsets::Run(from, _)) => {
                    indices.put(start + at, listed, first + from..);
                }
                (Room::Dense { values, present }, Offsets::Run(from, _)) => {
                    let row = (first + from) as usize;
                    values[row * width..][..listed * width]
                        .copy_from_slice(&rows[at * width..][..listed * width]);
                    if let Some(bits) = present {
                        set_run(bits, row, listed);
                    }
                }
                (Room::Dense { values, present }, Offsets::Listed(_)) => {
                    let places = offsets[..listed].iter().map(|offset| (first + offset) as usize);
                    put_entries(values, present.as_deref_mut(), width, places, &rows[at * width..]);
                }
            }
            at += listed;
        }
        debug_assert_eq!(at, count);
        Ok(())
    }

    /// The whole vector, once every leaf is complete.
    pub fn finish(self) -> Form<T> {
        let all = "every leaf is complete";
        match self.room {
            Room::Sparse { indices, values } => {
                Form::Sparse { indices: indices.finish().expect(all), values: values.finish().expect(all) }
            }
            Room::Dense { values, present } => Form::Dense { values, present },
        }
    }
}
