//! Parses a Python traceback in a log: its frames, and the exception that ends it.

use crate::line::{Cleaner, Line};
use crate::text::Text;

/// Maximum number of lines of a traceback; deeper ones are recursion.
const LINES_MAX: usize = 600;
/// Maximum number of bytes of its frames that are kept.
const FRAMES_BYTES_MAX: usize = 32 << 10;

/// Number of lines above an exception in which its frames are searched for, when the traceback's first line
/// is lost.
const LINES_ABOVE_MAX: usize = 80;
/// Maximum number of lines between two frames: code, and the marks under it.
const LINES_BETWEEN_MAX: usize = 3;

/// A traceback.
#[derive(Debug, Default)]
pub(crate) struct Traceback {
    /// Frames, `File "…", line …, in …`, with their lines of code, one under the other.
    pub(crate) frames: String,
    /// The last frame: where the exception was raised. Empty if frames were cut out.
    pub(crate) innermost: String,
    /// Offset of the exception's line in the text.
    pub(crate) offset: usize,
    /// The exception's line.
    pub(crate) exception: Line,
}

impl Traceback {
    fn push(&mut self, line: &str) {
        let line = unframed(line);
        if is_place(&line) {
            line.clone_into(&mut self.innermost);
        }
        if self.frames.len() < FRAMES_BYTES_MAX {
            self.frames.push_str(&line);
            self.frames.push('\n');
        }
    }

    fn ended(self, offset: usize, exception: Line) -> Traceback {
        Traceback { offset, exception: trimmed(exception), ..self }
    }
}

/// Reads the traceback whose first line begins at `start`. Lines of other ranks may be interleaved.
pub(crate) fn read(text: &Text<'_>, start: usize, cleaner: &Cleaner) -> Option<Traceback> {
    let mut lines = text.lines_from(start);
    let opening = cleaner.clean(lines.next()?.1);
    let lines = lines.take(LINES_MAX).map(|(offset, raw)| (offset, cleaner.clean(raw)));
    let lines = lines.filter(|(_, line)| line.rank == opening.rank && !line.text.trim().is_empty());
    if opening.text.contains('╭') { read_rich(lines) } else { read_plain(lines) }
}

fn read_plain(lines: impl Iterator<Item = (usize, Line)>) -> Option<Traceback> {
    let (mut traceback, mut frame_indent) = (Traceback::default(), None);
    for (offset, line) in lines {
        let indent = line.text.len() - line.text.trim_start().len();
        match frame_indent {
            None if is_place(line.text.trim_start()) => frame_indent = Some(indent),
            // Not a traceback after all, or one whose frames were cut out.
            None => return Some(traceback.ended(offset, line)),
            Some(least) if indent < least => return Some(traceback.ended(offset, line)),
            Some(_) => {}
        }
        traceback.push(&line.text);
    }
    None
}

/// Reads a traceback that rich drew in a frame: the exception is below it.
fn read_rich(lines: impl Iterator<Item = (usize, Line)>) -> Option<Traceback> {
    let (mut traceback, mut is_over) = (Traceback::default(), false);
    for (offset, line) in lines {
        if is_over {
            return Some(traceback.ended(offset, line));
        }
        is_over = line.text.contains('╰');
        traceback.push(&line.text);
    }
    None
}

/// Reads the traceback that ends with the line at `end`, from the frames above it; none if there are none.
pub(crate) fn read_above(text: &Text<'_>, end: usize, exception: Line, cleaner: &Cleaner) -> Option<Traceback> {
    let (mut lines, mut between) = (Vec::new(), 0);
    for (_, raw) in text.lines_before(end).take(LINES_ABOVE_MAX) {
        let line = cleaner.clean(raw);
        if line.rank != exception.rank {
            continue;
        }
        let is_drawn = line.text.trim_start().starts_with(['│', '╰', '╭']);
        between = if is_drawn || is_place(line.text.trim()) { 0 } else { between + 1 };
        if between > LINES_BETWEEN_MAX {
            break;
        }
        lines.push(line.text);
    }
    let first = lines.iter().rposition(|line| is_place(&unframed(line)))?;
    let mut traceback = Traceback::default();
    lines[..=first].iter().rev().for_each(|line| traceback.push(line));
    Some(traceback.ended(end, exception))
}

/// Strips the box around a line of a traceback, and converts rich's `│ /a/b.py:3 in f │` to Python's form.
fn unframed(line: &str) -> String {
    let inside = line.trim_matches(|letter: char| letter == '│' || letter.is_whitespace());
    match inside.split_once(".py:") {
        Some((path, rest)) if line.trim_start().starts_with('│') && !path.contains(['│', '"', '(']) => {
            let (number, function) = rest.split_once(" in").unwrap_or((rest, ""));
            format!("File \"{path}.py\", line {number}, in {}", function.trim())
        }
        _ => inside.to_owned(),
    }
}

fn is_place(line: &str) -> bool {
    line.starts_with("File \"")
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
    fn a_traceback_drawn_by_rich_is_read_too() {
        let text = "╭──── Traceback (most recent call last) ────╮\n│ /w/train.py:71 in <module>       │\n│                │\n\
                    │ ❱ 71 │   train()         │\n│ /w/lib/data.py:5 in                 │\n│ f          │\n╰──────╯\nKeyError: 'x'\n";
        assert_eq!(exception(text), Some(("KeyError: 'x'".to_owned(), None)));
        let found = read(&Text::whole(text.as_bytes()), 0, &Cleaner::new().unwrap()).unwrap();
        assert_eq!(found.innermost, "File \"/w/lib/data.py\", line 5, in ");
        assert!(found.frames.contains("File \"/w/train.py\", line 71, in <module>"), "{}", found.frames);
    }

    #[test]
    fn the_places_above_an_exception_are_found_without_the_first_line() {
        let text = "step 3\n\n[rank1]:   File \"a.py\", line 3, in f\n[rank0]: step 4\n[rank1]:     g()\n[rank1]:     ^^^\n\
                    [rank1]:   File \"b.py\", line 9, in g\n[rank1]: KeyError: 'x'\n";
        let (cleaner, end) = (Cleaner::new().unwrap(), text.find("[rank1]: KeyError").unwrap());
        let above = |text: &str, end: usize| {
            read_above(&Text::whole(text.as_bytes()), end, cleaner.clean(&text.as_bytes()[end..]), &cleaner)
        };
        assert_eq!(above(text, end).unwrap().innermost, "File \"b.py\", line 9, in g");
        assert!(above(text, end).unwrap().frames.starts_with("File \"a.py\""));
        assert!(above("step 3\nKeyError: 'x'\n", 7).is_none());
    }

    #[test]
    fn a_traceback_that_never_ends_is_none() {
        assert_eq!(exception("Traceback (most recent call last):\n  File \"a.py\", line 3\n"), None);
    }
}
