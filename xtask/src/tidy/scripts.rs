//! Style 42: project commands are Rust; the only shell script is `.ci/run`, and it only calls xtask.

use super::Breach;
use super::workspace::Workspace;

const THE_ONE: &str = ".ci/run";
const ENDINGS: [&str; 4] = [".sh", ".bash", ".zsh", ".fish"];
const NAMES: [&str; 3] = ["Makefile", "makefile", "justfile"];
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "fish"];

pub(super) fn check(workspace: &Workspace) -> Vec<Breach> {
    let scripts = workspace.files.iter().filter(|(path, text)| *path != THE_ONE && is_script(path, text));
    let todo = "make it an xtask command: the only shell script is .ci/run";
    scripts.map(|(path, _)| Breach::new(path, 1, "script", todo)).collect()
}

fn is_script(path: &str, text: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    ENDINGS.iter().any(|end| name.ends_with(end)) || NAMES.contains(&name) || has_shell_shebang(text)
}

fn has_shell_shebang(text: &str) -> bool {
    let Some(command) = text.lines().next().and_then(|line| line.strip_prefix("#!")) else { return false };
    command.split([' ', '/', '\t']).any(|word| SHELLS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(files: &[(&str, &str)]) -> Vec<String> {
        check(&Workspace::with(files)).into_iter().map(|breach| breach.path).collect()
    }

    #[test]
    fn scripts_are_refused_by_name_and_by_first_line() {
        let bash = "#!/usr/bin/env bash\nexit 0\n";
        assert_eq!(paths(&[("build.sh", ""), ("Makefile", ""), ("tools/go", bash), ("x", "#!/bin/sh")]).len(), 4);
    }

    #[test]
    fn the_one_script_and_other_languages_are_fine() {
        let files = [(".ci/run", "#!/bin/bash"), ("python/x.py", "#!/usr/bin/env python3"), ("a.rs", "#![x]")];
        assert_eq!(paths(&files), [""; 0]);
    }
}
