//! What is learned from, with a part held out: Rust sources, chosen and split the same way every time, or a dataset of their bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gangline_data::order::Part;
use gangline_data::{Source, TokenType};

use crate::args::{Args, Environment};
use crate::data::{self, Data};
use crate::error::Error;
use crate::random::mix;

/// The most files considered.
const FILES_MAX: usize = 200_000;
/// How deep folders are searched.
const DEPTH_MAX: usize = 32;
/// Larger files are generated tables more often than prose.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// One byte in so many is held out.
const HELD_OUT_SHARE: usize = 20;
/// Sources of this trainer.
const SOURCES: [&str; 8] = [
    include_str!("args.rs"),
    include_str!("corpus.rs"),
    include_str!("data.rs"),
    include_str!("gang.rs"),
    include_str!("model.rs"),
    include_str!("optimizer.rs"),
    include_str!("report.rs"),
    include_str!("train.rs"),
];
/// This many sequences have to fit into the text.
const SEQUENCES_MIN: usize = 2 * HELD_OUT_SHARE;

/// The text or the dataset.
pub(crate) struct Corpus {
    /// What is trained on, until it is taken.
    training: Option<Source>,
    held_out: HeldOut,
    /// Bytes in all.
    pub(crate) bytes: u64,
    /// What tells it from others.
    pub(crate) id: String,
    /// Files it is made of.
    pub(crate) files: usize,
}

/// What is never trained on.
enum HeldOut {
    /// The end of the text.
    Text(Vec<u8>),
    /// Samples of the dataset, by [`Data::held_out`].
    Samples,
}

/// Input bytes and the bytes that follow each, sequence by sequence.
pub(crate) struct Batch {
    /// Sequences.
    pub(crate) rows: usize,
    pub(crate) inputs: Vec<u32>,
    pub(crate) targets: Vec<u32>,
}

impl Corpus {
    /// Opens the dataset that the arguments name, or reads the text.
    pub(crate) fn read(args: &Args, environment: &Environment) -> Result<Corpus, Error> {
        match &args.data {
            Some(address) => Ok(Corpus::of_dataset(data::open(address, environment)?)),
            None => Corpus::of_text(args, environment),
        }
    }

    fn of_dataset(source: Source) -> Corpus {
        let id = source.id().iter().map(|byte| format!("{byte:02x}")).collect();
        let (bytes, files) = (source.tokens(), source.files());
        Corpus { training: Some(source), held_out: HeldOut::Samples, bytes, id, files }
    }

    fn of_text(args: &Args, environment: &Environment) -> Result<Corpus, Error> {
        let bytes_max = args.corpus_bytes_max as usize;
        let documents = if args.corpus.is_empty() {
            own_documents(environment, bytes_max)
        } else {
            documents(&args.corpus, bytes_max)
        };
        let documents = documents?;
        let files = documents.len();
        let mut text = documents.concat();
        let needed = SEQUENCES_MIN * (args.context as usize + 1);
        if text.len() < needed {
            return Err(Error::NoText { places: args.corpus.clone(), found: text.len(), needed });
        }
        let (id, length) = (blake3::hash(&text).to_string(), text.len());
        let held_out = HeldOut::Text(text.split_off(length - length / HELD_OUT_SHARE));
        let training = Some(Source::of_bytes("the text", text, TokenType::Uint8)?);
        Ok(Corpus { training, held_out, bytes: length as u64, id, files })
    }

    /// Takes out what is trained on, which is there once.
    pub(crate) fn take_training(&mut self) -> Source {
        self.training.take().expect("it is taken once")
    }

    /// The part of a dataset's samples that is trained on; none if all of them are.
    pub(crate) fn training_part(&self) -> Option<Part> {
        matches!(self.held_out, HeldOut::Samples).then_some(Part::Training)
    }

    /// Batches of held-out samples, the same for every seed.
    pub(crate) fn held_out_batches(
        &self,
        count: u64,
        args: &Args,
        environment: &Environment,
    ) -> Result<Vec<Batch>, Error> {
        match &self.held_out {
            HeldOut::Text(text) => Ok((0..count).map(|number| sample(text, args, &[0, 2, number])).collect()),
            HeldOut::Samples => Data::held_out(args, environment, count),
        }
    }
}

