//! The pipeline: its slowest stage, its bubble, and what stages send each other.

use super::collective;
use super::constants::Constant;
use super::situation::Situation;
use crate::units::{Seconds, Volume, real};

/// Bytes of an element sent.
const HALF: f64 = 2.0;

/// A step's compute by stages.
pub(super) struct Stages {
    /// What the slowest stage takes for a micro-batch.
    pub(super) slowest: Seconds,
    /// What a stage takes in the mean, without the head.
    pub(super) mean: Seconds,
}

/// Layers lie evenly, ceil(L / p) to a stage; what is missing is missing on the last, which has the head too.
pub(super) fn stages(situation: &Situation, layers: f64, all: Seconds, head: Seconds) -> Stages {
    let each = all / layers.max(1.0);
    let most = (layers / situation.pipeline).ceil();
    let last = (layers - (situation.pipeline - 1.0) * most).max(0.0);
    Stages { slowest: (each * most).max(each * last + head), mean: all / situation.pipeline }
}

/// Time in which stages wait for the first and behind the last micro-batch: (p - 1) / v stages (Narayanan 2021, arXiv:2104.04473).
pub(super) fn bubble(situation: &Situation, stages: &Stages) -> Seconds {
    stages.mean * ((situation.pipeline - 1.0) / situation.chunks)
}

/// Exposed transfers of a micro-batch between stages: 2 s b h bytes, cut with the sequence, each way for each chunk.
pub(super) fn transfers(situation: &Situation) -> Seconds {
    if situation.pipeline <= 1.0 {
        return Seconds::ZERO;
    }
    let hidden = real(situation.workload.model.hidden);
    let message = Volume::new(HALF * situation.tokens * hidden / situation.sequence_cut);
    let distance = situation.tensor * situation.context * situation.data;
    let one = collective::send(situation, distance, message);
    let ways = if situation.passes.is_trained { 2.0 } else { 1.0 };
    one * (ways * situation.chunks * (1.0 - situation.constant(Constant::PipelineOverlap)))
}
