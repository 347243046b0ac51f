"""Every worker's batch follows its speed: predictors, sizers, and the balancer that decides with them.

The mathematics of LB-BSP (Chen, Weng, Wang, Li, Li: Semi-Dynamic Load Balancing, SoCC 2020) and what goes beyond it.
Pure: no clock, no input or output, no chance without a seed. `LoopBalancer` is for a loop of one's own.
"""

from elps.balance.balancer import Balancer, Decision, scaled
from elps.balance.choosing import PREDICTORS, BestRecent
from elps.balance.leasing import Extra, LeaseCost
from elps.balance.limits import Limits, Sizes
from elps.balance.loop import LoopBalancer
from elps.balance.narx import Narx
from elps.balance.newcomers import Member
from elps.balance.observing import Circumstances, Observation, Readings
from elps.balance.policy import Policy
from elps.balance.predicting import ExponentialAverage, LastValue, MedianWindow, Predictor
from elps.balance.recursive import RecursiveLeastSquares
from elps.balance.sizing import equal_finish, even, proportional, worth_using
from elps.balance.stepping import LeaderStraggler
from elps.balance.tail import TailGate, held_back, least_lease, next_lease
from elps.balance.times import AnyTimes, LinearTimes, TimeModel
from elps.contracts.batching import AUTOMATIC, FIXED, SIZERS

__all__ = [
    "AUTOMATIC",
    "FIXED",
    "PREDICTORS",
    "SIZERS",
    "AnyTimes",
    "Balancer",
    "BestRecent",
    "Circumstances",
    "Decision",
    "ExponentialAverage",
    "Extra",
    "LastValue",
    "LeaderStraggler",
    "LeaseCost",
    "Limits",
    "LinearTimes",
    "LoopBalancer",
    "MedianWindow",
    "Member",
    "Narx",
    "Observation",
    "Policy",
    "Predictor",
    "Readings",
    "RecursiveLeastSquares",
    "Sizes",
    "TailGate",
    "TimeModel",
    "equal_finish",
    "even",
    "held_back",
    "least_lease",
    "next_lease",
    "proportional",
    "scaled",
    "worth_using",
]
