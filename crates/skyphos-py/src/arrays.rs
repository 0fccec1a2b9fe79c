//! NumPy arrays as slices, without copies. The Python front has made them contiguous.

use numpy::{PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::{Shape, bf16, f16, shape_of};

/// Runs `$body` with the two arrays as arrays of their type.
macro_rules! of_variant {
    ($arrays:expr, |$values:ident, $out:ident| $body:expr) => {
        match $arrays {
            $crate::arrays::ValueArrays::F32($values, $out) => $body,
            $crate::arrays::ValueArrays::F64($values, $out) => $body,
            $crate::arrays::ValueArrays::I32($values, $out) => $body,
            $crate::arrays::ValueArrays::I64($values, $out) => $body,
            $crate::arrays::ValueArrays::U8($values, $out) => $body,
            $crate::arrays::ValueArrays::U32($values, $out) => $body,
            $crate::arrays::ValueArrays::U64($values, $out) => $body,
            $crate::arrays::ValueArrays::BF16($values, $out) => $body,
            $crate::arrays::ValueArrays::F16($values, $out) => $body,
        }
    };
}
pub(crate) use of_variant;

/// Runs `$body` with `$values: Numbers<T>` and `$out: NumbersMut<T>`, which the call may use after this function returns.
macro_rules! with_owned {
    ($arrays:expr, |$values:ident, $out:ident| $body:expr) => {
        $crate::arrays::of_variant!(&mut $arrays, |v, o| {
            let $values = $crate::owned::Numbers::new(v)?;
            // SAFETY: `ValueArrays` refuses an `out` that shares memory with another argument, and the documentation asks
            // Python's callers to leave `out` alone until the call is over.
            #[allow(unsafe_code, reason = "the array outlives this function")]
            let $out = unsafe { $crate::owned::NumbersMut::new(o) }?;
            $body
        })
    };
}
pub(crate) use with_owned;

/// An array of values and one for results, of one type, borrowed while a call uses them.
pub enum ValueArrays<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>, PyReadwriteArrayDyn<'py, f32>),
    F64(PyReadonlyArrayDyn<'py, f64>, PyReadwriteArrayDyn<'py, f64>),
    I32(PyReadonlyArrayDyn<'py, i32>, PyReadwriteArrayDyn<'py, i32>),
    I64(PyReadonlyArrayDyn<'py, i64>, PyReadwriteArrayDyn<'py, i64>),
    U8(PyReadonlyArrayDyn<'py, u8>, PyReadwriteArrayDyn<'py, u8>),
    U32(PyReadonlyArrayDyn<'py, u32>, PyReadwriteArrayDyn<'py, u32>),
    U64(PyReadonlyArrayDyn<'py, u64>, PyReadwriteArrayDyn<'py, u64>),
    BF16(PyReadonlyArrayDyn<'py, bf16>, PyReadwriteArrayDyn<'py, bf16>),
    F16(PyReadonlyArrayDyn<'py, f16>, PyReadwriteArrayDyn<'py, f16>),
}

impl<'py> ValueArrays<'py> {
    pub fn new(values: &Bound<'py, PyAny>, out: &Bound<'py, PyAny>) -> PyResult<ValueArrays<'py>> {
        let mut arrays = ValueArrays::of_type(values, out)?;
        // The call must not begin unless both are contiguous and aligned.
        of_variant!(&mut arrays, |values, out| {
            values.as_slice()?;
            out.as_slice_mut()?;
        });
        Ok(arrays)
    }

    /// Like [`ValueArrays::new`], but refuses arrays of different shapes, and arrays that are not C-contiguous.
    pub fn plain(values: &Bound<'py, PyAny>, out: &Bound<'py, PyAny>) -> PyResult<ValueArrays<'py>> {
        let arrays = ValueArrays::new(values, out)?;
        let same_layout = of_variant!(&arrays, |values, out| {
            values.shape() == out.shape() && values.is_c_contiguous() && out.is_c_contiguous()
        });
        match same_layout {
            true => Ok(arrays),
            false => Err(PyTypeError::new_err("the arrays differ in shape or are not C-contiguous")),
        }
    }

    /// The shape of the values.
    pub fn shape(&self) -> Shape {
        of_variant!(self, |values, _out| shape_of(values.shape()))
    }

    /// The shape of the result.
    pub fn shape_of_out(&self) -> Shape {
        of_variant!(self, |_values, out| shape_of(out.shape()))
    }

    fn of_type(values: &Bound<'py, PyAny>, out: &Bound<'py, PyAny>) -> PyResult<ValueArrays<'py>> {
        macro_rules! try_types {
            ($($variant:ident),*) => {$(
                if let Ok(values) = values.extract() {
                    let out = out.extract().map_err(|_| {
                        PyTypeError::new_err("out must be a writable array of the dtype of values that shares no memory with other arguments")
                    })?;
                    return Ok(ValueArrays::$variant(values, out));
                }
            )*};
        }
        try_types!(F64, F32, I64, I32, U8, U32, U64, F16);
        // NumPy has bfloat16 only after a package such as ml_dtypes has registered it, so that type is looked up only if the
        // array's dtype has its name.
        let dtype = values.getattr("dtype").and_then(|d| d.getattr("name"));
        if dtype.is_ok_and(|name| name.extract::<&str>().is_ok_and(|name| name == "bfloat16")) {
            try_types!(BF16);
        }
        Err(PyTypeError::new_err(
            "values must be an array of float16, float32, float64, bfloat16, int32, int64, uint8, uint32 or uint64",
        ))
    }
}
