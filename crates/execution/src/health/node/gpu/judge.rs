//! Judges GPUs' readings. Row remaps, ECC and their remedies: NVIDIA GPU Memory Error Management; reasons of
//! throttling: NVML's reference, "Clocks Event Reasons".

use gangline_base::Bytes;
use gangline_telemetry::collectors::gpu::{GpuError, State, ThrottleReasons};

use super::super::ExpectedAccelerators;
use super::broken;
use crate::health::{Finding, Reason, Verdict};
use crate::inventory::short_kind;

/// Memory in use before a run above which it isn't only the driver's own.
const MEMORY_USED_MAX: Bytes = Bytes(2 << 30);
/// Minimum distance to the slowdown temperature, in degrees.
const TEMPERATURE_ROOM: u32 = 3;
/// Tolerance for a GPU that reports slightly less memory than its product's nominal size.
const MEMORY_TOLERANCE: f64 = 0.95;

/// Judges all GPUs of a machine; `is_of_a_job` tells which processes belong to attempts of jobs.
pub(super) fn all(
    read: &[(u32, Result<State, GpuError>)],
    expected: Option<&ExpectedAccelerators>,
    is_of_a_job: &dyn Fn(u32) -> bool,
) -> Vec<Finding> {
    let known: Vec<&State> = read.iter().filter_map(|(_, reading)| reading.as_ref().ok()).collect();
    let mut findings = vec![count(&known, read.len(), expected)];
    findings.extend(read.iter().filter_map(|(index, reading)| Some(broken(&gpu(*index), reading.as_ref().err()?))));
    let links_most = known.iter().filter_map(|reading| reading.links).map(|(up, _)| up).max().unwrap_or(0);
    for reading in known {
        findings
            .extend([memory_errors(reading), throttling(reading), busy(reading, is_of_a_job)].into_iter().flatten());
        findings.extend([links(reading, links_most), lanes(reading), hot(reading)].into_iter().flatten());
    }
    findings
}

fn gpu(index: u32) -> String {
    format!("gpu {index}")
}

/// Compares number, kind and memory of the GPUs with the expected ones. If they match, the finding lists what
/// is there.
fn count(known: &[&State], seen: usize, expected: Option<&ExpectedAccelerators>) -> Finding {
    let name = known.first().map_or("GPU that doesn't answer", |reading| &reading.name);
    let least = known.iter().map(|reading| reading.memory).min().unwrap_or_default();
    let finding = Finding::fine("", format!("{seen} x {name}, {least} each")).figure("gpus", seen as f64);
    let Some(expected) = expected else {
        let is_mixed = known
            .iter()
            .any(|reading| reading.name != name || (reading.memory.0 as f64) * MEMORY_TOLERANCE > least.0 as f64);
        let reason = Reason {
            expected: "all alike",
            why: "the slowest and smallest GPU sets the pace and the batch of all",
            todo: "find out which differ (nvidia-smi -L), and give them to different nodes or jobs",
        };
        return finding.judged(is_mixed, Verdict::Warning, reason);
    };
    let wanted = usize::try_from(expected.count).unwrap_or(usize::MAX);
    let is_small = expected.memory.is_some_and(|memory| (least.0 as f64) < memory.0 as f64 * MEMORY_TOLERANCE);
    let is_right =
        known.iter().filter(|reading| short_kind(&reading.name).eq_ignore_ascii_case(&expected.kind)).count() >= wanted;
    let memory = expected.memory.map(|memory| format!(", {memory} each")).unwrap_or_default();
    let reason = Reason {
        expected: &format!("{} x {}{memory}", expected.count, expected.kind),
        why: "a rank without its GPU fails at its start, and a smaller one runs out of memory",
        todo: "look for NVRM lines in dmesg (a GPU that fell off the bus is XID 79); reseat or replace it, or correct the node's description",
    };
    finding.judged(!is_right || is_small, Verdict::Failed, reason)
}

