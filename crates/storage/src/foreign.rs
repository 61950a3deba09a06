//! Safetensors files and indexes written by other programs. They are read by the rules of the format
//! (safetensors' README, "Format") and not trusted: every length, offset, name and count is checked
//! before anything is read or allocated, and no name in an index leads out of its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::value::StrDeserializer;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::manifest::open_present;
use crate::shard::{METADATA, check_filled, read_header};
use crate::tensor::{byte_count, name_fault};
use crate::{DIMENSIONS_MAX, DataType, Error, Flaw, TENSORS_MAX};

/// The index that Hugging Face's libraries put beside several files.
const INDEX: &str = "model.safetensors.index.json";
/// The largest index read.
const INDEX_BYTES_MAX: u64 = 512 << 20;
/// The longest file name in an index, in bytes.
const FILE_NAME_BYTES_MAX: usize = 255;
/// The extension of the files.
const EXTENSION: &str = "safetensors";

/// A file of tensors.
#[derive(Debug)]
pub(crate) struct ForeignFile {
    pub(crate) path: PathBuf,
    pub(crate) tensors: Vec<ForeignTensor>,
}

/// A tensor of such a file.
#[derive(Debug)]
pub(crate) struct ForeignTensor {
    pub(crate) name: String,
    pub(crate) data_type: DataType,
    pub(crate) shape: Vec<usize>,
    /// The offset of its first byte in the file.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// Returns the files of a model, by name: those that a folder's index names, the only one in a folder, or a
/// file itself.
///
/// # Errors
/// [`Error::Corrupt`] naming the file and the rule that it breaks; [`Error::InvalidTensor`]; [`Error::Io`].
pub(crate) fn open_model(path: &Path) -> Result<Vec<ForeignFile>, Error> {
    let files = if !path.is_dir() {
        if path.extension().is_some_and(|extension| extension == "json") {
            return open_indexed(path);
        }
        vec![ForeignFile::open(path)?]
    } else if path.join(INDEX).exists() {
        return open_indexed(&path.join(INDEX));
    } else {
        vec![ForeignFile::open(&only_file(path)?)?]
    };
    Ok(files)
}

/// Returns the only safetensors file in a folder.
fn only_file(folder: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::io("list", folder, source);
    let mut found = None;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_tensors = path.extension().is_some_and(|extension| extension == EXTENSION);
        if is_tensors && found.replace(path).is_some() {
            let what = "it has several safetensors files and no model.safetensors.index.json; name one of them";
            return Err(Error::corrupt(folder, Flaw::Malformed { what }));
        }
    }
    found.ok_or_else(|| Error::corrupt(folder, Flaw::Malformed { what: "it has no safetensors file" }))
}

/// Opens the files that an index names, each with exactly the tensors that the index lists for it.
fn open_indexed(path: &Path) -> Result<Vec<ForeignFile>, Error> {
    check_is_file(path)?;
    let mut text = Vec::new();
    let file = open_present(path)?;
    file.take(INDEX_BYTES_MAX + 1).read_to_end(&mut text).map_err(|source| Error::reading(path, source))?;
    let index = parse_index(&text).map_err(|what| Error::corrupt(path, Flaw::Malformed { what }))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut files = Vec::with_capacity(index.len());
    for (name, tensors) in index {
        let file = ForeignFile::open(&folder.join(name))?;
        file.check_has_just(&tensors)?;
        files.push(file);
    }
    Ok(files)
}

/// Parses an index into the tensors of each file; returns the rule that it breaks otherwise.
pub(crate) fn parse_index(text: &[u8]) -> Result<BTreeMap<String, BTreeSet<String>>, &'static str> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Members<String>,
    }
    if text.len() as u64 > INDEX_BYTES_MAX {
        return Err("it is larger than 512 MiB");
    }
    let index: Index = serde_json::from_slice(text)
        .map_err(|_| "it is not a JSON object whose weight_map has the name of a file for at most 4000000 tensors")?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (name, file) in index.weight_map.0 {
        if !is_plain(&file) {
            return Err("a file's name in it is not a plain one that ends with .safetensors");
        }
        if !names.insert(name.clone()) {
            return Err("it names a tensor twice");
        }
        files.entry(file).or_default().insert(name);
    }
    if files.is_empty() { Err("it names no tensor") } else { Ok(files) }
}

/// Reports whether a name can only refer to a file directly in the folder.
fn is_plain(file: &str) -> bool {
    let has_extension = Path::new(file).extension().is_some_and(|extension| extension == EXTENSION);
    has_extension && file.len() <= FILE_NAME_BYTES_MAX && !file.contains(['/', '\\', '\0']) && !file.starts_with('.')
}

