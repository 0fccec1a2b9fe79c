//! The index sets that a rank holds between the layers of a configuration: out- and in-set.
//!
//! Real ones, or, in a simulation without data, only how many indices they should have: what a rank holds after layers
//! that joined m ranks' sets in an m-th of the hashed range.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::plan::Map;
use skyphos_kernels::{Block, Encoding, IndexSet, Locator, MISSING, count_indices, encoded_bytes, union};
use skyphos_types::{Error, Result};
use std::borrow::Cow;
use std::sync::Arc;

/// Indices that the union of m ranks' sets has.
pub type UnionSize = Arc<dyn Fn(f64) -> f64 + Send + Sync>;

/// See the module's text.
pub enum Sets {
    /// The indices themselves.
    Real {
        /// What is put out.
        out: IndexSet,
        /// What is asked for.
        want: IndexSet,
    },
    /// Only their numbers.
    Counted(Counted),
}

/// Sets of which only the number of indices is known.
#[derive(Clone)]
pub struct Counted {
    /// Of what is put out.
    pub out: UnionSize,
    /// Of what is asked for.
    pub want: UnionSize,
    /// Whether both are the same.
    pub same: bool,
    /// Indices in the whole space.
    pub n: u64,
    /// Ids in the whole range of blocks.
    pub range: u64,
    /// Ranks whose sets are joined in it.
    pub joined: u32,
}

/// A message that came, or this rank's own share, as the join sees it.
pub(crate) struct Theirs<'a> {
    outs: Cow<'a, [Block]>,
    /// `None`: the in-part is the out-part.
    ins: Option<Cow<'a, [Block]>>,
}

/// What a join leaves: the sets below, and the maps of every member's part into them.
pub(crate) struct Joined {
    pub(crate) sets: Sets,
    pub(crate) out_maps: Vec<Map>,
    pub(crate) in_maps: Vec<Map>,
    pub(crate) out_len: usize,
    pub(crate) in_len: usize,
}

/// Both parts of a share, ready to be written.
pub(crate) enum Code<'a> {
    Real { out: Encoding<'a>, want: Option<Encoding<'a>> },
    Counted { bytes: usize },
}

impl Code<'_> {
    /// Bytes of a byte that says whether both sets are the same, and the sets.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Code::Real { out, want } => 1 + out.bytes() + want.as_ref().map_or(0, Encoding::bytes),
            Code::Counted { bytes } => 1 + bytes,
        }
    }

    /// Writes exactly so many bytes.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let Code::Real { out, want } = self else { return };
        bytes[0] = u8::from(want.is_none());
        let (first, second) = bytes[1..].split_at_mut(out.bytes());
        out.write(first);
        if let Some(code) = want {
            code.write(second);
        }
    }
}

impl Counted {
    /// How many of the indices in an m-th of the space a rank holds, of sets of this size.
    fn held(&self, size: &UnionSize, joined: u32) -> f64 {
        size(f64::from(joined)) / f64::from(joined.max(1))
    }

    /// Bytes of `indices` that lie evenly in `range` blocks.
    fn bytes(&self, indices: f64, range: u64) -> usize {
        let width = self.n as f64 / self.range.max(1) as f64;
        let positions = range as f64 * width;
        let density = (indices / positions.max(1.0)).min(1.0);
        let blocks = range as f64 * (1.0 - (1.0 - density).powf(width));
        encoded_bytes(blocks as u64, indices as u64, range)
    }

    fn splits(&self, size: &UnionSize, parts: usize) -> Vec<usize> {
        let each = self.each(size, parts);
        (0..=parts).map(|j| j * each).collect()
    }

    /// Indices in each of so many equal parts of what is held: the same for who sends and who receives.
    fn each(&self, size: &UnionSize, parts: usize) -> usize {
        (self.held(size, self.joined) / parts as f64) as usize
    }
}

impl Sets {
    /// Positions of the out- and in-set at which the parts of the ranges between `bounds` begin; one more at the end.
    pub(crate) fn splits(&self, bounds: &[u64]) -> [Vec<usize>; 2] {
        let parts = bounds.len() - 1;
        let of = |set: &IndexSet| -> Vec<usize> {
            let starts =
                bounds[..parts].iter().map(|lo| set.base(set.blocks().partition_point(|b| b.id < *lo)));
            starts.chain([set.len()]).collect()
        };
        match self {
            Sets::Real { out, want } => [of(out), of(want)],
            Sets::Counted(counted) => {
                [counted.splits(&counted.out, parts), counted.splits(&counted.want, parts)]
            }
        }
    }

