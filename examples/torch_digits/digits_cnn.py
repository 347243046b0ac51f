"""A small convolutional net of PyTorch on images of handwritten digits, 8 by 8.

`digits` is all that elps needs: how the module is made, its loss, and what to measure.
"""

from __future__ import annotations

from torch import nn
from torch.nn import functional

from elps.tasks.torch import BATCH_NORM, TorchTask


class Net(nn.Module):
    """Two convolutions with batch normalisation, which takes the place of their bias, then one dense layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.images = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.scores = nn.Linear(2 * width * 4, 10)

    def forward(self, pixels):
        """Grey values 0 to 16, shape (batch, 64), to scores, shape (batch, 10)."""
        return self.scores(self.images(pixels.reshape(-1, 1, 8, 8) / 16))


def digits(width: int = 16) -> TorchTask:
    """The task; its arguments are the job's `task_args`."""
    return TorchTask(
        lambda: Net(width),
        loss=functional.cross_entropy,  # summed over the batch: elps divides by the samples counted
        metrics=lambda scores, y: {"accuracy": (scores.argmax(dim=1) == y).sum()},
        state=BATCH_NORM,  # how the running statistics of several workers become one
    )
