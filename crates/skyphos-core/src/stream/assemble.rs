//! From the reduced parts of all ranks to the whole vector, as their segments come.
//!
//! The parts ("leaves") lie one after the other in the index space. Once the first segment of each has come
//! the number of entries is known, so the result has its size and form, and each segment is decoded to where
//! it belongs, in any order. Cost: one pass over the entries.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::quantised::open;
use bytemuck::allocation::try_zeroed_vec;
use skyphos_kernels::stream::{
    Form, IndexList, Offsets, QuantisedValues, STEP, Segment, Shape, dense_form, entries, list_bitmap,
    put_bitmap, put_entries, set_run,
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
    form: Form<T>,
    codec: Option<QuantisedValues>,
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
            form: Form::Sparse { indices: IndexList::Narrow(Vec::new()), values: Vec::new() },
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
        self.form = if total as f64 > self.shape.dense_above * self.n as f64 {
            dense_form(self.shape, self.n, self.identity)
        } else {
            // It has only been said that so many will come: no memory is touched before they do.
            let too_many = |()| "streams of more entries than this machine can hold";
            let indices = match self.shape.wide {
                true => IndexList::Wide(try_zeroed_vec(total).map_err(too_many)?),
                false => IndexList::Narrow(try_zeroed_vec(total).map_err(too_many)?),
            };
            let numbers = total.checked_mul(self.shape.width).ok_or(()).map_err(too_many)?;
            Form::Sparse { indices, values: try_zeroed_vec(numbers).map_err(too_many)? }
        };
        Ok(())
    }

    fn decode(&mut self, place: Place, payload: &Payload) -> std::result::Result<(), &'static str> {
        let (width, leaf) = (self.shape.width, &self.leaves[place.leaf]);
        let segment = Segment::parse(payload.as_bytes(), width * size_of::<T>(), place.lo, leaf.hi)?;
        let (rows, count, first) = (segment.values::<T>(), segment.head.count as usize, segment.head.first);
        let start = leaf.start + place.entry as usize;
        if let Form::Sparse { values, .. } = &mut self.form {
            values[start * width..][..rows.len()].copy_from_slice(rows);
        }
        if segment.is_bitmap() {
            match &mut self.form {
                Form::Dense { values, present } if width == 1 => {
                    return put_bitmap(&segment, values, present.as_deref_mut(), self.identity);
                }
                Form::Sparse { indices: IndexList::Narrow(list), .. } => {
                    return list_bitmap(&segment, &mut list[start..start + count]);
                }
                _ => {}
            }
        }
        let (mut reader, mut offsets, mut at) = (segment.reader(), [0; STEP], 0);
        while let Some(some) = reader.step(&segment, &mut offsets)? {
            let listed = match some {
                Offsets::Listed(count) => count,
                Offsets::Run(_, count) => count,
            };
            match (&mut self.form, some) {
                (Form::Sparse { indices: IndexList::Narrow(list), .. }, Offsets::Listed(_)) => {
                    let slots = &mut list[start + at..start + at + listed];
                    slots.iter_mut().zip(&offsets).for_each(|(slot, o)| *slot = (first + o) as u32);
                }
                (Form::Sparse { indices: IndexList::Wide(list), .. }, Offsets::Listed(_)) => {
                    let slots = &mut list[start + at..start + at + listed];
                    slots.iter_mut().zip(&offsets).for_each(|(slot, o)| *slot = first + o);
                }
                (Form::Sparse { indices: IndexList::Narrow(list), .. }, Offsets::Run(from, _)) => {
                    let slots = &mut list[start + at..start + at + listed];
                    slots.iter_mut().zip(first + from..).for_each(|(slot, i)| *slot = i as u32);
                }
                (Form::Sparse { indices: IndexList::Wide(list), .. }, Offsets::Run(from, _)) => {
                    let slots = &mut list[start + at..start + at + listed];
                    slots.iter_mut().zip(first + from..).for_each(|(slot, i)| *slot = i);
                }
                (Form::Dense { values, present }, Offsets::Run(from, _)) => {
                    let row = (first + from) as usize;
                    values[row * width..][..listed * width]
                        .copy_from_slice(&rows[at * width..][..listed * width]);
                    if let Some(bits) = present {
                        set_run(bits, row, listed);
                    }
                }
                (Form::Dense { values, present }, Offsets::Listed(_)) => {
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
        debug_assert!(self.leaves.iter().all(Leaf::complete));
        self.form
    }
}
