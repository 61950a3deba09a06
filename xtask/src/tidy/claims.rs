//! docs/design/security.md: each claim names the tests that show it, and they are there.

use super::Breach;
use super::workspace::Workspace;

const PAGE: &str = "docs/design/security.md";

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let Some(page) = workspace.files.get(PAGE) else { return Vec::new() };
    let is_test = |name: &str| {
        let functions = workspace.sources.iter().flat_map(|source| &source.functions);
        functions.filter(|function| function.is_test).any(|function| function.name == name)
    };
    let mut breaches = Vec::new();
    for (line, number) in page.lines().zip(1..) {
        let Some(shown_by) = cells(line).last().filter(|_| cells(line).count() == 2) else { continue };
        let names: Vec<&str> = shown_by.split('`').skip(1).step_by(2).collect();
        if names.is_empty() && !shown_by.starts_with("---") && shown_by != "shown by" {
            breaches.push(Breach::new(PAGE, number, "claims", "name the test that shows it"));
        }
        // Words of one or two parts are targets of the fuzzer, variables and so on.
        let missing = names.into_iter().filter(|name| name.matches('_').count() > 2 && !is_test(name));
        breaches.extend(missing.map(|name| Breach::new(PAGE, number, "claims", format!("there is no test {name}"))));
    }
    breaches
}

/// The cells of a row of a table.
fn cells(line: &str) -> impl Iterator<Item = &str> {
    let row = line.strip_prefix('|').and_then(|line| line.strip_suffix('|'));
    row.into_iter().flat_map(|row| row.split('|')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(page: &str) -> Vec<usize> {
        let source = "#[test]\nfn nobody_gets_in_here() {}\nfn nobody_gets_out_there() {}";
        let files = [(PAGE, page), ("tests/e2e/doors.rs", source)];
        check(&Workspace::with(&files)).into_iter().map(|breach| breach.line).collect()
    }

    #[test]
    fn a_claim_without_a_test_or_with_one_that_is_not_there_is_a_breach() {
        let head = "# Security\n| they can't | shown by |\n|---|---|\n";
        let check = |row: &str, expected: &[usize]| assert_eq!(lines(&format!("{head}{row}\n")), expected, "{row}");
        check("| get in | `nobody_gets_in_here` and the fuzz target `job_file` |", &[]);
        check("| get in | we looked |", &[4]);
        check("| get out | `nobody_gets_out_there` |", &[4]);
        check("| fly | `nobody_gets_in_here`, `nobody_gets_over_there` |", &[4]);
    }
}
