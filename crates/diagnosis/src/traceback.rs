//! A Python traceback in a log: which places it went through, and the exception that ends it.

use crate::line::{Cleaner, Line};
use crate::text::Text;

/// Lines of a traceback at most; deeper ones are recursion.
const LINES_MAX: usize = 600;
/// Bytes of its places that are kept.
const FRAMES_BYTES_MAX: usize = 32 << 10;

/// A traceback.
#[derive(Debug)]
pub(crate) struct Traceback {
    /// `File "…", line …, in …` and their lines of code, one under the other.
    pub(crate) frames: String,
    /// Where the line of the exception begins in the text.
    pub(crate) offset: usize,
    /// That line.
    pub(crate) exception: Line,
}

/// Reads the traceback whose first line begins at `start`. Lines of other ranks may stand between its lines.
pub(crate) fn read(text: &Text<'_>, start: usize, cleaner: &Cleaner) -> Option<Traceback> {
    let mut lines = text.lines_from(start);
    let opening = cleaner.clean(lines.next()?.1);
    let (mut frames, mut frame_indent) = (String::new(), None);
    for (offset, raw) in lines.take(LINES_MAX) {
        let line = cleaner.clean(raw);
        if line.rank != opening.rank || line.text.trim().is_empty() {
            continue;
        }
        let indent = line.text.len() - line.text.trim_start().len();
        let is_frame = line.text.trim_start().starts_with("File \"");
        match frame_indent {
            None if is_frame => frame_indent = Some(indent),
            // Not a traceback after all, or one whose places were cut out.
            None => return Some(Traceback { frames, offset, exception: trimmed(line) }),
            Some(least) if indent < least => return Some(Traceback { frames, offset, exception: trimmed(line) }),
            Some(_) => {}
        }
        if frames.len() < FRAMES_BYTES_MAX {
            frames.push_str(line.text.trim());
            frames.push('\n');
        }
    }
    None
}

fn trimmed(line: Line) -> Line {
    Line { text: line.text.trim().to_owned(), ..line }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exception(text: &str) -> Option<(String, Option<u32>)> {
        let start = text.find("Traceback").unwrap();
        let start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let found = read(&Text::whole(text.as_bytes()), start, &Cleaner::new().unwrap())?;
        Some((found.exception.text, found.exception.rank))
    }

    #[test]
    fn the_exception_is_the_line_under_the_places() {
        let text = "x\nTraceback (most recent call last):\n  File \"a.py\", line 3, in f\n    g()\n    ^^^\nKeyError: 'x'\nmore";
        assert_eq!(exception(text), Some(("KeyError: 'x'".to_owned(), None)));
    }

    #[test]
    fn lines_of_other_ranks_between_are_passed_over() {
        let text = "[rank1]: Traceback (most recent call last):\n[rank0]: step 3\n[rank1]:   File \"a.py\", line 3, in f\n\
                    [rank0]: ValueError: other\n[rank1]: KeyError: 'x'\n";
        assert_eq!(exception(text), Some(("KeyError: 'x'".to_owned(), Some(1))));
    }

    #[test]
    fn an_indented_traceback_is_read_too() {
        let text = "  traceback : Traceback (most recent call last):\n      File \"a.py\", line 3, in f\n        g()\n    KeyError: 'x'\n";
        assert_eq!(exception(text), Some(("KeyError: 'x'".to_owned(), None)));
    }

    #[test]
    fn a_traceback_that_never_ends_is_none() {
        assert_eq!(exception("Traceback (most recent call last):\n  File \"a.py\", line 3\n"), None);
    }
}
