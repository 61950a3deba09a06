//! `gangline._native`: the checkpoint store and the token loader for Python. Typed bytes go in and out as flat numpy arrays of
//! `uint8`; the Python code in `python/gangline/` converts state dicts and the tensors of each framework.
//!
//! Every call that copies, reads, writes or waits releases the GIL. Built against Python's stable ABI (PEP
//! 384), so one wheel serves every Python from 3.10 on.

mod archive;
mod errors;
mod pending;
mod records;
mod snapshot;
mod store;
mod tokens;
mod verification;

use pyo3::pymodule;

/// The module that Python imports.
#[pymodule(name = "_native")]
mod native {
    /// The package's version, as Cargo and the wheel have it.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's own name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use crate::pending::Pending;
    #[pymodule_export]
    use crate::records::{Fetched, Records, fetch, unpacked_file};
    #[pymodule_export]
    use crate::snapshot::Snapshot;
    #[pymodule_export]
    use crate::store::{Store, pack, samples};
    #[pymodule_export]
    use crate::tokens::Tokens;
    #[pymodule_export]
    use crate::verification::Verification;
}
