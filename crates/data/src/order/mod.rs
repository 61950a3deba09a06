//! The order of samples, as a pure function of (number of samples, seed, epoch, index): nothing is stored, so a place in
//! the order is one number and is reached in constant time. Keeps A-1 (no state, no randomness) and A-16 (the same
//! samples in the same order at any world size).
//!
//! This order is a stored format: a checkpoint holds only a position in it. A change needs a new [`ORDER_VERSION`].

mod bijection;
mod blend;
mod megatron;
mod mix;
mod mixture;
mod packing;
mod slice;
mod split;

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use bijection::Bijection;
pub use blend::{Blend, normalized, share_of};
pub use megatron::{MEGATRON_MAX, Megatron, MegatronOrder};
use mix::mix;
pub use mixture::{Mixture, MixtureError, Place, SOURCES_MAX, Stage};
pub use packing::{Chunk, PACKING_VERSION, Packed, WINDOW_DOCUMENTS, pack};
pub use slice::{loss_weight, rows_of};
pub use split::{HeldOut, Part, Split};

/// The version of the order that positions refer to.
pub const ORDER_VERSION: u32 = 1;
/// Samples of a block that are read together: 1 MiB of 16-bit tokens in sequences of 2,048. With [`WINDOW_BLOCKS`], the
/// sizes that Levanter has as its default (see docs/reference/data.md).
pub const BLOCK_SAMPLES: u32 = 256;
/// Blocks whose samples are shuffled among each other.
pub const WINDOW_BLOCKS: u32 = 512;

/// How the samples of an epoch are ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shuffle {
    /// As they lie.
    None,
    /// Any sample may come at any time: for data that fits into memory.
    Global,
    /// Blocks of neighbouring samples in random order, then the samples of a window of blocks among each other: reads
    /// stay near each other, so that data larger than memory is read at the disk's sequential speed.
    Blocks {
        /// Samples of a block.
        block: NonZeroU32,
        /// Blocks of a window.
        window: NonZeroU32,
    },
    /// As Megatron-Core reads them, whose stream is of other documents: see [`Megatron`]. Its order is a table ([`Order::of_table`]).
    Megatron(Megatron),
}

impl Default for Shuffle {
    fn default() -> Self {
        let nonzero = |number| NonZeroU32::new(number).expect("the default sizes aren't zero");
        Shuffle::Blocks { block: nonzero(BLOCK_SAMPLES), window: nonzero(WINDOW_BLOCKS) }
    }
}

/// The order of one epoch.
#[derive(Clone, Debug)]
pub struct Order {
    samples: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    AsIs,
    Global(Bijection),
    Blocks(Box<Blocks>),
    Table(Arc<[u32]>),
}

#[derive(Clone, Debug)]
struct Blocks {
    key: u64,
    /// Samples of a block, and of a window.
    block: u64,
    window: u64,
    /// Whole blocks, and where each goes; none if there is less than a block.
    whole: u64,
    blocks: Option<Bijection>,
    windows: u64,
    /// The order begins at this sample, so that the samples behind the last whole block are others in each epoch.
    first: u64,
}

impl Order {
    /// The order of `samples` samples in an epoch.
    ///
    /// # Panics
    /// Without samples, and for Megatron's order.
    #[must_use]
    pub fn new(samples: u64, shuffle: Shuffle, seed: u64, epoch: u64) -> Order {
        assert!(samples > 0, "an epoch has samples");
        let key = mix(&[seed, epoch, u64::from(ORDER_VERSION)]);
        let kind = match shuffle {
            Shuffle::None => Kind::AsIs,
            Shuffle::Megatron(_) => unreachable!("its order is a table"),
            Shuffle::Global => Kind::Global(Bijection::new(samples, key)),
            Shuffle::Blocks { block, window } => {
                let block = u64::from(block.get());
                let whole = samples / block;
                let window_blocks = u64::from(window.get());
                Kind::Blocks(Box::new(Blocks {
                    key,
                    block,
                    window: window_blocks * block,
                    whole,
                    blocks: (whole > 0).then(|| Bijection::new(whole, mix(&[key, 1]))),
                    windows: whole.div_ceil(window_blocks).max(1),
                    first: mix(&[key, 2]) % samples,
                }))
            }
        };
        Order { samples, kind }
    }

    /// The order that a table says: a sample for each index.
    #[must_use]
    pub fn of_table(table: Arc<[u32]>) -> Order {
        Order { samples: table.len() as u64, kind: Kind::Table(table) }
    }

    /// The sample that comes at `index` of the epoch.
    ///
    /// # Panics
    /// For an index that isn't below the number of samples.
    #[must_use]
    pub fn sample(&self, index: u64) -> u64 {
        assert!(index < self.samples, "{index} is not below {}", self.samples);
        match &self.kind {
            Kind::AsIs => index,
            Kind::Global(bijection) => bijection.apply(index),
            Kind::Blocks(blocks) => blocks.sample(index, self.samples),
            Kind::Table(table) => u64::from(table[usize::try_from(index).expect("it is below the table's length")]),
        }
    }

    /// The samples around one that come at about the same time as it.
    #[must_use]
    pub fn neighbours(&self, sample: u64) -> Range<u64> {
        match &self.kind {
            Kind::AsIs => {
                let block = u64::from(BLOCK_SAMPLES);
                let start = sample / block * block;
                start..self.samples.min(start + block)
            }
            Kind::Global(_) | Kind::Table(_) => sample..sample + 1,
            Kind::Blocks(blocks) => blocks.neighbours(sample, self.samples),
        }
    }
}

