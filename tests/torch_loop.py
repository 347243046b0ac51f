"""The example of a convolutional net trained by torch alone, in one plain loop: what elps is held against.

It shares with elps the data, their order and the first values; the module, its gradients, the optimizer and the batch
normalisations are torch's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from elps.stream.geometry import Geometry
from elps.stream.interval import Interval
from elps.tasks.running import OpenJob

FOLDER = Path(__file__).parents[1] / "examples" / "torch_digits"


def train(job: OpenJob, net: Any, iterations: int) -> tuple[dict[str, Any], list[float]]:
    """The net's tensors after so many iterations with Adam, and the mean losses. `net` is made like the task's."""
    import torch
    from torch.nn import functional

    document = job.document
    geometry = Geometry(job.samples, document.batch.global_, document.batch.granule)
    net = net.to(getattr(torch, document.dtype))
    first = {name: np.array(view) for name, view in job.layout.views(job.initial()).items()}
    net.load_state_dict({name: torch.tensor(value) for name, value in first.items()})
    optimizer = torch.optim.Adam(net.parameters(), lr=document.optimizer.lr)
    order, losses = job.order(), []
    for t in range(iterations):
        whole = geometry.iteration(t)
        start = {name: buffer.clone() for name, buffer in net.named_buffers()}
        met = {name: torch.zeros_like(buffer) for name, buffer in net.named_buffers()}
        optimizer.zero_grad()
        total = 0.0
        for lo in range(whole.lo, whole.hi, geometry.granule):
            part = Interval(lo, min(lo + geometry.granule, whole.hi))
            for name, buffer in net.named_buffers():
                buffer.copy_(start[name])
            x, y = (torch.from_numpy(a) for a in job.train.get(order.indices(part)[1]))
            net.train()
            loss = functional.cross_entropy(net(x), y, reduction="sum")
            loss.backward()
            total += float(loss.detach())
            for name, buffer in net.named_buffers():
                met[name] += buffer * part.size if buffer.is_floating_point() else 0
        for parameter in net.parameters():
            parameter.grad /= whole.size
        optimizer.step()
        for name, buffer in net.named_buffers():
            buffer.copy_(met[name] / whole.size if buffer.is_floating_point() else start[name] + 1)
        losses.append(total / whole.size)
    return net.state_dict(), losses


def accuracy(job: OpenJob, net: Any) -> float:
    """Of a net on the held-out samples."""
    import torch

    assert job.test is not None
    x, y = (torch.from_numpy(a) for a in job.test.get(np.arange(job.test_samples)))
    net.eval()
    with torch.no_grad():
        return float((net(x).argmax(1) == y).double().mean())
