//! The command line as a page in Markdown: a section for each command that the help shows.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

const HEAD: &str = "\
# The command line

Every command and its options. This page is generated: `gangline cli-reference` prints it, and a test compares the two.
`gangline help COMMAND` says the same, and so do the manual pages of an [installed package](../guides/install.md)
(`man gangline-submit`). `gangline completions bash` prints completions for a shell.
";

/// Renders a command whose usages have been built.
pub(super) fn render(program: &Command) -> String {
    let mut page = HEAD.to_owned();
    let globals: Vec<&Arg> = shown(program).filter(|arg| arg.is_global_set()).collect();
    section(&mut page, "Options of every command", &globals);
    if let Some(codes) = program.get_after_help() {
        let _ = write!(page, "\n{}\n", text(&codes.to_string()));
    }
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        add(&mut page, command);
    }
    page
}

/// Adds a command, then the commands below it.
fn add(page: &mut String, command: &Command) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(|about| text(&about.to_string()));
    // Writing to a String can't fail.
    let _ = write!(page, "\n## {name}\n\n{}.\n", about.unwrap_or_default().trim_end_matches('.'));
    let has_commands = command.get_subcommands().any(|below| !below.is_hide_set());
    if !has_commands {
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim().trim_start_matches("Usage: ").to_owned();
        let _ = write!(page, "\n```text\n{usage}\n```\n");
        let own: Vec<&Arg> = shown(command).filter(|arg| !arg.is_global_set()).collect();
        list(page, &own);
        if let Some(after) = command.get_after_help() {
            let _ = write!(page, "\n{}\n", text(&after.to_string()));
        }
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        add(page, below);
    }
}

/// What the help shows, but for the help itself and the version.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_help = |arg: &Arg| {
        let action = arg.get_action();
        matches!(action, ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version)
    };
    command.get_arguments().filter(move |arg| !arg.is_hide_set() && !is_help(arg))
}

fn section(page: &mut String, title: &str, args: &[&Arg]) {
    let _ = write!(page, "\n## {title}\n");
    list(page, args);
}

fn list(page: &mut String, args: &[&Arg]) {
    if !args.is_empty() {
        page.push('\n');
    }
    for arg in args {
        let help = arg.get_long_help().or(arg.get_help()).map(|help| text(&help.to_string())).unwrap_or_default();
        let _ = writeln!(page, "- `{}`: {help}{}", spelled(arg), additions(arg));
    }
}

/// How it is typed: `-f, --follow`, `--data DIR`, `FILE...`.
fn spelled(arg: &Arg) -> String {
    let takes_value = arg.get_action().takes_values();
    let values = match arg.get_value_names() {
        Some(names) if takes_value => names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" "),
        None if takes_value => arg.get_id().to_string(),
        _ => String::new(),
    };
    let is_many = arg.is_positional() && arg.get_num_args().is_some_and(|range| range.max_values() > 1);
    let values = if is_many { format!("{values}...") } else { values };
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names = [short, long].into_iter().flatten().collect::<Vec<_>>().join(", ");
    [names, values].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Which values it takes, what it is if it isn't given, and the variable that stands for it.
fn additions(arg: &Arg) -> String {
    let code = |values: Vec<String>| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    let possible = if arg.get_action().takes_values() { arg.get_possible_values() } else { Vec::new() };
    let possible = possible.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name().to_owned());
    let default = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
    let default = if arg.get_action().takes_values() { default.collect() } else { Vec::new() };
    let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
    let said = [("one of", possible.collect()), ("default", default), ("variable", variable.into_iter().collect())];
    let said = said.into_iter().filter(|(_, values): &(_, Vec<String>)| !values.is_empty());
    said.map(|(what, values)| format!(" [{what}: {}]", code(values))).collect()
}

/// A help text as Markdown: on one line, and nothing in it taken for markup but code.
fn text(help: &str) -> String {
    let joined = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts = joined.split('`').enumerate().map(|(index, part)| {
        if index % 2 == 1 { part.to_owned() } else { part.replace('<', "&lt;").replace('*', "\\*").replace('_', "\\_") }
    });
    parts.collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_help_text_is_only_text_unless_it_is_code() {
        assert_eq!(text("a <B>,\n  c_d* and `e_f*`"), "a &lt;B>, c\\_d\\* and `e_f*`");
    }

    #[test]
    fn an_option_is_spelled_as_it_is_typed() {
        let option = Arg::new("data").long("data").short('d').value_name("DIR").default_value("x").env("GANGLINE_DATA");
        let mut program = Command::new("p").arg(option).arg(Arg::new("FILE").num_args(1..));
        program.build();
        let args: Vec<&Arg> = shown(&program).collect();
        assert_eq!(args.iter().map(|arg| spelled(arg)).collect::<Vec<_>>(), ["-d, --data DIR", "FILE..."]);
        assert_eq!(additions(args[0]), " [default: `x`] [variable: `GANGLINE_DATA`]");
    }
}