/// The files of this workspace and of cargo's registry, up to so many bytes; where a machine has neither, the trainer's own sources.
pub(crate) fn own_documents(environment: &Environment, bytes_max: usize) -> Result<Vec<Vec<u8>>, Error> {
    let found = documents(&default_places(environment), bytes_max)?;
    let own = || SOURCES.iter().map(|text| text.as_bytes().to_vec()).collect();
    Ok(if found.is_empty() { own() } else { found })
}

/// The files in these folders, up to so many bytes.
fn documents(places: &[PathBuf], bytes_max: usize) -> Result<Vec<Vec<u8>>, Error> {
    let mut shelves = BTreeMap::new();
    for (number, place) in places.iter().enumerate() {
        shelve(place, number, &mut shelves)?;
    }
    let mut wanted = bytes_max;
    let mut documents = Vec::new();
    for path in take_in_turn(shelves) {
        if wanted == 0 {
            break;
        }
        let mut document = std::fs::read(&path).map_err(|source| Error::Corpus { path, source })?;
        document.truncate(wanted);
        wanted -= document.len();
        documents.push(document);
    }
    Ok(documents)
}

fn sample(text: &[u8], args: &Args, purpose: &[u64]) -> Batch {
    let context = args.context as usize;
    let starts = (text.len() - context) as u64;
    let mut batch = Batch { rows: args.batch as usize, inputs: Vec::new(), targets: Vec::new() };
    for sequence in 0..u64::from(args.batch) {
        let start = mix(&[purpose, &[sequence]].concat()) % starts;
        let start = usize::try_from(start).expect("it is less than the length of a slice");
        let window = &text[start..=start + context];
        batch.inputs.extend(window[..context].iter().copied().map(u32::from));
        batch.targets.extend(window[1..].iter().copied().map(u32::from));
    }
    batch
}

/// This workspace (if the binary still runs where it was built) and cargo's registry; whichever is there.
fn default_places(environment: &Environment) -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned);
    let registry = environment.cargo_home.as_ref().map(|home| home.join("registry/src"));
    let mut places: Vec<PathBuf> = workspace.into_iter().filter(|place| place.is_dir()).collect();
    if let Some(indexes) = registry.and_then(|registry| std::fs::read_dir(registry).ok()) {
        let mut indexes: Vec<PathBuf> = indexes.filter_map(|entry| Some(entry.ok()?.path())).collect();
        indexes.sort();
        places.extend(indexes);
    }
    places
}

/// The files of each place's folder (of each crate, in cargo's registry), last one first.
type Shelves = BTreeMap<(usize, PathBuf), Vec<PathBuf>>;

fn shelve(place: &Path, number: usize, shelves: &mut Shelves) -> Result<(), Error> {
    let mut found = Vec::new();
    find_sources(place, 0, &mut found)?;
    found.sort();
    for path in found.into_iter().rev() {
        let shelf: PathBuf = path.strip_prefix(place).unwrap_or(&path).components().take(1).collect();
        shelves.entry((number, shelf)).or_default().push(path);
    }
    Ok(())
}

fn find_sources(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), Error> {
    let failed = |source| Error::Corpus { path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let kind = entry.file_type().map_err(failed)?;
        let name = entry.file_name();
        let is_of_interest = !name.as_encoded_bytes().starts_with(b".") && name != "target";
        if kind.is_dir() && is_of_interest && depth < DEPTH_MAX {
            find_sources(&path, depth + 1, found)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            let is_prose = entry.metadata().map_err(failed)?.len() <= FILE_BYTES_MAX;
            if is_prose && found.len() < FILES_MAX {
                found.push(path);
            }
        }
    }
    Ok(())
}

/// One file of each shelf, then another of each: a small part of the text is spread over all of it.
fn take_in_turn(mut shelves: Shelves) -> Vec<PathBuf> {
    let mut taken = Vec::new();
    while !shelves.is_empty() {
        taken.extend(shelves.values_mut().filter_map(Vec::pop));
        shelves.retain(|_, shelf| !shelf.is_empty());
    }
    taken
}
