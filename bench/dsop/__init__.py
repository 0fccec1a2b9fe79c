"""Sums of outer products, measured by the rules of *DSOP* (section 6.1) beside its own variants."""

import os

# One thread a rank, before anything loads NumPy's BLAS.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
