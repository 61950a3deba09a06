//! The coder: chooses the transform of a block and the method of each plane, by measuring a sample.

use crate::block::{self, BLOCK_BYTES, Header, Method};
use crate::contexts::Clusters;
use crate::element::Element;
use crate::error::Error;
use crate::histogram::Histogram;
use crate::huffman;
use crate::model::{self, Model};
use crate::rans::{self, Frequencies};
use crate::surroundings::Surroundings;
use crate::transform::{self, Transform};

/// A plane is examined only if a sample promises fewer bits per byte than this.
const PROMISING: (f64, f64) = (7.9, 7.995);
/// A plane is coded only if the result is at most this fraction of it: a smaller gain isn't worth the
/// decoding time.
const WORTHWHILE: (f64, f64) = (0.98, 0.995);
/// A base is used only if the result is at most this fraction of the result without it: a base has to be
/// kept, and read.
const BASE_WORTHWHILE: f64 = 0.98;
/// Bytes of each run in the sample that chooses the transform.
const SAMPLE_RUN: usize = 2_048;
/// The sample takes one run in this many, at [`Effort::Inline`] and [`Effort::Tiering`].
const SAMPLE_SHARE: (usize, usize) = (32, 8);
/// The fewest rows of a matrix in a block for its columns to be learned.
const ROWS_MIN: usize = 8;
/// Surroundings are used only if the result is at most this fraction of the plane's: decoding with them waits
/// for each symbol.
const SURROUNDINGS_WORTHWHILE: f64 = 0.95;
/// At [`Effort::Inline`], a plane is coded with rANS rather than Huffman codes, which use whole bits and are
/// faster, if the result is at most this fraction: where one symbol dominates, as in the upper planes of
/// differences.
const RANS_WORTHWHILE: f64 = 0.8;

/// How much time coding may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// For writing a checkpoint: about a gigabyte per second on a core.
    Inline,
    /// For moving a checkpoint to another tier: the best ratio.
    Tiering,
}

impl Effort {
    fn of<T>(self, (inline, tiering): (T, T)) -> T {
        match self {
            Effort::Inline => inline,
            Effort::Tiering => tiering,
        }
    }
}

/// The data to code: a block, or a whole tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source<'a> {
    /// The elements, little-endian, in row-major order.
    pub raw: &'a [u8],
    /// The same elements in an earlier checkpoint, if decoding will have them too. Used only where that pays.
    pub base: Option<&'a [u8]>,
    /// Elements in a row, 0 if there are no rows: at [`Effort::Tiering`] it gives the neighbours of each
    /// element. A wrong number costs only size.
    pub columns: usize,
}

/// Codes blocks of one element type. Reuses its memory (about four times a block) for the next block.
#[derive(Debug)]
pub struct Coder {
    element: Element,
    effort: Effort,
    columns: usize,
    planes: Vec<Vec<u8>>,
    sample: (Vec<u8>, Vec<u8>),
    model: Model,
    ids: Vec<u8>,
    words: Vec<u8>,
    histograms: Vec<Histogram>,
    surroundings: (Surroundings, Vec<u16>),
}

/// How a block was coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The transform of its elements; all except [`Transform::Plain`] need the base to decode.
    pub transform: Transform,
    /// The bytes appended.
    pub coded_bytes: usize,
}

/// The method for a plane, with the counts that it needs.
enum Plan {
    Raw,
    Constant(u8),
    Huffman(Box<Histogram>),
    Rans(Box<Histogram>),
    RansByContext(Clusters, Vec<Histogram>),
    RansBySurroundings(Clusters, Vec<Histogram>),
}

impl Coder {
    /// Returns a coder for an element type.
    #[must_use]
    pub fn new(element: Element, effort: Effort) -> Coder {
        Coder {
            element,
            effort,
            columns: 0,
            planes: vec![Vec::new(); element.size()],
            sample: Default::default(),
            model: Model::default(),
            ids: Vec::new(),
            words: Vec::new(),
            histograms: Vec::new(),
            surroundings: Default::default(),
        }
    }

