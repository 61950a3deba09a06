//! The inventory of this machine: accelerators (NVIDIA's through NVML, loaded at run time), otherwise CPU
//! slots; memory, cores, name.

mod links;
#[cfg(test)]
mod links_tests;

pub use links::{GpuLinks, InvalidLinks, Link, LinkMatrix, read_links};

use std::process::Command;
use std::time::Duration;

use gangline_base::{Bytes, DeviceLayout};
use gangline_telemetry::collectors::gpu::{Driver, Product};
use tracing::warn;

use crate::program::{self, Limits};

/// Limits for nvidia-smi, which tells how the GPUs are joined: with a driver in trouble it is slow or hangs.
const LINKS_LIMITS: Limits = Limits { time: Duration::from_secs(10), output: 1 << 20, errors: 0 };

/// Inventory of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// Its host name.
    pub host_name: String,
    /// Number of CPU cores that this process may use.
    pub cpus: u32,
    /// Its memory.
    pub memory: Bytes,
    /// Its accelerators of one kind, or its CPU slots.
    pub accelerators: Accelerators,
}

/// Accelerators of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerators {
    /// A short kind such as `H100`; `cpu` for CPU slots.
    pub kind: String,
    /// The product's full name, if the driver reports it.
    pub product: Option<String>,
    /// Number of accelerators.
    pub count: u32,
    /// Memory of each; none for CPU slots.
    pub memory: Option<Bytes>,
}

/// Takes the inventory of this machine.
#[must_use]
pub fn this_machine() -> Inventory {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let cpus = u32::try_from(cores).unwrap_or(u32::MAX);
    let slots = Accelerators { kind: "cpu".to_owned(), product: None, count: cpus, memory: None };
    Inventory {
        host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        cpus,
        memory: Bytes(memory_total(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())),
        accelerators: nvidia().unwrap_or(slots),
    }
}

/// Returns how this machine's GPUs are joined, if it has several and `nvidia-smi topo -m` tells; unknown
/// otherwise.
#[must_use]
pub fn this_layout(machine: &Inventory) -> DeviceLayout {
    if machine.accelerators.memory.is_none() || machine.accelerators.count < 2 {
        return DeviceLayout::default();
    }
    let said = printed_links().ok_or_else(|| "nvidia-smi did not answer".to_owned());
    let matrix = said.and_then(|text| read_links(&text).map_err(|error| format!("nvidia-smi topo -m:{error}")));
    let layout = matrix.and_then(|matrix| matrix.layout().map_err(|error| error.to_string()));
    layout.unwrap_or_else(|error| {
        warn!(%error, "it isn't known how the GPUs are joined: any are taken to be as good as any others");
        DeviceLayout::default()
    })
}

/// Returns the output of `nvidia-smi topo -m`; none if it can't be run, or takes too long.
pub(crate) fn printed_links() -> Option<String> {
    let ran = program::run(Command::new("nvidia-smi").args(["topo", "-m"]), Vec::new(), LINKS_LIMITS).ok()?;
    let text = String::from_utf8(ran.output).ok()?;
    (ran.status.is_some() && !text.is_empty()).then_some(text)
}

/// Returns NVIDIA's accelerators; none without a driver. On a machine with several kinds, only those of the
/// first one's kind.
fn nvidia() -> Option<Accelerators> {
    of_first_kind(&Driver::open().ok()?.products().ok()?)
}

fn of_first_kind(products: &[Product]) -> Option<Accelerators> {
    let first = products.first()?;
    let kind = short_kind(&first.name);
    let count = products.iter().take_while(|product| short_kind(&product.name) == kind).count();
    Some(Accelerators {
        kind,
        product: Some(first.name.clone()),
        count: u32::try_from(count).unwrap_or(u32::MAX),
        memory: Some(first.memory),
    })
}

/// Words of NVIDIA's product names that don't distinguish accelerators.
const BRANDS: [&str; 6] = ["NVIDIA", "Tesla", "GeForce", "Quadro", "Graphics", "Device"];

/// Shortens a product's name: `NVIDIA H100 80GB HBM3` is an `H100`, `NVIDIA A100-SXM4-80GB` an `A100`,
/// `NVIDIA GeForce RTX 4090` an `RTX4090`.
#[must_use]
pub fn short_kind(product: &str) -> String {
    let mut words = product.split_ascii_whitespace().filter(|word| !BRANDS.contains(word));
    let first = words.next().unwrap_or("gpu");
    let series = first.split('-').next().unwrap_or(first);
    let has_number = series.contains(|c: char| c.is_ascii_digit());
    match words.next().filter(|_| !has_number) {
        Some(model) => format!("{series}{model}"),
        None => series.to_owned(),
    }
}

/// Returns the total from `/proc/meminfo`, in bytes.
fn memory_total(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_names_become_short_kinds() {
        let check = |product: &str, kind: &str| assert_eq!(short_kind(product), kind);
        check("NVIDIA H100 80GB HBM3", "H100");
        check("NVIDIA H200", "H200");
        check("NVIDIA A100-SXM4-80GB", "A100");
        check("Tesla V100-SXM2-16GB", "V100");
        check("NVIDIA GH200 480GB", "GH200");
        check("NVIDIA L40S", "L40S");
        check("NVIDIA GeForce RTX 4090", "RTX4090");
        check("", "gpu");
    }

    #[test]
    fn accelerators_of_another_kind_are_left_out() {
        let product = |name: &str, bytes| Product { name: name.to_owned(), memory: Bytes(bytes) };
        let h100 = product("NVIDIA H100 PCIe", 7);
        let found = of_first_kind(&[h100.clone(), h100, product("T4", 1)]).expect("there are some");
        assert_eq!((found.kind.as_str(), found.count, found.memory), ("H100", 2, Some(Bytes(7))));
        assert_eq!(of_first_kind(&[]), None);
    }

    #[test]
    fn this_machine_has_cores_memory_and_a_name() {
        let machine = this_machine();
        println!("{machine:?}");
        assert!(machine.cpus > 0 && machine.memory.0 > 1 << 20 && !machine.host_name.is_empty(), "{machine:?}");
        assert!(machine.accelerators.count > 0, "{machine:?}");
        assert_eq!(memory_total("MemTotal:       16 kB\nMemFree: 1 kB\n"), 16_384);
        assert_eq!(memory_total("nonsense"), 0);
    }
}
