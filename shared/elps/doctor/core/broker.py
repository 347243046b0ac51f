"""What is thought of the broker."""

from __future__ import annotations

from collections.abc import Iterator

from elps.contracts.topology import DEAD, SCHEDULER_JOBS_QUEUE
from elps.doctor.core.finding import Finding, numbers, ok, problem, warning
from elps.doctor.core.readings import BrokerReading, QueueReading

LEAST = (3, 10)
"""The oldest RabbitMQ that the services are tested with: its quorum queues have delivery limits."""
ALARM = "a memory or disk alarm is the usual cause: rabbitmq-diagnostics alarms names it; give its host memory or disk"


def judge(broker: BrokerReading) -> Iterator[Finding]:
    """The findings, in the order in which they should be looked after."""
    if broker.error:
        yield _away(broker)
        return
    yield ok("broker", f"{broker.shown} answers")
    yield _version(broker)
    yield _blocked(broker)
    yield _permissions(broker)
    for name, words in broker.stuck.items():
        todo = (
            "restart the broker; if that does not help, remove the queue (rabbitmqctl delete_queue) and restart the "
            "services: a broker that was killed may leave one that nobody can use ('make up' repairs a local one)"
        )
        yield problem(f"queue {name}", f"it cannot be used: {words}", todo)
    for name, readings in broker.queues.items():
        yield _dead(readings) if name == DEAD else _queue(name, readings)
    if broker.answered is not None:
        yield _answers(broker.answered, broker.queues.get(SCHEDULER_JOBS_QUEUE))


def _away(broker: BrokerReading) -> Finding:
    found = f"{broker.shown}: {broker.error}"
    if broker.refused:
        todo = (
            "correct the user, password or virtual host in ELPS_AMQP_URL, or have them made: rabbitmqctl add_user, "
            "add_vhost, set_permissions"
        )
        return problem("broker", found, todo)
    todo = "start it ('make up' for a local stack), or correct ELPS_AMQP_URL; training goes on meanwhile"
    return problem("broker", found, todo)


def _version(broker: BrokerReading) -> Finding:
    check, found = "broker version", f"{broker.product or 'unknown'} {broker.version}".strip()
    if broker.product != "RabbitMQ":
        return warning(
            check, found, "elps is tested with RabbitMQ only; use that if something fails"
        )
    known = numbers(broker.version)
    if known is None:
        return warning(
            check, found, "it does not say its version; RabbitMQ 3.10 or later is needed"
        )
    if known < LEAST:
        return problem(check, found, "install RabbitMQ 3.10 or later")
    return ok(check, found)


def _blocked(broker: BrokerReading) -> Finding:
    if broker.blocked:
        return problem("broker takes messages", "it takes none", ALARM)
    return ok("broker takes messages", "it does")


def _permissions(broker: BrokerReading) -> Finding:
    if not broker.denied:
        return ok("broker permissions", "queues can be declared, bound, written to and read")
    found = "; ".join(f"{what}: {words}" for what, words in broker.denied.items())
    todo = (
        "let the user configure, write and read what begins with elps: rabbitmqctl set_permissions -p VHOST USER "
        "'^(elps\\.|amq\\.gen).*' '.*' '.*'"
    )
    return problem("broker permissions", found, todo)


def _queue(name: str, readings: tuple[QueueReading, QueueReading] | None) -> Finding:
    check = f"queue {name}"
    whose = "the scheduler" if name == SCHEDULER_JOBS_QUEUE else "its service"
    if readings is None:
        todo = f"start {whose}: no such queue was ever made (elps-scheduler, or 'make up')"
        return warning(check, "it is not there", todo)
    before, after = readings
    if not after.consumers:
        found = f"nobody takes from it; {after.messages} waiting"
        return problem(check, found, f"start {whose}, or see in its log why it does not serve")
    if before.messages and after.messages >= before.messages:
        found = f"{after.messages} waiting, and no fewer than a moment ago"
        todo = f"see in the log of {whose} for whom it waits: most often for the store"
        return warning(check, found, todo)
    return ok(check, f"{after.messages} waiting, taken from")


def _answers(answered: bool, readings: tuple[QueueReading, QueueReading] | None) -> Finding:
    """What it has taken and not answered yet does not count as waiting in its queue."""
    check = "scheduler answers"
    if answered:
        return ok(check, "it does")
    before, after = (readings[0].messages, readings[1].messages) if readings else (0, 0)
    if before > after > 0:
        found = f"it has not come to the question yet, with {after} messages before it and {before} a moment ago"
        return warning(check, found, "run this again once fewer wait")
    todo = "see in its log for whom it waits: most often for the store"
    return problem(check, "it takes messages, and has answered none for some seconds", todo)


def _dead(readings: tuple[QueueReading, QueueReading] | None) -> Finding:
    check, count = "dead letters", 0 if readings is None else readings[1].messages
    if not count:
        return ok(check, "none")
    found = f"{count} messages that could not be read or handled"
    todo = (
        f"each says why in its header x-elps-reason: look at some of queue {DEAD} in RabbitMQ's management page, then "
        f"empty it: rabbitmqctl purge_queue {DEAD}"
    )
    return warning(check, found, todo)
