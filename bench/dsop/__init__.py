"""Sums of outer products, measured by the rules of *DSOP* (section 6.1) beside its own variants."""

import os

# One thread a rank, before anything loads NumPy's BLAS.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "SKYPHOS_THREADS": "1"}
