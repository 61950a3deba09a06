//! The measured time of a step: as published, or from tokens a second, or from a rate of operations whose definition is named and exact.

use gangline_planning::units::{Seconds, real};
use gangline_planning::workload::Workload;

use super::table::Row;

/// Seconds of a step.
///
/// # Errors
/// When the row has no measurement that determines them.
pub(super) fn seconds(row: &Row, workload: &Workload, accelerators: u32) -> Result<Seconds, String> {
    if let Some(seconds) = row.number("step_time_s") {
        return Ok(Seconds::new(seconds));
    }
    let accelerators = f64::from(accelerators);
    if let Some(rate) = row.number("tok_s_gpu") {
        let tokens = real(workload.sequence * workload.global_batch);
        return Ok(Seconds::new(tokens / (rate * accelerators)));
    }
    let rate = row.number("tflops_gpu_reported").ok_or("no step time and no tokens a second")?;
    if !row.lower("tflops_kind").contains("hardware") {
        return Err("only operations a second, by a definition that doesn't determine the time".to_owned());
    }
    Ok(Seconds::new(hardware_operations(workload) / (accelerators * rate * 1e12)))
}

/// Operations of a step with full recompute as Megatron counts them: 96 B s L h^2 (1 + s / 6h + V / 16 L h) (Narayanan 2021,
/// arXiv:2104.04473, equation 3), for the GPT that it is stated for.
fn hardware_operations(workload: &Workload) -> f64 {
    let model = &workload.model;
    let (hidden, layers) = (real(model.hidden), real(model.layer_count()));
    let sequence = real(workload.sequence);
    let tokens = real(workload.global_batch) * sequence;
    let shape = 1.0 + sequence / (6.0 * hidden) + real(model.vocabulary) / (16.0 * layers * hidden);
    96.0 * tokens * layers * hidden * hidden * shape
}
