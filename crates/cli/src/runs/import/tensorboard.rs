//! Runs in TensorBoard's event files: records of TensorFlow's `TFRecord` format
//! (<https://www.tensorflow.org/tutorials/load_data/tfrecord>), each an `Event` of its protocol buffers
//! (<https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto>). Scalars are taken; images, histograms and
//! graphs are not.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::folders;
use super::run::{ImportedRun, Point, VERSION, millis};
use crate::failure::Failure;
use prost::Message;

/// What an event file's name holds.
const NAME: &str = "tfevents";
/// The largest record.
const RECORD_MAX: u64 = 256 << 20;
/// Numbers of types in a `TensorProto`.
const FLOAT: i32 = 1;
const DOUBLE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Tagged>,
}

#[derive(Clone, PartialEq, Message)]
struct Tagged {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(bytes = "vec", tag = "4")]
    tensor_content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    float_val: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    double_val: Vec<f64>,
}

impl Tagged {
    /// Returns the value if it is one number.
    fn scalar(&self) -> Option<f64> {
        if let Some(value) = self.simple_value {
            return Some(f64::from(value));
        }
        let tensor = self.tensor.as_ref()?;
        match (
            tensor.dtype,
            tensor.float_val.as_slice(),
            tensor.double_val.as_slice(),
            tensor.tensor_content.as_slice(),
        ) {
            (FLOAT, [value], [], []) => Some(f64::from(*value)),
            (DOUBLE, [], [value], []) => Some(*value),
            (FLOAT, [], [], content) => content.try_into().ok().map(|bytes| f64::from(f32::from_le_bytes(bytes))),
            (DOUBLE, [], [], content) => content.try_into().ok().map(f64::from_le_bytes),
            _ => None,
        }
    }
}

/// Hands over a run for each folder with event files, named after the folder.
pub(super) fn each(
    root: &Path,
    experiment: Option<&str>,
    mut take: impl FnMut(&ImportedRun) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (root, folders) = folders::with(root, |name| name.contains(NAME))?;
    if folders.is_empty() {
        let message = format!("there is no event file in {}", root.display());
        return Err(Failure::local(
            message,
            "TensorBoard's files have names such as events.out.tfevents.1700000000.host",
        ));
    }
    let own = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let experiment = experiment.unwrap_or(&own);
    for (folder, files) in folders {
        let relative = folder.strip_prefix(&root).unwrap_or(&folder).display().to_string();
        let name = if relative.is_empty() { own.clone() } else { relative };
        let identity = format!("tensorboard:{}", folder.display());
        take(&run_of(&files, identity, experiment, name)?)?;
    }
    Ok(())
}

fn run_of(files: &[PathBuf], id: String, experiment: &str, name: String) -> Result<ImportedRun, Failure> {
    let mut run = ImportedRun {
        version: VERSION,
        id,
        experiment: experiment.to_owned(),
        name,
        status: "FINISHED".to_owned(),
        tags: BTreeMap::from([("mlflow.source.type".to_owned(), "TENSORBOARD".to_owned())]),
        ..ImportedRun::default()
    };
    let (mut first, mut last) = (i64::MAX, 0);
    for file in files {
        let opened =
            fs::File::open(file).map_err(|error| Failure::local(format!("{}: {error}", file.display()), ""))?;
        let mut reader = BufReader::new(opened);
        let mut place = 0;
        while let Some(record) = record(&mut reader, &mut place).map_err(|error| damaged(file, place, &error))? {
            let event = Event::decode(record.as_slice()).map_err(|error| damaged(file, place, &error))?;
            let at = millis(event.wall_time);
            (first, last) = (first.min(at), last.max(at));
            add(&mut run, event, at);
        }
    }
    run.start_time = u64::try_from(first.min(last)).unwrap_or_default();
    run.end_time = u64::try_from(last).ok();
    Ok(run)
}

fn add(run: &mut ImportedRun, event: Event, at: i64) {
    for tagged in event.summary.into_iter().flat_map(|summary| summary.value) {
        if let Some(value) = tagged.scalar() {
            run.metrics.entry(tagged.tag).or_default().push(Point::of(event.step, at, value));
        }
    }
}

fn damaged(file: &Path, place: u64, error: &dyn std::fmt::Display) -> Failure {
    Failure::local(
        format!("{}, byte {place}: {error}", file.display()),
        "move the damaged file away to import the others",
    )
}

/// Reads a record; none at the end, or where the last one was cut off as its writer died.
fn record(reader: &mut impl Read, place: &mut u64) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 12];
    if !whole(reader, &mut head)? {
        return Ok(None);
    }
    let [length, check] = [&head[..8], &head[8..]];
    let bytes = u64::from_le_bytes(length.try_into().expect("8 bytes"));
    if masked(length) != u32::from_le_bytes(check.try_into().expect("4 bytes")) || bytes > RECORD_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, "the length of a record has another checksum"));
    }
    let mut content = vec![0; usize::try_from(bytes).expect("64-bit Linux only") + 4];
    if !whole(reader, &mut content)? {
        return Ok(None);
    }
    let check = content.split_off(content.len() - 4);
    if masked(&content) != u32::from_le_bytes(check.try_into().expect("4 bytes")) {
        return Err(io::Error::new(ErrorKind::InvalidData, "a record has another checksum"));
    }
    *place += 16 + bytes;
    Ok(Some(content))
}

/// Fills a buffer; false if the file ends before.
fn whole(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the masked CRC-32C of TFRecord files.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
