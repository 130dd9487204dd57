"""Any order of operations on several ledgers, by two clients and over restarts, against a plain model."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from bookstand.testing import LedgerMachine

TestLedgers = LedgerMachine.TestCase
TestLedgers.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
