//! Style 25: links between documents lead somewhere. Each relative link of a Markdown file names a file that
//! exists and, behind `#`, a heading of it, and each page of the book is in its table of contents. `citations` looks at
//! what sources cite.

use std::collections::BTreeMap;

use super::Breach;
use super::workspace::Workspace;

const RULE: &str = "documents";
/// The book's table of contents; mdBook leaves out what it doesn't list.
const CONTENTS: &str = "docs/SUMMARY.md";

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let files = &workspace.files;
    let pages = || files.iter().filter(|(path, _)| path.ends_with(".md"));
    let mut breaches: Vec<Breach> = pages().flat_map(|(path, text)| links_of(files, path, text)).collect();
    breaches.extend(pages().filter_map(|(path, _)| unlisted(files, path)));
    breaches
}

/// Links of a page that lead nowhere.
fn links_of(files: &BTreeMap<String, String>, path: &str, text: &str) -> Vec<Breach> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let broken = |(number, target): (usize, &str)| {
        let (place, anchor) = target.split_once('#').unwrap_or((target, ""));
        let Some(linked) = (if place.is_empty() { Some(path.to_owned()) } else { join(folder, place) }) else {
            return Some(Breach::new(path, number, RULE, format!("{target} leads out of the repository")));
        };
        if !exists(files, &linked) {
            return Some(Breach::new(path, number, RULE, format!("there is no {linked}")));
        }
        let has_anchor = anchor.is_empty() || files.get(&linked).is_some_and(|page| has_heading(page, anchor));
        (!has_anchor).then(|| Breach::new(path, number, RULE, format!("{linked} has no heading #{anchor}")))
    };
    targets(text).filter_map(broken).collect()
}

/// A page of the book that its table of contents doesn't list.
fn unlisted(files: &BTreeMap<String, String>, path: &str) -> Option<Breach> {
    let contents = files.get(CONTENTS)?;
    let page = path.strip_prefix("docs/").filter(|_| path != CONTENTS)?;
    let is_listed = targets(contents).any(|(_, target)| target == page);
    (!is_listed).then(|| Breach::new(path, 1, RULE, format!("list {page} in {CONTENTS}")))
}

/// The targets of a page's relative links, each with its line; code isn't looked at.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().zip(1..).flat_map(move |(line, number)| {
        is_code ^= line.trim_start().starts_with("```");
        let line = if is_code { "" } else { line };
        let prose = line.split('`').step_by(2);
        let behind = prose.flat_map(|part| part.split("](").skip(1));
        let target = behind.filter_map(|rest| rest.split([')', ' ']).next());
        target
            .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
            .map(move |target| (number, target))
    })
}

/// The path from the root of what is called `place` in a folder; none above the root.
fn join(folder: &str, place: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in place.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

/// Whether there is such a file, or a folder with files in it.
fn exists(files: &BTreeMap<String, String>, path: &str) -> bool {
    let folder = format!("{path}/");
    files.contains_key(path) || files.range(folder.clone()..).next().is_some_and(|(file, _)| file.starts_with(&folder))
}

fn has_heading(page: &str, anchor: &str) -> bool {
    let mut is_code = false;
    page.lines().any(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#') && slug(line) == anchor
    })
}

/// A heading's anchor, as mdBook and the hosts of repositories make it.
fn slug(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars();
    let kept = kept.filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(files: &[(&str, &str)]) -> Vec<String> {
        let found = check(&Workspace::with(files)).into_iter();
        found.map(|breach| format!("{}:{}: {}", breach.path, breach.line, breach.todo)).collect()
    }

    #[test]
    fn a_link_leads_to_a_file_a_folder_or_a_heading() {
        let other = ("docs/reference/b.md", "# B\n## What's *kept*, and how-long\n");
        let check = |text: &str, expected: &[&str]| {
            assert_eq!(breaches(&[("docs/guides/a.md", text), other]), expected, "{text}");
        };
        check(
            "# A\n[b](../reference/b.md#whats-kept-and-how-long), [here](#a), [all](../reference), [w](https://x/y)",
            &[],
        );
        check("`[c](c.md)`\n```text\n[c](c.md)\n```\n", &[]);
        check("\n[`c`](c.md)", &["docs/guides/a.md:2: there is no docs/guides/c.md"]);
        check("[b](../reference/b.md#gone)", &["docs/guides/a.md:1: docs/reference/b.md has no heading #gone"]);
        check("[b](../../../b.md)", &["docs/guides/a.md:1: ../../../b.md leads out of the repository"]);
    }

    #[test]
    fn each_page_is_in_the_table_of_contents() {
        let pages = [("docs/a.md", ""), ("docs/errors/b.md", ""), ("docs/SUMMARY.md", "- [A](a.md)")];
        assert_eq!(breaches(&pages), ["docs/errors/b.md:1: list errors/b.md in docs/SUMMARY.md"]);
    }
}
