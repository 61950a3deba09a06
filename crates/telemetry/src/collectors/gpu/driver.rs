//! NVIDIA's driver, by its library.

use std::ffi::OsStr;
use std::io;

use gangline_base::Bytes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::events;
use super::state::{self, State};

/// The most GPUs of a machine.
pub(super) const GPUS_MAX: u32 = 64;

/// NVIDIA's driver.
#[derive(Debug)]
pub struct Driver(Nvml);

/// Why the driver, or a GPU, says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// This machine has no NVIDIA driver.
    #[error("no NVIDIA driver")]
    NoDriver,
    /// The driver answers with an error.
    #[error("the driver says: {said}")]
    Failed {
        /// The driver's words.
        said: String,
    },
}

impl From<NvmlError> for GpuError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded => {
                GpuError::NoDriver
            }
            error => GpuError::Failed { said: error.to_string() },
        }
    }
}

/// Every GPU's index, with its state or why it has none.
pub type States = Vec<(u32, Result<State, GpuError>)>;

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// The product's full name.
    pub name: String,
    /// Its memory.
    pub memory: Bytes,
}

impl Driver {
    /// Opens the driver.
    ///
    /// # Errors
    /// [`GpuError`] if there is none, or if it doesn't work.
    pub fn open() -> Result<Driver, GpuError> {
        Ok(Driver(Nvml::init()?))
    }

    /// Opens the driver whose library is at `path`.
    ///
    /// # Errors
    /// [`GpuError`] if there is none, or if it doesn't work.
    pub fn open_at(path: &OsStr) -> Result<Driver, GpuError> {
        Ok(Driver(Nvml::builder().lib_path(path).init()?))
    }

    /// Returns the state of every GPU.
    ///
    /// # Errors
    /// [`GpuError`] if the driver can't say how many there are.
    pub fn states(&self) -> Result<States, GpuError> {
        let of = |index| self.device(index).and_then(|device| Ok(state::of(index, &device)?));
        Ok((0..self.count()?).map(|index| (index, of(index))).collect())
    }

    /// Returns what each GPU is; those that don't answer are left out.
    ///
    /// # Errors
    /// [`GpuError`] if the driver can't say how many there are.
    pub fn products(&self) -> Result<Vec<Product>, GpuError> {
        let product = |index| {
            let device = self.device(index).ok()?;
            Some(Product { name: device.name().ok()?, memory: Bytes(device.memory_info().ok()?.total) })
        };
        Ok((0..self.count()?).filter_map(product).collect())
    }

    /// Passes each event that the driver reports of its GPUs to `say`, as a line like those of the kernel's log, until
    /// `say` fails.
    ///
    /// # Errors
    /// [`GpuError`] if events can't be received.
    pub fn watch(&self, say: impl FnMut(&str) -> io::Result<()>) -> Result<(), GpuError> {
        Ok(events::watch(&self.0, say)?)
    }

    pub(super) fn count(&self) -> Result<u32, GpuError> {
        Ok(self.0.device_count()?.min(GPUS_MAX))
    }

    pub(super) fn device(&self, index: u32) -> Result<Device<'_>, GpuError> {
        Ok(self.0.device_by_index(index)?)
    }

    pub(super) fn nvml(&self) -> &Nvml {
        &self.0
    }
}