/// Returns the length of a regular file; opening a pipe would block forever.
fn check_is_file(path: &Path) -> Result<u64, Error> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Error::corrupt(path, Flaw::Missing)),
        metadata => metadata.map_err(|source| Error::reading(path, source))?,
    };
    if metadata.is_file() {
        Ok(metadata.len())
    } else {
        Err(Error::corrupt(path, Flaw::Malformed { what: "it is no file" }))
    }
}

impl ForeignFile {
    /// Reads and checks the header of a file.
    pub(crate) fn open(path: &Path) -> Result<ForeignFile, Error> {
        let bytes = check_is_file(path)?;
        let header = read_header(&mut open_present(path)?, path, bytes)?;
        let tensors = parse_header(&header, bytes).map_err(|Fault { tensor, what }| Error::Corrupt {
            path: path.to_owned(),
            tensor: tensor.map(|name| name.chars().take(64).collect()),
            flaw: Flaw::Malformed { what },
        })?;
        Ok(ForeignFile { path: path.to_owned(), tensors })
    }

    /// Opens the file to read its data.
    pub(crate) fn data(&self) -> Result<File, Error> {
        open_present(&self.path)
    }

    fn check_has_just(&self, names: &BTreeSet<String>) -> Result<(), Error> {
        let fault = |name: &str, what| {
            let tensor = Some(name.chars().take(64).collect());
            Err(Error::Corrupt { path: self.path.clone(), tensor, flaw: Flaw::Malformed { what } })
        };
        let found: BTreeSet<&str> = self.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        if let Some(missing) = names.iter().find(|name| !found.contains(name.as_str())) {
            return fault(missing, "the index says that it is in this file, and it isn't");
        }
        match found.iter().find(|name| !names.contains(**name)) {
            Some(extra) => fault(extra, "the index doesn't say that it is in this file"),
            None => Ok(()),
        }
    }
}

/// A rule that a header breaks, and the tensor in question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) tensor: Option<String>,
    pub(crate) what: &'static str,
}

/// Returns the tensors that a header (with the length field before it) of a file of this many bytes declares.
/// They must fill the file from the header's end without gap or overlap.
pub(crate) fn parse_header(header: &[u8], file_bytes: u64) -> Result<Vec<ForeignTensor>, Fault> {
    #[derive(Deserialize)]
    struct Declared {
        dtype: String,
        shape: Vec<usize>,
        data_offsets: (u64, u64),
    }
    let of_file = |what| Fault { tensor: None, what };
    let json = header.get(size_of::<u64>()..).ok_or(of_file("it is too short for a header"))?;
    let members: Members<Declared> = serde_json::from_slice(json)
        .map_err(|_| of_file("its header is not a JSON object that declares at most 4000000 tensors"))?;
    let data_start = header.len() as u64;
    let data_bytes = file_bytes.checked_sub(data_start).ok_or(of_file("it ends within its header"))?;
    let mut tensors = Vec::with_capacity(members.0.len());
    let mut names = BTreeSet::new();
    for (name, Declared { dtype, shape, data_offsets: (start, end) }) in members.0 {
        let fault = |what| Fault { tensor: Some(name.clone()), what };
        if let Some(what) = name_fault(&name) {
            return Err(fault(what));
        }
        if !names.insert(name.clone()) {
            return Err(fault("its header declares it twice"));
        }
        let data_type = DataType::deserialize(StrDeserializer::<de::value::Error>::new(&dtype))
            .map_err(|_| fault("it is of an element type that the store doesn't know"))?;
        if shape.len() > DIMENSIONS_MAX {
            return Err(fault("it has more than 16 dimensions"));
        }
        let bytes = end.checked_sub(start).ok_or_else(|| fault("it ends before it starts"))?;
        if byte_count(data_type, &shape) != Some(bytes) {
            return Err(fault("its offsets don't fit its type and shape"));
        }
        tensors.push(ForeignTensor { name, data_type, shape, start, bytes });
    }
    check_filled(tensors.iter().map(|tensor| (tensor.start, tensor.bytes)).collect(), data_bytes).map_err(of_file)?;
    tensors.iter_mut().for_each(|tensor| tensor.start += data_start);
    Ok(tensors)
}

/// The members of a JSON object in order, duplicates included, except for the metadata.
struct Members<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect<T>(Vec<(String, T)>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Collect<T> {
            type Value = Members<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<Members<T>, A::Error> {
                while let Some(name) = members.next_key::<String>()? {
                    if name == METADATA {
                        members.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if self.0.len() == TENSORS_MAX {
                        return Err(de::Error::custom("too many tensors"));
                    }
                    self.0.push((name, members.next_value()?));
                }
                Ok(Members(self.0))
            }
        }
        deserializer.deserialize_map(Collect(Vec::new()))
    }
}
