//! The out-set and the in-set of a rank between two layers of a configuration.
//!
//! In a simulation without data the sets have only sizes: after layers that join the sets of m ranks, a rank has the union's
//! indices in an m-th of the hashed range.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::plan::Map;
use skyphos_kernels::{Block, Encoding, IndexSet, Locator, MISSING, count_indices, encoded_bytes, union};
use skyphos_types::{Error, Result};
use std::borrow::Cow;
use std::sync::Arc;

/// The number of indices in the union of m ranks' sets, as a function of m.
pub type UnionSize = Arc<dyn Fn(f64) -> f64 + Send + Sync>;

/// An out-set and an in-set.
pub enum Sets {
    /// The indices.
    Real {
        /// The indices contributed.
        out: IndexSet,
        /// The indices wanted.
        want: IndexSet,
    },
    /// Only sizes.
    Sized(SetSizes),
}

/// The sizes of the sets of a simulation without data.
#[derive(Clone)]
pub struct SetSizes {
    /// Union sizes of the out-sets.
    pub out: UnionSize,
    /// Union sizes of the in-sets.
    pub want: UnionSize,
    /// Whether both sets are the same.
    pub same: bool,
    /// Indices in the whole space.
    pub n: u64,
    /// Block ids in the whole hashed range.
    pub range: u64,
    /// Number of ranks whose sets have been joined so far.
    pub joined: u32,
}

/// One member's share of both sets: received, or this rank's own.
pub(crate) struct Share<'a> {
    outs: Cow<'a, [Block]>,
    /// `None` if it equals the out-share.
    ins: Option<Cow<'a, [Block]>>,
}

/// The result of a join: the unions, and the maps of every member's share into them.
pub(crate) struct Joined {
    pub(crate) sets: Sets,
    pub(crate) out_maps: Vec<Map>,
    pub(crate) in_maps: Vec<Map>,
    pub(crate) out_len: usize,
    pub(crate) in_len: usize,
}

/// The encoding of a share: a byte that is 1 if the in-share equals the out-share, else 0; the out-share; after 0, the in-share.
pub(crate) enum ShareEncoding<'a> {
    Real { out: Encoding<'a>, want: Option<Encoding<'a>> },
    Sized { bytes: usize },
}

impl ShareEncoding<'_> {
    /// Bytes of the encoding.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            ShareEncoding::Real { out, want } => 1 + out.bytes() + want.as_ref().map_or(0, Encoding::bytes),
            ShareEncoding::Sized { bytes } => 1 + bytes,
        }
    }

    /// Writes the encoding to a slice of its length.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let ShareEncoding::Real { out, want } = self else { return };
        bytes[0] = u8::from(want.is_none());
        let (first, second) = bytes[1..].split_at_mut(out.bytes());
        out.write(first);
        if let Some(want) = want {
            want.write(second);
        }
    }
}

impl SetSizes {
    /// Indices of a rank after `joined` ranks' sets were joined in a `joined`-th of the range.
    fn per_rank(&self, size: &UnionSize, joined: u32) -> f64 {
        size(f64::from(joined)) / f64::from(joined.max(1))
    }

    /// Encoded bytes of `indices` that are spread evenly over `range` blocks.
    fn bytes(&self, indices: f64, range: u64) -> usize {
        let block_len = self.n as f64 / self.range.max(1) as f64;
        let density = (indices / (range as f64 * block_len).max(1.0)).min(1.0);
        let blocks = range as f64 * (1.0 - (1.0 - density).powf(block_len));
        encoded_bytes(blocks as u64, indices as u64, range)
    }

    fn splits(&self, size: &UnionSize, parts: usize) -> Vec<usize> {
        let each = self.each(size, parts);
        (0..=parts).map(|j| j * each).collect()
    }

    /// Indices in each of `parts` equal shares of a rank's set: the same number for sender and receiver.
    fn each(&self, size: &UnionSize, parts: usize) -> usize {
        (self.per_rank(size, self.joined) / parts as f64) as usize
    }
}

impl Sets {
    /// Positions of the out-set and of the in-set at which the shares of the ranges between `bounds` begin, and the ends.
    pub(crate) fn splits(&self, bounds: &[u64]) -> [Vec<usize>; 2] {
        let parts = bounds.len() - 1;
        let splits_of = |set: &IndexSet| -> Vec<usize> {
            let starts =
                bounds[..parts].iter().map(|lo| set.base(set.blocks().partition_point(|b| b.id < *lo)));
            starts.chain([set.len()]).collect()
        };
        match self {
            Sets::Real { out, want } => [splits_of(out), splits_of(want)],
            Sets::Sized(sizes) => [sizes.splits(&sizes.out, parts), sizes.splits(&sizes.want, parts)],
        }
    }

