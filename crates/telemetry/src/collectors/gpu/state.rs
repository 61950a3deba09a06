//! Each GPU's state, as checks of a node judge it. What NVML doesn't have of a GPU is absent.

use gangline_base::Bytes;
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;

/// Maximum number of NVLinks of a GPU that are examined.
const LINKS_MAX: u32 = 36;

/// The state of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Its index.
    pub index: u32,
    /// The product's name.
    pub name: String,
    /// Its memory.
    pub memory: Bytes,
    /// Memory in use.
    pub memory_used: Bytes,
    /// Ids of the processes that compute on it.
    pub processes: Option<Vec<u32>>,
    /// Uncorrectable ECC errors since the driver was loaded.
    pub uncorrectable: Option<u64>,
    /// Uncorrectable ECC errors in its lifetime.
    pub uncorrectable_ever: Option<u64>,
    /// Memory rows that were remapped after uncorrectable errors.
    pub rows_remapped: Option<u64>,
    /// Whether a row remap, or a page retirement, waits for a reset.
    pub is_remap_pending: Option<bool>,
    /// Whether a row remap has failed.
    pub has_remap_failed: Option<bool>,
    /// What holds its clocks down.
    pub throttled: Option<ThrottleReasons>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// Temperature at which the hardware slows itself down, in degrees Celsius.
    pub temperature_slowdown: Option<u32>,
    /// Number of active NVLinks, and of all its NVLinks.
    pub links: Option<(u32, u32)>,
    /// Number of PCIe lanes in use, and the maximum.
    pub lanes: Option<(u32, u32)>,
}

/// Reads one GPU. Every GPU reports its name and memory, so an error there fails the reading.
pub(super) fn of(index: u32, device: &Device<'_>) -> Result<State, NvmlError> {
    let memory = device.memory_info()?;
    let uncorrectable = |counter| device.total_ecc_errors(MemoryError::Uncorrected, counter).ok();
    let [remapped, remap_pending, failed] = [
        field_id::NVML_FI_DEV_REMAPPED_UNC,
        field_id::NVML_FI_DEV_REMAPPED_PENDING,
        field_id::NVML_FI_DEV_REMAPPED_FAILURE,
    ]
    .map(|field| value(device, field));
    let retirement_pending = device.are_pages_pending_retired().ok();
    let is_pending = remap_pending.map(|pending| pending > 0);
    Ok(State {
        index,
        name: device.name()?,
        memory: Bytes(memory.total),
        memory_used: Bytes(memory.used),
        processes: device.running_compute_processes().ok().map(|all| all.iter().map(|one| one.pid).collect()),
        uncorrectable: uncorrectable(EccCounter::Volatile),
        uncorrectable_ever: uncorrectable(EccCounter::Aggregate),
        rows_remapped: remapped,
        is_remap_pending: [is_pending, retirement_pending].into_iter().flatten().reduce(|one, other| one || other),
        has_remap_failed: failed.map(|failed| failed > 0),
        throttled: device.current_throttle_reasons().ok(),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        temperature_slowdown: device.temperature_threshold(TemperatureThreshold::Slowdown).ok(),
        links: links(device),
        lanes: device.current_pcie_link_width().ok().zip(device.max_pcie_link_width().ok()),
    })
}

/// Returns a field's value; none if this GPU or driver doesn't have it.
pub(super) fn value(device: &Device<'_>, field: u32) -> Option<u64> {
    let sample = device.field_values_for(&[FieldId(field)]).ok()?.into_iter().next()?.ok()?;
    match sample.value.ok()? {
        SampleValue::U32(value) => Some(value.into()),
        SampleValue::U64(value) => Some(value),
        SampleValue::I64(value) => u64::try_from(value).ok(),
        SampleValue::F64(_) => None,
    }
}

/// Returns the number of active NVLinks and of all; none if the GPU has none.
fn links(device: &Device<'_>) -> Option<(u32, u32)> {
    let state = |link| device.link_wrapper_for(link).is_active();
    let states: Vec<bool> = (0..LINKS_MAX).map_while(|link| state(link).ok()).collect();
    let count = |links: usize| u32::try_from(links).unwrap_or(LINKS_MAX);
    let up = states.iter().filter(|is_up| **is_up).count();
    (!states.is_empty()).then(|| (count(up), count(states.len())))
}
