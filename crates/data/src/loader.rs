//! The loader: global batches of a rank, filled from the sources, in the order that its [`Cursor`] says.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::ahead::{AT_A_TIME_MAX, AddBytes, Ahead, At, Plan, ranges_in};
use crate::cache::Copy;
use crate::cursor::{Block, Cursor, Options, Sample, check};
use crate::error::Error;
use crate::megatron_run;
use crate::order::Shuffle;
use crate::packed::{self, Packing, Row, position_bytes};
use crate::read_ahead::ReadAhead;
use crate::source::Source;
use crate::state::State;
use crate::token_type::{TokenType, Width};

/// Fewer rows than this aren't worth a thread.
const ROWS_OF_A_THREAD: usize = 16;

/// Room for the rows of a rank, one after the other.
#[derive(Debug)]
pub struct Room<'a> {
    /// How each token is given.
    pub width: Width,
    /// For the tokens of each sample.
    pub inputs: &'a mut [u8],
    /// For the tokens that follow each; empty if they aren't wanted.
    pub labels: &'a mut [u8],
    /// For the place of each token in its document, from 0, if documents are packed; empty if they aren't wanted. Each has
    /// [`position_bytes`](crate::position_bytes).
    pub positions: &'a mut [u8],
}

/// Makes the batches of a rank.
#[derive(Debug)]
pub struct Loader {
    sources: Vec<Source>,
    cursor: Cursor,
    /// The samples of this rank's rows of the last batch.
    samples: Vec<Sample>,
    /// One for each source, if documents are packed.
    packings: Vec<Packing>,
    /// Of the last batch.
    loss_weight: f64,
    /// Fetches what the next batches need; none if all sources are here.
    ahead: Option<Ahead>,
    /// Has what is here read from disk; only not there while it looks at this.
    read_ahead: Option<ReadAhead>,
}

impl Loader {
    /// A loader at the first batch.
    ///
    /// # Errors
    /// When an option makes no sense, or a source has no sample.
    pub fn new(mut sources: Vec<Source>, options: Options) -> Result<Loader, Error> {
        check(&options, sources.len())?;
        check_types(&sources)?;
        let tables = match options.shuffle {
            Shuffle::Megatron(order) => Some(megatron_run::reorder(&mut sources, order, &options)?),
            _ => None,
        };
        let packed = if options.packs_documents { sources.as_slice() } else { &[] };
        let room = options.sequence_length.get();
        let packings = packed.iter().map(|source| Packing::new(source, room)).collect::<Result<Vec<_>, Error>>()?;
        let all =
            |(number, source)| packings.get(number).map_or_else(|| samples_of(source, &options), Packing::samples);
        let counts: Vec<u64> = sources.iter().enumerate().map(all).collect();
        if let Some((source, _)) = sources.iter().zip(&counts).find(|(_, count)| options.count(**count) == 0) {
            let problem = format!(
                "{} has {} tokens, too few for a sample of {} and its labels in this part of the data",
                source.path().display(),
                source.tokens(),
                options.sequence_length
            );
            return Err(Error::refused("sequence_length", problem));
        }
        let id = data_id(&sources);
        let cursor = match tables {
            Some(tables) => Cursor::of_tables(options, tables, id)?,
            None => Cursor::new(options, &counts, id)?,
        };
        let loss_weight = cursor.loss_weight();
        let ahead = ahead_of(&sources)?;
        let read_ahead = Some(ReadAhead::new());
        Ok(Loader { sources, cursor, samples: Vec::new(), packings, loss_weight, ahead, read_ahead })
    }

    /// Samples of a source in the part that is read.
    #[must_use]
    pub fn samples_of(&self, source: usize) -> u64 {
        self.cursor.counts()[source]
    }

