//! Tables of rows by key, and strings in Arrow's layout.

use crate::errors::to_py;
use crate::op::Operation;
use crate::work::Deliver;
use numpy::{Element as NumpyElement, PyArray1, PyReadonlyArray1};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use skyphos::keyed::{
    KeyStore, Keys, Merge, NOWHERE, Numbers, StringBatch, Strings, Table, owner_of, tokens, wave_of,
};
use skyphos::{DType, Element, Error, Result, with_element};
use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keys from Python: an array of numbers, or the offsets of strings and their bytes.
#[derive(FromPyObject)]
pub enum KeyArrays<'py> {
    Numbers(PyReadonlyArray1<'py, u64>),
    Strings(PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, u8>),
}

enum Batch<'a> {
    Numbers(&'a [u64]),
    Strings(StringBatch<'a>),
}

/// A kind of keys, from and to Python.
trait Kind: KeyStore + Clone + Send + 'static {
    /// The batch, if it has keys of this kind.
    fn from_batch(batch: Batch<'_>) -> Option<Self::Batch<'_>>;
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

impl Kind for Numbers {
    fn from_batch(batch: Batch<'_>) -> Option<&[u64]> {
        match batch {
            Batch::Numbers(numbers) => Some(numbers),
            Batch::Strings(_) => None,
        }
    }

    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        PyArray1::from_vec(py, self).into_py_any(py)
    }
}

impl Kind for Strings {
    fn from_batch(batch: Batch<'_>) -> Option<StringBatch<'_>> {
        match batch {
            Batch::Strings(strings) => Some(strings),
            Batch::Numbers(_) => None,
        }
    }

    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (offsets, bytes) = self.into_parts();
        (PyArray1::from_vec(py, offsets), PyArray1::from_vec(py, bytes)).into_py_any(py)
    }
}

/// A table of any keys and values.
trait AnyTable: Send {
    fn len(&self) -> usize;
    fn bytes(&self) -> usize;
    fn add(&mut self, keys: Batch<'_>, rows: Option<&[u8]>) -> Result<()>;
    fn absorb(&mut self, other: &dyn AnyTable) -> Result<()>;
    fn add_block(&mut self, block: &[u8]) -> Result<()>;
    fn hashes(&self) -> Vec<u64>;
    fn blocks(&self, to: &[u32], blocks: u32) -> Vec<Vec<u8>>;
    fn keys(&self) -> Deliver;
    fn take(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>>;
    fn as_any(&self) -> &dyn Any;
}

impl<K: Kind, T: Element + NumpyElement> AnyTable for Table<K, T> {
    fn len(&self) -> usize {
        Table::len(self)
    }

    fn bytes(&self) -> usize {
        Table::bytes(self)
    }

    fn add(&mut self, keys: Batch<'_>, rows: Option<&[u8]>) -> Result<()> {
        let keys =
            K::from_batch(keys).ok_or_else(|| Error::bad_input("the table has keys of another kind"))?;
        match rows {
            None => self.count(&keys),
            Some(rows) => match bytemuck::try_cast_slice(rows) {
                Ok(rows) => Table::add(self, &keys, rows),
                Err(_) => Table::add(self, &keys, &bytemuck::pod_collect_to_vec::<u8, T>(rows)),
            },
        }
    }

    fn absorb(&mut self, other: &dyn AnyTable) -> Result<()> {
        match other.as_any().downcast_ref::<Self>() {
            Some(other) => Table::absorb(self, other),
            None => Err(Error::bad_input("the other table has other kinds of keys or values")),
        }
    }

    fn add_block(&mut self, block: &[u8]) -> Result<()> {
        Table::add_block(self, block)
    }

    fn hashes(&self) -> Vec<u64> {
        Table::hashes(self).collect()
    }

    fn blocks(&self, to: &[u32], blocks: u32) -> Vec<Vec<u8>> {
        Table::blocks(self, to, blocks)
    }

    fn keys(&self) -> Deliver {
        let keys = Table::keys(self).clone();
        Box::new(move |py| keys.to_python(py))
    }

    fn take(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (keys, rows, counts) = py.detach(|| self.into_parts());
        let counts = counts.map(|counts| PyArray1::from_vec(py, counts));
        (keys.to_python(py)?, PyArray1::from_vec(py, rows), counts).into_py_any(py)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The owner of each key, and the wave of each key.
type Placement<'py> = (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<u32>>);

/// Rows of numbers by key.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct KeyTable {
    table: Mutex<Option<Box<dyn AnyTable>>>,
}

impl KeyTable {
    /// This thread must not hold the GIL: the thread that has the lock may run a ufunc, which needs the GIL.
    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn AnyTable>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Box<dyn AnyTable>) -> Result<R> + Send,
    ) -> PyResult<R> {
        let done = py.detach(|| self.lock().as_mut().map(work));
        done.ok_or_else(taken)?.map_err(|error| to_py(py, error))
    }
}

fn taken() -> PyErr {
    PyRuntimeError::new_err("the rows of this table were taken")
}

#[pymethods]
impl KeyTable {
    /// `strings`: keys are strings of bytes, not numbers. `op`: merges the rows of a key; `None` keeps all of them.
    #[new]
    fn new(
        py: Python<'_>,
        strings: bool,
        dtype: &str,
        width: usize,
        op: Option<&Operation>,
    ) -> PyResult<KeyTable> {
        let merge = op.map_or(Merge::List, |op| Merge::Fold(op.0.clone()));
        let dtype = DType::ALL.into_iter().find(|known| known.name() == dtype);
        let dtype =
            dtype.ok_or_else(|| PyTypeError::new_err("no operation is defined for values of this type"))?;
        let new = with_element!(dtype, T => match strings {
            true => Table::<Strings, T>::new(width, merge).map(|table| Box::new(table) as Box<dyn AnyTable>),
            false => Table::<Numbers, T>::new(width, merge).map(|table| Box::new(table) as Box<dyn AnyTable>),
        });
        let table = new.map_err(|error| to_py(py, error))?;
        Ok(KeyTable { table: Mutex::new(Some(table)) })
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().as_ref().map_or(0, |table| table.len()))
    }

    /// Bytes of memory of the table.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().as_ref().map_or(0, |table| table.bytes()))
    }

    /// Adds a row for each key; if `values` is `None`, a row of ones.
    fn add(
        &self,
        py: Python<'_>,
        keys: KeyArrays<'_>,
        values: Option<PyReadonlyArray1<'_, u8>>,
    ) -> PyResult<()> {
        let values = values.as_ref().map(|values| values.as_slice()).transpose()?;
        let batch = match &keys {
            KeyArrays::Numbers(numbers) => Batch::Numbers(numbers.as_slice()?),
            KeyArrays::Strings(offsets, bytes) => {
                let strings = StringBatch::new(offsets.as_slice()?, bytes.as_slice()?);
                Batch::Strings(strings.map_err(|error| to_py(py, error))?)
            }
        };
        self.with(py, |table| table.add(batch, values))
    }

    /// Adds all rows of another table, which does not change.
    fn absorb(&self, py: Python<'_>, other: &KeyTable) -> PyResult<()> {
        if std::ptr::eq(self, other) {
            return Err(PyValueError::new_err("a table cannot absorb itself"));
        }
        self.with(py, |table| other.lock().as_deref().map_or(Ok(()), |other| table.absorb(other)))
    }

    /// Adds the rows of a block.
    fn add_block(&self, py: Python<'_>, block: PyReadonlyArray1<'_, u8>) -> PyResult<()> {
        let block = block.as_slice()?;
        self.with(py, |table| table.add_block(block))
    }

    /// The owner and the wave of each key, by its hash.
    fn places<'py>(&self, py: Python<'py>, ranks: u32, waves: u32) -> PyResult<Placement<'py>> {
        let hashes = self.with(py, |table| Ok(table.hashes()))?;
        Ok(places(py, &hashes, ranks, waves))
    }

    /// Encodes `blocks` blocks: key k goes to block `to[k]`.
    fn blocks<'py>(
        &self,
        py: Python<'py>,
        to: PyReadonlyArray1<'_, u32>,
        blocks: u32,
    ) -> PyResult<Vec<Bound<'py, PyArray1<u8>>>> {
        let to = to.as_slice()?;
        let made = self.with(py, |table| {
            let fits = to.len() == table.len() && to.iter().all(|to| *to < blocks || *to == NOWHERE);
            fits.then(|| table.blocks(to, blocks))
                .ok_or_else(|| Error::bad_input("a key has no destination block"))
        })?;
        Ok(made.into_iter().map(|block| PyArray1::from_vec(py, block)).collect())
    }

    /// A copy of the keys.
    fn keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.with(py, |table| Ok(table.keys()))?(py)
    }

    /// Takes the keys, all rows, and in a table of lists the number of rows of each key. Afterwards the table is empty, and refuses
    /// further rows.
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let table = py.detach(|| self.lock().take());
        table.ok_or_else(taken)?.take(py)
    }
}

