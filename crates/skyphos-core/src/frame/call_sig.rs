//! The signature of a call: the collective and the arguments that all its ranks must agree on.

use super::call_kind::{CallKind, Data, Extra, Fields};
use skyphos_types::{CommId, DType, ReduceOp};

/// The signature of a call. Every data frame carries it, so ranks that made different calls detect that at the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallSig {
    /// The collective.
    pub kind: CallKind,
    /// Code of the operation ([`ReduceOp::code`]); 0 if none or a custom one.
    pub op: u8,
    /// Code of the element type; 0 if none.
    pub dtype: u8,
    /// Settings, by kind.
    pub flags: u8,
    /// Numbers per index; for arrays that are not one-dimensional, a hash of their shape.
    pub width: u32,
    /// Size of the index space.
    pub n: u64,
    /// By kind: the plan's number, a hash of the degrees, the root or the tag.
    pub extra: u32,
    /// A hash of the failed calls of the group that this rank's program knows of. The mailbox sets it when the call begins. Ranks
    /// that know of different failures may be at different places of their programs, even if their calls look the same.
    pub outcomes: u16,
}

impl CallSig {
    /// Flag of [`CallKind::Allgather`], `Gather`, `Alltoall` and `Scatter`: the call moves arrays, which are not encoded.
    pub const ARRAYS: u8 = 1;
    /// Flag of [`CallKind::Broadcast`]: the remaining ranks complete the call without lost ranks.
    pub const HEALS: u8 = 0x80;
    /// Flags of [`CallKind::PointToPoint`]: the frame is from the message's sender, or from its receiver.
    pub const SENDS: u8 = 1;
    /// See [`CallSig::SENDS`].
    pub const RECEIVES: u8 = 2;
    /// Flag of [`CallKind::PointToPoint`]: the call is a probe, which waits for a message. It sends no frame.
    pub const PROBES: u8 = 4;
    /// Flag of a receive or probe that takes any tag.
    pub const ANY_TAG: u8 = 8;
    /// [`CallSig::width`] of a receive or probe that takes messages from any rank.
    pub const ANY_SOURCE: u32 = u32::MAX;

    /// A call without operation, values or index space.
    pub const fn plain(kind: CallKind) -> CallSig {
        CallSig { kind, op: 0, dtype: 0, flags: 0, width: 0, n: 0, extra: 0, outcomes: 0 }
    }

    /// Whether both are the same call, apart from the failures that their programs know of.
    pub(crate) fn is_same_call(&self, other: &CallSig) -> bool {
        *self == CallSig { outcomes: self.outcomes, ..*other }
    }

    /// Whether the remaining ranks continue the call without lost ranks.
    pub fn outlives_losses(&self) -> bool {
        match self.kind {
            CallKind::Shrink => true,
            CallKind::Broadcast => self.flags & CallSig::HEALS != 0,
            _ => false,
        }
    }

    /// Whether both are the same call with different hashes of their arguments.
    pub(crate) fn differs_in_hash(&self, other: &CallSig) -> bool {
        let (extra, width) = (self.extra, self.width);
        let hashed = CallSig {
            extra: if self.has_hash() { extra } else { other.extra },
            width: if self.is_of_arrays() { width } else { other.width },
            ..*other
        };
        !self.is_same_call(other) && self.is_same_call(&hashed)
    }

    /// Whether the call moves or reduces arrays.
    fn is_of_arrays(&self) -> bool {
        match self.kind.fields().data {
            Data::Arrays => true,
            Data::Moved => self.flags == CallSig::ARRAYS,
            Data::Vectors | Data::None => false,
        }
    }

    /// Whether `extra` is a hash of arguments.
    fn has_hash(&self) -> bool {
        self.kind.fields().extra == Extra::Hash
    }

    /// The text with hashes of arguments. Users see the text without hashes, since a hash does not name the argument that differs.
    pub(crate) fn with_hashes(&self) -> String {
        self.text(true)
    }

