//! `checkpoint export`: writes a folder that other libraries can read.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use gangline_base::Bytes;
use gangline_storage::{
    Error, ExportOptions, Exported, Precision, RESERVED_PREFIX, SHARD_BYTES_DEFAULT, Snapshot, TensorInfo,
};

use crate::amount;
use crate::checkpoint::groups::grouped;
use crate::checkpoint::{archive, failed, place};
use crate::failure::Failure;
use crate::{Global, output};

/// Prefixes of optimizers' tensors in most training states.
const OPTIMIZERS: [&str; 3] = ["optimizer", "optimizers", "optim"];
/// Maximum number of prefixes that a hint lists.
const BEGINNINGS_MAX: usize = 8;

/// What is exported where.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// As safetensors files with an index, as Hugging Face's libraries have them
    #[arg(long, required = true)]
    hf: bool,
    /// The folder of checkpoints
    source: String,
    /// The folder to make; it must not be there, or be empty
    folder: PathBuf,
    /// The step [default: the newest]
    #[arg(long)]
    step: Option<u64>,
    #[command(flatten)]
    form: Form,
}

/// Which tensors are exported, and how.
#[derive(Args, Debug)]
pub(crate) struct Form {
    /// Only tensors whose names begin so, and without it: model. makes model.head.weight head.weight
    #[arg(long)]
    prefix: Option<String>,
    /// The most bytes of tensors in a file [default: 5GB]
    #[arg(long, value_name = "SIZE", value_parser = amount::bytes)]
    shard_size: Option<Bytes>,
    /// Round fp32 tensors to bf16 [default: leave them as they are]
    #[arg(long, value_enum)]
    dtype: Option<Rounded>,
}

/// The type that fp32 tensors are rounded to.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rounded {
    Bf16,
}

pub(crate) fn export(global: &Global, args: &ExportArgs) -> Result<(), Failure> {
    if archive::is_archive(&args.source) {
        let hint = format!("get it first: gangline checkpoint pull {} FOLDER", args.source);
        return Err(Failure::local("export reads a folder of checkpoints, not an archive", hint));
    }
    let snapshot = place::snapshot(args.source.as_ref(), args.step)?;
    let exported = args.form.write(&snapshot, &args.folder)?;
    if global.json {
        return output::json(&exported);
    }
    output::say(&told(&exported, &args.folder))
}

/// Says what was exported.
pub(crate) fn told(exported: &Exported, folder: &Path) -> String {
    let left_out = match exported.left_out {
        0 => String::new(),
        count => format!("; {count} others of the checkpoint are left out"),
    };
    let files = if exported.files.len() == 1 { "1 file".to_owned() } else { format!("{} files", exported.files.len()) };
    format!(
        "step {}: {} tensors, {} in {files} in {}, every byte checked{left_out}",
        exported.step,
        exported.tensors,
        exported.bytes,
        folder.display()
    )
}

impl Form {
    /// Writes a checkpoint's tensors into a folder, which must not be there, or be empty.
    pub(crate) fn write(&self, snapshot: &Snapshot, folder: &Path) -> Result<Exported, Failure> {
        let tensors = &snapshot.info().tensors;
        if self.prefix.is_none() && tensors.iter().any(|tensor| OPTIMIZERS.contains(&beginning(tensor))) {
            let hint = format!("name the weights, as in --prefix model. ({})", beginnings(tensors));
            return Err(Failure::local("the checkpoint holds an optimizer's state beside the weights", hint));
        }
        let options = ExportOptions {
            prefix: self.prefix.clone().unwrap_or_default(),
            shard_bytes_max: self.shard_size.unwrap_or(SHARD_BYTES_DEFAULT),
            precision: self.dtype.map_or(Precision::AsSaved, |Rounded::Bf16| Precision::Bf16),
            ..ExportOptions::default()
        };
        snapshot.export(folder, &options).map_err(|error| match error {
            Error::NothingSelected { .. } => {
                Failure::local(format!("failed to {error}"), format!("there are {}", beginnings(tensors)))
            }
            error => failed(error),
        })
    }
}

/// Returns a name up to its first dot.
fn beginning(tensor: &TensorInfo) -> &str {
    tensor.name.split('.').next().unwrap_or_default()
}

/// Formats the names' prefixes with their totals: `model. (291 tensors, 15.0 GiB)`.
fn beginnings(tensors: &[TensorInfo]) -> String {
    let ours = tensors.iter().filter(|tensor| !tensor.name.starts_with(RESERVED_PREFIX));
    let groups = grouped(ours, |tensor| beginning(tensor).to_owned());
    let rest = groups.len().saturating_sub(BEGINNINGS_MAX);
    let told = groups.into_iter().take(BEGINNINGS_MAX).map(|(beginning, group)| {
        let bytes = Bytes(group.iter().map(|tensor| tensor.bytes.0).sum());
        format!("{beginning}. ({} tensors, {bytes})", group.len())
    });
    let more = (rest > 0).then(|| format!("{rest} more"));
    told.chain(more).collect::<Vec<_>>().join(", ")
}