    /// The sources.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        self.cursor.options()
    }

    /// Batches given so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.cursor.steps()
    }

    /// See [`Cursor::batches`].
    #[must_use]
    pub fn batches(&self) -> Option<(u64, u64)> {
        self.cursor.batches()
    }

    /// See [`Cursor::rows`].
    #[must_use]
    pub fn rows(&self) -> Range<u32> {
        self.cursor.rows()
    }

    /// See [`Cursor::samples_at`].
    #[must_use]
    pub fn samples_at(&self, positions: Range<u64>) -> Vec<Sample> {
        self.cursor.samples_at(positions)
    }

    /// See [`Cursor::change_batch`].
    ///
    /// # Errors
    /// When it is smaller than the number of ranks.
    pub fn change_batch(&mut self, global_batch: NonZeroU32) -> Result<(), Error> {
        self.cursor.change_batch(global_batch)
    }

    /// See [`Cursor::skip`].
    pub fn skip(&mut self, batches: u64) {
        self.cursor.skip(batches);
    }

    /// See [`Cursor::state`].
    #[must_use]
    pub fn state(&self) -> State {
        self.cursor.state()
    }

    /// See [`Cursor::restore`].
    ///
    /// # Errors
    /// When the state is of other data or another order; nothing is changed then.
    pub fn restore(&mut self, state: &State) -> Result<(), Error> {
        self.cursor.restore(state)?;
        self.samples.clear();
        self.loss_weight = self.cursor.loss_weight();
        Ok(())
    }

    /// See [`Cursor::check_state`].
    ///
    /// # Errors
    /// Says what differs.
    pub fn check_state(&self, state: &State) -> Result<(), Error> {
        self.cursor.check_state(state)
    }

    /// What a rank multiplies its mean loss with before gradients are averaged over the ranks: its share of the rows (see
    /// [`loss_weight`](crate::order::loss_weight)), or, of the last batch of packed documents, its share of the labels, times
    /// the number of ranks.
    #[must_use]
    pub fn loss_weight(&self) -> f64 {
        self.loss_weight
    }

    /// Where the parts of documents begin in this rank's rows of the last batch, laid end to end, and where the last one ends;
    /// padding is a part of its own. Empty unless documents are packed.
    #[must_use]
    pub fn boundaries(&self) -> Vec<u64> {
        let length = u64::from(self.options().sequence_length.get());
        let mut boundaries = vec![0];
        for (row, sample) in (0_u64..).zip(self.packed_samples()) {
            let mut at = row * length;
            boundaries.extend(self.parts(sample).iter().map(|part| {
                at += part.end - part.start;
                at
            }));
            boundaries.extend(((row + 1) * length > at).then_some((row + 1) * length));
        }
        if boundaries.len() == 1 { Vec::new() } else { boundaries }
    }

    fn packed_samples(&self) -> &[Sample] {
        if self.packings.is_empty() { &[] } else { &self.samples }
    }

    /// The samples of this rank's rows of the last batch.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Whether all that the next batch needs is on this node.
    #[must_use]
    pub fn is_here(&self) -> bool {
        let mut is_here = true;
        self.ranges_at(self.cursor.position(), &mut |copy, range| is_here &= copy.has(range));
        is_here
    }

    /// How long batches waited for data that wasn't on this node.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.ahead.as_ref().map_or(Duration::ZERO, Ahead::waited)
    }

    /// Fills this rank's rows of the next global batch, and moves on. After an error it is where it was. What the batch lacks is
    /// fetched first, and what the next ones need meanwhile.
    ///
    /// # Errors
    /// When a file was changed or damaged, a token doesn't fit the width, or data can't be fetched.
    ///
    /// # Panics
    /// If the room has another size than the rows.
    pub fn fill(&mut self, room: &mut Room<'_>) -> Result<(), Error> {
        let samples = self.cursor.peek(self.rows());
        self.check_files(&samples)?;
        self.fetch()?;
        self.look_on_disk();
        self.copy(&samples, room)?;
        // A file that was changed meanwhile may have given some of both.
        self.check_files(&samples)?;
        self.loss_weight = self.weigh(&samples);
        self.samples = samples;
        self.cursor.advance();
        self.look_ahead();
        Ok(())
    }

    /// Fetches what the next batch lacks.
    fn fetch(&mut self) -> Result<(), Error> {
        let Some(mut ahead) = self.ahead.take() else { return Ok(()) };
        let fetched = ahead.fetch(self, self.at(), AT_A_TIME_MAX.min(self.fetching_threads()));
        self.ahead = Some(ahead);
        fetched
    }

    /// Has what the next batches need fetched meanwhile.
    fn look_ahead(&mut self) {
        let Some(mut ahead) = self.ahead.take() else { return };
        ahead.look(self, self.at());
        self.ahead = Some(ahead);
    }

    /// Has what the next batches need read from disk meanwhile.
    fn look_on_disk(&mut self) {
        let Some(mut read_ahead) = self.read_ahead.take() else { return };
        read_ahead.look(self, self.at());
        self.read_ahead = Some(read_ahead);
    }

    fn at(&self) -> At {
        At { position: self.cursor.position(), batch: u64::from(self.options().global_batch.get()) }
    }

    fn fetching_threads(&self) -> usize {
        self.sources.iter().filter_map(Source::cached).map(|cached| cached.threads()).max().unwrap_or(1)
    }

    /// The parts of the stream whose tokens are a sample's inputs; the token behind each part is its last label.
    fn parts(&self, sample: &Sample) -> Vec<Range<u64>> {
        if let Some(packing) = self.packings.get(sample.source) {
            return packing.parts(&self.sources[sample.source], sample.number);
        }
        vec![self.tokens(sample.number)]
    }

    /// The tokens of a sample that is a part of the stream.
    fn tokens(&self, number: u64) -> Range<u64> {
        let length = u64::from(self.options().sequence_length.get());
        let start = number * length;
        start..start + length
    }

    /// This rank's weight in the next global batch: by the labels, which padding has none of.
    fn weigh(&self, mine: &[Sample]) -> f64 {
        let Options { global_batch, world_size, .. } = self.options();
        if self.packings.is_empty() || world_size.get() == 1 {
            return self.cursor.loss_weight();
        }
        let labels = |samples: &[Sample]| {
            let parts = samples.iter().flat_map(|sample| self.parts(sample));
            parts.map(|part| part.end - part.start).sum::<u64>() as f64
        };
        let all = self.cursor.peek(0..global_batch.get());
        labels(mine) * f64::from(world_size.get()) / labels(&all)
    }

    fn check_files(&self, samples: &[Sample]) -> Result<(), Error> {
        let mut checked = vec![Vec::new(); self.sources.len()];
        samples.iter().try_for_each(|sample| {
            let (source, checked) = (&self.sources[sample.source], &mut checked[sample.source]);
            let mut check = |part: Range<u64>| source.check_files(&(part.start..part.end + 1), checked);
            if self.packings.is_empty() {
                return check(self.tokens(sample.number));
            }
            self.parts(sample).into_iter().try_for_each(check)
        })
    }

    fn copy(&self, samples: &[Sample], room: &mut Room<'_>) -> Result<(), Error> {
        let length = usize::try_from(self.options().sequence_length.get()).expect("32 bits fit");
        let row = length * self.data_type().bytes_as(room.width);
        let position_row = length * position_bytes(room.width);
        assert_eq!(room.inputs.len(), samples.len() * row, "room for the rows' inputs");
        assert!(room.labels.is_empty() || room.labels.len() == room.inputs.len(), "room for the rows' labels");
        let positions = room.positions.len();
        assert!(positions == 0 || positions == samples.len() * position_row, "room for the rows' positions");
        if !self.packings.is_empty() && !room.labels.is_empty() {
            packed::check_labels(self.data_type(), room.width)?;
        }
        let threads = usize::try_from(self.options().threads.get()).expect("32 bits fit");
        let threads = threads.min(samples.len() / ROWS_OF_A_THREAD).max(1);
        let each = samples.len().div_ceil(threads).max(1);
        let width = room.width;
        let mut labels = room.labels.chunks_mut(each * row);
        let mut positions = room.positions.chunks_mut(each * position_row);
        let mut rooms = samples.chunks(each).zip(room.inputs.chunks_mut(each * row)).map(|(samples, inputs)| {
            let labels = labels.next().unwrap_or_default();
            (samples, Room { width, inputs, labels, positions: positions.next().unwrap_or_default() })
        });
        if threads == 1 {
            return rooms.try_for_each(|(samples, room)| self.copy_rows(samples, room));
        }
        std::thread::scope(|scope| {
            let running: Vec<_> =
                rooms.map(|(samples, room)| scope.spawn(move || self.copy_rows(samples, room))).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("a copy doesn't panic"))
        })
    }

    fn copy_rows(&self, samples: &[Sample], room: Room<'_>) -> Result<(), Error> {
        let length = usize::try_from(self.options().sequence_length.get()).expect("32 bits fit");
        let (row, width) = (length * self.data_type().bytes_as(room.width), room.width);
        let mut labels = room.labels.chunks_exact_mut(row);
        let mut positions = room.positions.chunks_exact_mut(length * position_bytes(width));
        for (number, (sample, inputs)) in samples.iter().zip(room.inputs.chunks_exact_mut(row)).enumerate() {
            let source = &self.sources[sample.source];
            if let Some(next) = samples.get(number + 1).filter(|_| self.packings.is_empty()) {
                self.sources[next.source].prefetch(&self.tokens(next.number));
            }
            let labels = labels.next().unwrap_or_default();
            if let Some(packing) = self.packings.get(sample.source) {
                let positions = positions.next().unwrap_or_default();
                packing.fill(source, sample, &mut Row { width, inputs, labels, positions })?;
                continue;
            }
            let tokens = self.tokens(sample.number);
            source.copy(tokens.clone(), width, inputs)?;
            if !labels.is_empty() {
                source.copy(tokens.start + 1..tokens.end + 1, width, labels)?;
            }
        }
        Ok(())
    }

    /// The type of the tokens of all sources.
    #[must_use]
    pub fn data_type(&self) -> TokenType {
        self.sources[0].data_type()
    }
}

