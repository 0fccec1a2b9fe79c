"""Sums of outer products, compared with the variants of *DSOP* (Enderlin et al.) by its rules (section 6.1)."""

import os

# One thread a rank, before anything loads NumPy's BLAS.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "SKYPHOS_THREADS": "1"}
