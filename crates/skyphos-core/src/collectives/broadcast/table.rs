//! The header of a broadcast's message on the wire: a table of the parts' lengths.

use super::route::{Route, RouteChoice, SMALL_BYTES};

/// The header of a message: the root's choice of route, and the length of each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) choice: RouteChoice,
    pub(super) lengths: Vec<usize>,
}

/// Bytes of three numbers of 8 bytes: route, chunk length, number of parts. The length of each part follows.
const HEAD_BYTES: usize = 24;

impl Table {
    pub(super) fn new(choice: RouteChoice, lengths: Vec<usize>) -> Table {
        Table { choice, lengths }
    }

    /// Bytes of all parts.
    pub(super) fn total(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Whether the parts travel in the table's message.
    pub(super) fn is_small(&self) -> bool {
        self.total() <= SMALL_BYTES
    }

    /// The bytes of the table, followed by `small`: the parts of a small message, else empty.
    pub(super) fn encode(&self, small: &[u8]) -> Vec<u8> {
        let numbers = [self.choice.route as usize, self.choice.chunk_bytes, self.lengths.len()];
        let all = numbers.iter().chain(&self.lengths).flat_map(|number| (*number as u64).to_le_bytes());
        all.chain(small.iter().copied()).collect()
    }

    /// The table, and the bytes after it; `None` if the bytes are not a table.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Table, &[u8])> {
        let number = |at: usize| -> Option<usize> {
            let eight = bytes.get(at..at.checked_add(8)?)?;
            usize::try_from(u64::from_le_bytes(eight.try_into().ok()?)).ok()
        };
        let route = Route::from_code(u8::try_from(number(0)?).ok()?)?;
        let (chunk_bytes, count) = (number(8)?, number(16)?);
        let end = count.checked_mul(8)?.checked_add(HEAD_BYTES).filter(|end| *end <= bytes.len())?;
        let lengths: Vec<usize> = (0..count).map(|k| number(HEAD_BYTES + 8 * k)).collect::<Option<_>>()?;
        lengths.iter().try_fold(0usize, |sum, len| sum.checked_add(*len))?;
        let choice = RouteChoice { route, chunk_bytes: Some(chunk_bytes).filter(|bytes| *bytes > 0)? };
        Some((Table { choice, lengths }, &bytes[end..]))
    }
}

/// A decoded table and the bytes after it, encoded again.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_table(bytes: &[u8]) -> Option<Vec<u8>> {
    Table::decode(bytes).map(|(table, small)| table.encode(small))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tables_round_trip(
            lengths in prop::collection::vec(0usize..1 << 40, 0..20),
            route in prop::sample::select(&Route::ALL[..]),
            small in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let table = Table::new(RouteChoice { route, chunk_bytes: 77 }, lengths);
            let bytes = table.encode(&small);
            prop_assert_eq!(Table::decode(&bytes), Some((table, &small[..])));
        }

        #[test]
        fn accepted_bytes_encode_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some((table, small)) = Table::decode(&bytes) {
                prop_assert_eq!(table.encode(small), bytes);
            }
        }
    }
}
