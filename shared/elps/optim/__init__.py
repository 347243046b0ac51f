"""How summed gradients become new parameters: optimizers as fused kernels, and the schedule of the
learning rate.

`ELPS_KERNELS` chooses the way: ``numba`` (default; compiled once, then loaded from disk) or
``numpy``. Both give the same bits: the same operations in the same order and in the dtype of the
parameters.
"""

from elps.optim.updates import add_into, all_finite, apply, copy_into, norm, state_names, warm_up

__all__ = ["add_into", "all_finite", "apply", "copy_into", "norm", "state_names", "warm_up"]
