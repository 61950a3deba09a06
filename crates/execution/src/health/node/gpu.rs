//! GPUs as NVIDIA's driver shows them (NVML): their number, and each one's memory, ECC errors, row remaps,
//! throttling, temperature, NVLinks and PCIe link. Values that a driver or a GPU doesn't report aren't
//! counted against it.
//!
//! `reading.rs` queries the driver, `judge.rs` decides; `events.rs` listens to it.

mod events;
mod judge;
mod reading;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

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
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded) => {
            return vec![absent("no NVIDIA driver".to_owned())];
        }
        Err(error) => return vec![broken("", &error)],
    };
    match reading::of_all(&nvml) {
        Ok(read) if read.is_empty() => vec![absent("the driver knows no GPU".to_owned())],
        Ok(read) => judge::all(&read, expected),
        Err(error) => vec![broken("", &error)],
    }
}

/// Passes each event that the driver reports of its GPUs to `say`, as a line like those of the kernel's log,
/// until `say` fails. Ends at once where there is no driver.
///
/// # Errors
/// The driver's error if its events can't be received.
pub fn watch(say: impl FnMut(&str) -> std::io::Result<()>) -> Result<(), String> {
    let watched = Nvml::init().and_then(|nvml| events::watch(&nvml, say));
    watched.map_err(|error| format!("the driver says: {error}"))
}

/// Creates a finding for a driver error where none is expected.
fn broken(subject: &str, error: &NvmlError) -> Finding {
    Finding::fine(subject, format!("the driver says: {error}")).wrong(
        Verdict::Failed,
        Reason {
            expected: "an answer",
            why: "a GPU that doesn't answer its driver doesn't compute either",
            todo: "look for NVRM lines in dmesg; reset the GPU (nvidia-smi --gpu-reset) or reboot the node; if it comes back, replace it",
        },
    )
}
