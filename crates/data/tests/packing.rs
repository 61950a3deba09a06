//! Samples of whole documents at the crate's border: every label once, places and boundaries that agree with the documents,
//! and A-16 for them.

#![expect(clippy::unwrap_used, reason = "what these tests set up themselves is there")]

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use gangline_data::order::{Shuffle, WINDOW_DOCUMENTS};
use gangline_data::{Error, Loader, NO_LABEL, Options, Room, Source, Target, TokenType, Width, Writer};

const LENGTH: usize = 16;

fn nonzero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

fn options(global_batch: u32, rank: u32, world_size: u32) -> Options {
    Options {
        sequence_length: nonzero(u32::try_from(LENGTH).unwrap()),
        global_batch: nonzero(global_batch),
        seed: 5,
        shuffle: Shuffle::Blocks { block: nonzero(4), window: nonzero(6) },
        part: None,
        stages: Vec::new(),
        blend: Vec::new(),
        epochs: Some(1),
        rank,
        world_size: nonzero(world_size),
        threads: nonzero(1),
        packs_documents: true,
    }
}

/// Documents of 0 to 40 tokens, each token told from all others by document and place.
fn documents(count: u64) -> Vec<Vec<u64>> {
    let length = |number: u64| (number * 2_654_435_761) >> 7 & 0xff;
    (0..count).map(|number| (0..length(number) % 41).map(|at| number * 100 + at + 1).collect()).collect()
}

fn data(folder: &Path, count: u64) -> PathBuf {
    let path = folder.join("data");
    let mut writer = Writer::create(&path, Target::Gangline, TokenType::Uint32).unwrap();
    documents(count).iter().for_each(|document| writer.push(document).unwrap());
    writer.finish().unwrap();
    path
}

struct Filled {
    inputs: Vec<i64>,
    labels: Vec<i64>,
    positions: Vec<i64>,
    boundaries: Vec<u64>,
}

fn fill(loader: &mut Loader) -> Filled {
    let bytes = loader.rows().len() * LENGTH * 8;
    let (mut inputs, mut labels, mut positions) = (vec![0; bytes], vec![0; bytes], vec![9; bytes]);
    let mut room = Room { width: Width::Int64, inputs: &mut inputs, labels: &mut labels, positions: &mut positions };
    loader.fill(&mut room).unwrap();
    let numbers = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    let boundaries = loader.boundaries();
    Filled { inputs: numbers(&inputs), labels: numbers(&labels), positions: numbers(&positions), boundaries }
}

fn open(path: &Path, options: Options) -> Loader {
    Loader::new(vec![Source::open(path, None).unwrap()], options).unwrap()
}

#[test]
fn an_epoch_has_every_label_once_behind_its_input_at_its_place_and_within_its_boundaries() {
    let folder = tempfile::tempdir().unwrap();
    let count = WINDOW_DOCUMENTS as u64 * 2 + 77;
    let path = data(folder.path(), count);
    let mut loader = open(&path, Options { threads: nonzero(3), ..options(64, 0, 1) });
    let mut labels: Vec<i64> = Vec::new();
    let mut batches = loader.batches().unwrap().1;
    let mut left = loader.samples_of(0);
    while batches > 0 {
        let filled = fill(&mut loader);
        assert_eq!((filled.boundaries[0], *filled.boundaries.last().unwrap()), (0, 64 * LENGTH as u64));
        for part in filled.boundaries.windows(2) {
            let places = usize::try_from(part[0]).unwrap()..usize::try_from(part[1]).unwrap();
            assert_eq!(places.start / LENGTH, (places.end - 1) / LENGTH, "no part is in two rows");
            assert_eq!(filled.positions[places.clone()], (0_i64..).take(places.len()).collect::<Vec<_>>());
            let is_padding = filled.labels[places.start] == NO_LABEL;
            let is_next = |at: usize| filled.labels[at] == filled.inputs[at] + 1;
            let is_empty = |at: usize| (filled.inputs[at], filled.labels[at]) == (0, NO_LABEL);
            assert!(places.clone().all(|at| if is_padding { is_empty(at) } else { is_next(at) }), "{places:?}");
            let row = (places.start / LENGTH) as u64;
            // The last batch is filled up with samples of the next epoch.
            if !is_padding && row < left {
                labels.extend(&filled.labels[places]);
            }
        }
        left = left.saturating_sub(64);
        batches -= 1;
    }
    labels.sort_unstable();
    let expected: Vec<i64> =
        documents(count).iter().flat_map(|document| document.iter().skip(1).map(|token| token.cast_signed())).collect();
    assert_eq!(labels, expected);
}

