"""A program with a crash bug that no ordinary test finds, what finds it, and the program without it.

It takes orders from one topic, and writes an invoice for each to another. ``python finding_a_crash_bug.py`` cuts the
power at many moments of its work, first of the wrong program and then of the right one.
"""

from __future__ import annotations

import sys

import bookstand
from bookstand.testing import CrashFoundError, every_crash

ORDERS = [b"1 bridge", b"2 tunnels"]
# So many moments are tried, spread over all of them; without a limit all are.
MOMENTS = 80


def acknowledges_too_early(orders, invoices):
    """An order that is acknowledged does not come again. And if the power goes before there is an invoice?"""
    for order in orders.receive(max=10, timeout=0):
        orders.ack(order).result()
        invoices.publish(b"invoice for " + order.payload)


def acknowledges_last(orders, invoices):
    """An order comes again until there is an invoice. There may be two then, which whoever reads them has to expect."""
    for order in orders.receive(max=10, timeout=0):
        invoices.publish(b"invoice for " + order.payload)
        orders.ack(order).result()


def workload(handle):
    """What is done until the power goes; ``acknowledge`` notes what has been promised by then."""

    def run(path, acknowledge):
        with bookstand.open(path) as store:
            orders = store.topic("orders").subscription("accounting")
            for order in ORDERS:
                store.topic("orders").publish(order)
                acknowledge(order)
            handle(orders, store.topic("invoices"))

    return run


def check(store, accepted):
    """After the cut: every order that was accepted has an invoice, or will come again."""
    to_come = {order.payload for order in store.topic("orders").subscription("accounting").receive(10, timeout=0)}
    written = store.topic("invoices").subscription("audit").receive(10, timeout=0)
    invoices = {invoice.payload for invoice in written}
    for order in accepted:
        assert order in to_come or b"invoice for " + order in invoices, f"{order.decode()}: neither order nor invoice"


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
        every_crash(workload(acknowledges_too_early), check, limit=MOMENTS)
    except CrashFoundError as found:
        print(f"acknowledges_too_early:\n{found}\n")
    else:
        raise AssertionError("the bug was not found")
    assert passes_an_ordinary_test(acknowledges_last)
    print(f"acknowledges_last: {every_crash(workload(acknowledges_last), check, limit=MOMENTS)}")


if __name__ == "__main__":
    sys.exit(main())
