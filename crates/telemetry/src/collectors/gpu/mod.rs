//! Accelerators: NVIDIA's through its driver's library NVML, loaded at run time, or through DCGM's exporter where that
//! runs; AMD's through the kernel's driver.
//!
//! This is the only user of NVML: the inventory, the checks of a node and the collectors ask it here. `driver.rs` opens
//! it, `state.rs` reads what checks judge, `nvml.rs` what is collected, `events.rs` listens; `dcgm.rs` reads the exporter,
//! `amd.rs` /sys/class/drm.

mod amd;
mod dcgm;
mod driver;
mod events;
mod nvml;
mod state;

pub use amd::Amd;
pub use dcgm::{Exporter, Field, dcgm_field};
pub use driver::{Driver, GpuError, Product, States};
pub use nvml::NvmlSource;
pub use nvml_wrapper::bitmasks::device::ThrottleReasons;
pub use state::State;
