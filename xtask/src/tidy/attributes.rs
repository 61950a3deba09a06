//! Style 29, 37 and 40: a test is ignored only with a reason, a lint is expected rather than allowed, and `unsafe` stays in
//! data and storage, which map files (and in the Python bindings, whose macros need it).

use super::Breach;
use super::source::Source;

const UNSAFE_PACKAGES: [&str; 3] = ["crates/data", "crates/storage", "python"];

pub(super) fn check(source: &Source) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut add = |rule, lines: Vec<usize>, todo: &str| {
        breaches.extend(lines.into_iter().map(|line| Breach::new(&source.path, line, rule, todo)));
    };
    add("ignore", source.lines_with(&["#", "[", "ignore", "]"]), "say why: #[ignore = \"…\"]");
    add("allow", allows(source), "use #[expect(lint, reason = \"…\")] on the smallest item");
    if !UNSAFE_PACKAGES.contains(&source.package()) {
        add(
            "unsafe",
            source.lines_with(&["unsafe"]),
            "do without unsafe: only crates/data and crates/storage may use it",
        );
    }
    breaches
}

/// The lines of `#[allow(…)]`, `#![allow(…)]`, and of an `allow(…)` inside a `cfg_attr`.
fn allows(source: &Source) -> Vec<usize> {
    let mut lines = source.lines_with(&["#", "[", "allow", "("]);
    lines.extend(source.lines_with(&["#", "!", "[", "allow", "("]));
    for cfg_attr in source.lines_with(&["cfg_attr", "("]) {
        let rest = source.tokens.iter().filter(|token| token.line >= cfg_attr);
        let attribute: Vec<_> = rest.take_while(|token| token.text != "]").collect();
        if attribute.windows(2).any(|pair| pair[0].text == "allow" && pair[1].text == "(") {
            lines.push(cfg_attr);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let source = Source::parse(path, text).unwrap();
        check(&source).into_iter().map(|breach| (breach.rule, breach.line)).collect()
    }

    #[test]
    fn an_ignored_test_needs_a_reason() {
        let path = "crates/base/src/x.rs";
        assert_eq!(rules(path, "#[test]\n#[ignore]\nfn t() {}"), [("ignore", 2)]);
        assert_eq!(rules(path, "#[test]\n#[ignore = \"needs a gpu\"]\nfn t() {}"), []);
    }

    #[test]
    fn allowing_a_lint_is_refused_and_expecting_one_is_fine() {
        let path = "crates/base/src/x.rs";
        assert_eq!(rules(path, "#[allow(dead_code)]\nfn f() {}"), [("allow", 1)]);
        assert_eq!(rules(path, "#![allow(dead_code)]\n"), [("allow", 1)]);
        assert_eq!(rules(path, "\n#[cfg_attr(test, allow(dead_code))]\nfn f() {}"), [("allow", 2)]);
        assert_eq!(rules(path, "macro_rules! m { () => { #[allow(x)] fn f() {} } }"), [("allow", 1)]);
        assert_eq!(rules(path, "#[expect(dead_code, reason = \"a test double\")]\nfn f() { allow(1) }"), []);
        assert_eq!(rules(path, "#[cfg_attr(test, derive(Debug))]\nstruct S;\nfn f() { x[1]; allow(1) }"), []);
    }

    #[test]
    fn unsafe_stays_where_files_are_mapped() {
        let text = "fn f() {\n unsafe { g() }\n}";
        assert_eq!(rules("crates/execution/src/x.rs", text), [("unsafe", 2)]);
        assert_eq!(rules("tests/e2e/x.rs", text), [("unsafe", 2)]);
        assert_eq!(rules("crates/data/src/x.rs", text), []);
        assert_eq!(rules("crates/storage/src/x.rs", text), []);
        assert_eq!(rules("crates/base/src/x.rs", "// unsafe\nfn f() { g(\"unsafe\", unsafe_code) }"), []);
    }
}
