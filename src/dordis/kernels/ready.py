"""Set up numba when this module is imported, not at the first kernel call, so that forked processes inherit it.

The set-up takes a third of a second of CPU.
"""

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
