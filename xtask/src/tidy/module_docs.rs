//! Style 34: every module opens with its purpose.

use super::Breach;
use super::source::Source;

pub(super) fn check(source: &Source) -> Vec<Breach> {
    let first = source.text.lines().next().unwrap_or_default();
    let purpose = first.strip_prefix("//!").map(str::trim);
    let todo = match purpose {
        None => "begin the file with //! and what it is for",
        Some("" | "Placeholder.") => "say on the first line what the file is for",
        Some(_) => return Vec::new(),
    };
    vec![Breach::new(&source.path, 1, "module-doc", todo)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(text: &str) -> usize {
        check(&Source::parse("crates/base/src/x.rs", text).unwrap()).len()
    }

    #[test]
    fn a_module_opens_with_its_purpose() {
        assert_eq!(breaches("//! The words everybody shares.\nfn f() {}"), 0);
    }

    #[test]
    fn a_module_that_says_nothing_is_refused() {
        for text in ["", "fn f() {}", "// Not a doc.", "/// f.\nfn f() {}", "//!\n//! Late.", "//! Placeholder."] {
            assert_eq!(breaches(text), 1, "{text:?} was accepted");
        }
    }
}
