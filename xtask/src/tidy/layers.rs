//! What a layer may touch, as far as source text shows it: the environment only at the edges, the clock never in a pure
//! crate, and of the execution layer only its border in the control plane.

use super::Breach;
use super::pure;
use super::source::Source;

/// Where the environment may be read: the binary, the bindings, and what isn't the product.
const ENVIRONMENT_PACKAGES: [&str; 6] = ["benches", "crates/cli", "fuzz", "python", "tests", "xtask"];

/// What `std::env` reads or writes at run time.
const ENVIRONMENT: [&str; 11] = [
    "args",
    "args_os",
    "current_dir",
    "current_exe",
    "home_dir",
    "remove_var",
    "set_var",
    "temp_dir",
    "var",
    "var_os",
    "vars",
];

/// The crates of the control plane.
const CONTROL_PLANE: [&str; 3] = ["crates/store", "crates/control", "crates/server"];

/// The modules of `gangline_execution` that are its border with the control plane.
const EXECUTION_BORDER: [&str; 6] = ["protocol", "endpoint", "files", "launcher", "inventory", "timeouts"];

pub(super) fn check(source: &Source) -> Vec<Breach> {
    [environment(source), clock(source), execution(source)].concat()
}

fn environment(source: &Source) -> Vec<Breach> {
    let is_example = source.path.split('/').any(|part| part == "examples");
    if is_example || ENVIRONMENT_PACKAGES.contains(&source.package()) {
        return Vec::new();
    }
    let imported = source.imports().into_iter().filter(|(path, _)| path.starts_with("std::env"));
    let mut lines: Vec<usize> = imported.map(|(_, line)| line).collect();
    lines.extend(source.lines_with(&["std", "::", "env", "::"]));
    lines.extend(ENVIRONMENT.iter().flat_map(|name| source.lines_with(&["env", "::", name])));
    lines.sort_unstable();
    lines.dedup();
    let ours = lines.into_iter().filter(|line| !source.is_test_line(*line));
    let todo = "take it as an argument: the environment is read only in cli/ and python/";
    ours.map(|line| Breach::new(&source.path, line, "environment", todo)).collect()
}

fn clock(source: &Source) -> Vec<Breach> {
    if !pure::PURE.contains(&source.package()) {
        return Vec::new();
    }
    let clocks = ["Instant", "SystemTime"].into_iter();
    let lines = clocks.flat_map(|clock| source.lines_with(&[clock, "::", "now"]));
    let todo = "take `now` as an argument: a pure crate (A-1) reads no clock";
    lines.map(|line| Breach::new(&source.path, line, "clock", todo)).collect()
}

fn execution(source: &Source) -> Vec<Breach> {
    if !CONTROL_PLANE.contains(&source.package()) {
        return Vec::new();
    }
    let is_border = |module: &str| EXECUTION_BORDER.contains(&module);
    let imports = source.imports().into_iter().filter_map(|(path, line)| {
        let mut parts = path.split("::");
        (parts.next()? == "gangline_execution" && !parts.next().is_some_and(is_border)).then_some(line)
    });
    let mut lines: Vec<usize> = imports.collect();
    for used in source.tokens.windows(3).filter(|used| used[0].text == "gangline_execution") {
        let is_group = used[2].text == "{";
        if used[1].text == "::" && !is_group && !is_border(&used[2].text) {
            lines.push(used[0].line);
        }
    }
    lines.sort_unstable();
    lines.dedup();
    let todo = format!("use only {} of gangline_execution in the control plane", EXECUTION_BORDER.join(", "));
    lines.into_iter().map(|line| Breach::new(&source.path, line, "execution-border", &*todo)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let source = Source::parse(path, text).unwrap();
        check(&source).into_iter().map(|breach| (breach.rule, breach.line)).collect()
    }

    #[test]
    fn the_environment_is_read_only_at_the_edges() {
        for text in [
            "fn f() { std::env::var(\"X\"); }",
            "use std::env;",
            "use std::{env::var, fs};",
            "use std::env as e;",
            "fn f() { m!(env::temp_dir()) }",
        ] {
            assert_eq!(rules("crates/execution/src/x.rs", text), [("environment", 1)], "{text}");
            assert_eq!(rules("crates/cli/src/x.rs", text), [], "{text}");
            assert_eq!(rules("examples/tinygpt/src/x.rs", text), [], "{text}");
            assert_eq!(rules("crates/execution/examples/x.rs", text), [], "{text}");
        }
    }

    #[test]
    fn what_only_looks_like_the_environment_is_fine() {
        let text = "const P: &str = env!(\"CARGO_PKG_NAME\");\nfn f(env: Env) { job::env::set(env.var); }";
        assert_eq!(rules("crates/execution/src/x.rs", text), []);
        let test = "#[cfg(test)]\nmod tests {\n fn exe() { std::env::current_exe(); }\n}";
        assert_eq!(rules("crates/execution/src/x.rs", test), []);
        assert_eq!(rules("crates/execution/tests/x.rs", "use std::env;"), []);
    }

    #[test]
    fn a_pure_crate_reads_no_clock() {
        let text = "fn f() {\n std::time::Instant::now();\n SystemTime::now();\n}";
        for package in pure::PURE {
            assert_eq!(rules(&format!("{package}/src/x.rs"), text), [("clock", 2), ("clock", 3)], "{package}");
        }
        assert_eq!(rules("crates/control/src/x.rs", text), []);
        assert_eq!(rules("crates/base/src/x.rs", "fn f(now: Timestamp) { Timestamp::new(now); }"), []);
    }

    #[test]
    fn the_control_plane_sees_only_the_border_of_execution() {
        let path = "crates/server/src/x.rs";
        for text in [
            "use gangline_execution::supervisor;",
            "use gangline_execution::{protocol::Report, supervisor::Supervisor};",
            "use gangline_execution::*;",
            "use gangline_execution as e;",
            "fn f() { m!(gangline_execution::shim::run()) }",
        ] {
            assert_eq!(rules(path, text), [("execution-border", 1)], "{text}");
            assert_eq!(rules("crates/control/src/x.rs", text), [("execution-border", 1)], "{text}");
            assert_eq!(rules("crates/cli/src/x.rs", text), [], "{text}");
        }
        let text = "use gangline_execution::protocol::Report;\nuse gangline_execution::{inventory, launcher::Launcher};\n\
                    fn f() { gangline_execution::protocol::VERSION; }";
        assert_eq!(rules(path, text), []);
    }
}
