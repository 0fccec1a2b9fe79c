//! The error type of all crates. An error names the rank, the call, the cause and the remedy.

use std::time::Duration;

/// A result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a call.
///
/// A rank that fails inside a collective sends the error to all others ([`Error::to_wire`]), so that either all ranks raise it
/// or none does.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument or input that cannot be used.
    #[error("{message}")]
    BadInput {
        /// The argument, the reason and the remedy.
        message: String,
    },
    /// A rank's process or connection is gone.
    #[error("{} ({address}) is lost: {cause}", rank_text(*rank))]
    PeerLost {
        /// The lost rank; [`NO_MEMBER`] if it does not belong to the group that was called.
        rank: u32,
        /// Its host and address.
        address: String,
        /// How the loss was detected, and in which call.
        cause: String,
    },
    /// The group's time-out passed without progress.
    #[error("no progress within the timeout of {:.1} s in {call}: {}", after.as_secs_f64(), missing_text(missing, call))]
    Timeout {
        /// The ranks that did not enter the call.
        missing: Vec<u32>,
        /// The call they were expected in.
        call: String,
        /// The time that the call waited.
        after: Duration,
    },
    /// Two ranks are in different calls, or in the same call with other sizes, types or operations.
    #[error("ranks disagree: rank {left} is in {left_call}, rank {right} is in {right_call}")]
    Mismatch {
        /// One rank.
        left: u32,
        /// Its call.
        left_call: String,
        /// The other rank.
        right: u32,
        /// That rank's call.
        right_call: String,
    },
    /// A connection was refused (wrong token, rank taken, group complete).
    #[error("refused: {message}")]
    Refused {
        /// The rank that refused, and its reason.
        message: String,
    },
    /// Another rank left the collective.
    #[error("{} left the call: {cause}", rank_text(*rank))]
    Aborted {
        /// The rank that left.
        rank: u32,
        /// Its reason.
        cause: String,
    },
    /// The call was interrupted on this rank (Ctrl-C).
    #[error("interrupted")]
    Interrupted,
    /// One rank completed a call that another left with an error at the same moment, so that neither could know of the
    /// other's outcome. The group makes no more calls.
    #[error(
        "ranks {left} and {right} no longer agree which calls have succeeded: {cause}. Make a new group with shrink(), and go \
         on from a state that all ranks share (a checkpoint)"
    )]
    Diverged {
        /// One rank.
        left: u32,
        /// The other.
        right: u32,
        /// The cause, as text.
        cause: String,
    },
    /// Some wanted indices are contributed by no rank. All ranks detect this in the same call.
    #[error(
        "{requests} wanted indices are contributed by no rank: {}; contribute them, or pass \
         missing=\"identity\" to get the operation's identity",
        unmet_text(*requests, examples)
    )]
    Unmet {
        /// Number of these indices, each counted once for every rank that wants it.
        requests: u64,
        /// Some of the indices, each with a rank that wants it.
        examples: Vec<(u64, u32)>,
    },
    /// Received bytes are damaged.
    #[error("damaged data from {}: {message}", rank_text(*rank))]
    Corrupt {
        /// The rank that sent them.
        rank: u32,
        /// The damage.
        message: String,
    },
}

/// Stands for a rank that does not belong to the group.
pub const NO_MEMBER: u32 = u32::MAX;

fn rank_text(rank: u32) -> String {
    match rank {
        NO_MEMBER => "a rank outside this group".to_owned(),
        rank => format!("rank {rank}"),
    }
}

fn missing_text(missing: &[u32], call: &str) -> String {
    // A point-to-point call's text begins with the rank at its other end, as in `probe(source=3`. The argument is compared
    // too, because a collective is also called "probe".
    let how = match call.split('=').next() {
        Some("recv(source" | "probe(source") => "has sent no such message",
        Some("send(dest") => "has not received it",
        _ => "did not come",
    };
    match missing {
        [] => "no progress, and no rank is known to be missing".to_owned(),
        [one] => format!("rank {one} {how}"),
        many => {
            let ranks = many.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            format!("ranks {ranks} {}", how.replacen("has", "have", 1))
        }
    }
}

fn unmet_text(requests: u64, examples: &[(u64, u32)]) -> String {
    let mut shown: Vec<String> =
        examples.iter().map(|(index, rank)| format!("{index} (wanted by rank {rank})")).collect();
    if requests > examples.len() as u64 {
        shown.push("…".to_owned());
    }
    shown.join(", ")
}

impl Error {
    /// Whether every rank of the call detects this error, so that no rank needs to send it.
    pub fn is_agreed(&self) -> bool {
        matches!(self, Error::Unmet { .. })
    }

    /// A [`Error::BadInput`].
    pub fn bad_input(message: impl Into<String>) -> Error {
        Error::BadInput { message: message.into() }
    }

