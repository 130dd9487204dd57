"""What there is to watch of a bookie, counted as it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from bookstand.server.bookie.server import BookieServer
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire


def test_requests_are_counted_by_what_became_of_them(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any
) -> None:
    server = serve(2, store=store)
    wire = connect(server, 2)
    assert wire.codes([kit.v2_add(kit.stored(1, n)) for n in range(20)]) == [0] * 20
    wire.v2(kit.v2_add(kit.stored(1, 20), kit.OTHER_KEY))
    wire.v2(kit.v2_read(1, 0))
    wire.v2(kit.v2_read(1, 50))
    samples = {
        (sample.name, *sorted((name, value) for name, value in sample.labels.items())): sample.value
        for sample in server.samples()
    }

    def figure(name: str, **labels: str) -> float:
        return samples[f"bookstand_bookie_{name}", *sorted({"bookie": "2", **labels}.items())]

    assert figure("requests_total", op="add", result="ok") == 20
    assert figure("requests_total", op="add", result="unauthorized") == 1
    assert figure("requests_total", op="read", result="ok") == 1
    assert figure("requests_total", op="read", result="no_entry") == 1
    assert figure("request_seconds_count", op="add") == figure("request_seconds_bucket", op="add", le="+Inf") == 21
    assert figure("request_seconds_sum", op="add") > 0
    assert figure("connections") == 1
    assert figure("adds_in_progress_bytes") == 0
    assert figure("received_bytes_total") > 20 * len(kit.stored(1, 0))
    assert figure("sent_bytes_total") == 22 * 28 + 28 + len(kit.stored(1, 0))


def test_prometheus_is_shown_them(serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any) -> None:
    server = serve(store=store)
    connect(server).v2(kit.v2_add(kit.stored(1, 0)))
    store._client.add_metrics(server)
    registry = CollectorRegistry()
    registry.register(store.metrics())
    shown = generate_latest(registry).decode()
    assert 'bookstand_bookie_requests_total{bookie="1",cluster="standalone",op="add",result="ok"} 1.0' in shown
    assert 'bookstand_bookie_request_seconds_count{bookie="1",cluster="standalone",op="add"} 1.0' in shown
