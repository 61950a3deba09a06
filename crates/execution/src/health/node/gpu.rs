//! GPUs as NVIDIA's driver shows them (NVML): their number, and each one's memory, ECC errors, row remaps,
//! throttling, temperature, NVLinks and PCIe link. Values that a driver or a GPU doesn't report aren't
//! counted against it.
//!
//! telemetry's `collectors/gpu/` asks the driver and listens to it; `judge.rs` decides.

mod judge;

use gangline_telemetry::collectors::gpu::{Driver, GpuError};

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};

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
        Ok(states) => judge::all(&states, expected),
        Err(error @ GpuError::NoDriver) => vec![absent(error.to_string())],
        Err(error) => vec![broken("", &error)],
    }
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
