//! AMD's GPUs as the kernel's driver shows them in /sys/class/drm (Documentation/gpu/amdgpu).

use std::path::{Path, PathBuf};

use crate::collectors::metric::metric;
use crate::collectors::rates::float;
use crate::collectors::source::{Sample, Source, SourceError};

/// PCI's number of AMD.
const VENDOR: &str = "0x1002";
/// The most cards that are looked at.
const CARDS_MAX: usize = 64;

/// Files of a card's device folder, what one of their numbers is, and the metric.
const FILES: [(&str, f64, &str); 4] = [
    ("gpu_busy_percent", 0.01, "gpu.utilization_ratio"),
    ("mem_busy_percent", 0.01, "gpu.memory_utilization_ratio"),
    ("mem_info_vram_used", 1.0, "gpu.memory_used_bytes"),
    ("mem_info_vram_total", 1.0, "gpu.memory_bytes"),
];
/// The same of its hwmon folder: microwatts, and thousandths of a degree.
const SENSORS: [(&str, f64, &str); 5] = [
    ("power1_average", 1e-6, "gpu.power_watts"),
    ("power1_input", 1e-6, "gpu.power_watts"),
    ("power1_cap", 1e-6, "gpu.power_limit_watts"),
    ("temp1_input", 1e-3, "gpu.temperature_celsius"),
    ("freq1_input", 1.0, "gpu.sm_clock_hertz"),
];

/// AMD's GPUs of this machine, numbered in the order of their cards.
#[derive(Clone, Debug)]
pub struct Amd {
    root: PathBuf,
}

impl Amd {
    /// Returns the GPUs below `sys`, usually /sys.
    #[must_use]
    pub fn below(sys: &Path) -> Amd {
        Amd { root: sys.join("class/drm") }
    }

    /// Returns the device folders of AMD's cards: `card0`, and not its connectors (`card0-DP-1`).
    fn cards(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let number = |name: &str| name.strip_prefix("card")?.parse::<u32>().ok();
        let mut cards: Vec<(u32, PathBuf)> = entries
            .filter_map(|entry| Some((number(entry.file_name().to_str()?)?, entry.path().join("device"))))
            .filter(|(_, device)| text(&device.join("vendor")).is_some_and(|vendor| vendor == VENDOR))
            .collect();
        cards.sort();
        cards.into_iter().map(|(_, device)| device).take(CARDS_MAX).collect()
    }
}

impl Source for Amd {
    fn name(&self) -> &'static str {
        "AMD"
    }

    fn read(&mut self) -> Result<Vec<Sample>, SourceError> {
        let cards = self.cards();
        if cards.is_empty() {
            return Err(SourceError::NotHere("no GPU of AMD".to_owned()));
        }
        let numbered = (0_u32..).zip(cards);
        Ok(numbered.flat_map(|(index, device)| of(&device).into_iter().map(move |s| s.of_device(index))).collect())
    }
}

fn of(device: &Path) -> Vec<Sample> {
    let sensors = std::fs::read_dir(device.join("hwmon")).into_iter().flatten().flatten().next();
    let sensors = sensors.map(|entry| entry.path()).unwrap_or_default();
    let read = |folder: &Path, (file, scale, name): (&str, f64, &'static str)| {
        let number: u64 = text(&folder.join(file))?.parse().ok()?;
        Some((name, Sample::gauge(metric(name), float(number) * scale)))
    };
    let mut samples = vec![Sample::gauge(metric("gpu.present"), 1.0)];
    samples.extend(FILES.into_iter().filter_map(|file| read(device, file)).map(|(_, sample)| sample));
    let mut seen = Vec::new();
    for (name, sample) in SENSORS.into_iter().filter_map(|file| read(&sensors, file)) {
        // Cards have an average or a momentary power, some both.
        if !seen.contains(&name) {
            seen.push(name);
            samples.push(sample);
        }
    }
    samples
}

fn text(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::Value;

    /// There is no such card here: files are named and scaled as the kernel documents them.
    #[test]
    fn cards_of_amd_are_read_and_others_are_not() {
        let sys = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = sys.path().join("class/drm").join(path);
            std::fs::create_dir_all(path.parent().expect("below")).expect("a folder");
            std::fs::write(path, text).expect("written");
        };
        write("card0/device/vendor", "0x1a03\n");
        write("card1/device/vendor", "0x1002\n");
        write("card1/device/gpu_busy_percent", "97\n");
        write("card1/device/mem_info_vram_used", "2147483648\n");
        write("card1/device/hwmon/hwmon3/power1_average", "512000000\n");
        write("card1/device/hwmon/hwmon3/power1_input", "600000000\n");
        write("card1/device/hwmon/hwmon3/temp1_input", "67000\n");
        write("card1-DP-1/device/vendor", "0x1002\n");
        let samples = Amd::below(sys.path()).read().expect("a card");
        let found: Vec<(&str, Value)> = samples.iter().map(|sample| (sample.metric.name, sample.value)).collect();
        let expected = [
            ("gpu.present", Value::Gauge(1.0)),
            ("gpu.utilization_ratio", Value::Gauge(0.97)),
            ("gpu.memory_used_bytes", Value::Gauge(2_147_483_648.0)),
            ("gpu.power_watts", Value::Gauge(512.0)),
            ("gpu.temperature_celsius", Value::Gauge(67.0)),
        ];
        assert_eq!(found, expected);
        assert!(samples.iter().all(|sample| sample.device == Some(0)));
        assert!(matches!(Amd::below(Path::new("/nowhere")).read(), Err(SourceError::NotHere(_))));
    }
}
