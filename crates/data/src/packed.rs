//! Samples of whole documents: which windows a source has, the plans of those that were used last, and how a batch is filled
//! from them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cursor::Sample;
use crate::error::Error;
use crate::order::{Chunk, Packed, WINDOW_DOCUMENTS, pack};
use crate::source::Source;
use crate::token_type::{TokenType, Width};

/// What a label is that isn't to be learned, as torch's losses have it by default.
pub const NO_LABEL: i64 = -100;
/// Plans of windows that are kept: as many as blocks are shuffled among each other, twice.
const PLANS_MAX: usize = 1_024;

/// The samples of a source's documents.
#[derive(Debug)]
pub(crate) struct Packing {
    room: u32,
    windows: Vec<Window>,
    samples: u64,
    plans: Mutex<Plans>,
}

/// Documents that are packed together.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// The stream's token that is its first.
    token: u64,
    /// Samples of the windows before.
    samples: u64,
}

#[derive(Debug, Default)]
struct Plans {
    /// A window's plan, and when it was used.
    kept: BTreeMap<usize, (Arc<Packed>, u64)>,
    uses: u64,
}

/// The rows of a batch, each with room for its tokens.
pub(crate) struct Row<'a> {
    pub(crate) width: Width,
    pub(crate) inputs: &'a mut [u8],
    pub(crate) labels: &'a mut [u8],
    pub(crate) positions: &'a mut [u8],
}

impl Packing {
    /// Packs a source's documents into samples of `room` inputs. Takes time for each document, about 0.1 µs.
    pub(crate) fn new(source: &Source, room: u32) -> Result<Packing, Error> {
        let refused = |problem: &str| {
            let problem =
                format!("{} {problem}: convert or tokenize it into Gangline's format", source.path().display());
            Error::refused("pack", problem)
        };
        if source.documents().is_none() {
            return Err(refused("doesn't say where its documents end"));
        }
        let mut lengths = source.document_lengths_from(0);
        let (mut windows, mut token, mut samples) = (Vec::new(), 0, 0);
        loop {
            let window: Vec<u64> = lengths.by_ref().take(WINDOW_DOCUMENTS).collect();
            if window.is_empty() {
                break;
            }
            windows.push(Window { token, samples });
            token += window.iter().sum::<u64>();
            samples += pack(&window, room).samples() as u64;
        }
        if token != source.tokens() {
            return Err(refused("has tokens that are in no document"));
        }
        drop(lengths);
        Ok(Packing { room, windows, samples, plans: Mutex::default() })
    }

    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// The parts of documents in a sample, as ranges of the stream's tokens: the inputs of each.
    pub(crate) fn parts(&self, source: &Source, sample: u64) -> Vec<Range<u64>> {
        let number = self.windows.partition_point(|window| window.samples <= sample) - 1;
        let window = self.windows[number];
        let plan = self.plan(source, number);
        let inside = usize::try_from(sample - window.samples).expect("a window's samples can be counted");
        let range = |chunk: &Chunk| {
            let start = window.token + chunk.start;
            start..start + u64::from(chunk.tokens)
        };
        plan.sample(inside).iter().map(range).collect()
    }

    fn plan(&self, source: &Source, number: usize) -> Arc<Packed> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.uses += 1;
        let now = plans.uses;
        if let Some((plan, used)) = plans.kept.get_mut(&number) {
            *used = now;
            return Arc::clone(plan);
        }
        let lengths: Vec<u64> =
            source.document_lengths_from((number * WINDOW_DOCUMENTS) as u64).take(WINDOW_DOCUMENTS).collect();
        let plan = Arc::new(pack(&lengths, self.room));
        if plans.kept.len() >= PLANS_MAX {
            let oldest = plans.kept.iter().min_by_key(|(_, (_, used))| *used).map(|(number, _)| *number);
            oldest.map(|oldest| plans.kept.remove(&oldest));
        }
        plans.kept.insert(number, (Arc::clone(&plan), now));
        plan
    }

    /// Fills a row: the parts one after the other, each with positions from 0, then padding, which is token 0, has no label, and
    /// has positions of its own.
    pub(crate) fn fill(&self, source: &Source, sample: &Sample, row: &mut Row<'_>) -> Result<(), Error> {
        let wide = source.data_type().bytes_as(row.width);
        let position_bytes = position_bytes(row.width);
        let mut at = 0;
        for part in self.parts(source, sample.number) {
            let count = usize::try_from(part.end - part.start).expect("a sample's tokens can be counted");
            let here = at * wide..(at + count) * wide;
            source.copy(part.clone(), row.width, &mut row.inputs[here.clone()])?;
            if !row.labels.is_empty() {
                source.copy(part.start + 1..part.end + 1, row.width, &mut row.labels[here])?;
            }
            count_up(row.positions, position_bytes, at..at + count);
            at += count;
        }
        let length = usize::try_from(self.room).expect("32 bits fit");
        row.inputs[at * wide..].fill(0);
        if !row.labels.is_empty() {
            for label in row.labels[at * wide..].chunks_exact_mut(wide) {
                label.copy_from_slice(&NO_LABEL.to_le_bytes()[..wide]);
            }
        }
        count_up(row.positions, position_bytes, at..length);
        Ok(())
    }
}

/// Bytes of a position: as many as a token has that is given as a number, and 4 for tokens as they are stored.
#[must_use]
pub fn position_bytes(width: Width) -> usize {
    if width == Width::Int64 { 8 } else { 4 }
}

/// Writes 0, 1, 2 and so on to these places.
fn count_up(positions: &mut [u8], width: usize, places: Range<usize>) {
    if positions.is_empty() {
        return;
    }
    let room = &mut positions[places.start * width..places.end * width];
    for (number, position) in (0_u64..).zip(room.chunks_exact_mut(width)) {
        position.copy_from_slice(&number.to_le_bytes()[..width]);
    }
}

/// Refuses types without a number for [`NO_LABEL`].
pub(crate) fn check_labels(data_type: TokenType, width: Width) -> Result<(), Error> {
    let is_signed = width != Width::Stored || matches!(data_type, TokenType::Int32 | TokenType::Int64);
    let problem =
        || format!("{} has no number for a label that isn't to be learned: use int64 or int32", data_type.name());
    if is_signed { Ok(()) } else { Err(Error::refused("dtype", problem())) }
}
