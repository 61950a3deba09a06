//! The house's edges: what each package may depend on (ARCHITECTURE.md). Any edge that isn't in the table is refused.
//!
//! Declared dependencies of every kind count; a dev-dependency of a pure crate may also be a tool that draws seeded
//! randomness or compares text.

use super::Breach;
use super::workspace::{Dependency, Package, Workspace};

/// What a crate may use of ours, by folder.
const EDGES: [(&str, &[&str]); 20] = [
    ("crates/base", &[]),
    ("crates/accounting", &["base"]),
    ("crates/api", &["base"]),
    ("crates/planning", &["base", "accounting"]),
    ("crates/orchestration", &["base"]),
    ("crates/simulator", &["base", "orchestration"]),
    ("crates/specs", &["base", "orchestration"]),
    ("crates/compression", &[]),
    ("crates/diagnosis", &["base"]),
    ("crates/objects", &["base"]),
    ("crates/storage", &["base", "compression", "objects"]),
    ("crates/data", &["base", "objects"]),
    ("crates/execution", &["base", "accounting", "data", "diagnosis", "storage", "telemetry"]),
    ("crates/telemetry", &["base"]),
    ("crates/tracking", &["base"]),
    ("crates/store", &["base", "accounting", "orchestration", "tracking", "objects"]),
    (
        "crates/control",
        &[
            "base",
            "api",
            "accounting",
            "orchestration",
            "specs",
            "storage",
            "execution",
            "store",
            "telemetry",
            "tracking",
        ],
    ),
    (
        "crates/server",
        &[
            "base",
            "api",
            "accounting",
            "orchestration",
            "specs",
            "execution",
            "store",
            "telemetry",
            "tracking",
            "control",
        ],
    ),
    (
        "crates/cli",
        &[
            "base",
            "api",
            "accounting",
            "planning",
            "orchestration",
            "simulator",
            "specs",
            "data",
            "diagnosis",
            "storage",
            "execution",
            "telemetry",
            "store",
            "control",
            "server",
        ],
    ),
    ("python", &["base", "data", "storage", "planning"]),
];

/// What may use anything of ours.
const FREE: [&str; 5] = ["tests", "fuzz", "benches", "xtask", "examples/"];

/// The example that the binary links for `gangline demo`, as an optional dependency.
const EXAMPLE: &str = "gangline-tinygpt";

/// Objects are read and put synchronously; the client of S3, which is asynchronous, is an option.
const SYNCHRONOUS: &str = "crates/objects";

/// The service and HTTP know no SQL; their tests damage databases.
const WITHOUT_SQL: [&str; 2] = ["crates/control", "crates/server"];

/// Where what others wrote may be used, by the beginning of its name.
const KEPT_IN: [(&str, &[&str]); 15] = [
    ("tokio", &["crates/execution", "crates/control", "crates/server", "crates/cli", "tests"]),
    ("rusqlite", &["crates/store", "crates/control", "crates/server", "tests", "benches"]),
    ("axum", &["crates/server", "tests"]),
    ("maud", &["crates/server", "tests"]),
    ("rcgen", &["crates/server"]),
    ("hyper", &["crates/server", "tests"]),
    ("utoipa", &["crates/api", "crates/server", "tests"]),
    ("clap", &["crates/cli", "examples/", "benches", "xtask"]),
    ("comfy-table", &["crates/cli", "examples/"]),
    ("indicatif", &["crates/cli", "examples/"]),
    ("jiff", &["crates/api", "crates/specs", "crates/control", "crates/cli"]),
    ("candle", &["examples/"]),
    ("parquet", &["crates/telemetry", "crates/cli"]),
    ("nvml-wrapper", &["crates/telemetry"]),
    ("anyhow", &["crates/cli", "examples/", "tests", "benches", "xtask"]),
];

/// What a pure crate may use of others: nothing that reads, waits, draws or starts.
const PURE: [(&str, &[&str]); 10] = [
    ("crates/base", &["thiserror", "serde"]),
    // The API's types have a schema, and read times.
    ("crates/api", &["jiff", "serde", "utoipa"]),
    // Accounting reads books of prices, which are text.
    ("crates/accounting", &["thiserror", "serde", "toml"]),
    ("crates/compression", &["thiserror", "xxhash-rust"]),
    // Diagnosis looks for patterns in texts; its rules are text too.
    ("crates/diagnosis", &["thiserror", "serde", "toml", "aho-corasick", "memchr", "regex-automata", "regex-syntax"]),
    ("crates/orchestration", &["thiserror"]),
    ("crates/simulator", &["thiserror"]),
    ("crates/tracking", &["thiserror"]),
    // What users write is YAML and TOML, with times in it.
    ("crates/specs", &["croner", "jiff", "serde", "serde-saphyr", "thiserror", "toml"]),
    // Planning reads books of hardware and models, which are text, and its plans are values that are kept, in a
    // format that has a schema.
    ("crates/planning", &["schemars", "thiserror", "serde", "serde_json", "toml"]),
];

