//! DCGM's exporter, where it runs: its page of metrics, with the field names of before and since DCGM 4.6.

use std::time::Duration;

use crate::collectors::metric::metric;
use crate::collectors::source::{SAMPLES_MAX, Sample, Source, SourceError, Value};

/// The most of a page that is read (A-10); eight GPUs with all fields take about 100 KiB.
const PAGE_BYTES_MAX: u64 = 4 << 20;

/// What is made of a field: value times this is in the metric's unit.
#[derive(Clone, Copy)]
enum As {
    /// A value in percent under its old name. Under the new one it is a part of 1 if it has a decimal point (DCGM 4.7), and
    /// in percent without (DCGM 4.6).
    Percent,
    Gauge(f64),
    Counter(f64),
}

const MIB: f64 = 1_048_576.0;

/// Fields by their names: that of DCGM before 4.6, and the one since, where it changed, without one of the [`PREFIXES`]
/// (dcgm_fields.py, `_DEPRECATED_ALIASES`).
const FIELDS: [(&str, &str, As, &str); 31] = [
    ("DCGM_FI_DEV_GPU_UTIL", "GPU_UTIL_RATIO", As::Percent, "gpu.utilization_ratio"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "MEMORY_UTIL_RATIO", As::Percent, "gpu.memory_utilization_ratio"),
    ("DCGM_FI_DEV_ENC_UTIL", "ENC_UTIL_RATIO", As::Percent, "gpu.encoder_utilization_ratio"),
    ("DCGM_FI_DEV_DEC_UTIL", "DEC_UTIL_RATIO", As::Percent, "gpu.decoder_utilization_ratio"),
    ("DCGM_FI_DEV_FB_USED", "", As::Gauge(MIB), "gpu.memory_used_bytes"),
    ("DCGM_FI_DEV_FB_TOTAL", "", As::Gauge(MIB), "gpu.memory_bytes"),
    ("DCGM_FI_DEV_SM_CLOCK", "", As::Gauge(1e6), "gpu.sm_clock_hertz"),
    ("DCGM_FI_DEV_MEM_CLOCK", "", As::Gauge(1e6), "gpu.memory_clock_hertz"),
    ("DCGM_FI_DEV_POWER_USAGE", "BOARD_POWER_WATTS", As::Gauge(1.0), "gpu.power_watts"),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS", As::Gauge(1.0), "gpu.power_limit_watts"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "", As::Counter(1e-3), "gpu.energy_joules_total"),
    ("DCGM_FI_DEV_GPU_TEMP", "GPU_TEMP_CELSIUS", As::Gauge(1.0), "gpu.temperature_celsius"),
    ("DCGM_FI_DEV_MEMORY_TEMP", "MEMORY_TEMP_CELSIUS", As::Gauge(1.0), "gpu.memory_temperature_celsius"),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "", As::Counter(1.0), "gpu.ecc_corrected_total"),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "", As::Counter(1.0), "gpu.ecc_uncorrected_total"),
    (
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_CORRECTABLE_TOTAL",
        As::Counter(1.0),
        "gpu.rows_remapped_corrected_total",
    ),
    (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_UNCORRECTABLE_TOTAL",
        As::Counter(1.0),
        "gpu.rows_remapped_uncorrected_total",
    ),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", "", As::Gauge(1.0), "gpu.row_remap_pending"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "ROW_REMAP_FAILED", As::Gauge(1.0), "gpu.row_remap_failed"),
    ("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "GPU_RECOVERY_ACTION", As::Gauge(1.0), "gpu.recovery_action"),
    ("DCGM_FI_DEV_XID_ERRORS", "XID_ERROR", As::Gauge(1.0), "gpu.last_xid"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL", As::Counter(1.0), "gpu.pcie_replays_total"),
    ("DCGM_FI_PROF_SM_ACTIVE", "SM_UTIL_RATIO", As::Gauge(1.0), "gpu.sm_active_ratio"),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "SM_OCCUPANCY_RATIO", As::Gauge(1.0), "gpu.sm_occupancy_ratio"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO", As::Gauge(1.0), "gpu.tensor_active_ratio"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "DRAM_UTIL_RATIO", As::Gauge(1.0), "gpu.dram_active_ratio"),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "", As::Gauge(1.0), "gpu.pcie_receive_bytes_per_second"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "", As::Gauge(1.0), "gpu.pcie_transmit_bytes_per_second"),
    ("DCGM_FI_PROF_NVLINK_RX_BYTES", "", As::Gauge(1.0), "gpu.nvlink_receive_bytes_per_second"),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", "", As::Gauge(1.0), "gpu.nvlink_transmit_bytes_per_second"),
    (
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "NVLINK_REPLAY_ERROR_TOTAL",
        As::Counter(1.0),
        "gpu.nvlink_errors_total",
    ),
];

/// A field of DCGM's exporter that says what a metric says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// The name that it had before DCGM 4.6, by which dashboards ask for it.
    pub name: &'static str,
    /// Whether it only grows.
    pub is_counter: bool,
    /// How many of the metric's units one of the field's is.
    unit: f64,
}

