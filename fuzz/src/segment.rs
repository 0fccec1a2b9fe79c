//! Segments of sparse streams (`skyphos-kernels`, `stream/segment.rs`) and their readers: the fold of several streams, and the
//! two special decoders of bitmaps.

use crate::allocation::{Limits, within};
use crate::number;
use arbitrary::{Result, Unstructured};
use skyphos_core::slab::{AlignedVec, CHUNK_BYTES};
use skyphos_kernels::ArrayBuilder;
use skyphos_kernels::stream::{
    Collector, Encoder, EntryIndices, Fold, FoldError, Form, IndexList, Offsets, Reader, STEP, Segment,
    Shape, SparseVec, count_between, list_bitmap, put_bitmap,
};
use skyphos_types::{DType, Element, ReduceOp, with_element};

/// Rows of a vector that may turn dense.
pub const FEW_ROWS: u64 = 1 << 12;

/// Segments that are folded take a few times their bytes; the fold's own blocks take 64 KB and a bitmap.
const LIMITS: Limits = Limits { one: 8 * CHUNK_BYTES, all: 32 * CHUNK_BYTES };

/// The input has the streams of two sources: raw bytes, encoded entries, or encoded entries with some bytes changed.
pub fn run(data: &[u8]) {
    let _ = streams(&mut Unstructured::new(&data[..data.len().min(CHUNK_BYTES)]));
}

fn streams(u: &mut Unstructured<'_>) -> Result<()> {
    let dtype = *u.choose(&DType::ALL)?;
    with_element!(dtype, T => streams_of::<T>(u))
}

fn streams_of<T: Element>(u: &mut Unstructured<'_>) -> Result<()> {
    let width = u.int_in_range(1..=3)?;
    let ops: Vec<&ReduceOp> = ReduceOp::NAMED.iter().filter(|op| op.check(T::DTYPE).is_ok()).collect();
    let op = *u.choose(&ops)?;
    let small = u.ratio(3, 4)?;
    let (lo, hi) = match small {
        true => (u.int_in_range(0..=FEW_ROWS)?, FEW_ROWS),
        false => (u.int_in_range(0..=1 << 40)?, u.int_in_range(1 << 40..=1 << 63)?),
    };
    let density = *u.choose(&[0.0, 1e-4, 0.5])?;
    let mut sources: Vec<Vec<AlignedVec>> = Vec::new();
    for _ in 0..2 {
        let segments = match u.int_in_range(0..=2)? {
            0 => {
                (0..u.int_in_range(1..=3)?).map(|_| raw(u, width * size_of::<T>())).collect::<Result<_>>()?
            }
            kind => {
                let mut segments = encoded::<T>(u, width, (lo, hi))?;
                if kind == 1 {
                    damage(u, &mut segments)?;
                }
                segments
            }
        };
        sources.push(segments);
    }
    for segments in &sources {
        let mut reached = lo;
        for bytes in segments {
            let row = width * size_of::<T>();
            let Ok(segment) = Segment::parse(bytes.as_bytes(), row, reached, hi) else { break };
            within(LIMITS, || read::<T>(&segment, width));
            reached = segment.head.end;
        }
    }
    let shape = Shape {
        width,
        wide: !small,
        dense_above: if small { *u.choose(&[0.1, 0.9])? } else { f64::INFINITY },
        with_present: true,
    };
    within(LIMITS, || fold::<T>(op, &sources, shape, (lo, hi), density));
    Ok(())
}

/// A segment with a head that often fits the bytes after it.
fn raw(u: &mut Unstructured<'_>, row: usize) -> Result<AlignedVec> {
    let (form, count): (u8, u16) = (u.int_in_range(0..=4)?, u.arbitrary()?);
    let (first, end): (u16, u16) = u.arbitrary()?;
    let (count, base) = (count % 700, if u.ratio(1, 8)? { 1u64 << 45 } else { 0 });
    let total = if u.ratio(1, 8)? { number(u)? as u32 } else { u32::from(count) * 2 };
    let index_bytes = match form {
        0 => 0,
        3 => usize::from(count) * 8,
        2 => usize::from(u.int_in_range(0..=80u16)?) * 8,
        _ => u.int_in_range(0..=2000)?,
    };
    let len = usize::from(count) * row + index_bytes;
    let mut bytes = vec![form, 0, 0, 0];
    bytes.extend(u32::from(count).to_le_bytes());
    bytes.extend((base + u64::from(first)).to_le_bytes());
    bytes.extend((base + u64::from(first) + u64::from(end)).to_le_bytes());
    bytes.extend((index_bytes as u32).to_le_bytes());
    bytes.extend(total.to_le_bytes());
    let rest = u.bytes(len.min(u.len()))?;
    // Values are zeros as far as the input is short; its last bytes are the indices.
    bytes.resize(bytes.len() + len - rest.len(), 0);
    bytes.extend(rest);
    if u.ratio(1, 16)? {
        bytes.truncate(bytes.len() - 1);
    }
    let mut all = AlignedVec::default();
    all.extend(&bytes);
    Ok(all)
}

