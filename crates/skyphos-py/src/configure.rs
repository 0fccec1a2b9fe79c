//! Index sets and settings of `configure`.

use crate::indices::OwnedIndices;
use pyo3::prelude::*;
use skyphos::Missing;

/// The indices that this rank contributes values for, and the indices that it wants.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct IndexSets {
    pub contribute: Py<PyAny>,
    pub want: Py<PyAny>,
}

#[pymethods]
impl IndexSets {
    #[new]
    fn new(contribute: Py<PyAny>, want: Py<PyAny>) -> IndexSets {
        IndexSets { contribute, want }
    }
}

impl IndexSets {
    /// The sets as arguments that a call keeps alive.
    pub fn owned(&self, py: Python<'_>) -> PyResult<(OwnedIndices, OwnedIndices)> {
        Ok((OwnedIndices::new(self.contribute.bind(py))?, OwnedIndices::new(self.want.bind(py))?))
    }
}

/// Settings of `configure`: declared and documented in `skyphos::ConfigureOptions`.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct ConfigureOptions(pub skyphos::ConfigureOptions);

#[pymethods]
impl ConfigureOptions {
    /// `missing_identity`: an index that no rank contributes is the operation's identity, not an error.
    #[new]
    #[pyo3(signature = (n=None, width=1, *, degrees=None, missing_identity=false, min_packet_bytes=None,
                        expected_nnz=None))]
    fn new(
        n: Option<u64>,
        width: usize,
        degrees: Option<Vec<u32>>,
        missing_identity: bool,
        min_packet_bytes: Option<f64>,
        expected_nnz: Option<u64>,
    ) -> ConfigureOptions {
        let missing = if missing_identity { Missing::Identity } else { Missing::Error };
        let options =
            skyphos::ConfigureOptions { n, width, degrees, missing, min_packet_bytes, expected_nnz };
        ConfigureOptions(options)
    }

    #[getter]
    fn width(&self) -> usize {
        self.0.width
    }
}
