//! Style 20: no circle of imports crosses a folder. A crate's rooms are the folders and the files right below its `src`;
//! `archive.rs` and `archive/` are one room. Rooms that import each other, directly or through others, are a circle, and one
//! with a folder in it is refused. Files right below `src` may import each other: they lie in one folder. The scheduler's rooms
//! have an order besides (`rooms`).
//!
//! Imports are the paths outside tests that begin with `crate` or `super`. One that names what the crate's root re-exports
//! leads to where the root has it from.

use std::collections::{BTreeMap, BTreeSet};

use super::Breach;
use super::source::Source;
use super::workspace::Workspace;

/// Circles that there are, by crate: debts, which shrink and never grow.
const DEBTS: [(&str, &str); 2] = [
    (
        "crates/orchestration",
        "budget configuration decision engine event evolve explain job load pass placement \
         reasons recovery refusal sweep",
    ),
    (
        "crates/storage",
        "alike archive awaiting branches branching check commit history disk error lease manifest marks note \
         options pending present prune reading refusal region shard slab snapshot staged staging store tensor \
         tiering verification",
    ),
];

/// The scheduler's rooms; each may import from those before it.
const SCHEDULER: &str = "crates/orchestration";
const ROOMS: [&str; 4] = ["queueing", "placement", "preemption", "recovery"];

/// A room and those that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let folders: BTreeSet<&str> = workspace.sources.iter().map(Source::package).collect();
    let mut breaches = Vec::new();
    for folder in folders {
        let imports = imports(workspace, folder);
        let found = circles(workspace, folder, &imports);
        if folder == SCHEDULER {
            breaches.extend(disordered(&imports).into_iter().map(|todo| Breach::new(folder, 1, "rooms", todo)));
        }
        let debts = DEBTS.iter().filter(|(of, _)| *of == folder);
        let debts: Vec<Vec<&str>> = debts.map(|(_, rooms)| rooms.split_whitespace().collect()).collect();
        breaches.extend(judge(&found, &debts).into_iter().map(|todo| Breach::new(folder, 1, "circles", todo)));
    }
    breaches
}

/// What is wrong with the circles of a crate, given its debts.
fn judge(found: &[BTreeSet<String>], debts: &[Vec<&str>]) -> Vec<String> {
    let is_owed = |circle: &BTreeSet<String>| debts.iter().any(|debt| circle.iter().all(|it| debt.contains(&&**it)));
    let grown = found.iter().filter(|circle| !is_owed(circle));
    let grown = grown.map(|circle| format!("cut the circle of imports between {}", list(circle)));
    let is_circular = |room: &&str| found.iter().any(|circle| circle.contains(*room));
    let paid = debts.iter().flatten().filter(|room| !is_circular(room));
    let paid = paid.map(|room| format!("strike {room} from the debts in tidy/circles.rs: it is in no circle any more"));
    grown.chain(paid).collect()
}