fn memory_errors(reading: &State) -> Option<Finding> {
    let finding = |measured: String| Finding::fine(gpu(reading.index), measured);
    if reading.has_remap_failed == Some(true) {
        let reason = Reason {
            expected: "none",
            why: "the memory has no spare row left for one that is broken",
            todo: "drain the node and replace the GPU",
        };
        return Some(finding("a row of its memory couldn't be remapped".to_owned()).wrong(Verdict::Failed, reason));
    }
    if reading.is_remap_pending == Some(true) {
        let reason = Reason {
            expected: "none",
            why: "a row of memory that is known to be broken is replaced only at a reset",
            todo: "reset the GPU before the next run: nvidia-smi --gpu-reset, or reboot",
        };
        return Some(finding("a row remap or page retirement is pending".to_owned()).wrong(Verdict::Failed, reason));
    }
    let count = reading.uncorrectable.filter(|count| *count > 0)?;
    let rows = reading.rows_remapped.map(|rows| format!(", {rows} row(s) remapped")).unwrap_or_default();
    let ever = reading.uncorrectable_ever.map(|ever| format!(" ({ever} in its life{rows})")).unwrap_or_default();
    let reason = Reason {
        expected: "0",
        why: "each one kills the process that touches it, and they tend to come again",
        todo: "run the vendor's memory test (dcgmi diag -r 3); if the count grows, replace the GPU",
    };
    let finding = finding(format!("{count} uncorrectable ECC error(s) since the driver was loaded{ever}"));
    Some(finding.figure("ecc_uncorrectable", count as f64).wrong(Verdict::Warning, reason))
}

/// Reasons for slow clocks, and their remedies. A power cap isn't among them: it is normal for a GPU under
/// load.
const SLOWDOWNS: [(ThrottleReasons, &str, &str); 6] = [
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "it is too hot (hardware)", "check fans, coolant and airflow"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "it or its memory is too hot (driver)", "check fans, coolant and airflow"),
    (
        ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
        "the power supply asks for less",
        "check power supplies and the rack's limit",
    ),
    (ThrottleReasons::HW_SLOWDOWN, "the hardware protects itself", "check temperature and power"),
    (ThrottleReasons::SYNC_BOOST, "another GPU of its group is slowed", "look at the others"),
    (
        ThrottleReasons::APPLICATIONS_CLOCKS_SETTING,
        "somebody set lower clocks",
        "nvidia-smi --reset-applications-clocks",
    ),
];

fn throttling(reading: &State) -> Option<Finding> {
    let reasons = reading.throttled?;
    let (_, because, todo) = SLOWDOWNS.iter().find(|(reason, ..)| reasons.contains(*reason))?;
    let reason = Reason {
        expected: "full clocks",
        why: "hardware slowdowns halve the clock or worse, and all other GPUs of the gang wait for this one",
        todo,
    };
    Some(Finding::fine(gpu(reading.index), format!("clocks are held down: {because}")).wrong(Verdict::Warning, reason))
}

/// Finds memory in use, unless every process on the GPU belongs to a job: a job may use the GPU that it was given.
fn busy(reading: &State, is_of_a_job: &dyn Fn(u32) -> bool) -> Option<Finding> {
    let processes = reading.processes.as_deref().unwrap_or_default();
    let others = processes.iter().filter(|process| !is_of_a_job(**process)).count();
    if reading.memory_used <= MEMORY_USED_MAX || (others == 0 && !processes.is_empty()) {
        return None;
    }
    let by = reading.processes.as_ref().map(|_| format!(" by {others} process(es)")).unwrap_or_default();
    let measured = format!("{} of its memory are in use{by}", reading.memory_used);
    let reason = Reason {
        expected: "an empty GPU",
        why: "a run here gets less memory and has to share the GPU",
        todo: "if no job should run here, end what is left of an earlier one: nvidia-smi, fuser -v /dev/nvidia*",
    };
    Some(Finding::fine(gpu(reading.index), measured).wrong(Verdict::Warning, reason))
}

/// Compares the number of active links: all GPUs of a machine should have equally many.
fn links(reading: &State, most: u32) -> Option<Finding> {
    let (up, _) = reading.links.filter(|(up, _)| *up < most)?;
    let reason = Reason {
        expected: &format!("{most}, as on the others"),
        why: "collectives within the node run at the pace of the GPU with the fewest links",
        todo: "nvidia-smi nvlink -s and -e show which; reset the GPUs, restart the fabric manager, then look at cables and boards",
    };
    Some(Finding::fine(gpu(reading.index), format!("{up} NVLinks are up")).wrong(Verdict::Failed, reason))
}

fn lanes(reading: &State) -> Option<Finding> {
    let (now, possible) = reading.lanes.filter(|(now, possible)| now < possible)?;
    let reason = Reason {
        expected: &format!("x{possible}"),
        why: "checkpoints, data and traffic to network cards go over PCIe",
        todo: "reseat the card or its riser; look for AER lines in dmesg",
    };
    Some(Finding::fine(gpu(reading.index), format!("PCIe runs on x{now} lanes")).wrong(Verdict::Warning, reason))
}