    /// Whether a rank in this call and a rank in `other` may be in one call.
    pub fn fits(&self, other: &CallSig) -> bool {
        self.is_same_call(other) || self.kind == CallKind::Failed || other.kind == CallKind::Failed
    }
}

impl std::fmt::Display for CallSig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text(false))
    }
}

impl CallSig {
    fn text(&self, with_hash: bool) -> String {
        if self.kind == CallKind::PointToPoint {
            return self.text_of_message();
        }
        use CallKind::*;
        let Fields { name, data, has_op, extra } = self.kind.fields();
        let mut items: Vec<String> = Vec::new();
        if extra == Extra::Plan {
            items.push(format!("plan {}", self.extra));
        }
        if self.n > 0 && self.kind != Agree {
            items.push(format!("n={}", self.n));
        }
        if let Some(dtype) = DType::from_code(self.dtype) {
            items.push(format!("dtype={dtype}"));
            if has_op {
                let op = usize::from(self.op).checked_sub(1).and_then(|k| ReduceOp::NAMED.get(k));
                let name = op.map_or_else(|| "custom".to_owned(), |op| op.name().to_owned());
                // Bits of the hash of the custom operation's name.
                let tag =
                    if with_hash && op.is_none() { format!(" #{:x}", self.flags) } else { String::new() };
                items.push(format!("op={name}{tag}"));
            }
        }
        match self.kind {
            OuterProduct => items.push(format!("m={}", self.width)),
            _ if self.is_of_arrays() && with_hash && self.width > 1 => {
                items.push(format!("shape #{:x}", self.width));
            }
            _ if self.is_of_arrays() => {}
            _ if self.width > 1 => items.push(format!("width={}", self.width)),
            _ => {}
        }
        if matches!(self.kind, Configure | ConfigureReduce) {
            items.push(format!("missing={}", if self.flags & 1 == 0 { "error" } else { "identity" }));
        }
        match extra {
            Extra::Root => items.push(format!("root={}", self.extra)),
            Extra::Hash if with_hash => items.push(format!("settings #{:x}", self.extra)),
            _ => {}
        }
        let arrays = if data == Data::Moved && self.is_of_arrays() { " of arrays" } else { "" };
        format!("{name}{arrays}({})", items.join(", "))
    }
}

impl CallSig {
    /// A point-to-point call to or from `rank` with a tag; `None` stands for any. `role` is `SENDS`, `RECEIVES` or `PROBES`.
    pub fn of_message(comm: CommId, role: u8, rank: Option<u32>, tag: Option<u32>) -> CallSig {
        let flags = role | if tag.is_none() { CallSig::ANY_TAG } else { 0 };
        let (width, extra) = (rank.unwrap_or(CallSig::ANY_SOURCE), tag.unwrap_or(0));
        CallSig { flags, width, n: comm.0, extra, ..CallSig::plain(CallKind::PointToPoint) }
    }

    fn text_of_message(&self) -> String {
        let (name, end) = match self.flags & !CallSig::ANY_TAG {
            CallSig::SENDS => ("send", "dest"),
            CallSig::RECEIVES => ("recv", "source"),
            _ => ("probe", "source"),
        };
        let any = |is_any: bool, number: u32| if is_any { "any".to_owned() } else { number.to_string() };
        let rank = any(self.width == CallSig::ANY_SOURCE, self.width);
        let tag = any(self.flags & CallSig::ANY_TAG != 0, self.extra);
        format!("{name}({end}={rank}, tag={tag})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_describes_its_call() {
        let (op, dtype) = (1, DType::F64 as u8);
        let sig = CallSig {
            op,
            dtype,
            flags: 2,
            width: 16,
            n: 1 << 62,
            extra: 77,
            ..CallSig::plain(CallKind::Reduce)
        };
        let text = sig.to_string();
        assert_eq!(text, "reduce(plan 77, n=4611686018427387904, dtype=float64, op=sum, width=16)");
    }
}
