"""A gradient computed for nothing before a trainer joins a job that trains: its first one shall keep nobody waiting.

The first call of a task is often several times as slow as the later ones: memory is touched, libraries set themselves
up, code is compiled.
"""

from __future__ import annotations

import time

import numpy as np

from elps.contracts.errors import TaskError
from elps.stream.interval import Interval
from elps.stream.order import Order
from elps.tasks.layout import Floats
from elps.tasks.running import OpenJob

QUICK_S = 0.2
"""Only when the least that can be computed takes no longer, a whole share is computed as well."""


def warm_up(job: OpenJob, order: Order, params: Floats, gradient: Floats) -> None:
    """Compute on the first parameters, into both buffers. What the task says against it, its first lease will tell.

    Where the first parameters are those of a file, on zeros: it may be large, and is of no use any more.
    """
    batch = job.document.batch
    share = batch.global_ // job.document.workers.max // batch.granule * batch.granule
    try:
        if job.document.init is None:
            params[:] = job.initial()
        with np.errstate(all="ignore"):
            began = time.perf_counter()
            job.gradient(params, Interval(0, min(batch.granule, job.samples)), order, gradient)
            if share > batch.granule and time.perf_counter() - began < QUICK_S:
                job.gradient(params, Interval(0, min(share, job.samples)), order, gradient)
    except TaskError:
        return