    /// A [`Error::Refused`].
    pub fn refused(message: impl Into<String>) -> Error {
        Error::Refused { message: message.into() }
    }

    /// This error with its ranks renumbered.
    pub fn renumbered(self, number: impl Fn(u32) -> u32) -> Error {
        match self {
            Error::PeerLost { rank, address, cause } => {
                let new = number(rank);
                let cause = match cause.strip_prefix(&format!("rank {rank} failed:")) {
                    Some(rest) if new == NO_MEMBER => format!("it failed:{rest}"),
                    Some(rest) => format!("rank {new} failed:{rest}"),
                    None => cause,
                };
                Error::PeerLost { rank: new, address, cause }
            }
            Error::Timeout { missing, call, after } => {
                Error::Timeout { missing: missing.into_iter().map(number).collect(), call, after }
            }
            Error::Mismatch { left, left_call, right, right_call } => {
                Error::Mismatch { left: number(left), left_call, right: number(right), right_call }
            }
            Error::Aborted { rank, cause } => Error::Aborted { rank: number(rank), cause },
            Error::Diverged { left, right, cause } => {
                Error::Diverged { left: number(left), right: number(right), cause }
            }
            Error::Unmet { requests, examples } => {
                let examples = examples.into_iter().map(|(index, rank)| (index, number(rank))).collect();
                Error::Unmet { requests, examples }
            }
            Error::Corrupt { rank, message } => Error::Corrupt { rank: number(rank), message },
            Error::BadInput { .. } | Error::Refused { .. } | Error::Interrupted => self,
        }
    }

    /// The error that `rank` sends to the other ranks when it leaves a call because of this one.
    pub fn as_seen_by_others(&self, rank: u32) -> Error {
        match self {
            // Some messages name the rank already, because the rank's own user reads them too.
            Error::BadInput { message } if !message.starts_with(&format!("rank {rank}: ")) => {
                Error::BadInput { message: format!("rank {rank}: {message}") }
            }
            Error::Interrupted => Error::Aborted { rank, cause: "interrupted".to_owned() },
            other => other.clone(),
        }
    }

    /// Bytes for an abort frame: a code, numbers, then texts, each with its length.
    pub fn to_wire(&self) -> Vec<u8> {
        let (code, numbers, texts): (u8, Vec<u64>, Vec<&str>) = match self {
            Error::BadInput { message } => (1, vec![], vec![message]),
            Error::PeerLost { rank, address, cause } => (2, vec![u64::from(*rank)], vec![address, cause]),
            Error::Timeout { missing, call, after } => {
                let mut numbers = vec![after.as_millis() as u64];
                numbers.extend(missing.iter().map(|r| u64::from(*r)));
                (3, numbers, vec![call])
            }
            Error::Mismatch { left, left_call, right, right_call } => {
                (4, vec![u64::from(*left), u64::from(*right)], vec![left_call, right_call])
            }
            Error::Refused { message } => (5, vec![], vec![message]),
            Error::Aborted { rank, cause } => (6, vec![u64::from(*rank)], vec![cause]),
            Error::Interrupted => (7, vec![], vec![]),
            Error::Corrupt { rank, message } => (8, vec![u64::from(*rank)], vec![message]),
            Error::Unmet { requests, examples } => {
                let pairs = examples.iter().flat_map(|(index, rank)| [*index, u64::from(*rank)]);
                (9, [*requests].into_iter().chain(pairs).collect(), vec![])
            }
            Error::Diverged { left, right, cause } => {
                (10, vec![u64::from(*left), u64::from(*right)], vec![cause])
            }
        };
        let mut out = vec![code];
        out.extend((numbers.len() as u32).to_le_bytes());
        numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
        for text in texts {
            // Long texts are cut, so that an error fits one frame.
            let mut end = text.len().min(1024);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            out.extend((end as u32).to_le_bytes());
            out.extend(&text.as_bytes()[..end]);
        }
        out
    }

