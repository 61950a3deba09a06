//! `models export`: a folder that Hugging Face's libraries read, with a model card that states the lineage.

use std::path::{Path, PathBuf};

use clap::Args;
use gangline_api as api;

use super::card;
use crate::checkpoint::{self, export as tensors};
use crate::client::{Client, absolute};
use crate::failure::Failure;
use crate::output;

/// The model card's name, which Hugging Face's hub shows.
const CARD: &str = "README.md";
/// The lineage's name.
const LINEAGE: &str = "lineage.json";

/// Which version is exported where.
#[derive(Args, Debug)]
pub(super) struct ExportArgs {
    /// MODEL/NUMBER or MODEL@ALIAS; MODEL for its newest version
    version: String,
    /// The folder to make; it must not be there, or be empty
    folder: PathBuf,
    #[command(flatten)]
    form: tensors::Form,
    /// Copy this file into the folder too, as config.json or tokenizer.json (may be repeated)
    #[arg(long = "add", value_name = "FILE")]
    added: Vec<PathBuf>,
}

pub(super) fn run(client: &Client, args: &ExportArgs, is_json: bool) -> Result<(), Failure> {
    let version = super::find(client, &args.version)?;
    let (pinned, step) = super::pinned(&version)?;
    let added = names(&args.added)?;
    let snapshot = checkpoint::place::snapshot(pinned, Some(step))?;
    let exported = args.form.write(&snapshot, &args.folder)?;
    for (name, file) in added {
        let failed = |error| Failure::local(format!("{} can't be copied: {error}", file.display()), "");
        std::fs::copy(file, args.folder.join(name)).map_err(failed)?;
    }
    let lineage = serde_json::to_string_pretty(&version).map_err(|error| Failure::local(error.to_string(), ""))?;
    for (name, text) in [(LINEAGE, lineage), (CARD, card::of(&version, &exported))] {
        let path = args.folder.join(name);
        let failed = |error| Failure::local(format!("{} can't be written: {error}", path.display()), "");
        std::fs::write(&path, text).map_err(failed)?;
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let place = format!("{host}:{}", absolute(&args.folder)?.display());
    let noted: api::ModelVersion =
        client.post(&format!("{}/exported", super::path(&version)), &api::ExportedRequest { place })?;
    if is_json {
        return output::json(&serde_json::json!({"exported": exported, "version": noted}));
    }
    output::say(&format!("version {} of {}: {}", version.number, version.model, tensors::told(&exported, &args.folder)))
}

/// Returns the names that added files have in the folder.
fn names(files: &[PathBuf]) -> Result<Vec<(String, &Path)>, Failure> {
    let named = files.iter().map(|file| {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_taken =
            name == CARD || name == LINEAGE || name.ends_with(".safetensors") || name.ends_with(".index.json");
        let refused = |why: &str| Err(Failure::local(format!("{} can't be added: {why}", file.display()), ""));
        match name.as_str() {
            _ if is_taken => refused("the export writes a file of this name itself"),
            _ if !file.is_file() => refused("there is no such file"),
            _ => Ok((name, file.as_path())),
        }
    });
    named.collect()
}
