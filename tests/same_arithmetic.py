"""Import this before numpy: floating point is then the same, to the last bit, on all x86-64 processors with AVX2.

numpy and its BLAS choose their routines by the processor, and the last bits of results differ between these routines.
"""

import os
import platform

if platform.machine().lower() in {"x86_64", "amd64"}:
    os.environ |= {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR"}
