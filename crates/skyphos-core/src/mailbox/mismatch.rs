//! The error of two ranks in different calls.

use crate::arguments::Differences;
use crate::frame::CallSig;
use skyphos_types::{Error, WorldRank};

/// The error for two ranks' signatures.
pub(super) fn mismatch(one: (WorldRank, CallSig), other: (WorldRank, CallSig)) -> Error {
    let ((left, left_sig), (right, right_sig)) = if one.0 <= other.0 { (one, other) } else { (other, one) };
    let (mut left_call, mut right_call) = (left_sig.to_string(), right_sig.to_string());
    if left_call == right_call {
        (left_call, right_call) = (left_sig.with_hashes(), right_sig.with_hashes());
    }
    Error::Mismatch { left: left.0, left_call, right: right.0, right_call }
}

/// Like [`mismatch`], with the differing arguments. If no argument differs, the ranks have chosen differently because of earlier
/// calls.
pub(super) fn mismatch_named(
    one: (WorldRank, CallSig),
    other: (WorldRank, CallSig),
    differ: Differences,
) -> Error {
    let call = |(rank, sig): (WorldRank, CallSig), function: &str, differ: &str| match (function, differ) {
        ("", "") => (rank, format!("{sig}, chosen because of different earlier calls")),
        ("", _) => (rank, format!("{sig} with {differ}")),
        (_, "") => (rank, function.to_owned()),
        (_, _) => (rank, format!("{function}({differ})")),
    };
    let ours = call(one, &differ.our_function, &differ.ours);
    let theirs = call(other, &differ.their_function, &differ.theirs);
    let ((left, left_call), (right, right_call)) =
        if ours.0 <= theirs.0 { (ours, theirs) } else { (theirs, ours) };
    Error::Mismatch { left: left.0, left_call, right: right.0, right_call }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::CallKind;

    const DENSE: CallSig = CallSig::plain(CallKind::AllreduceDense);

    fn parts(error: Error) -> (u32, String, u32, String) {
        let Error::Mismatch { left, left_call, right, right_call } = error else { panic!("{error}") };
        (left, left_call, right, right_call)
    }

    #[test]
    fn the_lower_rank_comes_first() {
        let barrier = CallSig::plain(CallKind::Barrier);
        let one = parts(mismatch((WorldRank(4), DENSE), (WorldRank(1), barrier)));
        assert_eq!(one, parts(mismatch((WorldRank(1), barrier), (WorldRank(4), DENSE))));
        assert_eq!((one.0, one.2), (1, 4));
    }

    #[test]
    fn calls_with_the_same_text_are_shown_with_their_hashes() {
        let (_, left, _, right) = parts(mismatch(
            (WorldRank(0), CallSig { extra: 1, ..DENSE }),
            (WorldRank(1), CallSig { extra: 2, ..DENSE }),
        ));
        assert!(left.contains("settings #1") && right.contains("settings #2"), "{left} {right}");
    }

    #[test]
    fn differing_arguments_are_named() {
        let texts = |function: &str, ours: &str, theirs: &str| {
            let differ = Differences {
                our_function: function.to_owned(),
                their_function: function.to_owned(),
                ours: ours.to_owned(),
                theirs: theirs.to_owned(),
            };
            let (_, left, _, right) =
                parts(mismatch_named((WorldRank(0), DENSE), (WorldRank(1), DENSE), differ));
            (left, right)
        };
        let call = DENSE.to_string();
        assert_eq!(texts("", "k=1", "k=2"), (format!("{call} with k=1"), format!("{call} with k=2")));
        assert_eq!(texts("f", "k=1", "k=2"), ("f(k=1)".to_owned(), "f(k=2)".to_owned()));
        assert_eq!(texts("f", "", ""), ("f".to_owned(), "f".to_owned()));
        assert!(texts("", "", "").0.contains("different earlier calls"));
    }
}
