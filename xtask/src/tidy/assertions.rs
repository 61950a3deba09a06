//! Style 36: a test can fail. Refused are a `matches!` whose answer nobody looks at, an assertion of a constant, and a
//! test in which nothing is asserted.
//!
//! A test asserts when it, or a function of its own package that it calls (by name, however deep), uses an `assert…!`,
//! `panic!`, `unreachable!`, `expect…`, `unwrap…` or `?`, or when it is marked `#[should_panic]`.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::Breach;
use super::source::{Function, Source};
use super::workspace::Workspace;

pub(super) fn check(source: &Source) -> Vec<Breach> {
    let mut idle = Idle { lines: Vec::new() };
    idle.visit_file(&source.ast);
    let idle = idle.lines.into_iter().map(|line| {
        Breach::new(&source.path, line, "idle-matches", "wrap it in assert!: this matches! changes nothing")
    });
    let constant = ["true", "false"].into_iter().flat_map(|value| {
        let endings = [")", ","].into_iter();
        endings.flat_map(move |end| source.lines_with(&["assert", "!", "(", value, end]))
    });
    let constant = constant.map(|line| {
        Breach::new(&source.path, line, "constant-assertion", "assert something that can differ, or use unreachable!")
    });
    idle.chain(constant).collect()
}

/// Finds `matches!(…);` and `let _ = matches!(…);`.
struct Idle {
    lines: Vec<usize>,
}

impl Idle {
    fn note(&mut self, call: &syn::Macro) {
        if call.path.segments.last().is_some_and(|segment| segment.ident == "matches") {
            self.lines.push(call.bang_token.span.start().line);
        }
    }
}

impl<'ast> Visit<'ast> for Idle {
    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        match statement {
            syn::Stmt::Macro(call) if call.semi_token.is_some() => self.note(&call.mac),
            syn::Stmt::Expr(syn::Expr::Macro(call), Some(_)) => self.note(&call.mac),
            syn::Stmt::Local(local) if is_discarded(&local.pat) => {
                if let Some(syn::Expr::Macro(call)) = local.init.as_ref().map(|init| &*init.expr) {
                    self.note(&call.mac);
                }
            }
            _ => {}
        }
        visit::visit_stmt(self, statement);
    }
}

fn is_discarded(pattern: &syn::Pat) -> bool {
    match pattern {
        syn::Pat::Wild(_) => true,
        syn::Pat::Ident(name) => name.ident.to_string().starts_with('_'),
        _ => false,
    }
}

pub(super) fn check_tests(workspace: &Workspace) -> Vec<Breach> {
    let mut packages: BTreeMap<&str, Vec<(&Source, &Function)>> = BTreeMap::new();
    for source in &workspace.sources {
        let functions = source.functions.iter().map(|function| (source, function));
        packages.entry(source.package()).or_default().extend(functions);
    }
    packages.values().flat_map(|functions| without_assertion(functions)).collect()
}

fn without_assertion(functions: &[(&Source, &Function)]) -> Vec<Breach> {
    let asserting = asserting_names(functions);
    let cannot_fail = functions.iter().filter(|(source, function)| {
        let mut words = words(source, function);
        function.is_test && !words.any(|word| is_assertion(word) || asserting.contains(word))
    });
    let todo = |name: &str| format!("assert something in `{name}`: as it stands it can't fail");
    cannot_fail
        .map(|(source, function)| {
            Breach::new(&source.path, *function.body_lines.start(), "no-assertion", todo(&function.name))
        })
        .collect()
}

/// The names of functions that assert, or that call one that does: a fixed point, at most as many rounds as functions.
fn asserting_names<'a>(functions: &[(&'a Source, &'a Function)]) -> BTreeSet<&'a str> {
    let mut asserting = BTreeSet::new();
    for _ in functions {
        let before = asserting.len();
        for (source, function) in functions {
            let asserts = words(source, function).any(|word| is_assertion(word) || asserting.contains(word));
            if asserts && !function.is_test {
                asserting.insert(function.name.trim_end_matches('!'));
            }
        }
        if asserting.len() == before {
            break;
        }
    }
    asserting
}

fn words<'a>(source: &'a Source, function: &'a Function) -> impl Iterator<Item = &'a str> {
    let words = source.tokens_in(&function.lines).map(|token| token.text.as_str());
    let mut after_fn = false;
    words.filter(move |word| !std::mem::replace(&mut after_fn, *word == "fn"))
}

fn is_assertion(word: &str) -> bool {
    let beginnings =
        ["assert", "debug_assert", "prop_assert", "panic", "unreachable", "expect", "unwrap", "should_panic"];
    word == "?" || (beginnings.iter().any(|start| word.starts_with(start)) && !word.starts_with("unwrap_or"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_source(text: &str) -> Vec<(&'static str, usize)> {
        let workspace = Workspace::with(&[("crates/base/src/x.rs", text)]);
        let mut found = check(&workspace.sources[0]);
        found.extend(check_tests(&workspace));
        found.into_iter().map(|breach| (breach.rule, breach.line)).collect()
    }

    #[test]
    fn a_matches_that_nobody_looks_at_is_refused() {
        assert_eq!(check_source("fn f() {\n matches!(a, B);\n}"), [("idle-matches", 2)]);
        assert_eq!(check_source("fn f() {\n std::matches!(a, B);\n}"), [("idle-matches", 2)]);
        assert_eq!(check_source("fn f() {\n let _ = matches!(a, B);\n let _ok = matches!(a, B);\n}").len(), 2);
    }

    #[test]
    fn a_matches_that_decides_something_is_fine() {
        assert_eq!(check_source("fn f() -> bool { matches!(a, B) }"), []);
        assert_eq!(check_source("fn f() { let is_b = matches!(a, B); if matches!(a, C) && is_b {} }"), []);
        assert_eq!(check_source("#[test] fn t() { assert!(matches!(a, B)); }"), []);
    }

    #[test]
    fn asserting_a_constant_is_refused() {
        assert_eq!(check_source("fn f() { assert!(true); }"), [("constant-assertion", 1)]);
        assert_eq!(check_source("fn f() { assert!(false, \"never\"); }"), [("constant-assertion", 1)]);
        assert_eq!(check_source("fn f() { assert!(true_north(x)); assert!(true == x); }"), []);
    }

    #[test]
    fn a_test_without_an_assertion_is_refused() {
        assert_eq!(check_source("#[test]\nfn t() { run(); }"), [("no-assertion", 2)]);
        assert_eq!(check_source("#[test]\nfn t() { let x = run().unwrap_or(3); }"), [("no-assertion", 2)]);
    }

    #[test]
    fn a_test_may_assert_itself_or_through_its_helpers() {
        assert_eq!(check_source("#[test] fn t() { assert_eq!(a, b); }"), []);
        assert_eq!(check_source("#[test] #[should_panic = \"x\"] fn t() { run(); }"), []);
        assert_eq!(check_source("#[test] fn t() -> Result<(), E> { run()?; Ok(()) }"), []);
        let helpers =
            "#[test] fn t() { golden(1); }\nfn golden(x: u8) { compare(x) }\nfn compare(x: u8) { assert!(x > 0) }";
        assert_eq!(check_source(helpers), []);
    }

    #[test]
    fn helpers_that_call_themselves_assert_nothing() {
        let helpers = "#[test] fn t() { a(); }\nfn a() { b() }\nfn b() { a() }";
        assert_eq!(check_source(helpers), [("no-assertion", 1)]);
    }
}