/// What the tests of a pure crate may use besides.
const PURE_TESTS: [&str; 4] = ["insta", "proptest", "rand_chacha", "serde_json"];

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for package in &workspace.packages {
        let refusals = package.dependencies.iter().filter_map(|dependency| refusal(package, dependency));
        breaches.extend(refusals.map(|todo| Breach::new(&manifest(package), 1, "edges", todo)));
        breaches.extend(misplaced(package).map(|todo| Breach::new(&manifest(package), 1, "edges", todo)));
        let text = workspace.files.get(&manifest(package)).map_or("", String::as_str);
        if !text.contains("[lints]\nworkspace = true") {
            breaches.push(Breach::new(
                &manifest(package),
                1,
                "lints",
                "take the workspace's: [lints] workspace = true",
            ));
        }
    }
    breaches
}

fn manifest(package: &Package) -> String {
    format!("{}/Cargo.toml", package.folder)
}

/// A package that the table doesn't know, or whose name isn't its folder's.
fn misplaced(package: &Package) -> Option<String> {
    let is_known = is_free(&package.folder) || EDGES.iter().any(|(folder, _)| *folder == package.folder);
    let name = package.folder.strip_prefix("crates/").map(|folder| format!("gangline-{folder}"));
    match name {
        _ if !is_known => Some(format!("add {} to the table of edges in ARCHITECTURE.md and xtask", package.folder)),
        Some(name) if name != package.name => Some(format!("name the package {name}, after its folder")),
        _ => None,
    }
}

fn refusal(package: &Package, dependency: &Dependency) -> Option<String> {
    let (folder, name) = (package.folder.as_str(), dependency.name.as_str());
    if name == EXAMPLE && folder == "crates/cli" {
        return (!dependency.is_optional)
            .then(|| format!("make {name} optional: a build without candle must be possible"));
    }
    if is_family(name, "tokio") && folder == SYNCHRONOUS {
        return (!dependency.is_optional).then(|| format!("make {name} optional: objects are synchronous without S3"));
    }
    if name == "rusqlite" && WITHOUT_SQL.contains(&folder) && !dependency.is_dev {
        return Some(format!("drop {name}: SQL is in the store, behind its ports, and in tests"));
    }
    if let Some(ours) = name.strip_prefix("gangline-") {
        let may = is_free(folder) || EDGES.iter().any(|(from, to)| *from == folder && to.contains(&ours));
        return (!may).then(|| format!("drop {name}: this edge isn't in ARCHITECTURE.md's table"));
    }
    if let Some((_, kept)) = KEPT_IN.iter().find(|(start, _)| is_family(name, start)) {
        let may = kept.iter().any(|place| is_in(folder, place));
        return (!may).then(|| format!("drop {name}: only {} may use it", kept.join(", ")));
    }
    let (_, pure) = PURE.iter().find(|(pure, _)| *pure == folder)?;
    let may = pure.contains(&name) || (dependency.is_dev && PURE_TESTS.contains(&name));
    (!may).then(|| format!("drop {name}: a pure crate (A-1) uses only {}", pure.join(", ")))
}

/// `tokio` and `tokio-util` are one family; `tokiox` isn't in it.
fn is_family(name: &str, start: &str) -> bool {
    name.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
}

fn is_free(folder: &str) -> bool {
    FREE.iter().any(|place| is_in(folder, place))
}