    /// The encoding of the parts in a range of ids; `parts` is among how many equal ones.
    pub(crate) fn encode(&self, lo: u64, hi: u64, parts: usize) -> Code<'_> {
        match self {
            Sets::Real { out, want } => {
                let (outs, ins) = part(out, want, lo, hi);
                Code::Real {
                    out: Encoding::new(outs, lo, hi),
                    want: ins.map(|ins| Encoding::new(ins, lo, hi)),
                }
            }
            Sets::Counted(counted) => {
                let bytes = |size: &UnionSize| counted.bytes(counted.each(size, parts) as f64, hi - lo);
                let bytes = bytes(&counted.out) + if counted.same { 0 } else { bytes(&counted.want) };
                Code::Counted { bytes }
            }
        }
    }

    /// Joins the parts of all members, by member; this rank's own is `None`.
    pub(crate) fn join(
        &self,
        ep: &Endpoint,
        parts: Vec<Option<Theirs<'_>>>,
        lo: u64,
        hi: u64,
    ) -> Result<Joined> {
        let degree = parts.len();
        let counted = match self {
            Sets::Real { out, want } => {
                let own = || {
                    let (outs, ins) = part(out, want, lo, hi);
                    Theirs { outs: Cow::Borrowed(outs), ins: ins.map(Cow::Borrowed) }
                };
                let all: Vec<Theirs<'_>> =
                    parts.into_iter().map(|theirs| theirs.unwrap_or_else(own)).collect();
                return join_real(ep, &all);
            }
            Sets::Counted(counted) => counted,
        };
        let joined = counted.joined * degree as u32;
        let side = |size: &UnionSize| {
            let each = counted.each(size, degree);
            let len = counted.held(size, joined) as usize;
            ep.spend(Effort::SetJoin { indices: each * degree });
            (len, vec![Map::Counted { len: each, into: len }; degree])
        };
        let (out_len, out_maps) = side(&counted.out);
        let (in_len, in_maps) = match counted.same {
            true => (out_len, out_maps.clone()),
            false => side(&counted.want),
        };
        let sets = Sets::Counted(Counted { joined, ..counted.clone() });
        Ok(Joined { sets, out_maps, in_maps, out_len, in_len })
    }
}

/// The blocks of both sets in a range of ids; `None`: the in-part is the out-part.
fn part<'a>(out: &'a IndexSet, want: &'a IndexSet, lo: u64, hi: u64) -> (&'a [Block], Option<&'a [Block]>) {
    let outs = &out.blocks()[out.blocks_between(lo, hi)];
    let ins = &want.blocks()[want.blocks_between(lo, hi)];
    (outs, (ins != outs).then_some(ins))
}

/// The sets in a message of real ones, after its first byte was split off, and the bytes they take.
pub(crate) fn decode<'a>(
    same: u8,
    bytes: &[u8],
    lo: u64,
    hi: u64,
) -> std::result::Result<(Theirs<'a>, usize), &'static str> {
    let (outs, used) = skyphos_kernels::decode(bytes, lo, hi)?;
    let (ins, used_too) = match same {
        1 => (None, 0),
        _ => {
            let (blocks, used) = skyphos_kernels::decode(&bytes[used..], lo, hi)?;
            (Some(Cow::Owned(blocks)), used)
        }
    };
    Ok((Theirs { outs: Cow::Owned(outs), ins }, used + used_too))
}

impl Theirs<'_> {
    /// Rows that go with the out-part.
    pub(crate) fn rows(&self) -> usize {
        count_indices(&self.outs) as usize
    }
}

fn join_real(ep: &Endpoint, all: &[Theirs<'_>]) -> Result<Joined> {
    let outs: Vec<&[Block]> = all.iter().map(|part| part.outs.as_ref()).collect();
    let (out, out_maps) = join_side(ep, &outs)?;
    let (want, in_maps) = if all.iter().all(|part| part.ins.is_none()) {
        (out.clone(), out_maps.clone())
    } else {
        let ins = all.iter().map(|part| part.ins.as_ref().unwrap_or(&part.outs).as_ref());
        join_side(ep, &ins.collect::<Vec<_>>())?
    };
    let (out_len, in_len) = (out.len(), want.len());
    Ok(Joined { sets: Sets::Real { out, want }, out_maps, in_maps, out_len, in_len })
}

/// The union of the parts, and the map of each part into it.
fn join_side(ep: &Endpoint, parts: &[&[Block]]) -> Result<(IndexSet, Vec<Map>)> {
    let blocks = union(parts);
    let count = count_indices(&blocks);
    if count >= u64::from(MISSING) {
        return Err(Error::bad_input(format!(
            "{count} indices meet on one rank; it takes at most 2^32 - 2: use more ranks"
        )));
    }
    let set = IndexSet::new(blocks);
    let locator = Locator::new(&set);
    let maps: Vec<Map> = parts.iter().map(|part| Map::Places(Arc::new(locator.positions(part)))).collect();
    ep.spend(Effort::SetJoin { indices: maps.iter().map(Map::len).sum() });
    Ok((set, maps))
}
