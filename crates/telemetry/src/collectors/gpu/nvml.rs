//! What NVML says of each GPU while it works.
//!
//! On Hopper and newer GPUs its performance monitoring (GPM) compares two samples of counters. Throughput of PCIe before
//! that isn't collected: the driver measures it for 20 ms a call. NVLink's likewise: NVML's field counts one link.

use std::collections::BTreeMap;
use std::ffi::OsString;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, GpmSample};

use super::driver::{Driver, GpuError};
use super::state::value;
use crate::collectors::metric::metric;
use crate::collectors::rates::float;
use crate::collectors::source::{Sample, Source, SourceError};

/// What holds clocks down although nobody asked for it.
const HELD: ThrottleReasons = ThrottleReasons::HW_SLOWDOWN
    .union(ThrottleReasons::HW_THERMAL_SLOWDOWN)
    .union(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN)
    .union(ThrottleReasons::SW_THERMAL_SLOWDOWN);

/// GPM's metrics; what is a percentage becomes a part of 1, MiB become bytes (nvml.h, `nvmlGpmMetricId_t`).
const GPM: [(GpmMetricId, f64, &str); 8] = [
    (GpmMetricId::SmUtil, 0.01, "gpu.sm_active_ratio"),
    (GpmMetricId::SmOccupancy, 0.01, "gpu.sm_occupancy_ratio"),
    (GpmMetricId::AnyTensorUtil, 0.01, "gpu.tensor_active_ratio"),
    (GpmMetricId::DramBwUtil, 0.01, "gpu.dram_active_ratio"),
    (GpmMetricId::PcieRxPerSec, MIB, "gpu.pcie_receive_bytes_per_second"),
    (GpmMetricId::PcieTxPerSec, MIB, "gpu.pcie_transmit_bytes_per_second"),
    (GpmMetricId::NvlinkTotalRxPerSec, MIB, "gpu.nvlink_receive_bytes_per_second"),
    (GpmMetricId::NvlinkTotalTxPerSec, MIB, "gpu.nvlink_transmit_bytes_per_second"),
];
const MIB: f64 = 1_048_576.0;

/// Counts that are stored as they stand; several of one name are added.
const COUNTS: [(u32, &str); 6] = [
    (field_id::NVML_FI_DEV_REMAPPED_COR, "gpu.rows_remapped_corrected_total"),
    (field_id::NVML_FI_DEV_REMAPPED_UNC, "gpu.rows_remapped_uncorrected_total"),
    (field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "gpu.nvlink_errors_total"),
    (field_id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, "gpu.nvlink_errors_total"),
    (field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "gpu.nvlink_errors_total"),
    (field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "gpu.nvlink_errors_total"),
];

/// Codes, flags and degrees.
const STATES: [(u32, &str); 4] = [
    (field_id::NVML_FI_DEV_REMAPPED_PENDING, "gpu.row_remap_pending"),
    (field_id::NVML_FI_DEV_REMAPPED_FAILURE, "gpu.row_remap_failed"),
    (field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, "gpu.recovery_action"),
    (field_id::NVML_FI_DEV_MEMORY_TEMP, "gpu.memory_temperature_celsius"),
];

/// GPUs through NVML. The driver is opened at the first read and stays open; where there is none yet, each read tries
/// again.
#[derive(Default)]
pub struct NvmlSource {
    library: Option<OsString>,
    driver: Option<&'static Driver>,
    /// The last GPM sample of each GPU.
    before: BTreeMap<u32, GpmSample<'static>>,
    /// GPUs that there were at some time.
    known: u32,
}

impl std::fmt::Debug for NvmlSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmlSource").field("known", &self.known).finish_non_exhaustive()
    }
}

impl NvmlSource {
    /// Returns the driver of this machine, or the one whose library is given.
    #[must_use]
    pub fn new(library: Option<OsString>) -> NvmlSource {
        NvmlSource { library, ..NvmlSource::default() }
    }

    fn driver(&mut self) -> Result<&'static Driver, GpuError> {
        if let Some(driver) = self.driver {
            return Ok(driver);
        }
        let opened = self.library.as_ref().map_or_else(Driver::open, |path| Driver::open_at(path))?;
        // GPM samples borrow the driver. It is opened once in the life of the process, and closing it could hang.
        let driver: &'static Driver = Box::leak(Box::new(opened));
        self.driver = Some(driver);
        Ok(driver)
    }
}

impl Source for NvmlSource {
    fn name(&self) -> &'static str {
        "NVML"
    }

    fn read(&mut self) -> Result<Vec<Sample>, SourceError> {
        let refused = |error: GpuError| match error {
            GpuError::NoDriver => SourceError::NotHere(error.to_string()),
            GpuError::Failed { said } => SourceError::Refused { whom: "NVIDIA's driver".to_owned(), said },
        };
        let driver = self.driver().map_err(refused)?;
        // A GPU that fell off the bus may not be counted any more.
        self.known = self.known.max(driver.count().map_err(refused)?);
        let mut samples = Vec::new();
        for index in 0..self.known {
            let device = driver.device(index);
            let is_present = device.as_ref().is_ok_and(is_reached);
            let present = Sample::gauge(metric("gpu.present"), if is_present { 1.0 } else { 0.0 });
            samples.push(present.of_device(index));
            let (Ok(device), true) = (device, is_present) else {
                self.before.remove(&index);
                continue;
            };
            let of_device = of(&device).into_iter().chain(self.monitored(driver, index, &device));
            samples.extend(of_device.map(|sample| sample.of_device(index)));
        }
        Ok(samples)
    }
}