fn list(circle: &BTreeSet<String>) -> String {
    circle.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Imports of a room of the scheduler from a later one.
fn disordered(imports: &Imports) -> Vec<String> {
    let mut found = Vec::new();
    for (place, room) in ROOMS.iter().enumerate() {
        let imported = imports.get(*room).into_iter().flatten();
        let later = imported.filter(|other| ROOMS[place + 1..].contains(&other.as_str()));
        found.extend(later.map(|other| format!("import nothing from {other} in {room}: it comes later")));
    }
    found
}

/// The circles of a crate that have a folder in them.
fn circles(workspace: &Workspace, package: &str, imports: &Imports) -> Vec<BTreeSet<String>> {
    let root = format!("{package}/src/");
    let below = workspace.sources.iter().filter_map(|source| source.path.strip_prefix(&root));
    let folders: BTreeSet<&str> = below.filter_map(|path| path.split_once('/').map(|(folder, _)| folder)).collect();
    let mut found = components(imports);
    found.retain(|circle| circle.iter().any(|room| folders.contains(room.as_str())));
    found
}

/// What each room of a crate imports.
fn imports(workspace: &Workspace, package: &str) -> Imports {
    let root = format!("{package}/src/");
    let sources: Vec<&Source> = workspace.sources.iter().filter(|source| source.path.starts_with(&root)).collect();
    let path = |source: &'_ Source| source.path[root.len()..].to_owned();
    let is_root = |source: &Source| matches!(&*path(source), "lib.rs" | "main.rs");
    let rooms: BTreeSet<String> =
        sources.iter().filter(|source| !is_root(source)).map(|source| room(&path(source)).to_owned()).collect();
    let exports: BTreeMap<String, String> =
        sources.iter().filter(|source| is_root(source)).flat_map(|source| exports(source)).collect();
    let mut imports = Imports::new();
    for source in sources.iter().filter(|source| !is_root(source)) {
        let path = path(source);
        let names = imported(source, depth(&path)).into_iter();
        let into =
            names.filter_map(|name| if rooms.contains(&name) { Some(name) } else { exports.get(&name).cloned() });
        let own = room(&path).to_owned();
        let others: Vec<String> = into.filter(|into| *into != own && rooms.contains(into)).collect();
        imports.entry(own).or_default().extend(others);
    }
    imports
}

/// The room of a file: its first folder, or its name.
fn room(path: &str) -> &str {
    path.split_once('/').map_or_else(|| path.trim_end_matches(".rs"), |(folder, _)| folder)
}

/// How many modules a file's module lies below the root.
fn depth(path: &str) -> usize {
    path.split('/').filter(|part| *part != "mod.rs").count()
}

/// Names that the crate's root has from its modules, each with the module.
fn exports(root: &Source) -> BTreeMap<String, String> {
    let split = |(path, _): (String, usize)| {
        let path = path.trim_start_matches("crate::").trim_start_matches("self::");
        let (module, _) = path.split_once("::")?;
        Some((path.rsplit("::").next()?.to_owned(), module.to_owned()))
    };
    root.imports().into_iter().filter_map(split).collect()
}

/// The names right below the crate's root that a file's paths begin with, outside its tests.
fn imported(source: &Source, depth: usize) -> BTreeSet<String> {
    let opened = source.imports().into_iter().filter(|(_, line)| !source.is_test_line(*line));
    let mut names: BTreeSet<String> = opened
        .filter_map(|(path, _)| below_root(&path.split("::").collect::<Vec<_>>(), depth).map(str::to_owned))
        .collect();
    let tokens: Vec<&str> = source
        .tokens
        .iter()
        .map(|token| if source.is_test_line(token.line) { "" } else { token.text.as_str() })
        .collect();
    for at in (0..tokens.len()).filter(|at| ["crate", "super"].contains(&tokens[*at])) {
        let is_inside = at.checked_sub(1).is_some_and(|before| tokens[before] == "::");
        let path: Vec<&str> = tokens[at..].iter().copied().step_by(2).collect();
        let joints = tokens[at..].iter().skip(1).step_by(2).take_while(|joint| **joint == "::").count();
        if !is_inside {
            names.extend(below_root(&path[..=joints.min(path.len() - 1)], depth).map(str::to_owned));
        }
    }
    names
}

/// The name right below the root in a path of a module that lies so deep.
fn below_root<'p>(path: &[&'p str], depth: usize) -> Option<&'p str> {
    let supers = path.iter().take_while(|part| **part == "super").count();
    let is_from_root = path.first() == Some(&"crate") || (supers > 0 && supers == depth);
    let name = *path.get(supers.max(1))?;
    (is_from_root && name.starts_with(|c: char| c.is_alphabetic() || c == '_')).then_some(name)
}

/// Sets of more than one room that all lead to each other.
fn components(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|room| (room, reached(imports, room))).collect();
    let leads = |from: &String, to: &String| reach.get(from).is_some_and(|reached| reached.contains(to));
    let mut found: BTreeSet<BTreeSet<String>> = BTreeSet::new();
    for room in imports.keys().filter(|room| leads(room, room)) {
        let circle = imports.keys().filter(|other| leads(room, other) && leads(other, room));
        found.insert(circle.cloned().collect());
    }
    found.into_iter().collect()
}

