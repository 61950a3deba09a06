//! A-1 in lints: each pure crate has a clippy.toml that bans the clock, files, threads, randomness and hash order. It
//! replaces the root's, so it repeats the root's keys; and all pure crates have the same one.

use super::Breach;
use super::workspace::Workspace;

const THE_FIRST: &str = "crates/base";
/// The pure crates, by folder.
pub(crate) const PURE: [&str; 10] = [
    THE_FIRST,
    "crates/accounting",
    "crates/api",
    "crates/compression",
    "crates/diagnosis",
    "crates/orchestration",
    "crates/planning",
    "crates/simulator",
    "crates/specs",
    "crates/tracking",
];

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let text = |folder: &str| workspace.files.get(&format!("{folder}/clippy.toml")).map(String::as_str);
    let Some(first) = text(THE_FIRST) else {
        return vec![Breach::new("crates/base/clippy.toml", 1, "pure", "ban here what a pure crate (A-1) may not use")];
    };
    let root = workspace.files.get("clippy.toml").map_or("", String::as_str);
    let lost = root.lines().filter(|line| !line.starts_with('#') && !first.contains(line));
    let lost =
        lost.map(|line| Breach::new("crates/base/clippy.toml", 1, "pure", format!("repeat the root's `{line}`")));
    let is_there = |folder| workspace.packages.iter().any(|package| package.folder == folder);
    let differing = PURE.into_iter().filter(|folder| is_there(*folder) && text(folder) != Some(first));
    let todo = "make it the same as crates/base/clippy.toml";
    let differing = differing.map(|folder| Breach::new(&format!("{folder}/clippy.toml"), 1, "pure", todo));
    lost.chain(differing).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workspace::Package;
    use super::*;

    fn breaches(files: &[(&str, &str)]) -> Vec<String> {
        let folders = ["crates/base", "crates/accounting", "crates/control"];
        let packages =
            folders.map(|folder| Package { name: String::new(), folder: folder.to_owned(), dependencies: Vec::new() });
        let workspace = Workspace { packages: packages.into(), ..Workspace::with(files) };
        check(&workspace).into_iter().map(|breach| breach.to_string()).collect()
    }

    #[test]
    fn equal_bans_that_repeat_the_root_are_fine() {
        let bans = "limit = 70\nbanned = []\n";
        let files = [("clippy.toml", "# Why.\nlimit = 70\n"), ("crates/base/clippy.toml", bans)];
        assert_eq!(breaches(&[files[0], files[1], ("crates/accounting/clippy.toml", bans)]), [""; 0]);
    }

    #[test]
    fn missing_differing_and_forgetful_bans_are_refused() {
        assert_eq!(breaches(&[]).len(), 1);
        assert_eq!(breaches(&[("crates/base/clippy.toml", "a = 1")]).len(), 1);
        let differing = [("crates/base/clippy.toml", "a = 1"), ("crates/accounting/clippy.toml", "a = 2")];
        assert_eq!(breaches(&differing).len(), 1);
        let forgetful = [("clippy.toml", "b = 2"), differing[0], ("crates/accounting/clippy.toml", "a = 1")];
        assert_eq!(breaches(&forgetful), ["crates/base/clippy.toml:1: pure: repeat the root's `b = 2`"]);
    }
}