impl Field {
    /// Returns a reading of the metric in the field's unit.
    #[must_use]
    pub fn value(&self, reading: f64) -> f64 {
        reading / self.unit
    }
}

/// Returns the field that says what a metric says, if there is one.
#[must_use]
pub fn dcgm_field(metric: &str) -> Option<Field> {
    let (name, _, made, _) = FIELDS.iter().find(|(.., known)| *known == metric && metric != WIDER)?;
    let (is_counter, unit) = match made {
        As::Percent => (false, 0.01),
        As::Gauge(unit) => (false, *unit),
        As::Counter(unit) => (true, *unit),
    };
    Some(Field { name, is_counter, unit })
}

/// What the exporter doesn't say the same of: Gangline counts all errors of NVLink, the exporter's field only replays.
const WIDER: &str = "gpu.nvlink_errors_total";

const PREFIXES: [&str; 3] = ["DCGM_FI_DEV_", "DCGM_FI_PROF_", "DCGM_FI_"];

/// DCGM says by such values that a GPU doesn't have a field (dcgm_structs.h, `DCGM_INT32_BLANK` and following).
const BLANK: f64 = 2_147_483_632.0;
const BLANK_END: f64 = 2_147_483_647.0;
const BLANK_LONG: f64 = 9.2e18;

/// The exporter of a node.
#[derive(Debug)]
pub struct Exporter {
    url: String,
    agent: ureq::Agent,
}

impl Exporter {
    /// Returns the exporter at `url`, usually `http://127.0.0.1:9400/metrics`.
    #[must_use]
    pub fn at(url: &str, timeout: Duration) -> Exporter {
        let agent = ureq::Agent::config_builder().timeout_global(Some(timeout)).build().into();
        Exporter { url: url.to_owned(), agent }
    }
}

impl Source for Exporter {
    fn name(&self) -> &'static str {
        "DCGM"
    }

    fn read(&mut self) -> Result<Vec<Sample>, SourceError> {
        let refused = |error: ureq::Error| SourceError::Refused { whom: self.url.clone(), said: error.to_string() };
        let mut answer = self.agent.get(&self.url).call().map_err(refused)?;
        let page = answer.body_mut().with_config().limit(PAGE_BYTES_MAX).read_to_string().map_err(refused)?;
        let samples = samples(&page);
        if samples.is_empty() {
            let said = "a page without any field of DCGM".to_owned();
            return Err(SourceError::Refused { whom: self.url.clone(), said });
        }
        Ok(samples)
    }
}

/// Returns the samples of a page in Prometheus' text format. Of a GPU that is divided (MIG) its own fields are taken, not
/// those of its instances.
fn samples(page: &str) -> Vec<Sample> {
    page.lines().filter_map(sample).take(SAMPLES_MAX).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once('}')?;
    let name = stem(name)?;
    let (_, renamed, made, metric_name) =
        FIELDS.iter().find(|(old, new, ..)| stem(old) == Some(name) || name == *new)?;
    let device = label(labels, "gpu")?.parse().ok()?;
    if label(labels, "GPU_I_ID").is_some_and(|instance| !instance.is_empty()) {
        return None;
    }
    let text = value.split_ascii_whitespace().next()?;
    let value: f64 = text.parse().ok()?;
    let is_blank = (BLANK..=BLANK_END).contains(&value) || value > BLANK_LONG;
    if !value.is_finite() || is_blank {
        return None;
    }
    let value = match made {
        As::Percent if name == *renamed && text.contains('.') => Value::Gauge(value),
        As::Percent => Value::Gauge(value / 100.0),
        As::Gauge(scale) => Value::Gauge(value * scale),
        As::Counter(scale) => Value::Counter { count: whole(value)?, scale: *scale },
    };
    Some(Sample { metric: metric(metric_name), part: None, device: Some(device), value })
}

