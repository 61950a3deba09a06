//! Contexts: values known before an element's byte is decoded, clustered into a few tables.
//!
//! A byte's context is a number below [`VALUES`]. Neighbouring values are merged greedily, the cheapest pair
//! first, while that saves more bytes of tables than it loses in coding (agglomerative clustering by
//! description length, as encoders of Brotli cluster the histograms of RFC 7932).

use crate::Error;
use crate::error::malformed;
use crate::histogram::Histogram;
use crate::wire::Reader;

/// The limit of context values: an exponent, and whether the planes above are zero.
pub(crate) const VALUES: usize = 512;
/// The most tables of a plane: their decoding tables fit in the L2 cache.
pub(crate) const CLUSTERS_MAX: usize = 16;
/// Bits of a table besides its symbols, and for each symbol.
const TABLE_BITS: (f64, f64) = (32.0, 18.0);

/// The values that share a table: `ends[k]` is the first value after cluster `k`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clusters {
    ends: Vec<u16>,
}

/// Merged values, and their cost.
struct Cluster {
    end: u16,
    histogram: Histogram,
    bits: f64,
}

impl Cluster {
    fn new(end: u16, histogram: Histogram) -> Cluster {
        let symbols = f64::from(u32::try_from(histogram.symbols()).expect("at most 256"));
        let bits = histogram.bits() + TABLE_BITS.0 + TABLE_BITS.1 * symbols;
        Cluster { end, histogram, bits }
    }

    fn with(&self, next: &Cluster) -> Cluster {
        let mut histogram = self.histogram.clone();
        histogram.add(&next.histogram);
        Cluster::new(next.end, histogram)
    }
}

impl Clusters {
    /// Clusters a plane whose symbol `i` has the context `values[i]`; returns the clusters, their histograms,
    /// and the total bits of coding with them. There must be at least one symbol. `memory` is reused.
    pub(crate) fn of(plane: &[u8], values: &[u16], memory: &mut Vec<Histogram>) -> (Clusters, Vec<Histogram>, f64) {
        memory.clear();
        memory.resize(VALUES, Histogram::EMPTY);
        for (symbol, value) in plane.iter().zip(values) {
            memory[usize::from(*value)].counts[usize::from(*symbol)] += 1;
        }
        let seen = (1..).zip(memory.iter().cloned()).filter(|(_, histogram)| histogram.total() > 0);
        let mut clusters: Vec<Cluster> = seen.map(|(end, histogram)| Cluster::new(end, histogram)).collect();
        let mut pairs: Vec<Cluster> = clusters.windows(2).map(|pair| pair[0].with(&pair[1])).collect();
        while let Some((place, gain)) = best(&clusters, &pairs) {
            if gain < 0.0 && clusters.len() <= CLUSTERS_MAX {
                break;
            }
            clusters[place] = pairs.remove(place);
            clusters.remove(place + 1);
            for left in place.saturating_sub(1)..=place {
                if left < pairs.len() {
                    pairs[left] = clusters[left].with(&clusters[left + 1]);
                }
            }
        }
        let bits = clusters.iter().map(|cluster| cluster.bits).sum();
        let ends = clusters.iter().map(|cluster| cluster.end).collect();
        (Clusters { ends }, clusters.into_iter().map(|cluster| cluster.histogram).collect(), bits)
    }

    /// Returns the number of clusters.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the cluster of every possible value.
    pub(crate) fn by_value(&self) -> [u8; VALUES] {
        let last = u8::try_from(self.ends.len() - 1).expect("at most 16");
        let mut by_value = [0; VALUES];
        let mut cluster = 0;
        for (value, id) in (0_u16..).zip(&mut by_value) {
            if self.ends.get(usize::from(cluster)).is_some_and(|end| value >= *end) {
                cluster = (cluster + 1).min(last);
            }
            *id = cluster;
        }
        by_value
    }

    /// Computes the cluster of each of these values.
    pub(crate) fn ids(&self, values: &[u16], ids: &mut Vec<u8>) {
        let by_value = self.by_value();
        ids.clear();
        ids.extend(values.iter().map(|value| by_value[usize::from(*value) & (VALUES - 1)]));
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::try_from(self.ends.len()).expect("at most 16"));
        let inner = &self.ends[..self.ends.len() - 1];
        out.extend(inner.iter().flat_map(|end| end.to_le_bytes()));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Clusters, Error> {
        let count = usize::from(reader.byte()?);
        if count == 0 || count > CLUSTERS_MAX {
            return Err(malformed("it has no contexts, or too many"));
        }
        let mut ends = Vec::with_capacity(count);
        for _ in 1..count {
            ends.push(reader.u16()?);
        }
        ends.push(u16::try_from(VALUES).expect("512"));
        let is_ascending = ends.windows(2).all(|pair| pair[0] < pair[1]);
        if is_ascending { Ok(Clusters { ends }) } else { Err(malformed("its contexts are out of order")) }
    }
}

/// Returns the pair of neighbours whose merging gains most, and the bits gained.
fn best(clusters: &[Cluster], pairs: &[Cluster]) -> Option<(usize, f64)> {
    let gain = |place: usize| clusters[place].bits + clusters[place + 1].bits - pairs[place].bits;
    (0..pairs.len()).map(|place| (place, gain(place))).max_by(|(_, a), (_, b)| a.total_cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_behave_alike_share_a_table() {
        let values: Vec<u16> = (0..100_000_u32).map(|i| u16::from((i * 7 % 40).to_le_bytes()[0])).collect();
        let plane: Vec<u8> = values
            .iter()
            .zip(0_u32..)
            .map(|(value, i)| if *value < 17 { 0 } else { (i / 40 % 5).to_le_bytes()[0] })
            .collect();
        let (clusters, histograms, bits) = Clusters::of(&plane, &values, &mut Vec::new());
        assert_eq!((clusters.count(), histograms.len()), (2, 2));
        assert!(bits < 58_000.0 * 2.33, "{bits}");
        let mut ids = Vec::new();
        clusters.ids(&[0, 16, 17, 39, 511], &mut ids);
        assert_eq!(ids, [0, 0, 1, 1, 1]);
    }

    #[test]
    fn there_are_never_too_many() {
        let values: Vec<u16> = (0..512 * 512_u32).map(|i| u16::try_from(i % 512).unwrap()).collect();
        let plane: Vec<u8> = values.iter().map(|value| value.to_le_bytes()[0]).collect();
        let (clusters, _, _) = Clusters::of(&plane, &values, &mut Vec::new());
        assert_eq!(clusters.count(), CLUSTERS_MAX);
        let mut written = Vec::new();
        clusters.write(&mut written);
        let read = Clusters::read(&mut Reader::new(&written)).unwrap();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        clusters.ids(&values, &mut before);
        read.ids(&values, &mut after);
        assert_eq!(before, after);
    }

    #[test]
    fn impossible_clusters_are_refused() {
        for bytes in [&[0][..], &[17], &[3, 5, 0, 5, 0], &[2, 0, 2], &[2]] {
            assert!(Clusters::read(&mut Reader::new(bytes)).is_err(), "{bytes:?}");
        }
    }
}
