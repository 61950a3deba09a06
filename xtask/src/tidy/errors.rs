//! Style 25: each error code that a user can meet has a page in docs/errors/, and each page has a code in the sources.

use std::collections::BTreeMap;

use super::Breach;
use super::workspace::Workspace;

const PAGES: &str = "docs/errors/";

/// The index of the pages, if there is one.
const INDEX: &str = "README";

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let mut used: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for source in workspace.sources.iter().filter(|source| source.path.starts_with("crates/")) {
        let lines = source.text.lines().zip(1..);
        for (code, line) in lines.flat_map(|(text, line)| codes(text).map(move |code| (code, line))) {
            used.entry(code).or_insert((&source.path, line));
        }
    }
    let files = workspace.files.keys().filter_map(|path| path.strip_prefix(PAGES)?.strip_suffix(".md"));
    let pages: Vec<&str> = files.filter(|name| *name != INDEX).collect();
    let missing = used.iter().filter(|(code, _)| !pages.contains(*code));
    let missing = missing.map(|(code, (path, line))| {
        let todo = format!("write {PAGES}{code}.md: what happened, why, what to do");
        Breach::new(path, *line, "error-page", todo)
    });
    let orphaned = pages.iter().filter(|page| !used.contains_key(*page));
    let orphaned = orphaned.map(|page| {
        let todo = "remove the page: its code occurs nowhere in crates/";
        Breach::new(&format!("{PAGES}{page}.md"), 1, "error-page", todo)
    });
    missing.chain(orphaned).collect()
}

/// The codes in a line: G, 0 and three digits, standing alone.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| {
        word.len() == 5 && word.starts_with("G0") && word.bytes().skip(1).all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(files: &[(&str, &str)]) -> Vec<String> {
        check(&Workspace::with(files)).into_iter().map(|breach| format!("{}:{}", breach.path, breach.line)).collect()
    }

    #[test]
    fn a_code_needs_a_page_and_a_page_needs_its_code() {
        let code = ("crates/control/src/x.rs", "\nconst CODE: &str = \"G0123\";");
        let page = ("docs/errors/G0123.md", "");
        assert_eq!(breaches(&[code, page, ("docs/errors/README.md", "")]), [""; 0]);
        assert_eq!(breaches(&[code]), ["crates/control/src/x.rs:2"]);
        assert_eq!(breaches(&[page]), ["docs/errors/G0123.md:1"]);
        assert_eq!(breaches(&[("docs/errors/notes.md", "")]), ["docs/errors/notes.md:1"]);
    }

    #[test]
    fn only_whole_codes_of_the_product_count() {
        let text = "// G01234 AG0123 G1123 G012 XG0123_";
        assert_eq!(breaches(&[("crates/base/src/x.rs", text), ("xtask/src/x.rs", "// G0123")]), [""; 0]);
    }
}
