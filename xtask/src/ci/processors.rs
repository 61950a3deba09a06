//! How busy the machine's processors are: tells the parts of the gate that compute from those that wait.

/// The processors' time since the machine started, in ticks.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    busy: u64,
    all: u64,
}

impl Reading {
    /// None where there is no `/proc/stat`.
    pub(super) fn now() -> Option<Reading> {
        parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Returns the share of the time since then in which the processors were busy, all processes together.
    pub(super) fn busy_since(self, then: Reading) -> Option<f64> {
        let (busy, all) = (self.busy.checked_sub(then.busy)?, self.all.checked_sub(then.all)?);
        #[expect(clippy::cast_precision_loss, reason = "ticks of an hour are far below 2^52")]
        (all > 0).then(|| busy as f64 / all as f64)
    }
}

/// The first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal; guests' time, which
/// follows, is part of the first two.
fn parse(stat: &str) -> Option<Reading> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8).map(str::parse::<u64>);
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
    let all = numbers.iter().sum::<u64>();
    Some(Reading { busy: all.checked_sub(numbers.get(3)?.checked_add(*numbers.get(4)?)?)?, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_neither_idle_nor_spent_on_disks_is_busy() {
        let then = parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n").unwrap();
        let now = parse("cpu  160 0 60 820 60 0 0 0 60 0\n").unwrap();
        assert_eq!(now.busy_since(then), Some(0.7));
        assert_eq!(then.busy_since(now), None);
        assert!(parse("intr 1 2").is_none() && parse("").is_none());
    }
}
