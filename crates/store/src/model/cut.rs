//! Cuts long texts and marks the cut.

/// Marks a cut.
const MARK: &str = "...";

/// Returns at most `bytes_max` bytes of a text, including the mark if the text was cut.
pub fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let kept = text.floor_char_boundary(bytes_max.saturating_sub(MARK.len()));
    format!("{}{MARK}", &text[..kept])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_says_so_and_is_cut_once() {
        let check = |text: &str, bytes_max: usize, expected: &str| {
            let short = cut(text, bytes_max);
            assert_eq!(short, expected);
            assert_eq!(cut(&short, bytes_max), short);
        };
        check("whole", 5, "whole");
        check("longer", 5, "lo...");
        check("\u{1f6f7}\u{1f6f7}\u{1f6f7}", 10, "\u{1f6f7}...");
        check("longer", 2, "...");
    }
}
