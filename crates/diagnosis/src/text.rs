//! A text as lines that can be reached from any offset. A carriage return ends a line too, as progress bars
//! use it.

use memchr::{memchr_iter, memchr2, memrchr2};

/// A text of one origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    bytes: &'a [u8],
}

impl<'a> Text<'a> {
    pub(crate) fn whole(bytes: &'a [u8]) -> Self {
        Text { bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bounds of the line at `offset`.
    pub(crate) fn bounds(&self, offset: usize) -> (usize, usize) {
        let start = memrchr2(b'\n', b'\r', &self.bytes[..offset]).map_or(0, |end| end + 1);
        (start, self.end(offset))
    }

    pub(crate) fn slice(&self, bounds: (usize, usize)) -> &'a [u8] {
        &self.bytes[bounds.0..bounds.1]
    }

    fn end(&self, offset: usize) -> usize {
        memchr2(b'\n', b'\r', &self.bytes[offset..]).map_or(self.bytes.len(), |length| offset + length)
    }

    /// Returns lines with their offsets, from the one that begins at `start`.
    pub(crate) fn lines_from(&self, start: usize) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        let (text, mut next) = (*self, start);
        std::iter::from_fn(move || {
            let start = next;
            if start >= text.bytes.len() {
                return None;
            }
            let end = text.end(start);
            next = end + 1;
            Some((start, text.slice((start, end))))
        })
    }

    /// Returns all lines, the last first.
    pub(crate) fn lines_backwards(&self) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        let is_ended = matches!(self.bytes.last(), None | Some(b'\n' | b'\r'));
        self.lines_before(if is_ended { self.bytes.len() } else { self.bytes.len() + 1 })
    }

    /// Returns the lines before the one that begins at `start`, the nearest first.
    pub(crate) fn lines_before(&self, start: usize) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        let (text, mut end) = (*self, start);
        std::iter::from_fn(move || {
            let last = end.checked_sub(1)?;
            let start = memrchr2(b'\n', b'\r', &text.bytes[..last]).map_or(0, |end| end + 1);
            end = start;
            Some((start, text.slice((start, last))))
        })
    }

    /// Returns the number of the line at `offset`, counted from 1.
    pub(crate) fn number(&self, offset: usize) -> usize {
        memchr_iter(b'\n', &self.bytes[..offset]).count() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"one\n10%\r20%\nlast";

    #[test]
    fn lines_are_found_forwards_and_backwards() {
        let text = Text::whole(TEXT);
        let forwards: Vec<_> = text.lines_from(0).collect();
        assert_eq!(forwards, [(0, &b"one"[..]), (4, b"10%"), (8, b"20%"), (12, b"last")]);
        let backwards: Vec<_> = text.lines_before(12).collect();
        assert_eq!(backwards, [(8, &b"20%"[..]), (4, b"10%"), (0, b"one")]);
        assert_eq!(text.lines_backwards().next(), Some((12, &b"last"[..])));
        assert_eq!(Text::whole(b"one\ntwo\n").lines_backwards().next(), Some((4, &b"two"[..])));
    }

    #[test]
    fn a_place_knows_its_line() {
        let text = Text::whole(TEXT);
        assert_eq!(text.slice(text.bounds(9)), b"20%");
        assert_eq!(text.number(12), 3);
        assert_eq!(Text::whole(b"").lines_from(0).count(), 0);
    }
}