/// Proves A-16.
#[test]
fn any_number_of_ranks_has_the_same_packed_samples_and_weights_that_sum_to_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = data(folder.path(), 900);
    let mut alone = open(&path, options(10, 0, 1));
    let oracle: Vec<Filled> = (0..4).map(|_| fill(&mut alone)).collect();
    let mut state = None;
    for (step, world_size) in [3, 1, 7, 10].into_iter().enumerate() {
        let mut ranks: Vec<Loader> = (0..world_size).map(|rank| open(&path, options(10, rank, world_size))).collect();
        let (mut inputs, mut labels, mut weighted, mut weights) = (Vec::new(), Vec::new(), 0.0, 0.0);
        for loader in &mut ranks {
            if let Some(state) = &state {
                loader.restore(state).unwrap();
            }
            let filled = fill(loader);
            let learned: Vec<f64> =
                filled.labels.iter().filter(|label| **label != NO_LABEL).map(|label| *label as f64).collect();
            weighted += learned.iter().sum::<f64>() / learned.len() as f64 * loader.loss_weight();
            weights += loader.loss_weight();
            inputs.extend(filled.inputs);
            labels.extend(filled.labels);
        }
        assert_eq!((&inputs, &labels), (&oracle[step].inputs, &oracle[step].labels), "{world_size} ranks");
        let learned: Vec<f64> = labels.iter().filter(|label| **label != NO_LABEL).map(|label| *label as f64).collect();
        let mean = learned.iter().sum::<f64>() / learned.len() as f64;
        assert!((weighted / f64::from(world_size) - mean).abs() < 1e-6 * mean, "a mean over the batch's labels");
        assert!((weights - f64::from(world_size)).abs() < 1e-9);
        state = Some(ranks[0].state());
    }
}

#[test]
fn what_can_not_be_packed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = data(folder.path(), 50);
    let raw = Source::of_bytes("raw.bin", vec![0; 4_000], TokenType::Uint16).unwrap();
    let error = Loader::new(vec![raw], options(4, 0, 1)).unwrap_err().to_string();
    assert!(error.contains("use pack: raw.bin doesn't say where its documents end"), "{error}");
    let mut loader = open(&path, options(4, 0, 1));
    let (mut inputs, mut labels) = (vec![0; 4 * LENGTH * 4], vec![0; 4 * LENGTH * 4]);
    let mut room = Room { width: Width::Stored, inputs: &mut inputs, labels: &mut labels, positions: &mut [] };
    let error = loader.fill(&mut room).unwrap_err().to_string();
    assert!(error.contains("uint32 has no number for a label that isn't to be learned"), "{error}");
    assert_eq!(loader.steps(), 0);
    let stream = open(&path, Options { packs_documents: false, ..options(4, 0, 1) });
    assert!(matches!(stream.check_state(&loader.state()), Err(Error::OtherState { .. })));
    let empty = folder.path().join("empty");
    let mut writer = Writer::create(&empty, Target::Gangline, TokenType::Uint16).unwrap();
    writer.push(&[1]).unwrap();
    writer.finish().unwrap();
    let error = Loader::new(vec![Source::open(&empty, None).unwrap()], options(1, 0, 1)).unwrap_err().to_string();
    assert!(error.contains("too few for a sample"), "{error}");
}
