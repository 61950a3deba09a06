//! A place in the order of the samples of one or several sources: which ones come next for a rank. All that it is between two
//! batches is [`State`], which is the same on all ranks. What a sample holds is up to its loader.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::order::{
    Blend, HeldOut, Mixture, Order, PACKING_VERSION, Part, Shuffle, Split, Stage, loss_weight, rows_of,
};
use crate::state::{STATE_VERSION, State};

/// The most tokens of a sequence.
pub const SEQUENCE_MAX: u32 = 1 << 24;
/// The most threads that fill a batch.
pub const THREADS_MAX: u32 = 64;
/// How batches are made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens of a sample's inputs, and of its labels.
    pub sequence_length: NonZeroU32,
    /// Samples of a batch over all ranks.
    pub global_batch: NonZeroU32,
    /// Chooses the order.
    pub seed: u64,
    /// How samples are shuffled.
    pub shuffle: Shuffle,
    /// Which part of the samples is read; all of them without a rule.
    pub part: Option<(Part, HeldOut)>,
    /// How sources are mixed; they count alike in proportion to their samples if there are no stages.
    pub stages: Vec<Stage>,
    /// The weights of a blend in Megatron-Core's order; without any, its sources count by their samples.
    pub blend: Vec<f64>,
    /// How often all samples are read; without end if none. Only for a single source, and for Megatron-Core's order.
    pub epochs: Option<u64>,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: NonZeroU32,
    /// Threads that fill a batch.
    pub threads: NonZeroU32,
    /// Whether samples are whole documents (see [`pack`](crate::order::pack)) rather than parts of the stream.
    pub packs_documents: bool,
}

/// One sample of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The number of its source.
    pub source: usize,
    /// How often the source was read through before.
    pub epoch: u64,
    /// Its number in the source: its tokens begin at this times the sequence length, unless documents are packed.
    pub number: u64,
}

/// Samples of the part that is read which lie side by side, and come at about the same time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block {
    /// The number of their source.
    pub(crate) source: usize,
    /// Their numbers in the part.
    pub(crate) samples: Range<u64>,
}

/// Goes through the samples, a global batch at a time.
#[derive(Debug)]
pub struct Cursor {
    options: Options,
    split: Split,
    /// Samples of each source in the part that is read.
    counts: Vec<u64>,
    mixture: Mixture,
    /// The order, where it is a table.
    tables: Option<Tables>,
    data: [u8; 16],
    steps: u64,
    position: u64,
}

/// An order that isn't computed from a sample's position.
#[derive(Debug)]
pub(crate) struct Tables {
    /// Which source each sample is from; none if there is but one.
    pub(crate) blend: Option<Blend>,
    /// The order of each source (see [`Order::of_table`]).
    pub(crate) samples: Vec<Arc<[u32]>>,
}

impl Options {
    /// How many of `samples` samples are in the part that is read.
    #[must_use]
    pub fn count(&self, samples: u64) -> u64 {
        self.split().count(samples)
    }

    fn split(&self) -> Split {
        self.part.map_or(Split::Whole, |(part, rule)| Split::Of(part, rule))
    }
}

impl Cursor {
    /// A cursor at the first batch of sources with so many samples each; `data` tells them from others.
    ///
    /// # Errors
    /// When an option makes no sense, or a source has no sample in the part that is read.
    pub fn new(options: Options, samples: &[u64], data: [u8; 16]) -> Result<Cursor, Error> {
        if let Shuffle::Megatron(_) = options.shuffle {
            return Err(Error::refused("shuffle", "Megatron's order is of tokens"));
        }
        Cursor::open(options, samples, data, None)
    }

    /// A cursor at the first batch of sources whose order is a table.
    ///
    /// # Errors
    /// When an option makes no sense.
    pub(crate) fn of_tables(options: Options, tables: Tables, data: [u8; 16]) -> Result<Cursor, Error> {
        let counts: Vec<u64> = tables.samples.iter().map(|table| table.len() as u64).collect();
        Cursor::open(options, &counts, data, Some(tables))
    }

