//! What the product booked, held against what it says that it had given away.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::moment;

/// `show` has a job's last fifty attempts.
const ATTEMPTS_SHOWN: usize = 50;

/// What a job held.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) job: String,
    /// Attempts that have ended.
    pub(super) attempts: Vec<Attempt>,
    /// Device time in nanoseconds, as booked.
    pub(super) booked: u64,
}

/// One allocation.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) from: SystemTime,
    pub(super) to: SystemTime,
    /// Nodes and their devices.
    devices: Vec<(String, u64)>,
}

impl Held {
    /// Of a job as `show` has it; what can't be read isn't held.
    pub(super) fn read(id: &str, job: &Value) -> Held {
        let attempts = job["attempts"].as_array().map_or(&[][..], Vec::as_slice);
        let attempts = attempts.iter().filter_map(Attempt::read).collect();
        Held { job: id.to_owned(), attempts, booked: job["usage"]["gpu_nanoseconds"].as_u64().unwrap_or(0) }
    }
}

impl Attempt {
    fn read(attempt: &Value) -> Option<Attempt> {
        let time = |name: &str| moment::parse(attempt[name].as_str()?).ok();
        let mut devices = Vec::new();
        for share in attempt["shares"].as_array()? {
            let node = share["node"].as_str()?;
            devices.extend(
                share["devices"].as_array()?.iter().filter_map(|device| Some((node.to_owned(), device.as_u64()?))),
            );
        }
        let number = u32::try_from(attempt["number"].as_u64()?).ok()?;
        Some(Attempt { number, from: time("placed_at")?, to: time("ended_at")?, devices })
    }

    fn nanos(&self) -> u128 {
        let devices = u128::try_from(self.devices.len()).unwrap_or(0);
        self.to.duration_since(self.from).unwrap_or(Duration::ZERO).as_nanos() * devices
    }
}

/// What is wrong with an ended job's books: the buckets sum to the total, and the total is what was held, to the nanosecond.
pub(super) fn misbooked(held: &Held, job: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let buckets = job["usage"]["buckets"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |name: &str| buckets.iter().map(|bucket| bucket[name].as_i64().map_or(0, i128::from)).sum::<i128>();
    let nanos = sum("gpu_nanoseconds");
    if nanos != i128::from(held.booked) {
        wrong.push(format!("its buckets sum to {nanos} ns and the total is {}", held.booked));
    }
    let cost = sum("cost_nano_dollars");
    if job["usage"]["cost_nano_dollars"].as_i64().map(i128::from) != Some(cost) {
        wrong.push(format!("its costs sum to {cost} and the cost is {}", job["usage"]["cost_nano_dollars"]));
    }
    let shown = job["attempts"].as_array().map_or(0, Vec::len);
    let total: u128 = held.attempts.iter().map(Attempt::nanos).sum();
    if shown != held.attempts.len() {
        wrong.push(format!("it has ended and {} of its attempts have not", shown - held.attempts.len()));
    } else if shown < ATTEMPTS_SHOWN && total != u128::from(held.booked) {
        wrong.push(format!("it held {total} device-ns and {} are booked", held.booked));
    }
    wrong
}

/// Devices that two attempts had at the same time.
pub(super) fn shared_devices(held: &[Held]) -> Vec<String> {
    let mut turns: Vec<(&str, u64, &Attempt, &str)> = Vec::new();
    for job in held.iter() {
        for attempt in &job.attempts {
            turns.extend(
                attempt.devices.iter().map(|(node, device)| (node.as_str(), *device, attempt, job.job.as_str())),
            );
        }
    }
    turns.sort_by_key(|(node, device, attempt, _)| (*node, *device, attempt.from, attempt.to));
    let overlap = |pair: &[(&str, u64, &Attempt, &str)]| {
        let ((node, device, first, job), (other_node, other_device, second, other)) = (pair[0], pair[1]);
        let is_shared = (node, device) == (other_node, other_device) && second.from < first.to;
        let (number, other_number) = (first.number, second.number);
        is_shared
            .then(|| format!("{job} attempt {number} and {other} attempt {other_number} both had {node}[{device}]"))
    };
    turns.windows(2).filter_map(overlap).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(booked: u64, from: &str, to: &str) -> Value {
        let time = |second: &str| format!("2026-11-22T18:38:{second}Z");
        json!({
            "attempts": [{"number": 1, "placed_at": time(from), "ended_at": time(to), "shares": [{"node": "a", "devices": [0, 1]}]}],
            "usage": {"gpu_nanoseconds": booked, "cost_nano_dollars": 3, "buckets": [
                {"gpu_nanoseconds": booked - 5, "cost_nano_dollars": 1}, {"gpu_nanoseconds": 5, "cost_nano_dollars": 2}]},
        })
    }

    #[test]
    fn a_job_is_booked_exactly_or_it_shows() {
        let wrong = |booked| {
            let job = job(booked, "01", "02.5");
            misbooked(&Held::read("job-1", &job), &job)
        };
        assert_eq!(wrong(3_000_000_000), Vec::<String>::new());
        assert_eq!(wrong(3_000_000_001).len(), 1);
    }

    #[test]
    fn devices_that_two_jobs_had_at_once_show() {
        let held = |id: &str, from: &str, to: &str| Held::read(id, &job(10, from, to));
        assert!(shared_devices(&[held("job-1", "01", "02"), held("job-2", "02", "03")]).is_empty());
        assert_eq!(shared_devices(&[held("job-1", "01", "02.5"), held("job-2", "02", "03")]).len(), 2);
    }
}
