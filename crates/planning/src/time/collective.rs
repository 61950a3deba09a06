//! Collective communication: rings over the slowest link that a group crosses.
//!
//! With n members and S bytes, an all-gather or a reduce-scatter takes (n - 1) / n S / B and n - 1 steps, an all-reduce twice that, an
//! all-to-all (n - 1) / n S / B (<https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md>). Where a group has several members in a node, each brings its own
//! network interface, so that the ring enters and leaves the node at their sum (NCCL's channels).

use super::constants::Constant;
use super::situation::Situation;
use crate::units::{Bandwidth, Seconds, Volume};

/// Rate of a host link whose vendor doesn't say: 16 lanes of PCIe 3.
const HOST_LINK_LEAST: Bandwidth = Bandwidth::new(16e9);

/// A group of accelerators that communicate.
#[derive(Clone, Copy)]
pub(super) struct Group {
    members: f64,
    /// Rate at which the ring turns.
    rate: Bandwidth,
    /// Time of one turn without data.
    turn: Seconds,
}

impl Group {
    /// So many members, each `stride` accelerators from the last.
    pub(super) fn new(situation: &Situation, members: f64, stride: f64) -> Self {
        let reach = Reach::of(situation, members * stride);
        let step = Seconds::new(situation.constant(Constant::LinkLatency));
        if members * stride <= reach.domain {
            return Group { members, rate: reach.link, turn: step * (members - 1.0).max(0.0) };
        }
        let inside = (reach.domain / stride).clamp(1.0, members);
        let outside = members / inside;
        let hop = Seconds::new(situation.constant(Constant::FabricLatency)) + situation.cluster.fabric.latency;
        let turn = step * (inside - 1.0) + hop * (outside - 1.0).max(0.0);
        Group { members, rate: reach.link.min(reach.fabric * inside), turn }
    }

    /// Whether there is nobody to talk to.
    pub(super) fn is_alone(&self) -> bool {
        self.members <= 1.0
    }

    /// All-gather or reduce-scatter, where the whole is so large.
    pub(super) fn gather(&self, whole: Volume) -> Seconds {
        if self.is_alone() {
            return Seconds::ZERO;
        }
        whole * ((self.members - 1.0) / self.members) / self.rate + self.turn
    }

    /// All-reduce of so much.
    pub(super) fn reduce(&self, whole: Volume) -> Seconds {
        self.gather(whole) * 2.0
    }
}

/// Tokens that go to their experts, or back.
#[derive(Clone, Copy)]
pub(super) struct Dispatch {
    /// Ranks that share out the experts.
    pub(super) ranks: f64,
    /// Experts that a token goes to.
    pub(super) active: f64,
    /// Bytes of one copy of all of a rank's tokens.
    pub(super) tokens: Volume,
}

/// The all-to-all among experts' ranks. A token goes once to each rank that has some of its experts, and once over the fabric to each
/// other domain, where links spread it (DeepSeek-V3, arXiv:2412.19437, section 3.2.2); with k experts drawn among n places it goes to
/// n (1 - (1 - 1/n)^k) of them. Links and fabric work at once.
pub(super) fn exchange(situation: &Situation, dispatch: Dispatch) -> Seconds {
    let Dispatch { ranks, active, tokens } = dispatch;
    if ranks <= 1.0 {
        return Seconds::ZERO;
    }
    let reach = Reach::of(situation, ranks);
    let elsewhere = |places: f64| places * (1.0 - (1.0 - 1.0 / places).powf(active)) * (places - 1.0) / places;
    let within = tokens * elsewhere(ranks) / reach.link;
    if ranks <= reach.domain {
        return within + Seconds::new(situation.constant(Constant::LinkLatency)) * ranks.sqrt();
    }
    let between = tokens * elsewhere(ranks / reach.domain) / reach.fabric;
    within.max(between) + Seconds::new(situation.constant(Constant::FabricLatency)) + situation.cluster.fabric.latency
}

/// A message to a neighbour so many accelerators away.
pub(super) fn send(situation: &Situation, distance: f64, message: Volume) -> Seconds {
    let reach = Reach::of(situation, distance + 1.0);
    if distance < reach.domain {
        return message / reach.link + Seconds::new(situation.constant(Constant::LinkLatency));
    }
    let hop = Seconds::new(situation.constant(Constant::FabricLatency)) + situation.cluster.fabric.latency;
    message / reach.fabric + hop
}

/// How far links reach.
struct Reach {
    /// Accelerators that talk without the fabric.
    domain: f64,
    /// At what rate they do.
    link: Bandwidth,
    fabric: Bandwidth,
}

impl Reach {
    /// For a group that spans so many accelerators: a bridge between few is no use to a group of more, which goes over the host's links.
    fn of(situation: &Situation, span: f64) -> Self {
        let accelerator = &situation.cluster.accelerator;
        let node = f64::from(situation.cluster.per_node.max(1));
        let joined = f64::from(situation.cluster.linked());
        let is_linked = accelerator.link.get() > 0.0 && (joined >= node || span <= joined);
        let (domain, link) = if is_linked {
            (node.max(joined), accelerator.link * situation.constant(Constant::Link))
        } else {
            (node, accelerator.host_link.max(HOST_LINK_LEAST) * situation.constant(Constant::HostLink))
        };
        let fabric = situation.cluster.fabric.per_accelerator * situation.constant(Constant::Fabric);
        Reach { domain: domain.min(f64::from(situation.cluster.accelerators.max(1))), link, fabric }
    }
}