impl NvmlSource {
    /// Returns GPM's metrics since the last read; none on GPUs before Hopper.
    fn monitored(&mut self, driver: &'static Driver, index: u32, device: &Device<'static>) -> Vec<Sample> {
        let Ok(now) = device.gpm_sample() else { return Vec::new() };
        let Some(before) = self.before.insert(index, now) else { return Vec::new() };
        let ids = GPM.map(|(id, _, _)| id);
        let Some(now) = self.before.get(&index) else { return Vec::new() };
        let found = gpm_metrics_get(driver.nvml(), &before, now, &ids).unwrap_or_default();
        let sample = |(result, (_, scale, name)): (_, &(_, f64, &str))| {
            let Ok(nvml_wrapper::struct_wrappers::gpm::GpmMetricResult { value, .. }) = result else { return None };
            Some(Sample::gauge(metric(name), value * scale)).filter(|_| value.is_finite())
        };
        found.into_iter().zip(&GPM).filter_map(sample).collect()
    }
}

/// Reports whether the driver reaches a GPU. Its handle stays valid after it fell off the bus.
fn is_reached(device: &Device<'_>) -> bool {
    !matches!(device.memory_info(), Err(NvmlError::GpuLost | NvmlError::ResetRequired))
}

/// Returns what one GPU says. What it or its driver doesn't have is left out.
fn of(device: &Device<'_>) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut gauge = |name: &str, value: Option<f64>| {
        samples.extend(value.map(|value| Sample::gauge(metric(name), value)));
    };
    let utilization = device.utilization_rates().ok();
    gauge("gpu.utilization_ratio", utilization.as_ref().map(|rates| f64::from(rates.gpu) / 100.0));
    gauge("gpu.memory_utilization_ratio", utilization.map(|rates| f64::from(rates.memory) / 100.0));
    let percent = |info: nvml_wrapper::structs::device::UtilizationInfo| f64::from(info.utilization) / 100.0;
    gauge("gpu.encoder_utilization_ratio", device.encoder_utilization().ok().map(percent));
    gauge("gpu.decoder_utilization_ratio", device.decoder_utilization().ok().map(percent));
    let memory = device.memory_info().ok();
    gauge("gpu.memory_used_bytes", memory.as_ref().map(|memory| float(memory.used)));
    gauge("gpu.memory_bytes", memory.map(|memory| float(memory.total)));
    let hertz = |megahertz: u32| f64::from(megahertz) * 1e6;
    gauge("gpu.sm_clock_hertz", device.clock_info(Clock::SM).ok().map(hertz));
    gauge("gpu.memory_clock_hertz", device.clock_info(Clock::Memory).ok().map(hertz));
    let reasons = device.current_throttle_reasons().ok();
    let flag = |is_so: bool| if is_so { 1.0 } else { 0.0 };
    gauge("gpu.clocks_held", reasons.map(|reasons| flag(reasons.intersects(HELD))));
    let is_capped = |reasons: ThrottleReasons| flag(reasons.contains(ThrottleReasons::SW_POWER_CAP));
    gauge("gpu.clocks_power_capped", reasons.map(is_capped));
    let watts = |milliwatts: u32| f64::from(milliwatts) * 1e-3;
    gauge("gpu.power_watts", device.power_usage().ok().map(watts));
    gauge("gpu.power_limit_watts", device.enforced_power_limit().ok().map(watts));
    gauge("gpu.temperature_celsius", device.temperature(TemperatureSensor::Gpu).ok().map(f64::from));
    for (field, name) in STATES {
        gauge(name, value(device, field).map(float));
    }
    samples.extend(counts(device));
    samples
}

