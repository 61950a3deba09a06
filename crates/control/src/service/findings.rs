//! Faults that supervisors' checks find on their nodes.

use gangline_base::{JobId, NodeId, NodeName, Timestamp};
use gangline_execution::protocol::{NodeFinding, Report};
use gangline_orchestration::Event;
use tracing::warn;

use super::actor::Actor;
use super::batch::Batch;
use super::handle::Error;

impl Actor {
    /// Takes in a fault that the node's agent found. Running jobs go on, as after any finding.
    pub(super) fn agent_found(
        &mut self,
        now: Timestamp,
        name: &NodeName,
        finding: &NodeFinding,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let node = self.engine.node_id(name).ok_or_else(|| Error::NoNode(name.clone()))?;
        self.apply(now, Event::NodeFaulty { node }, batch)?;
        self.found.insert(node, format!("{}: {}", finding.place, finding.measured));
        Ok(())
    }

    /// Returns the findings of a report that the share's previous report didn't have.
    pub(super) fn new_findings(&self, (job, index): (JobId, usize), report: &Report) -> Vec<NodeFinding> {
        let attempt = self.records.get(&job).and_then(|record| record.last_attempt());
        let before = attempt.and_then(|attempt| attempt.shares.get(index)?.report.as_ref());
        let known = before.map_or(&[][..], |report| &report.findings);
        report.findings.iter().skip(known.len()).cloned().collect()
    }

    /// Marks a node as faulty, so that it takes no new jobs. Running jobs go on: the check may be wrong, or
    /// the fault may not affect them.
    pub(super) fn take_findings(
        &mut self,
        now: Timestamp,
        (job, node): (JobId, NodeId),
        findings: &[NodeFinding],
        batch: &mut Batch,
    ) {
        let Some(first) = findings.first() else { return };
        if let Err(refusal) = self.apply(now, Event::NodeFaulty { node }, batch) {
            warn!(%node, %refusal, "a finding could not be taken in");
            return;
        }
        let found = format!("{}: {}", first.place, first.measured);
        let text = format!("{} has a fault by its checks: {found}", self.node_name(node));
        self.found.insert(node, found);
        self.records.get_mut(&job).into_iter().for_each(|record| record.note(now, text.clone()));
        self.rows.jobs.insert(job);
    }
}
