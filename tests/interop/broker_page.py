"""What docs/how-to/pulsar-on-bookstand.md has its readers type, at ports of ours."""

from __future__ import annotations

from tests.docs.steps import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "pulsar-on-bookstand.md"
ZOOKEEPER = "127.0.0.1:2181"
SERVE = "bookstand serve my-store "
INITIALIZE = "bin/pulsar initialize-cluster-metadata "
STANDALONE = "PULSAR_STANDALONE_USE_ZOOKEEPER=1 bin/pulsar standalone "


def commands() -> list[str]:
    """Each on one line."""
    return [content.replace("\\\n", "").strip() for language, content in blocks(PAGE.read_text()) if language == "sh"]


def _rest(beginning: str) -> str:
    (rest,) = (command.removeprefix(beginning) for command in commands() if command.startswith(beginning))
    return " ".join(rest.split())


def serving() -> str:
    return SERVE + _rest(SERVE)


def initializing(zookeeper: int) -> str:
    """The arguments of Pulsar's tool."""
    return _rest(INITIALIZE).replace(ZOOKEEPER, f"127.0.0.1:{zookeeper}")


def standalone() -> str:
    """The arguments of a standalone broker."""
    return _rest(STANDALONE)


def settings(zookeeper: int) -> dict[str, str]:
    """Of the broker."""
    (lines,) = (content for language, content in blocks(PAGE.read_text()) if language == "properties")
    pairs = (line.partition("=")[::2] for line in lines.splitlines())
    return {name: value.replace(ZOOKEEPER, f"127.0.0.1:{zookeeper}") for name, value in pairs}