impl Blocks {
    /// The block of a sample; the part around it of one that goes on with the first samples.
    fn neighbours(&self, sample: u64, samples: u64) -> Range<u64> {
        let behind = samples - self.first;
        let place = if sample >= self.first { sample - self.first } else { sample + behind };
        let start = place / self.block * self.block;
        let end = start.saturating_add(self.block).min(samples);
        if place < behind {
            start + self.first..end.min(behind) + self.first
        } else {
            start.max(behind) - behind..end - behind
        }
    }

    fn sample(&self, index: u64, samples: u64) -> u64 {
        // The last window also has what is less than a block.
        let number = (index / self.window).min(self.windows - 1);
        let start = number * self.window;
        let is_last = number == self.windows - 1;
        let length = if is_last { samples - start } else { self.window };
        let inside = Bijection::new(length, mix(&[self.key, 3, number])).apply(index - start);
        let block = (start + inside) / self.block;
        let place = match &self.blocks {
            Some(blocks) if block < self.whole => blocks.apply(block) * self.block + inside % self.block,
            _ => start + inside,
        };
        // Without overflow, for any number of samples.
        if place >= samples - self.first { place - (samples - self.first) } else { place + self.first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(block: u32, window: u32) -> Shuffle {
        let nonzero = |number| NonZeroU32::new(number).unwrap();
        Shuffle::Blocks { block: nonzero(block), window: nonzero(window) }
    }

    fn epoch(samples: u64, shuffle: Shuffle, seed: u64, epoch: u64) -> Vec<u64> {
        let order = Order::new(samples, shuffle, seed, epoch);
        (0..samples).map(|index| order.sample(index)).collect()
    }

    /// Proves A-1.
    #[test]
    fn every_epoch_has_every_sample_once_for_200_seeds_and_every_shape() {
        let shapes = [Shuffle::None, Shuffle::Global, Shuffle::default(), blocks(1, 1), blocks(4, 3), blocks(7, 1)];
        for seed in 0..200 {
            for shuffle in shapes {
                for samples in [1, 2, 3, 27, 28, 29, 83, 84, 85, 84 * 3 + seed] {
                    let mut sorted = epoch(samples, shuffle, seed, seed % 3);
                    assert_eq!(sorted, epoch(samples, shuffle, seed, seed % 3));
                    sorted.sort_unstable();
                    assert_eq!(sorted, (0..samples).collect::<Vec<_>>(), "{shuffle:?}, {samples} samples, seed {seed}");
                }
            }
        }
    }

    #[test]
    fn seeds_and_epochs_have_orders_of_their_own() {
        for shuffle in [Shuffle::Global, Shuffle::default(), blocks(4, 3)] {
            let first = epoch(1_000, shuffle, 1, 0);
            assert_ne!(first, epoch(1_000, shuffle, 1, 1), "{shuffle:?}");
            assert_ne!(first, epoch(1_000, shuffle, 2, 0), "{shuffle:?}");
            assert_ne!(first, (0..1_000).collect::<Vec<_>>(), "{shuffle:?}");
        }
    }

    /// What two levels are for: a window touches as many blocks as it has, and a neighbour's at its ends.
    #[test]
    fn a_window_reads_no_more_blocks_than_it_holds() {
        let (block, window) = (8, 4);
        let order = epoch(8 * 40, blocks(block, window), 5, 0);
        for samples in order.chunks(8 * 4) {
            let mut read: Vec<u64> = samples.iter().map(|sample| sample / 8).collect();
            read.sort_unstable();
            read.dedup();
            assert!(read.len() <= 2 * 4, "{} blocks for a window of 4", read.len());
        }
    }

    #[test]
    fn neighbours_are_the_samples_of_a_block_and_cover_every_sample() {
        let shapes = [Shuffle::None, Shuffle::Global, Shuffle::default(), blocks(1, 1), blocks(4, 3), blocks(7, 1)];
        for (shuffle, samples) in
            shapes.into_iter().flat_map(|shuffle| [1, 3, 28, 29, 85].map(|count| (shuffle, count)))
        {
            for seed in 0..50 {
                let order = Order::new(samples, shuffle, seed, 0);
                for sample in 0..samples {
                    let found = order.neighbours(sample);
                    assert!(found.contains(&sample) && found.end <= samples, "{shuffle:?} {sample} of {samples}");
                    assert!(found.clone().all(|other| order.neighbours(other) == found), "{shuffle:?} {sample}");
                }
            }
        }
        // They come in the same window, and there are no more of them than a block has.
        let order = Order::new(8 * 40, blocks(8, 4), 5, 0);
        for window in 0..10 {
            let read: Vec<u64> = (window * 32..window * 32 + 32).map(|index| order.sample(index)).collect();
            for sample in &read {
                let found = order.neighbours(*sample);
                assert!(found.end - found.start <= 8 && found.clone().all(|other| read.contains(&other)), "{found:?}");
            }
        }
    }

    /// Stored positions mean the same for ever: what this version gives for a few of them.
    #[test]
    fn the_order_of_version_1_is_what_it_was() {
        let first = |shuffle| epoch(1_000, shuffle, 1, 0)[..6].to_vec();
        assert_eq!(first(Shuffle::Global), GLOBAL_OF_VERSION_1);
        assert_eq!(first(blocks(4, 3)), BLOCKS_OF_VERSION_1);
        assert_eq!(ORDER_VERSION, 1, "a new version has figures of its own here");
    }

    const GLOBAL_OF_VERSION_1: [u64; 6] = [235, 482, 567, 325, 678, 631];
    const BLOCKS_OF_VERSION_1: [u64; 6] = [73, 76, 240, 238, 270, 75];
}