impl Plan for Loader {
    fn ranges_at(&self, position: u64, add: &mut dyn FnMut(&Arc<Copy>, usize)) {
        let Range { start, end } = self.rows();
        for sample in self.cursor.samples_at(position + u64::from(start)..position + u64::from(end)) {
            let source = &self.sources[sample.source];
            if source.cached().is_some() {
                ranges_in(source, self.parts(&sample).into_iter(), add);
            }
        }
    }

    fn blocks_at(&self, position: u64, rows: usize) -> Vec<Block> {
        let Range { start, end } = self.rows();
        let end = end.min(start.saturating_add(u32::try_from(rows).unwrap_or(u32::MAX)));
        self.cursor.blocks_at(position + u64::from(start)..position + u64::from(end))
    }

    fn bytes_of(&self, block: &Block, add: AddBytes<'_>) {
        let source = &self.sources[block.source];
        let numbers = self.cursor.numbers(block);
        let mut parts: Vec<Range<u64>> = match self.packings.get(block.source) {
            Some(packing) => numbers.flat_map(|number| packing.parts(source, number)).collect(),
            None => numbers.map(|number| self.tokens(number)).collect(),
        };
        parts.sort_by_key(|part| part.start);
        // The token behind a part is its last label, and often the first of the next one.
        let joined = parts.chunk_by(|one, next| one.end + 1 >= next.start);
        for tokens in joined.filter_map(|parts| Some(parts.first()?.start..parts.last()?.end + 1)) {
            source.places_of(&tokens, &mut |_, mapped, bytes| add(mapped, bytes));
        }
    }
}

fn ahead_of(sources: &[Source]) -> Result<Option<Ahead>, Error> {
    let Some(cached) = sources.iter().find_map(Source::cached) else { return Ok(None) };
    Ok(Some(Ahead::new(cached.threads(), cached.uses()?)))
}

/// Sample `i` has the tokens from `i * L` on, `L` of them, and the one behind each: `L + 1` in all, of which the last is the
/// next sample's first. What is less at the end is left out.
fn samples_of(source: &Source, options: &Options) -> u64 {
    source.tokens().saturating_sub(1) / u64::from(options.sequence_length.get())
}

fn check_types(sources: &[Source]) -> Result<(), Error> {
    let first = &sources[0];
    let Some(other) = sources.iter().find(|source| source.data_type() != first.data_type()) else { return Ok(()) };
    let (one, two) = (first.data_type().name(), other.data_type().name());
    let problem = format!("{} holds {two}, and {} {one}: convert one", other.path().display(), first.path().display());
    Err(Error::refused("source", problem))
}

fn data_id(sources: &[Source]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for source in sources {
        hasher.update(&source.id());
    }
    *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
}
