//! Style 25: environment variables are documented. Each one that a source names is on the page of variables, and
//! each one on that page occurs in a source.

use std::collections::BTreeSet;

use super::Breach;
use super::workspace::Workspace;

const PAGE: &str = "docs/reference/environment.md";
const PREFIX: &str = "GANGLINE_";
/// Of tests that start themselves: nobody sets these by hand.
const PRIVATE: &str = "GANGLINE_TEST_";
/// Tests that look for parts of names, or make names up.
const IN_PARTS: [&str; 2] = ["tests/", "xtask/src/tidy/"];

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let Some(page) = workspace.files.get(PAGE) else { return Vec::new() };
    let documented: BTreeSet<&str> = names(page).collect();
    let sources = workspace.files.iter().filter(|(path, _)| path.ends_with(".rs") || path.ends_with(".py"));
    let lines = sources.flat_map(|(path, text)| text.lines().zip(1..).map(move |(line, number)| (path, number, line)));
    let mut used = BTreeSet::new();
    let mut breaches = Vec::new();
    for (path, number, name) in lines.flat_map(|(path, number, line)| names(line).map(move |name| (path, number, name)))
    {
        let is_part = IN_PARTS.iter().any(|folder| path.starts_with(folder));
        if !is_part && !documented.contains(name) && !used.contains(name) {
            breaches.push(Breach::new(path, number, "variables", format!("say in {PAGE} what {name} is")));
        }
        used.insert(name);
    }
    for (line, number) in page.lines().zip(1..) {
        let unused = names(line).filter(|name| !used.contains(name));
        breaches.extend(unused.map(|name| Breach::new(PAGE, number, "variables", format!("nothing reads {name}"))));
    }
    breaches
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    words.filter(|word| word.len() > PREFIX.len() && word.starts_with(PREFIX) && !word.starts_with(PRIVATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_documented_and_what_is_documented_is_read() {
        let page = (PAGE, "| `GANGLINE_A` |\n| `GANGLINE_B` and GANGLINE_TEST_X |");
        let code = ("crates/cli/src/x.rs", "// \"GANGLINE_A\"\n// GANGLINE_C GANGLINE_TEST_Y GANGLINE_ of");
        let test = ("tests/e2e/x.rs", "// GANGLINE_D");
        let found = check(&Workspace::with(&[page, code, test])).into_iter();
        let found: Vec<String> =
            found.map(|breach| format!("{}:{}: {}", breach.path, breach.line, breach.todo)).collect();
        let undocumented = format!("crates/cli/src/x.rs:2: say in {PAGE} what GANGLINE_C is");
        assert_eq!(found, [undocumented, format!("{PAGE}:2: nothing reads GANGLINE_B")]);
    }
}