    /// Appends a coded block: at most [`BLOCK_OVERHEAD_MAX`](crate::BLOCK_OVERHEAD_MAX) bytes more than the
    /// raw ones. The summary tells whether the base was used.
    ///
    /// # Errors
    /// [`Error::Ragged`], [`Error::BaseLength`] and [`Error::BlockTooLong`]; nothing is appended then.
    pub fn encode(&mut self, source: Source<'_>, out: &mut Vec<u8>) -> Result<Summary, Error> {
        self.check(&source)?;
        let Source { raw, base, columns } = source;
        self.columns = columns;
        if raw.len() > BLOCK_BYTES {
            return Err(Error::BlockTooLong { bytes: raw.len(), max: BLOCK_BYTES });
        }
        let base = base.unwrap_or(&[]);
        let transform = if base.is_empty() { Transform::Plain } else { self.choose(raw, base) };
        let before = out.len();
        let header = Header { element: self.element, transform, raw_bytes: raw.len() };
        let list = block::write_header(&header, raw, out);
        self.write_planes(transform, (raw, base), list, out);
        Ok(Summary { transform, coded_bytes: out.len() - before })
    }

    /// Checks that the elements and the base can be coded together.
    pub(crate) fn check(&self, source: &Source<'_>) -> Result<(), Error> {
        let Source { raw, base, .. } = source;
        if !raw.len().is_multiple_of(self.element.size()) {
            return Err(Error::Ragged { element: self.element, bytes: raw.len() });
        }
        match base {
            Some(base) if base.len() != raw.len() => Err(Error::BaseLength { bytes: raw.len(), base: base.len() }),
            _ => Ok(()),
        }
    }

    /// Returns the transform under which a sample takes the fewest bits.
    fn choose(&mut self, raw: &[u8], base: &[u8]) -> Transform {
        let (mut sample, mut sampled_base) = std::mem::take(&mut self.sample);
        for (from, to) in [(raw, &mut sample), (base, &mut sampled_base)] {
            to.clear();
            let (run, stride) = self.sampling(from.len());
            from.chunks(stride).for_each(|stride| to.extend(&stride[..run.min(stride.len())]));
        }
        let mut best = (Transform::Plain, self.bits(Transform::Plain, (&sample, &sampled_base)) * BASE_WORTHWHILE);
        for transform in Transform::ALL {
            if transform.fits(self.element) && transform.needs_base() {
                let bits = self.bits(transform, (&sample, &sampled_base));
                best = if bits < best.1 { (transform, bits) } else { best };
            }
        }
        self.sample = (sample, sampled_base);
        best.0
    }

    /// Returns the length of a sample's runs, and the distance between their starts. Neighbouring rows stay
    /// neighbours.
    fn sampling(&self, bytes: usize) -> (usize, usize) {
        let share = self.effort.of(SAMPLE_SHARE);
        if bytes <= SAMPLE_RUN * share {
            (SAMPLE_RUN, SAMPLE_RUN)
        } else if self.effort == Effort::Tiering && self.columns > 1 {
            (bytes / share / self.element.size() * self.element.size(), bytes)
        } else {
            (SAMPLE_RUN, SAMPLE_RUN * share)
        }
    }

    /// Returns the bits that elements take under a transform.
    fn bits(&mut self, transform: Transform, (raw, base): (&[u8], &[u8])) -> f64 {
        let planes = self.split(transform, (raw, base));
        let highest_first: Vec<&[u8]> = planes.iter().rev().map(Vec::as_slice).collect();
        let sum =
            (0..highest_first.len()).map(|place| self.plan(highest_first[place], &highest_first[..place]).1).sum();
        self.planes = planes;
        sum
    }

    /// Splits elements into planes, which the caller returns for reuse.
    fn split(&mut self, transform: Transform, (raw, base): (&[u8], &[u8])) -> Vec<Vec<u8>> {
        let base = if transform.needs_base() { base } else { &[] };
        let mut planes = std::mem::take(&mut self.planes);
        planes.iter_mut().for_each(|plane| plane.resize(raw.len() / self.element.size(), 0));
        transform::split(self.element, transform, (raw, base), &mut planes);
        // Only `Tiering` uses contexts.
        self.model.begin(self.element, transform, if self.effort == Effort::Tiering { base } else { &[] });
        planes
    }

    fn write_planes(&mut self, transform: Transform, pair: (&[u8], &[u8]), list: usize, out: &mut Vec<u8>) {
        let planes = self.split(transform, pair);
        let highest_first: Vec<&[u8]> = planes.iter().rev().map(Vec::as_slice).collect();
        for (place, plane) in highest_first.iter().enumerate() {
            let above = &highest_first[..place];
            let (plan, _) = self.plan(plane, above);
            let begin = out.len();
            let mut method = self.write(&plan, (plane, above), out);
            if out.len() - begin > plane.len() {
                out.truncate(begin);
                method = self.write(&Plan::Raw, (plane, above), out);
            }
            let entry = block::plane_entry(method, out.len() - begin);
            out[list + 4 * place..][..4].copy_from_slice(&entry);
        }
        self.planes = planes;
    }

