//! Style 34: what comments and documents cite is there: rules of STYLE.md by number, invariants outside Rust (those in Rust
//! are `invariants`' business), and files by path. `documents` looks at links.
//!
//! A cited path counts if it is ours by its form: it ends in `.rs` or `.md`, has a `src` folder, begins with a folder of the
//! root, or climbs up to begin with. It may leave out leading folders (`tidy/shape.rs`). What others wrote is cited by a URL.

use std::collections::{BTreeMap, BTreeSet};

use super::Breach;
use super::source::Source;
use super::workspace::Workspace;

const STYLE: &str = "STYLE.md";
const ARCHITECTURE: &str = "ARCHITECTURE.md";
/// Where the rules are checked: a file there cites the numbers of the rules that it checks.
const CHECKS: &str = "xtask/src/tidy/";
/// Files whose comments begin with a hash.
const HASHED: [&str; 3] = [".toml", ".py", ".yml"];
/// Marks a path that stands for several.
const OPEN: [char; 7] = ['*', '{', '}', '<', '>', '$', '…'];

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let cited = Cited::new(workspace);
    let mut breaches = Vec::new();
    for source in &workspace.sources {
        for (line, number) in source.prose.lines().zip(1..) {
            let text = line.find("//").map_or("", |at| &line[at..]);
            breaches.extend(cited.missing(text).into_iter().map(|todo| breach(&source.path, number, todo)));
        }
        for (line, number) in source.text.lines().zip(1..).filter(|(_, number)| !source.is_test_line(*number)) {
            let told = documents_in(line).filter(|path| !cited.is_there(path));
            let todo = |path| format!("name a document that is there in a message: there is no {path}");
            breaches.extend(told.map(|path| breach(&source.path, number, todo(path))));
        }
        breaches.extend(misnumbered(source, &cited.rules));
    }
    for (path, text) in workspace.files.iter().filter(|(path, _)| !path.ends_with(".rs")) {
        for (line, number) in text.lines().zip(1..) {
            let missing = cited.missing_in_other(path, line);
            breaches.extend(missing.into_iter().map(|todo| breach(path, number, todo)));
        }
    }
    breaches
}

fn breach(path: &str, line: usize, todo: String) -> Breach {
    Breach::new(path, line, "citations", todo)
}

/// Checks that cite the number of a rule of which STYLE.md doesn't say that they check it.
fn misnumbered(source: &Source, rules: &BTreeMap<u32, String>) -> Vec<Breach> {
    if !source.path.starts_with(CHECKS) {
        return Vec::new();
    }
    let module_doc = source.prose.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join(" ");
    let checks = |rule: &str| names_of_checks(rule).any(|name| source.text.contains(&format!("\"{name}\"")));
    let wrong = style_numbers(&module_doc).into_iter().filter(|number| rules.get(number).is_some_and(|it| !checks(it)));
    let todo = |number| format!("cite the rule that it checks: {STYLE} names no check of it for rule {number}");
    wrong.map(|number| breach(&source.path, 1, todo(number))).collect()
}

/// The names in `**tidy** `a`, `b``.
fn names_of_checks(rule: &str) -> impl Iterator<Item = &str> {
    rule.split_once("**tidy**").map_or("", |(_, names)| names).split('`').skip(1).step_by(2)
}

/// What can be cited.
struct Cited<'w> {
    /// The rules of STYLE.md and their texts.
    rules: BTreeMap<u32, String>,
    invariants: BTreeSet<&'w str>,
    /// Every file and folder, with each of the ways to leave out leading folders.
    paths: BTreeSet<&'w str>,
    /// The folders of the root.
    tops: BTreeSet<&'w str>,
}

