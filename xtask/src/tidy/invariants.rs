//! The invariants of ARCHITECTURE.md: each is proved by a test, and each citation names one that is defined.
//!
//! A definition is a line `- A-1 …`. A test proves an invariant when its doc comment or a comment in its body, or the
//! module doc of its file, says "Proves A-1" ("Proves and A-5" names three). The tests of xtask and of the
//! benchmarks prove nothing about the product. There are no exemptions.

use std::collections::{BTreeMap, BTreeSet};

use super::Breach;
use super::source::Source;
use super::workspace::Workspace;

const DEFINITIONS: &str = "ARCHITECTURE.md";

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let Some(text) = workspace.files.get(DEFINITIONS) else {
        return vec![Breach::new(DEFINITIONS, 1, "invariants", "write it, with the invariants as lines `- A-1 …`")];
    };
    let (defined, mut breaches) = definitions(text);
    let mut proved = BTreeSet::new();
    for source in &workspace.sources {
        if !["benches", "xtask"].contains(&source.package()) {
            proved.extend(proofs(source));
        }
        breaches.extend(undefined_citations(source, &defined));
    }
    let unproved = defined.iter().filter(|(number, _)| !proved.contains(*number));
    breaches.extend(unproved.map(|(number, line)| {
        let todo = format!(
            "prove A-{number}: write \"Proves A-{number}.\" in the doc comment of a test that fails without it"
        );
        Breach::new(DEFINITIONS, *line, "invariants", todo)
    }));
    breaches
}

/// Each number with its line, and what is wrong with the list.
fn definitions(text: &str) -> (BTreeMap<u32, usize>, Vec<Breach>) {
    let (mut defined, mut breaches) = (BTreeMap::new(), Vec::new());
    for (text, line) in text.lines().zip(1..) {
        let Some(item) = text.trim_start().strip_prefix("- ") else { continue };
        let Some(number) = item.trim_start_matches('*').strip_prefix("A-").and_then(leading_number) else { continue };
        if defined.insert(number, line).is_some() {
            breaches.push(Breach::new(DEFINITIONS, line, "invariants", format!("define A-{number} once")));
        }
    }
    if defined.is_empty() {
        breaches.push(Breach::new(DEFINITIONS, 1, "invariants", "list the invariants as lines `- A-1 …`"));
    }
    (defined, breaches)
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

fn proofs(source: &Source) -> BTreeSet<u32> {
    let lines: Vec<&str> = source.prose.lines().collect();
    let mut proved = BTreeSet::new();
    let tests = source.functions.iter().filter(|function| function.is_test);
    for test in tests {
        let module_doc = lines.iter().take_while(|line| line.starts_with("//!"));
        let own = lines.iter().take(*test.lines.end()).skip(test.lines.start() - 1);
        let text: Vec<&str> = module_doc.chain(own).map(|line| comment(line)).collect();
        proved.extend(proved_in(&text.join(" ")));
    }
    proved
}

/// A line's comment, without the slashes; nothing for a line of code.
fn comment(line: &str) -> &str {
    line.find("//").map_or("", |at| line[at..].trim_start_matches(['/', '!', ' ']))
}

/// The invariants after each "Proves": a list with commas and "and", as long as it goes on.
fn proved_in(text: &str) -> BTreeSet<u32> {
    let lists = text.split("Proves ").skip(1);
    let numbers = lists.flat_map(|list| {
        let words = list.split_whitespace().filter(|word| *word != "and");
        words.map_while(|word| word.strip_prefix("A-").and_then(leading_number))
    });
    numbers.collect()
}

fn undefined_citations(source: &Source, defined: &BTreeMap<u32, usize>) -> Vec<Breach> {
    let lines = source.prose.lines().zip(1..);
    let citations = lines.flat_map(|(text, line)| cited_in(comment(text)).map(move |number| (number, line)));
    let undefined = citations.filter(|(number, _)| !defined.contains_key(number));
    let todo = |number| format!("cite an invariant that {DEFINITIONS} defines: it has no A-{number}");
    undefined.map(|(number, line)| Breach::new(&source.path, line, "invariants", todo(number))).collect()
}

fn cited_in(text: &str) -> impl Iterator<Item = u32> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '-');
    words.filter_map(|word| word.strip_prefix("A-").and_then(|digits| digits.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "# Invariants\n\n- A-1 Pure crates are pure.\n- **A-2** State changes in one place.\n";

    fn breaches(definitions: &str, source: &str) -> Vec<String> {
        let workspace = Workspace::with(&[(DEFINITIONS, definitions), ("tests/properties/x.rs", source)]);
        check(&workspace).into_iter().map(|breach| format!("{}:{}", breach.path, breach.line)).collect()
    }

    #[test]
    fn invariants_that_tests_prove_are_fine() {
        assert_eq!(breaches(TWO, "/// Proves A-1 and A-2.\n#[test]\nfn t() {}"), [""; 0]);
        assert_eq!(breaches(TWO, "//! Proves A-1,\n//! A-2.\n#[test]\nfn t() {}"), [""; 0]);
        assert_eq!(breaches(TWO, "/// Proves A-1.\n#[test]\nfn t() {\n // Proves A-2: see there.\n}"), [""; 0]);
    }

    #[test]
    fn an_invariant_without_a_test_is_refused() {
        for text in [
            "/// Proves A-1.\n#[test]\nfn t() {}",
            "/// Proves A-1.\n#[test]\nfn t() {}\n/// Proves A-2.\nfn not_a_test() {}",
            "/// Proves A-1.\n#[test]\nfn t() { let text = \"Proves A-2\"; }",
            "/// Proves A-1, and keeps A-2.\n#[test]\nfn t() {}",
        ] {
            assert_eq!(breaches(TWO, text), ["ARCHITECTURE.md:4"], "{text}");
        }
        assert_eq!(breaches(TWO, "//! Proves A-1 and A-2."), ["ARCHITECTURE.md:3", "ARCHITECTURE.md:4"]);
    }

    #[test]
    fn a_citation_of_nothing_is_refused() {
        let proofs = "/// Proves A-1 and A-2.\n#[test]\nfn t() {}\n";
        assert_eq!(breaches(TWO, &format!("{proofs}// Keeps (A-9).")), ["tests/properties/x.rs:4"]);
        assert_eq!(
            breaches(TWO, &format!("{proofs}// An A-100x, a GPU-A-9.\nfn f() {{ g(\"// A-9\", A-9) }}")),
            [""; 0]
        );
    }

    #[test]
    fn definitions_must_be_there_and_be_said_once() {
        assert_eq!(check(&Workspace::with(&[])).len(), 1);
        assert_eq!(breaches("# Nothing\n", ""), ["ARCHITECTURE.md:1"]);
        let twice = "- A-1 x\n- A-1 y\n";
        assert_eq!(breaches(twice, "/// Proves A-1.\n#[test]\nfn t() {}"), ["ARCHITECTURE.md:2"]);
    }
}
