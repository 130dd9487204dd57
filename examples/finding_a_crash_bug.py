"""A crash bug that ordinary tests do not find, the check that finds it, and the fixed program.

The program consumes orders from one topic, and publishes an invoice for each to another. ``python
finding_a_crash_bug.py`` simulates power cuts at many points, first in the buggy program and then in the fixed one.
"""

from __future__ import annotations

import sys

import bookstand
from bookstand.testing import CrashFoundError, every_crash

ORDERS = [b"1 bridge", b"2 tunnels"]
# Number of crash points to test, evenly distributed. Without a limit, all are tested.
CRASH_POINTS = 80


def acknowledges_too_early(orders, invoices):
    """Lose an order: it is not redelivered if the crash follows the acknowledgment and precedes the invoice."""
    for order in orders.receive(max=10, timeout=0):
        orders.ack(order).result()
        invoices.publish(b"invoice for " + order.payload)


def acknowledges_last(orders, invoices):
    """Redeliver an order until its invoice exists. Consumers of invoices must expect duplicates."""
    for order in orders.receive(max=10, timeout=0):
        invoices.publish(b"invoice for " + order.payload)
        orders.ack(order).result()


def workload(handle):
    """Return the workload that is interrupted by crashes; it reports durable orders through ``acknowledge``."""

    def run(path, acknowledge):
        with bookstand.open(path) as store:
            orders = store.topic("orders").subscription("accounting")
            for order in ORDERS:
                store.topic("orders").publish(order)
                acknowledge(order)
            handle(orders, store.topic("invoices"))

    return run


def check(store, accepted):
    """Check that each accepted order has an invoice or is redelivered after the crash."""
    redelivered = {order.payload for order in store.topic("orders").subscription("accounting").receive(10, timeout=0)}
    received = store.topic("invoices").subscription("audit").receive(10, timeout=0)
    invoices = {invoice.payload for invoice in received}
    for order in accepted:
        is_handled = order in redelivered or b"invoice for " + order in invoices
        assert is_handled, f"{order.decode()}: neither order nor invoice"


def passes_an_ordinary_test(handle):
    with bookstand.temporary() as store:
        orders = store.topic("orders").subscription("accounting")
        store.topic("orders").publish_many(ORDERS)
        handle(orders, store.topic("invoices"))
        invoices = store.topic("invoices").subscription("audit").receive(10, timeout=0)
        return [invoice.payload for invoice in invoices] == [b"invoice for " + order for order in ORDERS]


def main():
    assert passes_an_ordinary_test(acknowledges_too_early)
    try:
        every_crash(workload(acknowledges_too_early), check, limit=CRASH_POINTS)
    except CrashFoundError as found:
        print(f"acknowledges_too_early:\n{found}\n")
    else:
        raise AssertionError("the bug was not found")
    assert passes_an_ordinary_test(acknowledges_last)
    print(f"acknowledges_last: {every_crash(workload(acknowledges_last), check, limit=CRASH_POINTS)}")


if __name__ == "__main__":
    sys.exit(main())