impl<'w> Cited<'w> {
    fn new(workspace: &'w Workspace) -> Cited<'w> {
        let text = |name: &str| workspace.files.get(name).map_or("", String::as_str);
        let invariants = text(ARCHITECTURE).lines().filter_map(|line| {
            let item = line.trim_start().strip_prefix("- ")?.trim_start_matches('*');
            invariants_in(item).next().filter(|first| item.starts_with(first))
        });
        let mut paths = BTreeSet::new();
        for path in workspace.files.keys() {
            let folders = path.match_indices('/').map(|(at, _)| &path[..at]);
            for whole in folders.chain([path.as_str()]) {
                let starts = whole.match_indices('/').map(|(at, _)| at + 1);
                paths.extend([0].into_iter().chain(starts).map(|start| &whole[start..]));
            }
        }
        let tops = workspace.files.keys().filter_map(|path| path.split_once('/')).map(|(top, _)| top);
        let tops = tops.filter(|top| !top.starts_with('.')).collect();
        Cited { rules: rules(text(STYLE)), invariants: invariants.collect(), paths, tops }
    }

    fn missing_in_other(&self, path: &str, line: &str) -> Vec<String> {
        let text = if path.ends_with(".md") {
            line
        } else if HASHED.iter().any(|end| path.ends_with(end)) {
            line.find("# ").map_or("", |at| &line[at..])
        } else {
            return Vec::new();
        };
        let unknown = invariants_in(text).filter(|cited| !self.invariants.contains(cited));
        let unknown = unknown.map(|cited| format!("cite an invariant that {ARCHITECTURE} defines: it has no {cited}"));
        self.missing(text).into_iter().chain(unknown).collect()
    }

    /// What is wrong with a text's rules and paths.
    fn missing(&self, text: &str) -> Vec<String> {
        let numbers = style_numbers(text).into_iter().filter(|number| !self.rules.contains_key(number));
        let rules = numbers.map(|number| format!("cite a rule that {STYLE} has: it has no {number}"));
        let paths = paths_in(text).filter(|path| self.is_ours(path) && !self.is_there(path));
        let paths = paths.map(|path| format!("cite a file that is there (others' by URL): there is no {path}"));
        rules.chain(paths).collect()
    }

    fn is_ours(&self, path: &str) -> bool {
        let in_top = path.split_once('/').is_some_and(|(top, rest)| self.tops.contains(top) && rest.contains('.'));
        let is_code = [".rs", ".md"].iter().any(|end| path.strip_suffix(end).is_some_and(|name| !name.is_empty()));
        is_code || in_top || path.starts_with("../") || path.contains("/src/")
    }

    fn is_there(&self, path: &str) -> bool {
        let path = path.trim_start_matches("../").trim_start_matches("./").trim_end_matches('/');
        path.is_empty() || self.paths.contains(path)
    }
}

/// The rules of STYLE.md: a line `7. …` and those indented below it.
fn rules(text: &str) -> BTreeMap<u32, String> {
    let mut rules: BTreeMap<u32, String> = BTreeMap::new();
    for line in text.lines() {
        let opened = line.split_once(". ").and_then(|(number, rule)| Some((number.parse().ok()?, rule)));
        if let Some((number, rule)) = opened {
            rules.insert(number, rule.to_owned());
        } else if let Some(mut last) = rules.last_entry().filter(|_| line.starts_with(' ')) {
            last.get_mut().push_str(line);
        }
    }
    rules
}

/// The numbers after each "style": `style 3`, `Style 29, 37 and 40`.
fn style_numbers(text: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    let words: Vec<&str> = text.split([' ', '(', ')']).filter(|word| !word.is_empty()).collect();
    for at in (0..words.len()).filter(|at| words[*at].eq_ignore_ascii_case("style")) {
        let list = words[at + 1..].iter().filter(|word| **word != "and");
        numbers.extend(list.map_while(|word| word.trim_end_matches([',', '.', ':', ';']).parse::<u32>().ok()));
    }
    numbers
}

fn invariants_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '-');
    words.filter(|word| word.strip_prefix("A-").is_some_and(|number| number.parse::<u32>().is_ok()))
}

/// Documents of ours that a line's text names by their path from the root; comments are looked at by [`paths_in`] already.
fn documents_in(line: &str) -> impl Iterator<Item = &str> {
    let code = line.find("//").filter(|at| !line[..*at].ends_with(':')).map_or(line, |at| &line[..at]);
    paths_in(code).filter(|path| path.starts_with("docs/") && [".md", ".json"].iter().any(|end| path.ends_with(end)))
}

