//! GPUs as NVIDIA's driver shows them (NVML): their number, and each one's memory, ECC errors, row remaps,
//! throttling, temperature, NVLinks and PCIe link. Values that a driver or a GPU doesn't report aren't
//! counted against it.
//!
//! telemetry's `collectors/gpu/` asks the driver and listens to it; `judge.rs` decides.

mod judge;

use gangline_telemetry::collectors::gpu::{Driver, GpuError};

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};
use crate::process::{ATTEMPT_FOLDER_VARIABLE, environment};

pub(super) fn check(expectations: &Expectations) -> Vec<Finding> {
    let expected = expectations.accelerators.as_ref().filter(|expected| expected.kind != "cpu");
    let absent = |why: String| {
        match expected {
        None => Finding::not_here(why),
        Some(expected) => Finding::fine("", why).wrong(
            Verdict::Failed,
            Reason {
                expected: &format!("{} x {}", expected.count, expected.kind),
                why: "ranks would find no GPU",
                todo: "load NVIDIA's driver (nvidia-smi, lsmod, dmesg say why it isn't), or pass the GPUs into this container",
            },
        ),
    }
    };
    match Driver::open().and_then(|driver| driver.states()) {
        Ok(states) if states.is_empty() => vec![absent("the driver knows no GPU".to_owned())],
        Ok(states) => judge::all(&states, expected, &is_of_a_job),
        Err(error @ GpuError::NoDriver) => vec![absent(error.to_string())],
        Err(error) => vec![broken("", &error)],
    }
}

/// Reports whether a process belongs to an attempt of a job: ranks, and the processes that they start, inherit a variable.
/// A process of another user's, whose environment can't be read, is taken for one that belongs to no job.
fn is_of_a_job(process: u32) -> bool {
    let marker = format!("{ATTEMPT_FOLDER_VARIABLE}=");
    let environment = environment(process).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(marker.as_bytes()))
}

/// Passes each event that the driver reports of its GPUs to `say`, as a line like those of the kernel's log,
/// until `say` fails. Ends at once where there is no driver.
///
/// # Errors
/// The driver's error if its events can't be received.
pub fn watch(say: impl FnMut(&str) -> std::io::Result<()>) -> Result<(), GpuError> {
    Driver::open()?.watch(say)
}

/// Creates a finding for a driver error where none is expected.
fn broken(subject: &str, error: &GpuError) -> Finding {
    Finding::fine(subject, error.to_string()).wrong(
        Verdict::Failed,
        Reason {
            expected: "an answer",
            why: "a GPU that doesn't answer its driver doesn't compute either",
            todo: "look for NVRM lines in dmesg; reset the GPU (nvidia-smi --gpu-reset) or reboot the node; if it comes back, replace it",
        },
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_a_process_with_the_variable_of_an_attempt_is_of_a_job() {
        let is_of_a_job = |folder: Option<&str>| {
            let mut sleep = Command::new("sleep");
            sleep.arg("60").env_remove(ATTEMPT_FOLDER_VARIABLE).env(format!("OF_{ATTEMPT_FOLDER_VARIABLE}"), "/x");
            let mut child =
                sleep.envs(folder.map(|folder| (ATTEMPT_FOLDER_VARIABLE, folder))).spawn().expect("sleep starts");
            // Before its `execve` the child shows this process's environment, and an empty one in the middle of it.
            let program = |process: u32| std::fs::read_link(format!("/proc/{process}/exe")).expect("it runs");
            let has_none = |process: u32| environment(process).is_none_or(|environment| environment.is_empty());
            while program(child.id()) == program(std::process::id()) || has_none(child.id()) {
                std::thread::yield_now();
            }
            let found = super::is_of_a_job(child.id());
            child.kill().and_then(|()| child.wait()).expect("sleep ends");
            found
        };
        assert!(is_of_a_job(Some("/data/attempts/1")));
        assert!(!is_of_a_job(None));
        assert!(!super::is_of_a_job(u32::MAX), "there is no such process");
    }
}