/// The owner and the wave of each key, by its hash.
#[pyfunction]
pub fn key_places<'py>(
    py: Python<'py>,
    keys: KeyArrays<'_>,
    ranks: u32,
    waves: u32,
) -> PyResult<Placement<'py>> {
    let hashes: Vec<u64> = match &keys {
        KeyArrays::Numbers(numbers) => {
            let numbers = numbers.as_slice()?;
            (0..numbers.len()).map(|at| (&numbers).hash(at)).collect()
        }
        KeyArrays::Strings(offsets, bytes) => {
            let strings = StringBatch::new(offsets.as_slice()?, bytes.as_slice()?);
            let strings = strings.map_err(|error| to_py(py, error))?;
            (0..strings.len()).map(|at| strings.hash(at)).collect()
        }
    };
    Ok(places(py, &hashes, ranks, waves))
}

fn places<'py>(py: Python<'py>, hashes: &[u64], ranks: u32, waves: u32) -> Placement<'py> {
    let all = |map: &dyn Fn(u64) -> u32| PyArray1::from_iter(py, hashes.iter().map(|hash| map(*hash)));
    (all(&|hash| owner_of(hash, ranks)), all(&|hash| wave_of(hash, waves)))
}

/// Offsets of strings, and their bytes.
type StringArrays<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<u8>>);

