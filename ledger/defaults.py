"""What ledgers are created and opened with where the caller does not say."""

from __future__ import annotations


class LedgerDefaults:
    """Pass one as ``bookstand.open(path, defaults=…)``.

    Args:
        ensemble: Over how many bookies entries are spread. It is recorded; one machine answers.
        write_quorum: How many copies of an entry are written; recorded likewise.
        ack_quorum: How many copies an acknowledgment takes; recorded likewise.
        digest: ``"crc32c"``, ``"crc32"``, ``"hmac"`` or ``"dummy"``, which protects nothing.
        password: Who has it may write to a ledger, read and recover it. None: it must be given at every creation.
        recovery: Whether ledgers are opened with recovery, which fences their writers.
    """

    __slots__ = ("ack_quorum", "digest", "ensemble", "password", "recovery", "write_quorum")

    def __init__(
        self,
        *,
        ensemble: int = 1,
        write_quorum: int = 1,
        ack_quorum: int = 1,
        digest: str = "crc32c",
        password: bytes | None = b"",
        recovery: bool = True,
    ) -> None:
        self.ensemble = ensemble
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self.digest = digest
        self.password = password
        self.recovery = recovery


# Chosen for one machine.
defaults = LedgerDefaults()

# BookKeeper's own, for those who rely on them.
bookkeeper_defaults = LedgerDefaults(
    ensemble=3, write_quorum=2, ack_quorum=2, digest="crc32", password=None, recovery=False
)
