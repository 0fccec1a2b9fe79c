//! The error of ranks that have called different things.

use crate::arguments::Differences;
use crate::frame::CallSig;
use skyphos_types::Error;

/// The error for two ranks' signatures.
pub(super) fn mismatch(one: (u32, CallSig), other: (u32, CallSig)) -> Error {
    let ((left, left_sig), (right, right_sig)) = if one.0 <= other.0 { (one, other) } else { (other, one) };
    let (mut left_call, mut right_call) = (left_sig.to_string(), right_sig.to_string());
    if left_call == right_call {
        (left_call, right_call) = (left_sig.with_hashes(), right_sig.with_hashes());
    }
    Error::Mismatch { left, left_call, right, right_call }
}

/// The error where it is known which arguments differ. Without any, earlier calls have led the ranks to different choices.
pub(super) fn mismatch_named(one: (u32, CallSig), other: (u32, CallSig), differ: Differences) -> Error {
    let call = |(rank, sig): (u32, CallSig), function: &str, differ: &str| match (function, differ) {
        ("", "") => (rank, format!("{sig}, going by other calls before")),
        ("", _) => (rank, format!("{sig} with {differ}")),
        (_, "") => (rank, function.to_owned()),
        (_, _) => (rank, format!("{function}({differ})")),
    };
    let here = call(one, &differ.function, &differ.here);
    let there = call(other, &differ.other_function, &differ.there);
    let ((left, left_call), (right, right_call)) =
        if here.0 <= there.0 { (here, there) } else { (there, here) };
    Error::Mismatch { left, left_call, right, right_call }
}