/// The offsets and bytes of a list of `str` (in UTF-8) or of `bytes`.
#[pyfunction]
pub fn strings_of<'py>(py: Python<'py>, strings: &Bound<'py, PyList>) -> PyResult<StringArrays<'py>> {
    let (mut offsets, mut bytes) = (Vec::with_capacity(strings.len() + 1), Vec::new());
    offsets.push(0i64);
    for (at, string) in strings.iter().enumerate() {
        if let Ok(text) = string.cast::<PyString>() {
            bytes.extend_from_slice(text.to_str()?.as_bytes());
        } else if let Ok(raw) = string.cast::<PyBytes>() {
            bytes.extend_from_slice(raw.as_bytes());
        } else {
            let kind = string.get_type().name()?;
            return Err(PyTypeError::new_err(format!("key {at} is of type {kind}, not str or bytes")));
        }
        offsets.push(bytes.len() as i64);
    }
    Ok((PyArray1::from_vec(py, offsets), PyArray1::from_vec(py, bytes)))
}

/// The words in about `most` bytes of a text from offset `at` on, and the offset after them.
#[pyfunction]
pub fn words_of<'py>(
    py: Python<'py>,
    text: PyReadonlyArray1<'_, u8>,
    at: usize,
    most: usize,
) -> PyResult<(StringArrays<'py>, usize)> {
    let text = text.as_slice()?;
    let left =
        text.get(at..).ok_or_else(|| PyValueError::new_err("the offset is beyond the end of the text"))?;
    let (offsets, bytes, read) = py.detach(|| tokens(left, most));
    Ok(((PyArray1::from_vec(py, offsets), PyArray1::from_vec(py, bytes)), at + read))
}

/// The strings as a list of `str`, or of `bytes`.
#[pyfunction]
pub fn list_of<'py>(
    py: Python<'py>,
    offsets: PyReadonlyArray1<'_, i64>,
    bytes: PyReadonlyArray1<'_, u8>,
    text: bool,
) -> PyResult<Bound<'py, PyList>> {
    let (offsets, bytes) = (offsets.as_slice()?, bytes.as_slice()?);
    StringBatch::new(offsets, bytes).map_err(|error| to_py(py, error))?;
    let string = |bounds: &[i64]| -> PyResult<Bound<'py, PyAny>> {
        let string = &bytes[bounds[0] as usize..bounds[1] as usize];
        Ok(match text {
            true => PyString::from_bytes(py, string)?.into_any(),
            false => PyBytes::new(py, string).into_any(),
        })
    };
    PyList::new(py, offsets.windows(2).map(string).collect::<PyResult<Vec<_>>>()?)
}