fn is_in(folder: &str, place: &str) -> bool {
    if place.ends_with('/') { folder.starts_with(place) } else { folder == place }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(name: &str) -> Dependency {
        Dependency { name: name.to_owned(), is_dev: false, is_optional: false }
    }

    fn is_refused(folder: &str, dependency: &Dependency) -> bool {
        let package = Package { name: String::new(), folder: folder.to_owned(), dependencies: Vec::new() };
        refusal(&package, dependency).is_some()
    }

    #[test]
    fn the_edges_of_the_table_are_fine_and_all_others_are_refused() {
        let ours = [
            "base",
            "api",
            "accounting",
            "compression",
            "data",
            "diagnosis",
            "planning",
            "orchestration",
            "simulator",
            "specs",
            "objects",
            "storage",
            "execution",
            "store",
            "control",
            "server",
            "cli",
        ];
        for (folder, allowed) in EDGES {
            for name in ours {
                let edge = normal(&format!("gangline-{name}"));
                assert_eq!(is_refused(folder, &edge), !allowed.contains(&name), "{folder} -> {name}");
            }
        }
    }

    #[test]
    fn tests_xtask_and_examples_may_use_anything_of_ours() {
        for folder in ["tests", "benches", "xtask", "examples/tinygpt"] {
            assert!(!is_refused(folder, &normal("gangline-control")), "{folder}");
        }
        assert!(is_refused("crates/examples", &normal("gangline-base")));
    }

    #[test]
    fn the_binary_links_the_example_only_as_an_option() {
        assert!(is_refused("crates/cli", &normal("gangline-tinygpt")));
        assert!(!is_refused("crates/cli", &Dependency { is_optional: true, ..normal("gangline-tinygpt") }));
        assert!(is_refused("crates/control", &Dependency { is_optional: true, ..normal("gangline-tinygpt") }));
    }

    #[test]
    fn what_others_wrote_stays_where_it_belongs() {
        for (folder, name) in [
            ("crates/storage", "tokio"),
            ("crates/storage", "tokio-util"),
            ("examples/tinygpt", "tokio"),
            ("crates/execution", "rusqlite"),
            ("crates/cli", "axum"),
            ("crates/control", "clap"),
            ("crates/execution", "jiff"),
            ("crates/cli", "candle-core"),
            ("crates/control", "anyhow"),
            ("crates/control", "axum"),
            ("crates/execution", "nvml-wrapper"),
        ] {
            assert!(is_refused(folder, &normal(name)), "{folder} -> {name}");
        }
        for (folder, name) in [
            ("crates/control", "tokio"),
            ("tests", "tokio"),
            ("tests", "rusqlite"),
            ("benches", "rusqlite"),
            ("xtask", "clap"),
            ("examples/tinygpt", "candle-core"),
            ("crates/cli", "jiff"),
            ("crates/telemetry", "nvml-wrapper"),
        ] {
            assert!(!is_refused(folder, &normal(name)), "{folder} -> {name}");
        }
    }

    #[test]
    fn objects_are_synchronous_but_for_an_option() {
        assert!(is_refused("crates/objects", &normal("tokio")));
        assert!(!is_refused("crates/objects", &Dependency { is_optional: true, ..normal("tokio") }));
        assert!(is_refused("crates/storage", &Dependency { is_optional: true, ..normal("tokio") }));
    }

    #[test]
    fn only_tests_use_sql_outside_the_store() {
        for folder in WITHOUT_SQL {
            assert!(is_refused(folder, &normal("rusqlite")), "{folder}");
            assert!(!is_refused(folder, &Dependency { is_dev: true, ..normal("rusqlite") }), "{folder}");
        }
        assert!(!is_refused("crates/store", &normal("rusqlite")));
    }

    #[test]
    fn pure_crates_use_only_what_cannot_touch_the_world() {
        assert!(!is_refused("crates/base", &normal("serde")));
        assert!(is_refused("crates/orchestration", &normal("serde")));
        assert!(is_refused("crates/orchestration", &normal("rand_chacha")));
        assert!(!is_refused("crates/orchestration", &Dependency { is_dev: true, ..normal("rand_chacha") }));
        assert!(is_refused("crates/orchestration", &Dependency { is_dev: true, ..normal("tempfile") }));
    }

    #[test]
    fn the_pure_crates_are_those_that_have_no_clock() {
        let mut folders = PURE.map(|(folder, _)| folder);
        let mut others = super::super::pure::PURE;
        folders.sort_unstable();
        others.sort_unstable();
        assert_eq!(folders, others);
    }

    #[test]
    fn a_package_outside_the_table_or_misnamed_is_refused() {
        let package = |name: &str, folder: &str| Package {
            name: name.to_owned(),
            folder: folder.to_owned(),
            dependencies: Vec::new(),
        };
        assert!(misplaced(&package("gangline-util", "crates/util")).is_some());
        assert!(misplaced(&package("base", "crates/base")).is_some());
        assert!(misplaced(&package("gangline-base", "crates/base")).is_none());
        assert!(misplaced(&package("xtask", "xtask")).is_none());
    }

    #[test]
    fn a_package_without_the_workspace_lints_is_refused() {
        let check_manifest = |text: &str| {
            let packages = vec![Package { name: "xtask".into(), folder: "xtask".into(), dependencies: Vec::new() }];
            check(&Workspace { packages, ..Workspace::with(&[("xtask/Cargo.toml", text)]) }).len()
        };
        assert_eq!(check_manifest("[lints]\nworkspace = true\n"), 0);
        assert_eq!(check_manifest("[package]\nname = \"xtask\"\n"), 1);
    }
}