    /// Returns the method for a plane, and the bits that it should take.
    fn plan(&mut self, plane: &[u8], above: &[&[u8]]) -> (Plan, f64) {
        let raw_bits = 8.0 * f64::from(crate::wire::length32(plane.len()));
        if Histogram::sampled(plane).bits_per_byte() > self.effort.of(PROMISING) {
            return (Plan::Raw, raw_bits);
        }
        let histogram = Histogram::of(plane);
        if histogram.symbols() <= 1 {
            return plane.first().map_or((Plan::Raw, 0.0), |byte| (Plan::Constant(*byte), 8.0));
        }
        let coded = match self.effort {
            Effort::Inline => inline_plan(histogram),
            Effort::Tiering => self.tiering_plan(histogram, (plane, above)),
        };
        if coded.1 < raw_bits * self.effort.of(WORTHWHILE) { coded } else { (Plan::Raw, raw_bits) }
    }

    fn tiering_plan(&mut self, histogram: Histogram, (plane, above): (&[u8], &[&[u8]])) -> (Plan, f64) {
        let bits = rans_bits(histogram.bits());
        if self.has_neighbours(plane, above) {
            let (surroundings, values) = &mut self.surroundings;
            surroundings.values(plane, self.columns, values);
            let (clusters, histograms, bits_by_surroundings) = Clusters::of(plane, values, &mut self.histograms);
            let bits_by_surroundings = rans_bits(bits_by_surroundings);
            if bits_by_surroundings < bits * SURROUNDINGS_WORTHWHILE {
                return (Plan::RansBySurroundings(clusters, histograms), bits_by_surroundings);
            }
        }
        if let Some(values) = self.model.values(above) {
            let (clusters, histograms, bits_by_context) = Clusters::of(plane, values, &mut self.histograms);
            let bits_by_context = rans_bits(bits_by_context);
            if clusters.count() > 1 && bits_by_context < bits {
                return (Plan::RansByContext(clusters, histograms), bits_by_context);
            }
        }
        (Plan::Rans(Box::new(histogram)), bits)
    }

    /// Reports whether a plane holds the exponents of a matrix without a base.
    fn has_neighbours(&self, plane: &[u8], above: &[&[u8]]) -> bool {
        let is_matrix = self.columns > 1 && plane.len() / ROWS_MIN >= self.columns;
        is_matrix && above.is_empty() && self.model.is_plain() && model::has_exponents(self.element)
    }

    /// Appends a plane as planned.
    fn write(&mut self, plan: &Plan, (plane, above): (&[u8], &[&[u8]]), out: &mut Vec<u8>) -> Method {
        match plan {
            Plan::Raw => {
                out.extend(plane);
                Method::Raw
            }
            Plan::Constant(byte) => {
                out.push(*byte);
                Method::Constant
            }
            Plan::Huffman(histogram) => {
                huffman::encode(plane, histogram, out);
                Method::Huffman
            }
            Plan::Rans(histogram) => {
                self.ids.clear();
                self.ids.resize(plane.len(), 0);
                rans::encode((plane, &self.ids), &[Frequencies::nearest(histogram)], &mut self.words, out);
                Method::Rans
            }
            Plan::RansByContext(clusters, histograms) => {
                let values = self.model.values(above).expect("the plan was made with contexts");
                clusters.ids(values, &mut self.ids);
                clusters.write(out);
                let tables: Vec<Frequencies> = histograms.iter().map(Frequencies::nearest).collect();
                rans::encode((plane, &self.ids), &tables, &mut self.words, out);
                Method::RansByContext
            }
            Plan::RansBySurroundings(clusters, histograms) => {
                out.extend(crate::wire::length32(self.columns).to_le_bytes());
                let (surroundings, values) = &mut self.surroundings;
                surroundings.values(plane, self.columns, values);
                clusters.ids(values, &mut self.ids);
                clusters.write(out);
                let tables: Vec<Frequencies> = histograms.iter().map(Frequencies::nearest).collect();
                rans::encode((plane, &self.ids), &tables, &mut self.words, out);
                Method::RansBySurroundings
            }
        }
    }
}

fn inline_plan(histogram: Histogram) -> (Plan, f64) {
    let (rans, huffman) = (rans_bits(histogram.bits()), huffman::bits(&histogram));
    let histogram = Box::new(histogram);
    if rans < huffman * RANS_WORTHWHILE { (Plan::Rans(histogram), rans) } else { (Plan::Huffman(histogram), huffman) }
}

fn rans_bits(bits: f64) -> f64 {
    bits + f64::from(8 * rans::OVERHEAD_BYTES)
}
