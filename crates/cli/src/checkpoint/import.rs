//! `checkpoint import`: a model that others saved becomes a checkpoint.

use std::path::PathBuf;

use clap::Args;
use gangline_base::Step;
use gangline_storage::Error;

use crate::checkpoint::{failed, open};
use crate::failure::Failure;
use crate::{Global, output};

/// What is imported where.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// The model: a folder with model.safetensors.index.json or with one safetensors file, or such a file
    model: PathBuf,
    /// The folder of checkpoints; it is made if it isn't there
    folder: PathBuf,
    /// The step that the checkpoint gets
    #[arg(long)]
    step: u64,
    /// Put this before each name: model. makes head.weight model.head.weight
    #[arg(long, default_value = "")]
    prefix: String,
}

pub(crate) fn import(global: &Global, args: &ImportArgs) -> Result<(), Failure> {
    if !args.model.exists() {
        return Err(Failure::local(format!("there is no {}", args.model.display()), ""));
    }
    std::fs::create_dir_all(&args.folder)?;
    let store = open(&args.folder)?;
    let imported = store.import(&args.model, Step(args.step), &args.prefix).map_err(|error| match error {
        Error::Occupied { .. } => Failure::local(
            format!("there is a checkpoint of step {} in {}", args.step, args.folder.display()),
            "choose another --step",
        ),
        error => failed(error),
    })?;
    if global.json {
        return output::json(&imported);
    }
    output::say(&format!(
        "step {}: {} tensors, {} of {} files, written and read back",
        imported.step, imported.tensors, imported.bytes, imported.files
    ))
}
