//! Which layers each pipeline stage has, and how many micro-batches are between their forward and backward pass.

use crate::layout::Layout;
use crate::model::{Layer, Model};
use crate::units::real;

/// What one stage has.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    /// From 0.
    pub(crate) index: u32,
    /// Its layers: which kind, and how many.
    pub(crate) layers: Vec<(usize, f64)>,
    /// Whether words come in here.
    pub(crate) has_embedding: bool,
    /// Whether words go out here.
    pub(crate) has_head: bool,
    /// Layers for multi-token prediction: they are trained beside the head.
    pub(crate) further: u64,
    /// How many micro-batches' activations each of its layers holds at most.
    pub(crate) in_flight: f64,
}

/// The kinds of layers that a model has, and which of them each of its groups is of.
pub(crate) fn kinds(model: &Model) -> (Vec<&Layer>, Vec<usize>) {
    let mut kinds: Vec<&Layer> = Vec::new();
    let mut of_group = Vec::with_capacity(model.layers.len());
    for group in &model.layers {
        let known = kinds.iter().position(|kind| **kind == group.layer);
        of_group.push(known.unwrap_or(kinds.len()));
        if known.is_none() {
            kinds.push(&group.layer);
        }
    }
    (kinds, of_group)
}

/// Deals a model's layers to stages, given which kind each group of them is of.
///
/// p x v chunks of L / (p v) layers, rounded up; stage i has chunks i, i + p, i + 2p ... Where that is uneven, the last chunk and then the
/// first has a layer less, as head and embedding take its place (arXiv:2407.21783, section 3.3.2).
pub(crate) fn deal(model: &Model, of_group: &[usize], layout: &Layout, micro_batches: u64) -> Vec<Stage> {
    let stages = u64::from(layout.pipeline);
    let chunks = stages * u64::from(layout.virtual_stages);
    let bounds = bounds(model.layer_count(), chunks);
    let stage_of = |index: u32| {
        let mut layers: Vec<(usize, f64)> = Vec::with_capacity(2);
        for chunk in (u64::from(index)..chunks).step_by(usize::try_from(stages).unwrap_or(usize::MAX)) {
            collect(model, of_group, bounds(chunk), &mut layers);
        }
        let has_head = index + 1 == layout.pipeline;
        Stage {
            index,
            layers,
            has_embedding: index == 0,
            has_head,
            further: if has_head { model.further_predictions } else { 0 },
            in_flight: in_flight(layout, index, micro_batches),
        }
    };
    (0..layout.pipeline).map(stage_of).collect()
}

/// First layer of a chunk, and the first behind it.
fn bounds(layers: u64, chunks: u64) -> impl Fn(u64) -> (u64, u64) {
    let size = layers.div_ceil(chunks);
    let missing = size * chunks - layers;
    // The last chunk lacks one first, then the first, then the last but one, and so on.
    let missing_front = missing / 2;
    let missing_back = missing - missing_front;
    let lacking_before = move |chunk: u64| chunk.min(missing_front) + chunk.saturating_sub(chunks - missing_back);
    move |chunk| (chunk * size - lacking_before(chunk), (chunk + 1) * size - lacking_before(chunk + 1))
}

/// Adds the model's layers from `first` to before `end`.
fn collect(model: &Model, of_group: &[usize], (first, end): (u64, u64), layers: &mut Vec<(usize, f64)>) {
    let mut start = 0;
    for (group, kind) in model.layers.iter().zip(of_group) {
        let stop = start + group.count;
        let shared = stop.min(end).saturating_sub(start.max(first));
        if shared > 0 {
            match layers.iter_mut().find(|(known, _)| known == kind) {
                Some((_, count)) => *count += real(shared),
                None => layers.push((*kind, real(shared))),
            }
        }
        start = stop;
    }
}

/// Micro-batches that a stage's layers hold at once: min(m, p - i) of one forward, one backward (Narayanan 2021, arXiv:2104.04473, section
/// 2.2); interleaved, the chunks of 2 (p - i - 1) + (v - 1) p + 1 micro-batches' parts, of which a micro-batch has v (the same, section
/// 2.2; its first stage has p (1 + (p - 1) / (p v)) as Korthikanti 2022, arXiv:2205.05198, section 4.2.3 says).
fn in_flight(layout: &Layout, index: u32, micro_batches: u64) -> f64 {
    let (pipeline, chunks) = (f64::from(layout.pipeline), f64::from(layout.virtual_stages));
    let behind = f64::from(layout.pipeline - 1 - index);
    let filled = if layout.virtual_stages == 1 {
        behind + 1.0
    } else {
        (2.0 * behind + (chunks - 1.0) * pipeline + 1.0) / chunks
    };
    filled.min(real(micro_batches))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{deepseek_v2, llama_70b};

    fn counts(model: &Model, layout: &str) -> Vec<f64> {
        let layout = Layout::parse(layout).unwrap();
        let stages = deal(model, &kinds(model).1, &layout, 1024);
        stages.iter().map(|stage| stage.layers.iter().map(|(_, count)| count).sum()).collect()
    }

    #[test]
    fn layers_are_dealt_evenly_and_the_ends_lack_what_is_missing() {
        assert_eq!(counts(&llama_70b(80), "pp=4"), [20.0; 4]);
        assert_eq!(counts(&llama_70b(80), "pp=4,vp=5"), [20.0; 4]);
        let uneven = counts(&llama_70b(126), "pp=16");
        assert_eq!((uneven[0], uneven[1], uneven[15], uneven.iter().sum::<f64>()), (7.0, 8.0, 7.0, 126.0));
        assert_eq!(counts(&llama_70b(61), "pp=16").iter().sum::<f64>(), 61.0);
    }

    #[test]
    fn a_dense_first_layer_is_on_the_first_stage() {
        let model = deepseek_v2(4);
        let layout = Layout::parse("pp=2,ep=4,dp=4").unwrap();
        let stages = deal(&model, &kinds(&model).1, &layout, 8);
        assert_eq!(stages[0].layers.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1.0, 1.0]);
        assert_eq!(stages[1].layers.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [2.0]);
        assert!(stages[0].has_embedding && !stages[0].has_head && stages[1].has_head);
    }

    #[test]
    fn the_first_stage_holds_most_micro_batches() {
        let of = |layout: &str, index, micro_batches| in_flight(&Layout::parse(layout).unwrap(), index, micro_batches);
        assert_eq!((of("pp=4", 0, 64), of("pp=4", 3, 64), of("pp=4", 0, 2)), (4.0, 1.0, 2.0));
        // p (1 + (p - 1) / (p v)) = 8 (1 + 7 / 40).
        assert!((of("pp=8,vp=5", 0, 64) - 9.4).abs() < 1e-12);
    }
}
