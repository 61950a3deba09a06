//! The API's view of queues: their rules, their usage, and their jobs.

use std::collections::BTreeMap;

use gangline_api as api;
use gangline_base::{AcceleratorKind, GpuSeconds, Timestamp};
use gangline_orchestration::QueueStanding;

use super::actor::Actor;

impl Actor {
    pub(super) fn queue_list(&self, now: Timestamp) -> api::QueueList {
        let mut queues: BTreeMap<String, api::Queue> = BTreeMap::new();
        for standing in self.engine.queues(now) {
            queues.insert(standing.spec.name.to_string(), configured(&standing));
        }
        let ordered = self.engine.waiting().into_iter().filter_map(|id| self.engine.job(id));
        let others = self.engine.jobs().filter(|job| job.attempt().is_some() || job.is_held_back());
        for job in ordered.chain(others) {
            let name = job.spec.queue.to_string();
            let queue = queues.entry(name.clone()).or_insert_with(|| unconfigured(name));
            let devices = job.spec.gang.devices();
            if job.attempt().is_some() {
                queue.running.push(job.id.to_string());
                queue.accelerators_held += devices;
            } else {
                queue.waiting.push(job.id.to_string());
                queue.accelerators_wanted += if job.is_held_back() { 0 } else { devices };
            }
        }
        let configuration = self.engine.configuration();
        for (alias, queue) in &configuration.aliases {
            if let Some(queue) = queues.get_mut(queue.as_str()) {
                queue.aliases.push(alias.clone());
            }
        }
        let default = configuration.default_queue.as_ref().map(ToString::to_string);
        api::QueueList { queues: queues.into_values().collect(), default }
    }
}

fn configured(QueueStanding { spec, share, accelerators, hours }: &QueueStanding<'_>) -> api::Queue {
    let limit = |(kind, _): (&AcceleratorKind, _)| Some((kind.to_string(), spec.limit(kind)?));
    api::Queue {
        parent: spec.parent.as_ref().map(ToString::to_string),
        weight: Some(spec.weight.get()),
        quota: spec.quota.iter().map(|(kind, count)| (kind.to_string(), *count)).collect(),
        limit: spec.borrowing_limit.iter().filter_map(limit).collect(),
        gpu_hours: hours.map(|(quota, used, until)| api::GpuHours {
            gpu_seconds_used: whole_seconds(used),
            gpu_seconds_limit: whole_seconds(quota.limit),
            per: quota.per.name().to_owned(),
            until: api::Time(until),
        }),
        share: Some(*share),
        entitled: accelerators.iter().map(|(kind, (_, entitled))| (kind.to_string(), *entitled)).collect(),
        held: accelerators.iter().map(|(kind, (held, _))| (kind.to_string(), *held)).collect(),
        ..unconfigured(spec.name.to_string())
    }
}

/// Returns whole GPU-seconds, rounded down.
pub(super) fn whole_seconds(time: GpuSeconds) -> u64 {
    u64::try_from(time.nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}

fn unconfigured(name: String) -> api::Queue {
    api::Queue {
        name,
        aliases: Vec::new(),
        parent: None,
        weight: None,
        quota: BTreeMap::new(),
        limit: BTreeMap::new(),
        gpu_hours: None,
        share: None,
        entitled: BTreeMap::new(),
        held: BTreeMap::new(),
        waiting: Vec::new(),
        running: Vec::new(),
        accelerators_held: 0,
        accelerators_wanted: 0,
    }
}
