//! What is generated from the definition of the command line: completions for shells, manual pages, and the page
//! `docs/reference/cli.md`.

mod page;

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _, Subcommand, ValueEnum};
use clap_complete::Shell as Target;

use crate::Arguments;
use crate::failure::Failure;
use crate::output::print;

/// The program's name, as it is typed.
const PROGRAM: &str = "gangline";

/// Options of `completions`.
#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// Whose completions
    shell: Shell,
}

/// The shells that are supported.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// What a package of the binary is made with; hidden from the help.
#[derive(Subcommand)]
pub(crate) enum Manual {
    /// Write the manual pages into a folder, which is made if it isn't there.
    #[command(hide = true)]
    ManPages {
        /// The folder.
        folder: PathBuf,
    },
    /// Print the page of the reference on the command line.
    #[command(hide = true)]
    CliReference,
}

/// Prints the completions for a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    print(&String::from_utf8_lossy(&script(args.shell)))
}

/// Runs a command that a package is made with.
pub(crate) fn run(manual: &Manual) -> Result<(), Failure> {
    match manual {
        Manual::ManPages { folder } => man_pages(folder).map_err(Failure::from),
        Manual::CliReference => print(&page::render(&built())),
    }
}

fn script(shell: Shell) -> Vec<u8> {
    let target = match shell {
        Shell::Bash => Target::Bash,
        Shell::Zsh => Target::Zsh,
        Shell::Fish => Target::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(target, &mut Arguments::command(), PROGRAM, &mut script);
    script
}

/// A page for the program and one for each command that the help shows: `gangline-checkpoint-list.1`.
fn man_pages(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Arguments::command().disable_help_subcommand(true), folder)
}

/// The definition with usages and options of every command filled in.
fn built() -> clap::Command {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    command
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");

    /// Has `program` read `file` without running it; what it says, or None where there is no such program.
    fn complaints(program: &str, arguments: &[&str], file: &Path) -> Option<String> {
        let output = match Command::new(program).args(arguments).arg(file).output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            output => output.unwrap(),
        };
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        Some(if output.status.success() { said } else { format!("{}: {said}", output.status) })
    }

    #[test]
    fn each_shell_understands_its_completions() {
        let folder = tempfile::tempdir().unwrap();
        for (shell, program, option) in
            [(Shell::Bash, "bash", "-n"), (Shell::Zsh, "zsh", "-n"), (Shell::Fish, "fish", "--no-execute")]
        {
            let file = folder.path().join(program);
            std::fs::write(&file, script(shell)).unwrap();
            match complaints(program, &[option], &file) {
                Some(said) => assert_eq!(said, "", "{program}"),
                None => println!("skipped: the completions of {program}, which isn't installed"),
            }
        }
    }

    #[test]
    fn bash_completes_a_command_and_an_option() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gangline.bash");
        std::fs::write(&file, script(Shell::Bash)).unwrap();
        let completed = |words: &str, last: &str, before: &str| {
            let count = words.split(' ').count() - 1;
            let session = format!(
                "source '{}'; COMP_WORDS=({words}); COMP_CWORD={count}; \
                 _gangline gangline '{last}' '{before}'; echo \"${{COMPREPLY[@]}}\"",
                file.display()
            );
            let output = Command::new("bash").args(["--norc", "-c", &session]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        assert_eq!(completed("gangline subm", "subm", "gangline"), "submit");
        assert_eq!(completed("gangline submit --wai", "--wai", "submit"), "--wait");
    }

    #[test]
    fn every_command_that_the_help_shows_has_a_manual_page_without_faults() {
        let folder = tempfile::tempdir().unwrap();
        man_pages(folder.path()).unwrap();
        let name = |file: std::fs::DirEntry| file.file_name().into_string().unwrap();
        let names: Vec<String> = std::fs::read_dir(folder.path()).unwrap().map(|file| name(file.unwrap())).collect();
        for command in built().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(names.contains(&format!("gangline-{}.1", command.get_name())), "{names:?}");
        }
        assert!(names.contains(&"gangline.1".to_owned()) && names.contains(&"gangline-checkpoint-list.1".to_owned()));
        assert!(!names.iter().any(|name| name.contains("supervise") || name.contains("man-pages")), "{names:?}");
        for name in names {
            let page = folder.path().join(&name);
            match complaints("groff", &["-man", "-ww", "-z"], &page) {
                Some(said) => assert_eq!(said, "", "{name}"),
                None => return println!("skipped: the manual pages' markup; groff isn't installed"),
            }
        }
    }

    #[cfg(all(feature = "demo", feature = "s3"))]
    #[test]
    fn the_reference_is_what_the_program_prints() {
        let page = page::render(&built());
        if std::env::var_os("GANGLINE_BLESS").is_some() {
            std::fs::write(REFERENCE, &page).unwrap();
        }
        let kept = std::fs::read_to_string(REFERENCE).unwrap_or_default();
        assert!(
            kept == page,
            "docs/reference/cli.md is out of date: run this with GANGLINE_BLESS=1 and look at the change"
        );
    }
}
