//! How a scenario's transcript puts decisions and state into words.

use gangline_base::{AcceleratorKind, JobId, JobSpec, NodeId, Timestamp};
use gangline_orchestration::{
    Decision, DryRun, Job, JobState, Node, NodeStatus, QueueStanding, RequeueReason, Share, StopReason,
};

use super::command::Subject;
use super::stage::Stage;

impl Stage {
    /// A time as `1h02m03s`; with milliseconds if there are any.
    pub(super) fn time(&self, at: Timestamp) -> String {
        let millis = at.since(Timestamp::EPOCH).as_millis();
        let (hours, minutes, seconds) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1_000 % 60);
        let rest = if millis.is_multiple_of(1_000) { String::new() } else { format!(".{:03}", millis % 1_000) };
        match (hours, minutes) {
            (0, 0) => format!("{seconds}{rest}s"),
            (0, _) => format!("{minutes}m{seconds:02}{rest}s"),
            _ => format!("{hours}h{minutes:02}m{seconds:02}{rest}s"),
        }
    }

    fn name(&self, job: JobId) -> &str {
        self.names.get(&job).map_or("?", String::as_str)
    }

    pub(super) fn decision_line(&self, decision: &Decision) -> String {
        let (time, name) = (self.time(self.clock), self.name(decision.job()));
        match decision {
            Decision::Place { attempt, shares, reason, .. } => {
                let again = if attempt.0 > 1 { format!(" ({attempt})") } else { String::new() };
                format!("{time} place {name}{again} on {}: {reason}", self.shares(shares))
            }
            Decision::Claim { claim, reason, .. } => {
                let victims: Vec<&str> = claim.victims.iter().map(|victim| self.name(*victim)).collect();
                let nodes: Vec<&str> = claim.nodes.iter().map(|node| self.node_name(*node)).collect();
                format!("{time} claim {name} gets {} from {}: {reason}", nodes.join(" "), victims.join(" "))
            }
            Decision::Stop { reason, .. } => format!("{time} stop {name}: {}", self.stop_text(reason)),
            Decision::Requeue { not_before, reason, .. } => {
                let pause = if *not_before > self.clock {
                    format!(", not to start before {}", self.time(*not_before))
                } else {
                    String::new()
                };
                format!("{time} requeue {name}{pause}: {}", self.requeue_text(reason))
            }
            Decision::End { fate, .. } => format!("{time} end {name}: {fate}"),
        }
    }

    /// Why it stops, as the control plane shows it: by the node's name.
    fn stop_text(&self, reason: &StopReason) -> String {
        match reason {
            StopReason::NodeLeaves { node } => format!("{} is about to go; save first", self.node_name(*node)),
            _ => reason.to_string(),
        }
    }

    fn requeue_text(&self, reason: &RequeueReason) -> String {
        match reason {
            RequeueReason::NodeLeft { node } => format!("it left {}, which was about to go", self.node_name(*node)),
            _ => reason.to_string(),
        }
    }

    fn node_name(&self, node: NodeId) -> &str {
        self.engine.cluster().node(node).map_or("?", |node| node.spec.name.as_str())
    }

    fn shares(&self, shares: &[Share]) -> String {
        let text = |share: &Share| format!("{}[{}]", self.node_name(share.node), ranges(&share.devices));
        let texts: Vec<String> = shares.iter().map(text).collect();
        texts.join(" ")
    }

    pub(super) fn dry_run_lines(&self, spec: &JobSpec) -> Vec<String> {
        match self.engine.dry_run(self.clock, spec) {
            Err(refusal) => vec![format!("it would be refused: {refusal}")],
            Ok(DryRun::WouldStart { shares }) => vec![format!("it would start on {}", self.shares(&shares))],
            Ok(DryRun::WouldPreempt(why)) => vec![format!("it would preempt: {}", why.blocker)],
            Ok(DryRun::WouldWait(why)) => {
                vec![format!("it would wait behind {} of {} others: {}", why.ahead, why.waiting - 1, why.blocker)]
            }
        }
    }

    pub(super) fn explain_line(&self, name: &str) -> Result<String, String> {
        let job = self.job(name)?;
        Ok(match self.engine.explain(self.clock, job) {
            Some(why) => format!("{name} waits, {} of {} in line: {}", why.ahead + 1, why.waiting, why.blocker),
            None => format!("{name} isn't waiting"),
        })
    }

    pub(super) fn show_lines(&self, subject: &Subject) -> Result<Vec<String>, String> {
        match subject {
            Subject::Queue => Ok(self.queue_lines()),
            Subject::Queues => Ok(self.engine.queues(self.clock).iter().map(standing_line).collect()),
            Subject::Nodes => Ok(self.engine.cluster().nodes().map(|node| self.node_line(node)).collect()),
            Subject::Job(name) => self.job_line(name).map(|line| vec![line]),
        }
    }

    fn queue_lines(&self) -> Vec<String> {
        let lines: Vec<String> = self
            .engine
            .waiting()
            .into_iter()
            .filter_map(|id| self.engine.job(id))
            .enumerate()
            .map(|(index, job)| {
                let gang = &job.spec.gang;
                let (priority, name) = (job.spec.priority.value(), self.name(job.id));
                let wants = format!("{} x {} {}", gang.nodes, gang.accelerators_per_node, gang.accelerator);
                format!("{}. {name}: priority {priority}, wants {wants}", index + 1)
            })
            .collect();
        if lines.is_empty() { vec!["nobody waits".to_owned()] } else { lines }
    }

    fn node_line(&self, node: &Node) -> String {
        let status = match node.status {
            NodeStatus::Ready if self.engine.spare_nodes(self.clock).contains(&node.id) => "spare",
            NodeStatus::Ready => "ready",
            NodeStatus::Suspect => "suspect",
            NodeStatus::Draining => "draining",
            NodeStatus::Lost => "lost",
        };
        let held = self.engine.jobs().filter_map(|job| Some((job, job.attempt()?))).flat_map(|(job, attempt)| {
            let here = attempt.shares.iter().filter(|share| share.node == node.id);
            here.map(|share| format!(" {}[{}]", self.name(job.id), ranges(&share.devices)))
        });
        let held: String = held.collect();
        let free: Vec<u32> = node.free.iter().copied().collect();
        let free = if free.is_empty() { String::new() } else { format!(" free[{}]", ranges(&free)) };
        let capacity = &node.spec.capacity;
        let (name, has) = (&node.spec.name, format!("{} {}", capacity.accelerators, capacity.accelerator));
        let beside = format!("{} cpus and {} free", node.free_cpus, node.free_memory);
        let pool = &capacity.pool;
        let pool = if pool.is_default() { String::new() } else { format!(" for {pool}") };
        format!("{name} {status}{pool}, {has}:{held}{free}; {beside}")
    }

    fn job_line(&self, name: &str) -> Result<String, String> {
        let id = self.job(name)?;
        let Some(job) = self.engine.job(id) else {
            return Ok(self
                .fates
                .get(&id)
                .map_or(format!("{name} is gone"), |fate| format!("{name} has ended: {fate}")));
        };
        let state = match &job.state {
            JobState::Queued { since, .. } => format!("waits since {}", self.time(*since)),
            JobState::Allocated(attempt) => {
                let verb = if attempt.stop.is_some() {
                    "stops"
                } else if attempt.is_running() {
                    "runs"
                } else {
                    "starts"
                };
                let (number, since) = (attempt.number, self.time(attempt.placed_at));
                format!("{verb}, {number} since {since} on {}", self.shares(&attempt.shares))
            }
        };
        Ok(format!("{name} {state}; {}", counts(job)))
    }
}

fn counts(job: &Job) -> String {
    let checkpoint = job.checkpoint.map_or("none".to_owned(), |step| format!("step {step}"));
    let Job { attempts, faults, faults_without_progress, requeues, preemptions, .. } = job;
    let preempted = if *preemptions > 0 { format!("preempted {preemptions}, ") } else { String::new() };
    format!(
        "attempts {attempts}, faults {faults} ({faults_without_progress} without progress), requeues {requeues}, {preempted}checkpoint {checkpoint}"
    )
}

fn standing_line(queue: &QueueStanding<'_>) -> String {
    let of_kind = |(kind, (held, entitled)): (&AcceleratorKind, &(u32, u32))| {
        format!("holds {held} {kind} of the {entitled} it is entitled to")
    };
    let kinds: Vec<String> = queue.accelerators.iter().map(of_kind).collect();
    format!("{}: {}; share {:.3}", queue.spec.name, kinds.join(", "), queue.share)
}

/// Ascending numbers as `0-3,6`.
fn ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let text = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_shown_as_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
    }
}