    fn open(options: Options, samples: &[u64], data: [u8; 16], tables: Option<Tables>) -> Result<Cursor, Error> {
        check(&options, samples.len())?;
        let counts: Vec<u64> = samples.iter().map(|samples| options.count(*samples)).collect();
        if let Some(source) = counts.iter().position(|count| *count == 0) {
            let problem = format!("source {source} has {} samples, and none in this part of the data", samples[source]);
            return Err(Error::refused("source", problem));
        }
        let stages = match (options.stages.as_slice(), counts.len()) {
            ([], 1) => vec![Stage { from: 0, weights: vec![1] }],
            ([], _) => vec![Stage { from: 0, weights: scaled(&counts) }],
            (stages, _) => stages.to_vec(),
        };
        let mixture = Mixture::new(samples.len(), &stages)?;
        let split = options.split();
        Ok(Cursor { options, split, counts, mixture, tables, data, steps: 0, position: 0 })
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Samples of each source in the part that is read.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Batches given so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The batches that begin in the current pass over all epochs, and how many of them are left; none if there is no end. The
    /// last one is filled up with the first samples of the next pass, which goes on behind it: nothing is lost or repeated.
    #[must_use]
    pub fn batches(&self) -> Option<(u64, u64)> {
        let one = self.blend().map_or(self.counts[0], Blend::samples);
        let samples = one.saturating_mul(self.options.epochs?);
        let batch = u64::from(self.options.global_batch.get());
        let pass = self.position / samples;
        let first_behind = |pass: u64| pass.saturating_mul(samples).div_ceil(batch);
        let left = (samples - self.position % samples).div_ceil(batch);
        Some((first_behind(pass + 1) - first_behind(pass), left))
    }

    /// The rows of this rank in a global batch.
    #[must_use]
    pub fn rows(&self) -> Range<u32> {
        rows_of(self.options.global_batch.get(), self.options.rank, self.options.world_size.get())
    }

    /// See [`loss_weight`].
    #[must_use]
    pub fn loss_weight(&self) -> f64 {
        loss_weight(self.options.global_batch.get(), self.options.rank, self.options.world_size.get())
    }

    /// The samples of the next global batch in some of its rows.
    #[must_use]
    pub fn peek(&self, rows: Range<u32>) -> Vec<Sample> {
        self.samples_at(self.position + u64::from(rows.start)..self.position + u64::from(rows.end))
    }

    /// Samples of the order before the next global batch.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Moves on to the batch behind the next.
    pub fn advance(&mut self) {
        self.position += u64::from(self.options.global_batch.get());
        self.steps += 1;
    }

    /// The samples of a range of positions in the order.
    pub fn samples_at(&self, positions: Range<u64>) -> Vec<Sample> {
        self.made_at(positions, |(source, epoch), _, sample| Sample {
            source,
            epoch,
            number: self.split.sample(sample),
        })
    }

    /// The blocks of the samples of a range of positions.
    pub(crate) fn blocks_at(&self, positions: Range<u64>) -> Vec<Block> {
        self.made_at(positions, |(source, _), order, sample| Block { source, samples: order.neighbours(sample) })
    }

    /// The numbers, in their source, of a block's samples.
    pub(crate) fn numbers(&self, block: &Block) -> impl Iterator<Item = u64> {
        let split = self.split;
        block.samples.clone().map(move |sample| split.sample(sample))
    }

    /// Returns what `made` returns for each position, given its source and epoch, the order of that epoch, and the sample.
    fn made_at<T>(&self, positions: Range<u64>, made: impl Fn((usize, u64), &Order, u64) -> T) -> Vec<T> {
        let mut orders: Vec<Option<(u64, Order)>> = vec![None; self.counts.len()];
        let sample = |position| {
            let (source, epoch, index) = self.place(position);
            let slot = &mut orders[source];
            if slot.as_ref().is_none_or(|(known, _)| *known != epoch) {
                // Each source has an order of its own.
                let seed = self.options.seed.wrapping_add((source as u64) << 32);
                let order = match &self.tables {
                    Some(tables) => Order::of_table(Arc::clone(&tables.samples[source])),
                    None => Order::new(self.counts[source], self.options.shuffle, seed, epoch),
                };
                *slot = Some((epoch, order));
            }
            let (_, order) = slot.as_ref().expect("it was just made");
            made((source, epoch), order, order.sample(index))
        };
        positions.map(sample).collect()
    }

    fn blend(&self) -> Option<&Blend> {
        self.tables.as_ref()?.blend.as_ref()
    }

    /// The source of the sample at a position, how often it was read through before, and the place in its order.
    fn place(&self, position: u64) -> (usize, u64, u64) {
        if let Some(blend) = self.blend() {
            let place = blend.place(position % blend.samples());
            return (place.source, position / blend.samples(), place.index);
        }
        let place = self.mixture.place(position);
        let count = self.counts[place.source];
        (place.source, place.index / count, place.index % count)
    }

    /// Changes the number of samples of a batch, from the next one on; no sample is lost or repeated.
    ///
    /// # Errors
    /// When it is smaller than the number of ranks.
    pub fn change_batch(&mut self, global_batch: NonZeroU32) -> Result<(), Error> {
        check_batch(global_batch, self.options.world_size)?;
        self.options.global_batch = global_batch;
        Ok(())
    }

    /// Leaves out the next global batches.
    pub fn skip(&mut self, batches: u64) {
        let samples = batches.saturating_mul(u64::from(self.options.global_batch.get()));
        self.position = self.position.saturating_add(samples);
    }

    /// All that is needed to go on from here, at any number of ranks.
    #[must_use]
    pub fn state(&self) -> State {
        State {
            version: STATE_VERSION,
            data: hex(&self.data),
            order: self.order_id(self.position),
            sequence_length: self.options.sequence_length.get(),
            steps: self.steps,
            sample: self.position,
        }
    }

    /// Goes on from a state. The global batch may be another one.
    ///
    /// # Errors
    /// When the state is of other data or another order; nothing is changed then.
    pub fn restore(&mut self, state: &State) -> Result<(), Error> {
        self.check_state(state)?;
        (self.steps, self.position) = (state.steps, state.sample);
        Ok(())
    }

    /// Refuses a state of other data or another order.
    ///
    /// # Errors
    /// Says what differs.
    pub fn check_state(&self, state: &State) -> Result<(), Error> {
        state.check_version()?;
        let other = |problem: String| Err(Error::OtherState { problem });
        if state.sequence_length != self.options.sequence_length.get() {
            let mine = self.options.sequence_length;
            return other(format!("the checkpoint's samples have {} tokens, and these {mine}", state.sequence_length));
        }
        if state.data != hex(&self.data) {
            return other("the checkpoint is of other data: files were added, removed or changed".to_owned());
        }
        if state.order != self.order_id(state.sample) {
            let problem = "the checkpoint is of another order: use its seed, shuffle, part, and weights up to its step";
            return other(problem.to_owned());
        }
        Ok(())
    }

    /// What the order before a position depends on, in 16 digits.
    fn order_id(&self, position: u64) -> String {
        let Options { seed, shuffle, part, packs_documents, blend, .. } = &self.options;
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{} {seed} {shuffle:?} {part:?}", crate::order::ORDER_VERSION).as_bytes());
        if *packs_documents {
            hasher.update(format!(" packed {PACKING_VERSION}").as_bytes());
        }
        if !blend.is_empty() {
            hasher.update(format!(" {blend:?}").as_bytes());
        }
        for stage in self.mixture.past(position) {
            hasher.update(format!(" {} {:?}", stage.from, stage.weights).as_bytes());
        }
        hex(&hasher.finalize().as_bytes()[..8])
    }
}

/// Refuses options that make no sense with so many sources.
pub(crate) fn check(options: &Options, sources: usize) -> Result<(), Error> {
    let Options { global_batch, world_size, rank, sequence_length, epochs, .. } = options;
    if sources == 0 {
        return Err(Error::refused("source", "there is none"));
    }
    check_batch(*global_batch, *world_size)?;
    if *rank >= world_size.get() {
        return Err(Error::refused("rank", format!("{rank} isn't below {world_size}")));
    }
    if sequence_length.get() > SEQUENCE_MAX {
        return Err(Error::refused(
            "sequence_length",
            format!("{sequence_length} tokens are more than {SEQUENCE_MAX}"),
        ));
    }
    if options.threads.get() > THREADS_MAX {
        return Err(Error::refused("threads", format!("{} are more than {THREADS_MAX}", options.threads)));
    }
    match epochs {
        Some(0) => Err(Error::refused("epochs", "0 passes have no batch")),
        Some(_) if sources > 1 && !matches!(options.shuffle, Shuffle::Megatron(_)) => Err(Error::refused(
            "epochs",
            "a mixture has no end, since its sources end at different times: leave it out",
        )),
        _ => Ok(()),
    }
}

fn check_batch(global_batch: NonZeroU32, world_size: NonZeroU32) -> Result<(), Error> {
    if global_batch >= world_size {
        return Ok(());
    }
    let problem = format!("{global_batch} samples are fewer than {world_size} ranks: each needs one");
    Err(Error::refused("global_batch", problem))
}

/// Counts as weights, halved together until their sum is one that a mixture takes.
fn scaled(counts: &[u64]) -> Vec<u64> {
    let sum: u128 = counts.iter().map(|count| u128::from(*count)).sum();
    let shift = (u128::BITS - sum.leading_zeros()).saturating_sub(39);
    counts.iter().map(|count| (count >> shift).max(1)).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