/// Segments of entries whose runs and gaps are drawn from the input.
fn encoded<T: Element>(
    u: &mut Unstructured<'_>,
    width: usize,
    (lo, hi): (u64, u64),
) -> Result<Vec<AlignedVec>> {
    let log = u.int_in_range(0..=if hi > FEW_ROWS { 50 } else { 8 })?;
    let runs = u.int_in_range(0..=40)?;
    let (mut indices, mut at) = (Vec::new(), lo);
    for _ in 0..runs {
        let (gap, count): (u64, u8) = u.arbitrary()?;
        at = at.saturating_add(gap & ((1 << log) - 1));
        let stop = at.saturating_add(u64::from(count)).min(hi);
        indices.extend(at..stop);
        at = stop.max(at).saturating_add(1);
    }
    let values = vec![T::ONE; indices.len() * width];
    let max_bytes = u.int_in_range(40..=5000)?;
    let mut encoder = Encoder::new(EntryIndices::Listed(&indices), &values, width, hi, max_bytes);
    let mut all = Vec::new();
    while let Some(next) = encoder.plan() {
        let mut bytes = AlignedVec::default();
        bytes.resize(next.bytes());
        encoder.write(&next, bytes.as_bytes_mut());
        all.push(bytes);
    }
    let mut back = Vec::new();
    for bytes in &all {
        let segment = Segment::parse(bytes.as_bytes(), width * size_of::<T>(), lo, hi).expect("ours");
        back.extend(read::<T>(&segment, width).expect("ours"));
    }
    assert_eq!(back, indices);
    Ok(all)
}

/// Changes some bytes.
fn damage(u: &mut Unstructured<'_>, segments: &mut [AlignedVec]) -> Result<()> {
    let changes: Vec<(u8, u16, u8)> =
        (0..u.int_in_range(1..=4)?).map(|_| u.arbitrary()).collect::<Result<_>>()?;
    for (which, at, value) in changes {
        let which = usize::from(which) % segments.len();
        let bytes = segments[which].as_bytes_mut();
        // Mostly in the head, which determines how the rest is decoded.
        let at = if at & 1 == 0 { usize::from(at) / 2 % 32 } else { usize::from(at) / 2 % bytes.len() };
        bytes[at] = value;
    }
    Ok(())
}

/// The indices of a segment, if it is valid.
fn read<T: Element>(segment: &Segment<'_>, width: usize) -> Option<Vec<u64>> {
    let (count, first) = (segment.head.count as usize, segment.head.first);
    assert_eq!(segment.values::<T>().len(), count * width);
    let (mut reader, mut offsets, mut all) = (Reader::default(), [0; STEP], Vec::new());
    let listed = loop {
        match reader.step(segment, &mut offsets) {
            Err(_) => break None,
            Ok(None) => break Some(()),
            Ok(Some(Offsets::Run(from, count))) => all.extend((first + from..).take(count)),
            Ok(Some(Offsets::Listed(count))) => all.extend(offsets[..count].iter().map(|at| first + at)),
        }
    };
    if listed.is_some() {
        assert_eq!(all.len(), count);
        assert!(all.is_sorted_by(|a, b| a < b) && all.iter().all(|i| (first..segment.head.end).contains(i)));
    }
    if segment.is_bitmap() && segment.head.end <= FEW_ROWS {
        decode_bitmap::<T>(segment, width, listed.map(|()| &all[..]));
    }
    listed.map(|()| all)
}

/// Checks the decoders for bitmaps against the indices that the general reader gave.
fn decode_bitmap<T: Element>(segment: &Segment<'_>, width: usize, all: Option<&[u64]>) {
    let mut list = ArrayBuilder::new(segment.head.count as usize);
    assert_eq!(list_bitmap(segment, &mut list, 0).is_ok(), all.is_some());
    if let Some(all) = all {
        let list = list.finish().expect("as many as it says");
        assert!(list.iter().map(|i| u64::from(*i)).eq(all.iter().copied()));
    }
    if width == 1 {
        let (mut rows, mut bits) = (vec![T::ZERO; FEW_ROWS as usize], vec![0; FEW_ROWS as usize / 64]);
        let put = put_bitmap(segment, &mut rows, Some(&mut bits), T::ZERO);
        assert_eq!(put.is_ok(), all.is_some());
        if let Some(all) = all {
            assert_eq!(count_between(&bits, 0, FEW_ROWS as usize), all.len());
        }
    }
}

fn fold<T: Element>(
    op: &ReduceOp,
    sources: &[Vec<AlignedVec>],
    shape: Shape,
    (lo, hi): (u64, u64),
    density: f64,
) {
    let identity = op.identity::<T>().expect("checked");
    let mut collector = Collector::new(lo, hi, shape, identity, 0);
    let mut fold = Fold::<T, &[u8]>::new(op, sources.len(), shape.width, lo, hi, density).expect("checked");
    let longest = sources.iter().map(Vec::len).max().unwrap_or(0);
    for k in 0..longest {
        for (number, segments) in sources.iter().enumerate() {
            let Some(segment) = segments.get(k) else { continue };
            let moved = fold.push(number, segment.as_bytes()).and_then(|()| fold.advance(op, &mut collector));
            match moved {
                Ok(_) => {}
                Err(FoldError::Damaged { source, .. }) => return assert!(source < sources.len()),
                Err(FoldError::Op(error)) => panic!("{error}"),
            }
        }
    }
    if !fold.done() {
        return assert!(fold.first_incomplete().is_some());
    }
    let form = collector.finish();
    if lo == 0 {
        let vector = SparseVec { n: hi, width: shape.width, form };
        vector.view().check(hi, shape.width).expect("a vector");
    } else if let Form::Sparse { indices: IndexList::Wide(list), .. } = form {
        assert!(list.is_sorted_by(|a, b| a < b) && list.iter().all(|i| (lo..hi).contains(i)));
    }
}
