//! Tokens: the words of a text as byte strings in Arrow's layout, without an object for each.

/// White space as in Python's `bytes.split`: space, tab, line feed, vertical tab, form feed, carriage return.
const fn is_space(byte: u8) -> bool {
    byte == b' ' || (byte >= b'\t' && byte <= b'\r')
}

/// The highest bit of each of eight bytes is set where the byte is white space.
const fn spaces_of_eight(bytes: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const LOW: u64 = 0x7f * EACH;
    // A sum of two 7-bit numbers does not carry into the next byte.
    let low = bytes & LOW;
    let space = low ^ (b' ' as u64 * EACH);
    let is_space = !(space + LOW);
    let control = (low + (0x80 - b'\t' as u64) * EACH) & !(low + (0x7f - b'\r' as u64) * EACH);
    (is_space | control) & !bytes & !LOW
}

/// A bit for each of 64 bytes, set where it is white space.
fn spaces(bytes: &[u8; 64]) -> u64 {
    let eights = bytes.as_chunks::<8>().0.iter().enumerate();
    // The multiplication gathers the eight bits in the highest byte.
    let bits = |eight: &[u8; 8]| {
        (spaces_of_eight(u64::from_le_bytes(*eight)) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    eights.fold(0, |all, (k, eight)| all | bits(eight) << (8 * k))
}

/// Bytes copied for every word of at most this length; the next word overwrites the excess.
const COPY_BYTES: usize = 16;

/// The concatenated words so far, and their offsets.
struct Tokens {
    offsets: Vec<i64>,
    bytes: Vec<u8>,
    written: usize,
}

impl Tokens {
    fn add(&mut self, text: &[u8], start: usize, end: usize) {
        let to = self.written;
        match text.get(start..start + COPY_BYTES) {
            Some(more) if end - start <= COPY_BYTES => self.bytes[to..to + COPY_BYTES].copy_from_slice(more),
            _ => self.bytes[to..to + end - start].copy_from_slice(&text[start..end]),
        }
        self.written += end - start;
        self.offsets.push(self.written as i64);
    }
}

/// The words at the beginning of a text: their offsets, their bytes, and the bytes of text that were read. Reading stops after
/// `max_bytes` bytes, at the end of a word.
pub fn tokens(text: &[u8], max_bytes: usize) -> (Vec<i64>, Vec<u8>, usize) {
    let end = text.len().min(max_bytes.max(1));
    let end = text[end..].iter().position(|byte| is_space(*byte)).map_or(text.len(), |more| end + more);
    let mut offsets = Vec::with_capacity(end / 5 + 2);
    offsets.push(0);
    let mut tokens = Tokens { offsets, bytes: vec![0u8; end + COPY_BYTES], written: 0 };
    // Start of a word whose end is not found yet.
    let mut word_start: Option<usize> = None;
    for (at, chunk) in (0..end).step_by(64).zip(text[..end].chunks(64)) {
        let mut padded = [b' '; 64];
        let chunk = chunk.try_into().unwrap_or_else(|_| {
            padded[..chunk.len()].copy_from_slice(chunk);
            &padded
        });
        let space = spaces(chunk);
        let before = !space << 1 | u64::from(word_start.is_some());
        let (mut starts, mut stops) = (!space & !before, space & before);
        while stops != 0 {
            let start = word_start.take().unwrap_or_else(|| {
                let start = at + starts.trailing_zeros() as usize;
                starts &= starts - 1;
                start
            });
            tokens.add(text, start, at + stops.trailing_zeros() as usize);
            stops &= stops - 1;
        }
        if starts != 0 {
            word_start = Some(at + starts.trailing_zeros() as usize);
        }
    }
    if let Some(start) = word_start {
        tokens.add(text, start, end);
    }
    tokens.bytes.truncate(tokens.written);
    (tokens.offsets, tokens.bytes, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn white_space_separates_tokens(
            text in prop::collection::vec(prop::sample::select(b" \t\n\x0b\x0c\rabcdefghijklmnopqrstu\x80\xa0\x89".to_vec()), 0..400),
            gaps in prop::collection::vec(0usize..400, 0..20),
            max_bytes in 0usize..450,
        ) {
            let mut text = text;
            gaps.into_iter().for_each(|at| text.get_mut(at).into_iter().for_each(|byte| *byte = b' '));
            let (mut got, mut at) = (Vec::new(), 0);
            let expected: Vec<&[u8]> = text.split(|byte| is_space(*byte)).filter(|word| !word.is_empty()).collect();
            while at < text.len() {
                let (offsets, bytes, taken) = tokens(&text[at..], max_bytes);
                prop_assert!(taken > 0);
                let word = |pair: &[i64]| bytes[pair[0] as usize..pair[1] as usize].to_vec();
                got.extend(offsets.windows(2).map(word));
                at += taken;
            }
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn white_space_is_that_of_python() {
        let spaces: Vec<u8> = (0..=255).filter(|byte| is_space(*byte)).collect();
        assert_eq!(spaces, b"\t\n\x0b\x0c\r ");
        for byte in 0..=255u8 {
            let marked = spaces_of_eight(u64::from_le_bytes([byte, 0, 0x20, 0xff, byte, 9, 0x7f, byte]));
            let is = if is_space(byte) { 0x80 } else { 0 };
            assert_eq!(marked.to_le_bytes(), [is, 0, 0x80, 0, is, 0x80, 0, is], "{byte}");
        }
        assert_eq!(tokens(b"", 10), (vec![0], vec![], 0));
    }
}
