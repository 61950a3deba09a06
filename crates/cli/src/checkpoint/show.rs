//! `checkpoint show`: shows the contents of one checkpoint, from its manifest.

use clap::Args;
use gangline_api::Time;
use gangline_base::Bytes;
use gangline_storage::{CheckpointInfo, DataType, ORIGIN_PREFIX, TensorInfo};

use crate::checkpoint::archive::KeyFile;
use crate::checkpoint::groups::{LONG, grouped, pattern};
use crate::checkpoint::place::Place;
use crate::failure::Failure;
use crate::{Global, output};

/// Number of a hash's digits in a table: enough to compare by eye.
const HASH_DIGITS: usize = 16;

/// What is shown.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The folder of checkpoints, or the archive
    place: String,
    /// The step [default: the newest]
    #[arg(long)]
    step: Option<u64>,
    /// A line for each tensor, with its hash, however many there are
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    key: KeyFile,
}

pub(crate) fn show(global: &Global, args: &ShowArgs) -> Result<(), Failure> {
    let info = Place { place: args.place.clone(), step: args.step }.info(&args.key)?;
    if global.json { output::json(&info) } else { output::print(&text(&info, args.all)) }
}

fn text(info: &CheckpointInfo, is_all: bool) -> String {
    let CheckpointInfo { step, writer, world_size, bytes, content_hash, metadata, tensors, .. } = info;
    let ranks = if *world_size == 1 { "1 rank".to_owned() } else { format!("{world_size} ranks") };
    let mut facts = vec![
        vec!["step".to_owned(), step.to_string()],
        vec!["size".to_owned(), format!("{bytes} in {} tensors", tensors.len())],
        vec!["saved by".to_owned(), format!("{ranks}, writer {writer}")],
        vec!["content hash".to_owned(), content_hash.to_string()],
    ];
    facts.extend(origin(info));
    let own = metadata.iter().filter(|(name, _)| !name.starts_with(ORIGIN_PREFIX));
    facts.extend(own.map(|(name, value)| vec![name.clone(), value.clone()]));
    let is_short = !is_all && tensors.len() > LONG;
    let table = if is_short { short(tensors) } else { long(tensors) };
    let hint = if is_short { "\n--all shows each tensor, with its hash\n" } else { "" };
    format!("{}\n{table}{hint}", output::table(&["", ""], facts).trim_start_matches('\n'))
}

/// Formats when it was saved, by which run, and after which save.
fn origin(info: &CheckpointInfo) -> Vec<Vec<String>> {
    let fact = |name: &str, value: String| vec![name.to_owned(), value];
    let saved_at = info.saved_at.map(|time| fact("saved at", output::time(Time(time))));
    let run = info.run.as_ref().map(|run| fact("run", run.clone()));
    let after = info.parent.map_or_else(String::new, |step| format!(", after step {step}"));
    let branch = info.saved_at.map(|_| fact("branch", format!("{}{after}", info.branch)));
    [saved_at, run, branch].into_iter().flatten().collect()
}

fn long(tensors: &[TensorInfo]) -> String {
    let row = |tensor: &TensorInfo| {
        let mut hash = tensor.hash.to_string();
        hash.truncate(HASH_DIGITS);
        vec![
            tensor.name.clone(),
            tensor.data_type.name().to_owned(),
            shape(&tensor.shape),
            tensor.bytes.to_string(),
            tensor.parts.to_string(),
            hash,
        ]
    };
    output::table(&["TENSOR", "TYPE", "SHAPE", ">SIZE", ">PARTS", "HASH"], tensors.iter().map(row).collect())
}

fn short(tensors: &[TensorInfo]) -> String {
    let key = |tensor: &&TensorInfo| (pattern(&tensor.name), tensor.data_type.name(), tensor.shape.clone());
    let row = |((pattern, data_type, dimensions), group): ((String, &str, Vec<usize>), Vec<&TensorInfo>)| {
        let bytes = Bytes(group.iter().map(|tensor| tensor.bytes.0).sum());
        let name = if let [alone] = group[..] { alone.name.clone() } else { pattern };
        let parts: usize = group.iter().map(|tensor| tensor.parts).sum();
        vec![
            name,
            group.len().to_string(),
            data_type.to_owned(),
            shape(&dimensions),
            bytes.to_string(),
            parts.to_string(),
        ]
    };
    let rows = grouped(tensors, key).into_iter().map(row).collect();
    output::table(&["TENSOR", ">COUNT", "TYPE", "SHAPE", ">SIZE", ">PARTS"], rows)
}

/// Formats a shape: `[4096, 1024]`.
pub(crate) fn shape(dimensions: &[usize]) -> String {
    format!("{dimensions:?}")
}

/// Formats type and shape: `BF16 [4096, 1024]`.
pub(crate) fn declared(data_type: DataType, dimensions: &[usize]) -> String {
    format!("{} {}", data_type.name(), shape(dimensions))
}
