//! A checkpoint opened for reading: reads boxes of its tensors into numpy's memory.

use std::path::PathBuf;

use gangline_storage::{DataType, Verify, Wanted};
use numpy::PyReadwriteArray1;
use pyo3::prelude::*;

use crate::errors::{exception, refused};
use crate::verification::Verification;

/// A read request from Python: the tensor's name, safetensors' name of its type, the box's offsets and
/// lengths, and flat memory for its bytes.
type Asked<'py> = (String, String, Vec<usize>, Vec<usize>, PyReadwriteArray1<'py, u8>);

/// A checkpoint opened for reading.
#[pyclass(frozen, module = "gangline._native")]
pub(crate) struct Snapshot {
    inner: gangline_storage::Snapshot,
}

impl Snapshot {
    pub(crate) fn new(inner: gangline_storage::Snapshot) -> Self {
        Snapshot { inner }
    }
}

#[pymethods]
impl Snapshot {
    /// Returns the content of its manifest, as JSON.
    fn info(&self) -> String {
        serde_json::to_string(self.inner.info()).expect("a checkpoint's description has string keys and plain values")
    }

    /// Reads boxes of tensors, and checks every byte of the parts that they overlap. `verify` "all" checks
    /// before it returns; "first" also, but skips tensors that have a mark in the folder `marks`;
    /// "background" checks afterwards, and returns the check.
    ///
    /// # Errors
    /// `Refused` for a box that isn't in its tensor, `Corrupt` naming the file and tensor.
    #[pyo3(signature = (asked, verify="all", marks=None))]
    fn read_into(
        &self,
        py: Python<'_>,
        asked: Vec<Asked<'_>>,
        verify: &str,
        marks: Option<PathBuf>,
    ) -> PyResult<Option<Verification>> {
        let verify = match (verify, marks) {
            ("all", _) => Verify::Always,
            ("first", Some(folder)) => Verify::First(folder),
            ("background", _) => Verify::Later,
            (other, _) => return Err(refused(&format!("verify {other:?}: say \"all\", \"first\" or \"background\""))),
        };
        let mut asked = asked;
        let mut wanted = Vec::with_capacity(asked.len());
        for (name, data_type, offsets, shape, room) in &mut asked {
            let not_flat = |_| refused(&format!("read tensor {name:?}: the memory to read into is not contiguous"));
            let data_type = data_type_of(name, data_type)?;
            wanted.push(Wanted { name, data_type, offsets, shape, data: room.as_slice_mut().map_err(not_flat)? });
        }
        let read = py.detach(|| self.inner.read_verifying(&mut wanted, &verify)).map_err(|error| exception(&error))?;
        Ok(read.map(Verification::new))
    }
}

/// Returns the data type with this safetensors name.
pub(crate) fn data_type_of(tensor: &str, name: &str) -> PyResult<DataType> {
    let unknown = |_| refused(&format!("accept tensor {tensor:?}: the store has no type {name:?}"));
    serde_json::from_value(serde_json::Value::from(name)).map_err(unknown)
}
