//! Style 39: a dependency is there because something uses it: its crate is named in the sources of the package that declares
//! it, and what the workspace lists is declared by one of its packages.

use super::Breach;
use super::workspace::{Package, Workspace};

/// The table of the workspace's dependencies.
const LIST: &str = "[workspace.dependencies]";

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let unused = workspace.packages.iter().flat_map(|package| {
        let unused = package.dependencies.iter().filter(|dependency| !is_named(workspace, package, &dependency.name));
        let path = format!("{}/Cargo.toml", package.folder);
        unused.map(move |dependency| breach(&path, 1, &dependency.name, "no source of the package names it"))
    });
    unused.chain(undeclared(workspace)).collect()
}

fn breach(path: &str, line: usize, name: &str, why: &str) -> Breach {
    Breach::new(path, line, "dependencies", format!("drop {name}: {why}"))
}

fn is_named(workspace: &Workspace, package: &Package, name: &str) -> bool {
    let name = name.replace('-', "_");
    let sources = workspace.sources.iter().filter(|source| source.package() == package.folder);
    sources.flat_map(|source| &source.tokens).any(|token| token.text == name)
}

/// What the workspace lists and no package declares.
fn undeclared(workspace: &Workspace) -> Vec<Breach> {
    let text = workspace.files.get("Cargo.toml").map_or("", String::as_str);
    let lines = text.lines().zip(1..).skip_while(|(line, _)| *line != LIST).skip(1);
    let lines = lines.take_while(|(line, _)| !line.starts_with('['));
    let listed = lines.filter_map(|(line, number)| Some((line.split_once(" = ")?.0, number)));
    let is_declared = |name: &str| {
        let mut declared = workspace.packages.iter().flat_map(|package| &package.dependencies);
        declared.any(|dependency| dependency.name == name)
    };
    let unused = listed.filter(|(name, _)| !name.starts_with('#') && !is_declared(name));
    unused.map(|(name, line)| breach("Cargo.toml", line, name, "no package of the workspace uses it")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workspace::Dependency;
    use super::*;

    fn breaches(list: &str, source: &str) -> Vec<String> {
        let dependency = |name: &str| Dependency { name: name.to_owned(), is_dev: false, is_optional: false };
        let dependencies = vec![dependency("rand-core")];
        let package = Package { name: "gangline-base".to_owned(), folder: "crates/base".to_owned(), dependencies };
        let files = [("Cargo.toml", list), ("crates/base/src/x.rs", source), ("xtask/src/x.rs", "use rand_core::Rng;")];
        let workspace = Workspace { packages: vec![package], ..Workspace::with(&files) };
        check(&workspace).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_dependency_that_no_source_names_is_refused() {
        assert_eq!(breaches("", "use rand_core::Rng;"), [""; 0]);
        assert_eq!(breaches("", "fn f() { m!(rand_core::x()) }"), [""; 0]);
        let refusal = "crates/base/Cargo.toml:1: dependencies: drop rand-core: no source of the package names it";
        for source in ["", "// rand_core", "const NAME: &str = \"rand_core\";"] {
            assert_eq!(breaches("", source), [refusal], "{source}");
        }
    }

    #[test]
    fn what_the_workspace_lists_and_nobody_declares_is_refused() {
        let list = "[workspace.dependencies]\n# a = b\nrand-core = \"1\"\nhyper = { version = \"1\" }\n\n[profile.dev]\nx = 1\n";
        let refusal = "Cargo.toml:4: dependencies: drop hyper: no package of the workspace uses it";
        assert_eq!(breaches(list, "use rand_core::Rng;"), [refusal]);
    }
}
