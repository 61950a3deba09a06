//! What the engine remembers of run times and losses, and the spares that follow from these.

use std::time::Duration;

use gangline_base::{AcceleratorKind, DeviceLayout, Lane, Submitter};
use gangline_orchestration::{History, Kin, LossHistory, LossRecord, Sample, SpareRules, SpareSizing};

use super::{Examples, queue_name};

impl Examples {
    pub(super) fn layout(&mut self) -> DeviceLayout {
        let (pairs, sockets) = (vec![0, 0, 1, 1, 2, 2, 3, 3], vec![0, 0, 0, 0, 1, 1, 1, 1]);
        let tiers =
            self.maybe(|random| if random.below(2) == 0 { vec![sockets.clone()] } else { vec![pairs, sockets] });
        DeviceLayout::new(tiers.unwrap_or_default()).expect("nested")
    }

    pub(super) fn spare_rules(&mut self) -> SpareRules {
        let sizing = |random: &mut Self| SpareSizing { confidence_milli: random.number(), repair: random.duration() };
        SpareRules { nodes: self.amounts(), sizing: self.maybe(sizing) }
    }

    pub(super) fn losses(&mut self) -> LossHistory {
        let lane = Lane { accelerator: AcceleratorKind(self.text()), pool: self.pool() };
        let record = LossRecord { losses: self.number(), node_time: self.duration() };
        LossHistory { at: self.time(), lanes: [(lane, record)].into() }
    }

    pub(super) fn history(&mut self) -> (Kin, History) {
        let kin = Kin {
            queue: self.maybe(|_| queue_name()),
            submitter: self.maybe(|random| Submitter(random.text())),
            name: self.maybe(Self::text),
        };
        let ran = Duration::from_nanos(self.large());
        let sample = Sample { ran, of_limit: self.maybe(Self::number) };
        (kin, History { at: self.time(), samples: vec![sample; 2] })
    }
}