/// Returns a field's name without its prefix.
fn stem(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// Returns a label's value; those that matter have no escapes in them.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let at = |found: usize| found == 0 || labels[..found].ends_with(',');
    let key = format!("{name}=\"");
    let (start, _) = labels.match_indices(&key).find(|(found, _)| at(*found))?;
    labels[start + key.len()..].split('"').next()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is checked to be from 0 to 2^53")]
fn whole(value: f64) -> Option<u64> {
    (0.0..=9e15).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded on a Tesla T4 (fixtures/README.md).
    const T4: &str = include_str!("../fixtures/dcgm-t4.txt");

    #[test]
    fn a_recorded_page_is_read() {
        let samples = samples(T4);
        let value = |name: &str| samples.iter().find(|sample| sample.metric.name == name).map(|sample| sample.value);
        assert!(samples.iter().all(|sample| sample.device == Some(0)));
        assert_eq!(value("gpu.utilization_ratio"), Some(Value::Gauge(0.91)));
        assert_eq!(value("gpu.power_watts"), Some(Value::Gauge(68.244)));
        assert_eq!(value("gpu.memory_used_bytes"), Some(Value::Gauge(5_120.0 * MIB)));
        assert_eq!(value("gpu.sm_clock_hertz"), Some(Value::Gauge(660e6)));
        assert_eq!(value("gpu.tensor_active_ratio"), Some(Value::Gauge(0.005_822)));
        let energy = Value::Counter { count: 15_152_422_938, scale: 1e-3 };
        assert_eq!(value("gpu.energy_joules_total"), Some(energy));
        assert_eq!(value("gpu.sm_active_ratio"), None, "it isn't among the exporter's defaults");
    }

    #[test]
    fn old_and_new_names_are_the_same_and_what_is_no_value_is_left_out() {
        let one = |line: &str| samples(line).pop().map(|sample| (sample.metric.name, sample.device, sample.value));
        let busy = Some(("gpu.sm_active_ratio", Some(3), Value::Gauge(0.5)));
        assert_eq!(one(r#"DCGM_FI_PROF_SM_ACTIVE{gpu="3",UUID="GPU-1",hostname="n1"} 0.5"#), busy);
        assert_eq!(one(r#"DCGM_FI_PROF_SM_UTIL_RATIO{gpu="3",Hostname="n1"} 0.5 1795644078000"#), busy);
        let hot = Some(("gpu.memory_temperature_celsius", Some(0), Value::Gauge(71.0)));
        assert_eq!(one(r#"DCGM_FI_DEV_MEMORY_TEMP_CELSIUS{gpu="0"} 71"#), hot);
        let action = Some(("gpu.recovery_action", Some(0), Value::Gauge(2.0)));
        assert_eq!(one(r#"DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION{gpu="0"} 2"#), action);
        assert_eq!(one(r#"DCGM_FI_DEV_GPU_RECOVERY_ACTION{gpu="0"} 2"#), action);
        let percent = Some(("gpu.utilization_ratio", Some(0), Value::Gauge(0.91)));
        assert_eq!(one(r#"DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0"} 91"#), percent, "DCGM 4.6 renamed it and kept its unit");
        assert_eq!(one(r#"DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0"} 0.910000"#), percent, "DCGM 4.7 made it a part of 1");
        for bad in [
            "",
            "# TYPE DCGM_FI_PROF_SM_ACTIVE gauge",
            "DCGM_FI_PROF_SM_ACTIVE 1",
            r#"DCGM_FI_PROF_SM_ACTIVE{gpu="3",UUID="GPU-1"} NaN"#,
            r#"DCGM_FI_PROF_SM_ACTIVE{gpu="x"} 0.5"#,
            r#"DCGM_FI_PROF_SM_ACTIVE{gpu="3"}"#,
            r#"DCGM_FI_PROF_SM_ACTIVE{gpu="3""#,
            r#"DCGM_FI_DEV_MEMORY_TEMP{gpu="3"} 2147483632"#,
            r#"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="3"} 9223372036854775792"#,
            r#"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="3"} -1"#,
            r#"DCGM_FI_PROF_SM_ACTIVE{gpu="3",GPU_I_PROFILE="2g.20gb",GPU_I_ID="5"} 0.5"#,
            r#"node_load1{gpu="3"} 1"#,
        ] {
            assert_eq!(one(bad), None, "{bad}");
        }
    }

    /// What is written for dashboards reads back as what it was.
    #[test]
    fn each_field_has_its_metrics_value_in_its_own_unit() {
        for (name, _, _, metric_name) in FIELDS.into_iter().filter(|(.., metric)| *metric != WIDER) {
            let field = dcgm_field(metric_name).expect("it is in the table");
            assert_eq!(field.name, name);
            let read = sample(&format!("{name}{{gpu=\"2\"}} {}", field.value(64.0))).expect("a sample");
            let value = match read.value {
                Value::Gauge(value) => value,
                Value::Counter { count, scale } => u32::try_from(count).map(f64::from).expect("small") * scale,
            };
            assert!((value - 64.0).abs() < 1e-9 && read.metric.name == metric_name, "{name}: {value}");
        }
        assert_eq!((dcgm_field("host.cpu_busy_ratio"), dcgm_field(WIDER)), (None, None));
        let busy = dcgm_field("gpu.utilization_ratio").expect("it is in the table");
        assert_eq!((busy.name, busy.value(0.91).round(), busy.is_counter), ("DCGM_FI_DEV_GPU_UTIL", 91.0, false));
    }

    #[test]
    fn an_exporter_that_is_not_there_or_is_another_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/metrics", listener.local_addr().expect("its address"));
        let other = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            let (mut stream, _) = listener.accept().expect("a request");
            let _ = stream.read(&mut [0; 1_024]);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\nnode_load1 1").expect("an answer");
        });
        let mut exporter = Exporter::at(&url, Duration::from_secs(10));
        let error = exporter.read().expect_err("that is no page of DCGM").to_string();
        assert!(error.contains("without any field of DCGM") && error.contains(&url), "{error}");
        other.join().expect("it answered");
        assert!(exporter.read().is_err(), "nobody listens any more");
    }
}
