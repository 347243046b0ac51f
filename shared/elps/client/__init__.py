"""What programs outside the services use: submit jobs, ask and follow them, read job files and checkpoints.

async with connect("amqp://…") as client:
    reply = await client.submit({"task": "mlp", "data": {"source": "digits"}, "passes": 3})
    print(await client.ended(reply.job))

`examples/client.py` is a whole program.
"""

from elps.client.connecting import connect
from elps.client.control import Client, QueryRefused
from elps.client.following import Following, Item

__all__ = ["Client", "Following", "Item", "QueryRefused", "connect"]