fn counts(device: &Device<'_>) -> Vec<Sample> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut count = |name, value: Option<u64>| {
        if let Some(value) = value {
            let sum = counts.entry(name).or_default();
            *sum = sum.saturating_add(value);
        }
    };
    for (field, name) in COUNTS {
        count(name, value(device, field));
    }
    let ecc = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    count("gpu.ecc_corrected_total", ecc(MemoryError::Corrected));
    count("gpu.ecc_uncorrected_total", ecc(MemoryError::Uncorrected));
    count("gpu.pcie_replays_total", device.pcie_replay_counter().ok().map(u64::from));
    let sample = |(name, count): (&str, u64)| Sample::counter(metric(name), count, 1.0);
    let millijoules = device.total_energy_consumption().ok();
    let energy = millijoules.map(|count| Sample::counter(metric("gpu.energy_joules_total"), count, 1e-3));
    counts.into_iter().map(sample).chain(energy).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::collectors::{Rates, Value};

    /// A driver of two GPUs that answers as nvml.h documents: 79 % busy, 300 W, held down by heat; GPM says 62.5 % of
    /// multiprocessors and 3 MiB/s. After three reads the second GPU is lost. There is no GPU on this machine.
    const DRIVER: &str = r#"
        #include <stdint.h>
        #include <string.h>
        typedef struct { unsigned gpu, memory; } Rates;
        typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
        typedef struct { unsigned field, scope; long long time, latency; int type, result; unsigned long long value; } Field;
        typedef struct { unsigned id; int result; double value; struct { char *a, *b, *c; } info; } Metric;
        typedef struct { unsigned version, count; void *one, *two; Metric metrics[333]; } Metrics;
        static int reads;
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *count) { reads++; *count = reads > 3 ? 1 : 2; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
            *device = (void *)(uintptr_t)(index + 1);
            return index == 1 && reads > 3 ? 15 : 0;
        }
        int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
            memory->total = 80ull << 30; memory->used = 10ull << 30; memory->free = 70ull << 30; return 0;
        }
        int nvmlDeviceGetUtilizationRates(void *device, Rates *rates) { rates->gpu = 79; rates->memory = 40; return 0; }
        int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 300000; return 0; }
        int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) { *reasons = 0x40; return 0; }
        int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) { *mj = 5000; return 0; }
        int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
            for (int i = 0; i < count; i++) {
                fields[i].type = 1;
                fields[i].result = fields[i].field == 52 || fields[i].field == 59 ? 0 : 3;
                fields[i].value = 7;
            }
            return 0;
        }
        int nvmlGpmSampleAlloc(void **sample) { *sample = &reads; return 0; }
        int nvmlGpmSampleFree(void *sample) { return 0; }
        int nvmlGpmSampleGet(void *device, void *sample) { return 0; }
        int nvmlGpmMetricsGet(Metrics *metrics) {
            for (unsigned i = 0; i < metrics->count; i++) {
                unsigned id = metrics->metrics[i].id;
                metrics->metrics[i].result = id == 2 || id == 20 ? 0 : 3;
                metrics->metrics[i].value = id == 20 ? 3.0 : 62.5;
            }
            return 0;
        }
    "#;

    fn source(folder: &tempfile::TempDir) -> NvmlSource {
        let (code, library) = (folder.path().join("nvml.c"), folder.path().join("libnvml.so"));
        std::fs::write(&code, DRIVER).expect("it is writable");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&code).status();
        assert!(built.expect("Rust links by it").success());
        NvmlSource::new(Some(library.into_os_string()))
    }

    #[test]
    fn each_gpu_says_what_it_has_and_a_lost_one_is_not_present() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut source = source(&folder);
        source.read().expect("the first samples");
        let samples = source.read().expect("samples");
        let mut rates = Rates::default();
        let readings = rates.readings(Duration::from_secs(1), samples);
        let value = |device: u32, name: &str| {
            let found = readings.iter().find(|reading| reading.device == Some(device) && reading.name == name);
            found.map(|reading| reading.value)
        };
        for device in 0..2 {
            assert_eq!(value(device, "gpu.present"), Some(1.0));
            assert_eq!(value(device, "gpu.utilization_ratio"), Some(0.79));
            assert_eq!(value(device, "gpu.power_watts"), Some(300.0));
            assert_eq!(value(device, "gpu.clocks_held"), Some(1.0));
            assert_eq!(value(device, "gpu.clocks_power_capped"), Some(0.0));
            assert_eq!(value(device, "gpu.memory_bytes"), Some(85_899_345_920.0));
            assert_eq!(value(device, "gpu.energy_joules_total"), Some(5.0));
            assert_eq!(value(device, "gpu.nvlink_errors_total"), Some(14.0), "replays and recoveries");
            assert_eq!(value(device, "gpu.sm_active_ratio"), Some(0.625));
            assert_eq!(value(device, "gpu.pcie_transmit_bytes_per_second"), Some(3.0 * MIB));
            assert_eq!(value(device, "gpu.temperature_celsius"), None, "this driver doesn't have it");
        }
        source.read().expect("samples");
        let lost = source.read().expect("the driver still answers");
        let present = |device| {
            let is = |sample: &&Sample| sample.device == Some(device) && sample.metric.name == "gpu.present";
            lost.iter().find(is).map(|sample| sample.value)
        };
        assert_eq!((present(0), present(1)), (Some(Value::Gauge(1.0)), Some(Value::Gauge(0.0))));
        assert_eq!(lost.iter().filter(|sample| sample.device == Some(1)).count(), 1, "and nothing else is said of it");
    }

    #[test]
    fn a_machine_without_a_driver_says_so() {
        let missing = NvmlSource::new(Some("/nowhere/libnvml.so".into())).read();
        assert!(matches!(missing, Err(SourceError::NotHere(_))), "{missing:?}");
    }
}
