//! Exchanges of blocks of bytes in memory of Python objects.

use crate::comm::Comm;
use crate::errors::{or_fail, to_py};
use crate::owned::Numbers;
use crate::report::Traffic;
use numpy::PyArray1;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use skyphos::{BlockLimits, Error};
use std::sync::{Arc, Mutex, PoisonError};

/// An exchange of blocks under way.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct BlockExchange {
    exchange: Mutex<Option<skyphos::BlockExchange>>,
    /// Keeps the group open during the exchange.
    _comm: Arc<skyphos::Comm>,
}

/// A received block: its sender, and its bytes.
type ReceivedBlock<'py> = (u32, Bound<'py, PyArray1<u8>>);

#[pymethods]
impl BlockExchange {
    /// The next block: senders follow from the rank after this one around to the rank before it. `None` after the last.
    fn next_block<'py>(&self, py: Python<'py>) -> PyResult<Option<ReceivedBlock<'py>>> {
        let next = py.detach(|| {
            let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
            exchange.as_mut().map(skyphos::BlockExchange::next_block)
        });
        let next = next.ok_or_else(ended)?.map_err(|error| to_py(py, error))?;
        Ok(next.map(|(rank, block)| (rank, PyArray1::from_vec(py, block))))
    }

    /// Ends the exchange with an error on all ranks.
    fn fail(&self, py: Python<'_>, message: &str) {
        py.detach(|| {
            let exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
            exchange.iter().for_each(|exchange| exchange.fail(Error::bad_input(message)));
        });
    }

    /// Waits until the other ranks have received this rank's blocks.
    fn finish(&self, py: Python<'_>) -> PyResult<Traffic> {
        let traffic = py.detach(|| {
            let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
            exchange.take().map(skyphos::BlockExchange::finish)
        });
        let traffic = traffic.ok_or_else(ended)?.map_err(|error| to_py(py, error))?;
        Ok(traffic.into())
    }
}

fn ended() -> PyErr {
    PyRuntimeError::new_err("this exchange is over")
}

/// Sends block k to rank k.
#[pyfunction]
pub fn exchange_blocks<'py>(
    py: Python<'py>,
    comm: &Comm,
    blocks: Vec<Bound<'py, PyAny>>,
    push_bytes: usize,
    fetches: usize,
) -> PyResult<BlockExchange> {
    let comm = comm.shared();
    let blocks = or_fail(py, comm, blocks.iter().map(Numbers::of).collect::<PyResult<Vec<_>>>())?;
    let exchange = py.detach(|| {
        let limits = BlockLimits { push_bytes, fetches };
        comm.exchange_blocks(blocks, limits).map(|exchange| exchange.start())
    });
    let exchange = exchange.map_err(|error| to_py(py, error))?;
    Ok(BlockExchange { exchange: Mutex::new(Some(exchange)), _comm: comm.clone() })
}