    /// The error in an abort frame; `None` if the bytes are not an error.
    pub fn from_wire(bytes: &[u8]) -> Option<Error> {
        fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
            let (head, tail) = bytes.split_at_checked(len)?;
            *bytes = tail;
            Some(head)
        }
        fn number(bytes: &mut &[u8]) -> Option<u32> {
            Some(u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?))
        }
        fn text(bytes: &mut &[u8]) -> Option<String> {
            let len = number(bytes)? as usize;
            String::from_utf8(take(bytes, len)?.to_vec()).ok()
        }
        let mut bytes = bytes;
        let code = take(&mut bytes, 1)?[0];
        let count = number(&mut bytes)? as usize;
        let numbers: Vec<u64> = take(&mut bytes, count.checked_mul(8)?)?
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes(b.try_into().expect("chunks of 8")))
            .collect();
        let rank = |k: usize| numbers.get(k).map(|n| *n as u32);
        Some(match code {
            1 => Error::BadInput { message: text(&mut bytes)? },
            2 => Error::PeerLost { rank: rank(0)?, address: text(&mut bytes)?, cause: text(&mut bytes)? },
            3 => Error::Timeout {
                after: Duration::from_millis(*numbers.first()?),
                missing: numbers[1..].iter().map(|n| *n as u32).collect(),
                call: text(&mut bytes)?,
            },
            4 => Error::Mismatch {
                left: rank(0)?,
                right: rank(1)?,
                left_call: text(&mut bytes)?,
                right_call: text(&mut bytes)?,
            },
            5 => Error::Refused { message: text(&mut bytes)? },
            6 => Error::Aborted { rank: rank(0)?, cause: text(&mut bytes)? },
            7 => Error::Interrupted,
            8 => Error::Corrupt { rank: rank(0)?, message: text(&mut bytes)? },
            9 => Error::Unmet {
                requests: *numbers.first()?,
                examples: numbers[1..].chunks_exact(2).map(|p| (p[0], p[1] as u32)).collect(),
            },
            10 => Error::Diverged { left: rank(0)?, right: rank(1)?, cause: text(&mut bytes)? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<Error> {
        let s = |t: &str| t.to_owned();
        vec![
            Error::bad_input("no such file"),
            Error::PeerLost { rank: 3, address: s("a:1"), cause: s("closed") },
            Error::Timeout { missing: vec![1, 5], call: s("barrier"), after: Duration::from_secs(2) },
            Error::Mismatch { left: 0, left_call: s("a"), right: 1, right_call: s("b") },
            Error::refused("token"),
            Error::Aborted { rank: 9, cause: s("Ctrl-C") },
            Error::Interrupted,
            Error::Corrupt { rank: 2, message: s("crc") },
            Error::Unmet { requests: 3, examples: vec![(1 << 62, 4), (7, 0)] },
            Error::Diverged { left: 1, right: 0, cause: s("interrupted") },
        ]
    }

    #[test]
    fn wire_round_trip_and_any_prefix_is_harmless() {
        for error in one_of_each() {
            let bytes = error.to_wire();
            assert_eq!(Error::from_wire(&bytes), Some(error));
            for cut in 0..bytes.len() {
                let _ = Error::from_wire(&bytes[..cut]);
            }
        }
        assert_eq!(Error::from_wire(&[1, 255, 255, 255, 255]), None);
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let error = Error::bad_input("ä".repeat(2000));
        let Some(Error::BadInput { message }) = Error::from_wire(&error.to_wire()) else { panic!() };
        assert!(message.len() <= 1024 && message.chars().all(|c| c == 'ä'));
    }

    #[test]
    fn the_rank_is_named_once_in_errors_of_others() {
        for message in ["the gradient of a is nan", "rank 12: the gradient of a is nan"] {
            let text = Error::bad_input(message).as_seen_by_others(12).to_string();
            assert_eq!(text, "rank 12: the gradient of a is nan");
        }
        let text = Error::bad_input("rank 1: no").as_seen_by_others(12).to_string();
        assert_eq!(text, "rank 12: rank 1: no");
        assert!(Error::Interrupted.as_seen_by_others(12).to_string().starts_with("rank 12 left"));
    }

    #[test]
    fn renumbering_changes_every_rank() {
        let ranks = [0, 1, 2, 2, 0, 1, 0, 1, 2, 2];
        for (error, ranks) in one_of_each().into_iter().zip(ranks) {
            let moved = error.clone().renumbered(|rank| rank + 7700);
            assert_eq!(moved.to_string().matches(" 770").count(), ranks, "{moved}");
            assert_eq!(moved.renumbered(|rank| rank - 7700), error);
        }
        let cause = "rank 3 failed: ValueError: no".to_owned();
        let lost = Error::PeerLost { rank: 3, address: "a:1".to_owned(), cause };
        let elsewhere = lost.clone().renumbered(|_| NO_MEMBER).to_string();
        assert!(elsewhere.starts_with("a rank outside this group (a:1) is lost: it failed"));
        let text = lost.renumbered(|_| 0).to_string();
        assert_eq!(text, "rank 0 (a:1) is lost: rank 0 failed: ValueError: no");
    }

    #[test]
    fn messages_name_the_ranks() {
        let text: Vec<_> = one_of_each().iter().map(Error::to_string).collect();
        assert!(text[2].contains("ranks 1, 5 did not come"), "{}", text[2]);
        assert!(text[3].contains("rank 0 is in a, rank 1 is in b"), "{}", text[3]);
    }
}
