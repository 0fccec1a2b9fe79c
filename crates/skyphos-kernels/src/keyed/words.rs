//! Words of a text as strings of bytes, without an object for each.

/// White space as `bytes.split` of Python has it: space, tab, line feed, vertical tab, form feed, carriage return.
const fn is_space(byte: u8) -> bool {
    byte == b' ' || (byte >= b'\t' && byte <= b'\r')
}

/// Bytes at a time: what is written of them stays near.
const PIECE: usize = 1 << 12;

/// Words of the beginning of a text: where each begins among their letters, and the end; their letters; and how many bytes of the
/// text they take. That is about `most` of them, and more where the last word goes on.
pub fn words(text: &[u8], most: usize) -> (Vec<i64>, Vec<u8>, usize) {
    let end = text.len().min(most.max(1));
    let end = text[end..].iter().position(|byte| is_space(*byte)).map_or(text.len(), |more| end + more);
    let mut letters = vec![0u8; end];
    // A word takes two bytes or more, but for the last.
    let mut ends = vec![0i64; end / 2 + 2];
    let (mut written, mut count, mut in_word) = (0, 0, false);
    for piece in text[..end].chunks(PIECE) {
        // No branches: a word is as long as chance has it. What is written in vain is written over.
        for byte in piece {
            let space = is_space(*byte);
            letters[written] = *byte;
            ends[count + 1] = written as i64;
            written += usize::from(!space);
            count += usize::from(space & in_word);
            in_word = !space;
        }
    }
    if in_word {
        ends[count + 1] = written as i64;
        count += 1;
    }
    letters.truncate(written);
    ends.truncate(count + 1);
    (ends, letters, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_are_what_white_space_parts(
            text in prop::collection::vec(prop::sample::select(b" \t\n\x0b\x0c\rab\x80".to_vec()), 0..200),
            most in 0usize..250,
        ) {
            let expected: Vec<&[u8]> = text.split(|byte| is_space(*byte)).filter(|word| !word.is_empty()).collect();
            let (mut got, mut at) = (Vec::new(), 0);
            while at < text.len() {
                let (ends, letters, taken) = words(&text[at..], most);
                prop_assert!(taken > 0);
                let word = |pair: &[i64]| letters[pair[0] as usize..pair[1] as usize].to_vec();
                got.extend(ends.windows(2).map(word));
                at += taken;
            }
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn white_space_is_pythons() {
        let spaces: Vec<u8> = (0..=255).filter(|byte| is_space(*byte)).collect();
        assert_eq!(spaces, b"\t\n\x0b\x0c\r ");
        assert_eq!(words(b"", 10), (vec![0], vec![], 0));
    }
}
