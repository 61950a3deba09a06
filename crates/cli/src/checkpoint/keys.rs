//! `checkpoint keys`: makes, replaces and shows the keys of an encrypted archive. Only ids are ever printed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gangline_api::Time;
use gangline_storage::archive::{KeyShown, Rotation};

use crate::checkpoint::archive::{KeyFile, Reach, reach, read_key, refused};
use crate::failure::Failure;
use crate::{Global, output};

/// What to do with an archive's keys.
#[derive(Subcommand, Debug)]
pub(crate) enum KeysCommand {
    /// Make the keys of an archive that has nothing yet, as a first push with --key-file does
    Init {
        /// The archive
        #[arg(value_name = "ARCHIVE")]
        archive: String,
        #[command(flatten)]
        key: KeyFile,
    },
    /// Wrap the archive's keys for another key. Nothing is encrypted anew, and what was cut off is run again
    Rotate(RotateArgs),
    /// List the archive's data keys and what they encrypt; with --key-file also how many packs
    Show {
        /// The archive
        #[arg(value_name = "ARCHIVE")]
        archive: String,
        #[command(flatten)]
        key: KeyFile,
    },
}

/// What a rotation changes.
#[derive(Args, Debug)]
pub(crate) struct RotateArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: String,
    #[command(flatten)]
    key: KeyFile,
    /// The file of the key that opens the archive from now on [default: the same]
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
    /// Encrypt what is pushed from now on with a new data key
    #[arg(long)]
    new_data_key: bool,
}

pub(crate) fn run(global: &Global, command: &KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::Init { archive, key } => init(global, archive, key),
        KeysCommand::Rotate(args) => rotate(global, args),
        KeysCommand::Show { archive, key } => show(global, archive, key),
    }
}

fn init(global: &Global, archive: &str, key: &KeyFile) -> Result<(), Failure> {
    let id = reach(archive, &Reach::from(key))?.init_keys().map_err(|error| refused(&error))?;
    if global.json {
        return output::json(&serde_json::json!({ "data_key": id }));
    }
    output::say(&format!("{archive} is encrypted from now on, with data key {id}; keep the key's file, apart from it"))
}

fn rotate(global: &Global, args: &RotateArgs) -> Result<(), Failure> {
    let new_key = args.new_key_file.as_deref().map(read_key).transpose()?;
    let change = Rotation { new_key, with_new_data_key: args.new_data_key };
    let rotated =
        reach(&args.archive, &Reach::from(&args.key))?.rotate_keys(&change).map_err(|error| refused(&error))?;
    if global.json {
        return output::json(&rotated);
    }
    output::say(&format!(
        "key {} opens the archive now ({} data keys wrapped anew); what is pushed is encrypted with data key {}",
        rotated.wrapping_key, rotated.rewrapped, rotated.data_key
    ))
}

fn show(global: &Global, archive: &str, key: &KeyFile) -> Result<(), Failure> {
    let shown = reach(archive, &Reach::from(key))?.keys().map_err(|error| refused(&error))?;
    if global.json {
        return output::json(&shown);
    }
    if shown.is_empty() {
        return output::say("the archive has no keys: it isn't encrypted");
    }
    let headings = ["DATA KEY", "MADE", "CIPHER", "WRAPPED FOR", ">CATALOGS", ">PACKS", ">SIZE", ""];
    output::print(&output::table(&headings, shown.iter().map(row).collect()))
}

fn row(shown: &KeyShown) -> Vec<String> {
    let KeyShown { id, made_at, algorithm, wrapped_for, catalogs, packs, is_current, .. } = shown;
    let wrapped_for: Vec<String> = wrapped_for.iter().map(ToString::to_string).collect();
    let (count, bytes) =
        packs.map_or_else(|| ("?".to_owned(), "?".to_owned()), |(count, bytes)| (count.to_string(), bytes.to_string()));
    vec![
        id.to_string(),
        output::time(Time(*made_at)),
        algorithm.clone(),
        wrapped_for.join(", "),
        catalogs.to_string(),
        count,
        bytes,
        if *is_current { "encrypts what is new".to_owned() } else { String::new() },
    ]
}
