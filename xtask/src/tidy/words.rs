//! Style 4 and 41: a test's name says what holds, without a `test_` before it, and what is left to do is an issue, not
//! a comment.

use super::Breach;
use super::source::Source;

const UNFINISHED: [&str; 3] = ["TODO", "FIXME", "XXX"];

pub(super) fn check(source: &Source) -> Vec<Breach> {
    let tests = source.functions.iter().filter(|function| function.is_test && function.name.starts_with("test_"));
    let named = tests.map(|function| {
        let line = *function.body_lines.start();
        Breach::new(&source.path, line, "test-name", format!("say what holds instead of `{}`", function.name))
    });
    let lines = source.prose.lines().zip(1..);
    let unfinished = lines.flat_map(|(text, line)| {
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let word = words.find(|word| UNFINISHED.contains(word))?;
        Some(Breach::new(&source.path, line, "unfinished", format!("finish it or open an issue: {word}")))
    });
    named.chain(unfinished).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<(&'static str, usize)> {
        let source = Source::parse("crates/base/src/x.rs", text).unwrap();
        check(&source).into_iter().map(|breach| (breach.rule, breach.line)).collect()
    }

    #[test]
    fn a_test_is_not_called_test() {
        assert_eq!(rules("#[test]\nfn test_parse() {}"), [("test-name", 2)]);
        assert_eq!(rules("#[test]\nfn an_empty_name_is_refused() {}\nfn test_server() {}"), []);
    }

    #[test]
    fn unfinished_business_is_refused_in_comments_and_docs() {
        assert_eq!(rules("fn f() {} // TODO: later"), [("unfinished", 1)]);
        assert_eq!(rules("/// FIXME.\nfn f() {\n /* XXX */ }"), [("unfinished", 1), ("unfinished", 3)]);
        assert_eq!(rules("fn f() { g(\"TODO\", XXXX); } // mkstemp's XXXXXX"), []);
    }
}