/// Words that look like paths, but for URLs and paths that stand for several.
fn paths_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split_whitespace().filter(|word| !word.contains("://"));
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/') || OPEN.contains(&c);
    let parts = words.flat_map(move |word| word.split(move |c: char| !is_of_path(c)));
    parts.map(|part| part.trim_end_matches('.')).filter(|part| !part.contains(OPEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 4] = [
        (STYLE, "# Style\n1. Names.\n2. Errors have pages.\n   **tidy** `error-page`\n"),
        (ARCHITECTURE, "- A-1 Pure.\n"),
        ("docs/guide/a.md", ""),
        ("crates/base/src/time/zone.rs", "//! Zones.\n"),
    ];

    fn breaches(path: &str, text: &str) -> Vec<String> {
        let workspace = Workspace::with(&[&FILES[..], &[(path, text)]].concat());
        check(&workspace).into_iter().map(|breach| format!("{}: {}", breach.line, breach.todo)).collect()
    }

    fn is_fine(path: &str, text: &str) -> bool {
        breaches(path, text).is_empty()
    }

    #[test]
    fn a_cited_rule_must_exist() {
        assert!(is_fine("crates/base/src/x.rs", "//! As style 1 says, and (style 2).\n// Style guides of 9 people."));
        assert_eq!(breaches("crates/base/src/x.rs", "//! As\n//! style 1 and 7 say.").len(), 1);
        assert_eq!(breaches("Cargo.toml", "x = 1 # (style 3)").len(), 1);
        assert!(is_fine("Cargo.toml", "style = 3"));
    }

    #[test]
    fn a_check_cites_the_rule_that_names_it() {
        let text = |number| format!("//! Style {number}: pages.\nconst RULE: &str = \"error-page\";");
        assert!(is_fine("xtask/src/tidy/errors.rs", &text(2)));
        assert_eq!(breaches("xtask/src/tidy/errors.rs", &text(1)).len(), 1);
        assert!(is_fine("xtask/src/errors.rs", &text(1)));
    }

    #[test]
    fn a_cited_file_must_exist() {
        for there in ["time/zone.rs", "crates/base/src/time/zone.rs", "`docs/guide/a.md`.", "zone.rs:7", "docs/guide/"]
        {
            assert!(is_fine("crates/base/src/x.rs", &format!("// See {there}")), "{there}");
        }
        for missing in
            ["time/clock.rs", "docs/b.md", "design.md", "../shared/data.csv", "docs/fig.png", "base/src/days/"]
        {
            assert_eq!(breaches("crates/base/src/x.rs", &format!("// See {missing}.")).len(), 1, "{missing}");
            assert_eq!(breaches("docs/x.md", &format!("See {missing}")).len(), 1, "{missing}");
        }
    }

    #[test]
    fn a_document_that_a_message_names_is_there() {
        let found = |message: &str| breaches("crates/base/src/x.rs", &format!("fn f() {{ g(\"see {message}\") }}"));
        assert_eq!(found("docs/guide/a.md"), [""; 0]);
        let missing = "1: name a document that is there in a message: there is no docs/gone.md";
        assert_eq!(found("docs/gone.md."), [missing]);
        for other in ["x/docs/gone.md", "https://x.org/docs/gone.md", "docs/errors/{code}.md", "docs/gone.txt"] {
            assert_eq!(found(other), [""; 0], "{other}");
        }
    }

    #[test]
    fn what_is_no_citation_of_ours_is_fine() {
        for text in
            ["https://x.org/docs/b.md", "docs/errors/*.md", "a config.json", "xtask/bench", "and/or", "tests/{a}.rs"]
        {
            assert!(is_fine("crates/base/src/x.rs", &format!("// {text}")), "{text}");
        }
        assert!(is_fine("crates/base/src/x.rs", "fn f() { g(\"// docs/b.md\") }"));
    }
}