/// All rooms to which imports lead from one.
fn reached<'i>(imports: &'i Imports, from: &String) -> BTreeSet<&'i String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&String> = imports.get(from).into_iter().flatten().collect();
    while let Some(room) = open.pop() {
        if reached.insert(room) {
            open.extend(imports.get(room).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/x/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let workspace = Workspace::with(&files);
        circles(&workspace, "crates/x", &imports(&workspace, "crates/x")).iter().map(list).collect()
    }

    #[test]
    fn folders_that_import_each_other_are_a_circle() {
        let there = ("a/one.rs", "use crate::b::Two;");
        assert_eq!(found(&[there, ("b/mod.rs", "use crate::a::One;")]), ["a, b"]);
        assert_eq!(found(&[there, ("b.rs", "fn f() { crate::a::one(); }")]), ["a, b"]);
        assert_eq!(
            found(&[there, ("b.rs", "use crate::c;"), ("c/x.rs", "use super::super::{d, a::one};")]),
            ["a, b, c"]
        );
        assert_eq!(found(&[there, ("b/two.rs", "use super::three;"), ("b/three.rs", "use crate::b::two;")]), [""; 0]);
    }

    #[test]
    fn what_the_root_re_exports_leads_to_where_it_is_from() {
        let root = ("lib.rs", "mod a;\nmod b;\npub use b::{inner::Two, Other};\nuse a::One;");
        let files = [root, ("a/one.rs", "use crate::Two;"), ("b/inner.rs", "use crate::a;")];
        assert_eq!(found(&files), ["a, b"]);
        assert_eq!(found(&[root, ("a/one.rs", "use crate::Defined;"), ("b/inner.rs", "use crate::a;")]), [""; 0]);
    }

    #[test]
    fn files_of_one_folder_and_tests_may_import_each_other() {
        assert_eq!(found(&[("a.rs", "use crate::b;"), ("b.rs", "use super::a::One;")]), [""; 0]);
        let test = "#[cfg(test)]\nmod tests {\n    use crate::b::Two;\n    use super::*;\n}";
        assert_eq!(found(&[("a/one.rs", test), ("b/two.rs", "use crate::a;")]), [""; 0]);
        assert_eq!(found(&[("a/tests.rs", "use crate::b::Two;"), ("b/two.rs", "use crate::a;")]), [""; 0]);
    }

    #[test]
    fn a_room_of_the_scheduler_imports_only_from_those_before_it() {
        let root = ("crates/orchestration/src/lib.rs", "mod recovery;\npub use recovery::spares::Pace;");
        let check = |path: &str, text: &str, expected: &[&str]| {
            let other = ("crates/orchestration/src/recovery/spares.rs", "");
            let workspace = Workspace::with(&[root, (path, text), other]);
            assert_eq!(disordered(&imports(&workspace, SCHEDULER)), expected, "{path}: {text}");
        };
        let later = ["import nothing from recovery in preemption: it comes later"];
        for text in [
            "use crate::recovery::Spares;",
            "use crate::{job::Job, recovery::Spares};",
            "fn f() { crate::recovery::f(); }",
            "use crate::Pace;",
            "use super::super::recovery::Spares;",
        ] {
            check("crates/orchestration/src/preemption/x.rs", text, &later);
            check("crates/orchestration/src/pass.rs", text, &[]);
        }
        check("crates/orchestration/src/preemption/x.rs", "use crate::queueing::Queues;", &[]);
    }

    #[test]
    fn debts_may_shrink_and_never_grow() {
        let circle = |rooms: &[&str]| rooms.iter().map(|room| (*room).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(judge(&[circle(&["a", "b"])], &[vec!["a", "b"]]), [""; 0]);
        assert_eq!(
            judge(&[circle(&["a", "b", "c"])], &[vec!["a", "b"]]),
            ["cut the circle of imports between a, b, c"]
        );
        assert_eq!(judge(&[circle(&["a", "b"])], &[vec!["a", "b", "c"]]).len(), 1);
        assert_eq!(judge(&[], &[vec!["a", "b"]]).len(), 2);
    }
}