    /// Encodes the share of a range of block ids, one of `parts` equal ranges.
    pub(crate) fn encode(&self, lo: u64, hi: u64, parts: usize) -> ShareEncoding<'_> {
        match self {
            Sets::Real { out, want } => {
                let (outs, ins) = share(out, want, lo, hi);
                ShareEncoding::Real {
                    out: Encoding::new(outs, lo, hi),
                    want: ins.map(|ins| Encoding::new(ins, lo, hi)),
                }
            }
            Sets::Sized(sizes) => {
                let bytes = |size: &UnionSize| sizes.bytes(sizes.each(size, parts) as f64, hi - lo);
                let bytes = bytes(&sizes.out) + if sizes.same { 0 } else { bytes(&sizes.want) };
                ShareEncoding::Sized { bytes }
            }
        }
    }

    /// Joins the shares of all members in a range of block ids. `shares` is by member, with `None` for this rank's own.
    pub(crate) fn join(
        &self,
        ep: &Endpoint,
        shares: Vec<Option<Share<'_>>>,
        lo: u64,
        hi: u64,
    ) -> Result<Joined> {
        let degree = shares.len();
        let sizes = match self {
            Sets::Real { out, want } => {
                let own = || {
                    let (outs, ins) = share(out, want, lo, hi);
                    Share { outs: Cow::Borrowed(outs), ins: ins.map(Cow::Borrowed) }
                };
                let all: Vec<Share<'_>> = shares.into_iter().map(|share| share.unwrap_or_else(own)).collect();
                return join_real(ep, &all);
            }
            Sets::Sized(sizes) => sizes,
        };
        let joined = sizes.joined * degree as u32;
        let side = |size: &UnionSize| {
            let each = sizes.each(size, degree);
            let len = sizes.per_rank(size, joined) as usize;
            ep.spend(Effort::SetJoin { indices: each * degree });
            (len, vec![Map::Sized { len: each, into: len }; degree])
        };
        let (out_len, out_maps) = side(&sizes.out);
        let (in_len, in_maps) = match sizes.same {
            true => (out_len, out_maps.clone()),
            false => side(&sizes.want),
        };
        let sets = Sets::Sized(SetSizes { joined, ..sizes.clone() });
        Ok(Joined { sets, out_maps, in_maps, out_len, in_len })
    }
}

/// The blocks of both sets in a range of block ids. The second is `None` if they are the same.
fn share<'a>(out: &'a IndexSet, want: &'a IndexSet, lo: u64, hi: u64) -> (&'a [Block], Option<&'a [Block]>) {
    let outs = &out.blocks()[out.blocks_between(lo, hi)];
    let ins = &want.blocks()[want.blocks_between(lo, hi)];
    (outs, (ins != outs).then_some(ins))
}

/// Decodes a share. `same` is the first byte of a [`ShareEncoding`], `bytes` begins after it. Also returns the number of bytes read.
pub(crate) fn decode<'a>(
    same: u8,
    bytes: &[u8],
    lo: u64,
    hi: u64,
) -> std::result::Result<(Share<'a>, usize), &'static str> {
    let (outs, used) = skyphos_kernels::decode(bytes, lo, hi)?;
    let (ins, used_by_ins) = match same {
        1 => (None, 0),
        _ => {
            let (blocks, used) = skyphos_kernels::decode(&bytes[used..], lo, hi)?;
            (Some(Cow::Owned(blocks)), used)
        }
    };
    Ok((Share { outs: Cow::Owned(outs), ins }, used + used_by_ins))
}

impl Share<'_> {
    /// Number of values that go with the out-share.
    pub(crate) fn rows(&self) -> usize {
        count_indices(&self.outs) as usize
    }
}

fn join_real(ep: &Endpoint, all: &[Share<'_>]) -> Result<Joined> {
    let outs: Vec<&[Block]> = all.iter().map(|share| share.outs.as_ref()).collect();
    let (out, out_maps) = join_side(ep, &outs)?;
    let (want, in_maps) = if all.iter().all(|share| share.ins.is_none()) {
        (out.clone(), out_maps.clone())
    } else {
        let ins = all.iter().map(|share| share.ins.as_ref().unwrap_or(&share.outs).as_ref());
        join_side(ep, &ins.collect::<Vec<_>>())?
    };
    let (out_len, in_len) = (out.len(), want.len());
    Ok(Joined { sets: Sets::Real { out, want }, out_maps, in_maps, out_len, in_len })
}

/// The union of all members' shares of one set, and the map of each share into it.
fn join_side(ep: &Endpoint, shares: &[&[Block]]) -> Result<(IndexSet, Vec<Map>)> {
    let blocks = union(shares);
    let count = count_indices(&blocks);
    if count >= u64::from(MISSING) {
        return Err(Error::bad_input(format!(
            "the union on one rank has {count} indices; the limit is 2^32 - 2: use more ranks"
        )));
    }
    let set = IndexSet::new(blocks);
    let locator = Locator::new(&set);
    let maps: Vec<Map> =
        shares.iter().map(|share| Map::Positions(Arc::new(locator.positions(share)))).collect();
    ep.spend(Effort::SetJoin { indices: maps.iter().map(Map::len).sum() });
    Ok((set, maps))
}
