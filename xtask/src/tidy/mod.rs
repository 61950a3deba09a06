//! The rules of STYLE.md that a program can check, each in a file of its own, each tested on what breaches it and on
//! what doesn't.
//!
//! A breach says where, which rule, and what to do. There are no exemptions: a rule that is wrong is changed here. `circles`
//! has a list of debts, which only shrinks.

mod assertions;
mod attributes;
mod circles;
mod citations;
mod claims;
mod dependencies;
mod documents;
mod edges;
mod errors;
mod invariants;
mod layers;
mod module_docs;
mod pure;
mod scripts;
mod shape;
mod source;
mod variables;
mod words;
mod workspace;

use std::fmt;
use std::path::Path;

pub(crate) use pure::PURE;
use workspace::Workspace;

/// A place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Breach {
    path: String,
    line: usize,
    rule: &'static str,
    todo: String,
}

impl Breach {
    fn new(path: &str, line: usize, rule: &'static str, todo: impl Into<String>) -> Self {
        Breach { path: path.to_owned(), line, rule, todo: todo.into() }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.todo)
    }
}

type SourceRule = fn(&source::Source) -> Vec<Breach>;
type WorkspaceRule = fn(&Workspace) -> Vec<Breach>;

const SOURCE_RULES: [SourceRule; 6] =
    [shape::check, assertions::check, attributes::check, module_docs::check, layers::check, words::check];

const WORKSPACE_RULES: [WorkspaceRule; 13] = [
    edges::check,
    circles::check,
    dependencies::check,
    citations::check,
    documents::check,
    claims::check,
    pure::check,
    assertions::check_tests,
    invariants::check,
    errors::check,
    scripts::check,
    variables::check,
    shape::check_other_files,
];

/// Every breach in the tree below `root`, in order of path and line.
///
/// # Errors
/// When the tree can't be read.
pub(crate) fn breaches(root: &Path) -> anyhow::Result<Vec<Breach>> {
    let workspace = Workspace::read(root)?;
    let mut breaches = workspace.unparsed.clone();
    for source in &workspace.sources {
        breaches.extend(SOURCE_RULES.iter().flat_map(|rule| rule(source)));
    }
    breaches.extend(WORKSPACE_RULES.iter().flat_map(|rule| rule(&workspace)));
    breaches.sort();
    breaches.dedup();
    Ok(breaches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let found = breaches(&crate::command::root().unwrap()).unwrap();
        let list: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(list.is_empty(), "{} breaches:\n{}", list.len(), list.join("\n"));
    }

    #[test]
    fn a_breach_says_where_and_what_to_do() {
        let breach = Breach::new("crates/base/src/id.rs", 7, "shape", "split it");
        assert_eq!(breach.to_string(), "crates/base/src/id.rs:7: shape: split it");
    }

    #[test]
    fn a_file_that_does_not_parse_is_a_breach() {
        let workspace = Workspace::with(&[("crates/base/src/id.rs", "fn (")]);
        assert_eq!(workspace.unparsed.len(), 1);
        assert_eq!(workspace.unparsed[0].rule, "parse");
    }
}