fn hot(reading: &State) -> Option<Finding> {
    let (now, slowdown) = reading.temperature.zip(reading.temperature_slowdown)?;
    if now + TEMPERATURE_ROOM <= slowdown {
        return None;
    }
    let reason = Reason {
        expected: &format!("under {slowdown} °C"),
        why: "from there on the hardware halves its clock",
        todo: "check fans, coolant and airflow",
    };
    Some(Finding::fine(gpu(reading.index), format!("{now} °C")).wrong(Verdict::Warning, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn good(index: u32) -> State {
        State {
            index,
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            memory: Bytes(80 * GIB),
            memory_used: Bytes(GIB / 2),
            uncorrectable: Some(0),
            is_remap_pending: Some(false),
            has_remap_failed: Some(false),
            throttled: Some(ThrottleReasons::GPU_IDLE | ThrottleReasons::SW_POWER_CAP),
            temperature: Some(40),
            temperature_slowdown: Some(87),
            links: Some((18, 18)),
            lanes: Some((16, 16)),
            ..State::default()
        }
    }

    fn judged(readings: Vec<State>, count: u32) -> Vec<Finding> {
        let expected = ExpectedAccelerators { kind: "H100".to_owned(), count, memory: Some(Bytes(80 * GIB)) };
        let read: Vec<_> = readings.into_iter().map(|reading| (reading.index, Ok(reading))).collect();
        all(&read, Some(&expected), &|process| process < 100)
    }

    #[test]
    fn eight_good_ones_make_one_line() {
        let found = judged((0..8).map(good).collect(), 8);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].measured, "8 x NVIDIA H100 80GB HBM3, 80.0 GiB each");
        assert_eq!(found[0].verdict, Verdict::Fine);
    }

    #[test]
    fn each_trouble_is_found_on_its_gpu() {
        let check = |spoil: fn(&mut State), verdict: Verdict, said: &str| {
            let mut readings: Vec<State> = (0..2).map(good).collect();
            spoil(&mut readings[1]);
            let found = judged(readings, 2);
            let [_, trouble] = &found[..] else { panic!("{said}: {found:?}") };
            assert_eq!((trouble.subject.as_str(), trouble.verdict), ("gpu 1", verdict), "{trouble:?}");
            assert!(trouble.measured.contains(said) && !trouble.todo.is_empty(), "{trouble:?}");
        };
        check(|gpu| gpu.has_remap_failed = Some(true), Verdict::Failed, "couldn't be remapped");
        check(|gpu| gpu.is_remap_pending = Some(true), Verdict::Failed, "pending");
        check(|gpu| gpu.uncorrectable = Some(3), Verdict::Warning, "3 uncorrectable ECC");
        check(|gpu| gpu.throttled = Some(ThrottleReasons::HW_THERMAL_SLOWDOWN), Verdict::Warning, "too hot");
        check(|gpu| gpu.memory_used = Bytes(20 * GIB), Verdict::Warning, "20.0 GiB of its memory");
        check(|gpu| gpu.links = Some((17, 18)), Verdict::Failed, "17 NVLinks");
        check(|gpu| gpu.lanes = Some((8, 16)), Verdict::Warning, "x8");
        check(|gpu| gpu.temperature = Some(86), Verdict::Warning, "86 °C");
    }

    #[test]
    fn memory_that_only_jobs_use_is_no_finding() {
        let used_by = |processes: Option<Vec<u32>>| {
            judged(vec![State { memory_used: Bytes(20 * GIB), processes, ..good(0) }], 1)
                .get(1)
                .map(|found| found.measured.clone())
        };
        assert_eq!(used_by(Some(vec![7, 8])), None, "processes below 100 are of jobs here");
        assert_eq!(used_by(Some(vec![7, 300])).as_deref(), Some("20.0 GiB of its memory are in use by 1 process(es)"));
        assert_eq!(used_by(Some(vec![])).as_deref(), Some("20.0 GiB of its memory are in use by 0 process(es)"));
        assert_eq!(used_by(None).as_deref(), Some("20.0 GiB of its memory are in use"));
    }

    #[test]
    fn too_few_too_small_or_other_ones_are_a_fault_of_the_node() {
        assert_eq!(judged((0..7).map(good).collect(), 8)[0].verdict, Verdict::Failed);
        let small = |index| State { memory: Bytes(40 * GIB), ..good(index) };
        assert_eq!(judged((0..8).map(small).collect(), 8)[0].verdict, Verdict::Failed);
        let other = |index| State { name: "NVIDIA A100-SXM4-80GB".to_owned(), ..good(index) };
        assert_eq!(judged((0..8).map(other).collect(), 8)[0].verdict, Verdict::Failed);
    }

    #[test]
    fn a_lost_gpu_is_named() {
        let found =
            all(&[(0, Ok(good(0))), (1, Err(GpuError::Failed { said: "GPU is lost".to_owned() }))], None, &|_| false);
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].subject.as_str(), found[1].verdict), ("gpu 1", Verdict::Failed), "{found:?}");
    }
}
