from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from command_server import CommandServer
from little_tables import sentiment, tiny_folder, write_table


@pytest.fixture(scope="session")
def advreg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandServer]:
    """The command, in processes of its own."""
    server = CommandServer(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("tables") / "train.csv", sentiment())
