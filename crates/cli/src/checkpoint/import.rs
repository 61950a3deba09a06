//! `checkpoint import`: converts a model that another library saved to a checkpoint.
//!
//! torch writes pickles, whose values have Python's types. So this command calls the Python package, which
//! reads them with torch's own unpickler that runs no code.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use gangline_base::Step;
use gangline_storage::Error;

use crate::checkpoint::{failed, open};
use crate::failure::Failure;
use crate::{Global, output};

/// What is imported where.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// The model: a folder with model.safetensors.index.json or with one safetensors file, or such a file; or what torch wrote,
    /// by torch.save (a file) or torch.distributed.checkpoint (a folder), which takes Python with torch and gangline
    model: PathBuf,
    /// The folder of checkpoints; it is made if it isn't there
    folder: PathBuf,
    /// The step that the checkpoint gets
    #[arg(long)]
    step: u64,
    /// Put this before each name: model. makes head.weight model.head.weight
    #[arg(long, default_value = "")]
    prefix: String,
    /// The Python that reads what torch wrote
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
}

pub(crate) fn import(global: &Global, args: &ImportArgs) -> Result<(), Failure> {
    if !args.model.exists() {
        return Err(Failure::local(format!("there is no {}", args.model.display()), ""));
    }
    if is_of_torch(&args.model) {
        return import_by_python(global, args);
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

/// Reports whether torch wrote the model: a folder of torch.distributed.checkpoint, or a file that is a zip
/// or a pickle. A safetensors file begins with eight bytes for the length of its header; a length like the
/// first bytes of those formats isn't possible.
fn is_of_torch(model: &Path) -> bool {
    if model.is_dir() {
        return model.join(".metadata").is_file();
    }
    let mut begin = [0; 8];
    let is_long = File::open(model).and_then(|mut file| file.read_exact(&mut begin)).is_ok();
    is_long
        && begin[4..] != [0; 4]
        && (begin.starts_with(b"PK\x03\x04") || begin[0] == 0x80 && (2..=5).contains(&begin[1]))
}

/// Lets the Python package import it; the package reports the result in this command's format.
fn import_by_python(global: &Global, args: &ImportArgs) -> Result<(), Failure> {
    let python = args.python.display();
    let command = format!("-m gangline import {} {} --step {}", args.model.display(), args.folder.display(), args.step);
    if !args.prefix.is_empty() {
        let hint = "leave --prefix out: a state dict keeps its own names";
        return Err(Failure::local("what torch wrote is imported as it is, without a prefix", hint));
    }
    let lacking = |why: String| {
        let hint = format!("name one with --python, or run where there is one: python {command}");
        Failure::local(format!("what torch wrote is read by Python with torch and gangline, and {why}"), hint)
    };
    let mut look = Command::new(&args.python);
    look.args(["-c", "import torch, gangline"]).stdin(Stdio::null());
    let looked = look.output().map_err(|error| lacking(format!("{python} doesn't run: {error}")))?;
    if !looked.status.success() {
        let said = String::from_utf8_lossy(&looked.stderr);
        return Err(lacking(format!("{python} says {:?}", said.lines().last().unwrap_or_default())));
    }
    let mut import = Command::new(&args.python);
    import
        .args(["-m", "gangline", "import"])
        .args([&args.model, &args.folder])
        .arg("--step")
        .arg(args.step.to_string());
    if global.json {
        import.arg("--json");
    }
    let output = import.stdin(Stdio::null()).stderr(Stdio::piped()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::local(said.lines().last().unwrap_or("Python failed without a word"), ""));
    }
    output::print(&String::from_utf8_lossy(&output.stdout))
}
