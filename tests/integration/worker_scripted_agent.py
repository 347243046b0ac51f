"""A worker agent on a bus of its own, as a process: runs the trainers whose scripts are its arguments.

Prints ``pids`` with its zygote's and its trainers' process ids once all run, then waits for SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from elps.contracts import topology
from elps.contracts.codec import decode, encode, parse_job
from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import Address, AgentBeat, StartTrainer
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Delivery, Queue
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore
from elps.worker.app import WorkerAgent


def command(script: str, n: int) -> StartTrainer:
    return StartTrainer(
        job=JobId("job"),
        document=parse_job({"task": "mlp", "iterations": 1, "task_args": {"script": script}}),
        term=Term(1, 5),
        worker=WorkerId(f"job-w{n}"),
        leader=Address(shard=ShardId("shard-1"), host="127.0.0.1", port=1),
        secret="s",
    )


async def main(scripts: list[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    broker = MemoryBroker()
    bus, scheduler = MemoryBus(broker), MemoryBus(broker)
    env = {"ELPS_AGENT_ID": "agent-1", "ELPS_WORKER_SLOTS": str(len(scripts))}
    context = Context(bus=bus, store=MemoryStore(), env=os.environ | env)
    agent = WorkerAgent(context, trainer="worker_scripted_trainer:run", preload=("numpy",))
    told = False

    async def on_beat(delivery: Delivery) -> None:
        nonlocal told
        beat = decode(delivery.body, AgentBeat)
        if not beat.trainers:
            for n, script in enumerate(scripts):
                await scheduler.publish(
                    topology.COMMANDS, AgentId("agent-1"), encode(command(script, n))
                )
        if [t.state for t in beat.trainers] == ["running"] * len(scripts) and not told:
            told = True
            print("pids", agent.zygote_pid, *(t.pid for t in beat.trainers), flush=True)

    await scheduler.subscribe(
        Queue("beats", ((topology.MEMBERS, topology.AGENT_BEAT),), max_length=10), on_beat
    )
    await agent.run(stop)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
