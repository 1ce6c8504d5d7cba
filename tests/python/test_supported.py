# SPDX-License-Identifier: Apache-2.0
"""The tables of what is supported are those of the code, in README.md, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colibri_sdk import supported
from colibri_sdk.cli import main
from colibri_sdk.convert import KV_FORMATS
from colibri_sdk.convert.architectures import ARCHITECTURES
from colibri_sdk.convert.quantisation import ENCODINGS
from colibri_sdk.convert.rotary import SCALINGS
from colibri_sdk.image.layout import RouterScore


def test_readme_has_the_tables_of_the_code(repo_root: Path) -> None:
    """To refresh: `colibri-sdk supported --update README.md`."""
    text = (repo_root / "README.md").read_text()
    assert text.count(supported.BEGIN) == text.count(supported.END) == 1
    inside = text[text.index(supported.BEGIN) : text.index(supported.END) + len(supported.END)]
    assert inside == supported.markdown()


def test_every_registry_is_in_a_table() -> None:
    tables = {table.key: [row[0] for row in table.plain()] for table in supported.tables()}
    assert tables["architectures"] == list(ARCHITECTURES)
    assert tables["weights"] == list(ENCODINGS)
    assert tables["kv"] == list(KV_FORMATS)
    assert tables["rope"] == list(SCALINGS)
    assert tables["routers"][: len(RouterScore)] == [score.name.lower() for score in RouterScore]
    for table in supported.tables():
        assert table.rows and len(set(table.rows)) == len(table.rows)
        assert all(len(row) == len(table.columns) and all(row) for row in table.rows), table.key


def test_every_architecture_has_a_checkpoint_that_proves_it(repo_root: Path) -> None:
    proved = set()
    for path in (repo_root / "tests" / "parity").glob("*/config.json"):
        proved |= set(json.loads(path.read_text())["architectures"])
    assert proved == set(ARCHITECTURES)


def test_bits_of_weights() -> None:
    """By hand: 32 numbers of 8 or 4 bits share a binary16."""
    bits = {
        row[0].strip("`"): float(row[1]) for table in supported.tables() if table.key == "weights" for row in table.rows
    }
    assert bits == {"f32": 32, "f16": 16, "q8": 8 + 16 / 32, "i8": 8 + 16 / 32, "q4": 4 + 16 / 32}


@pytest.mark.parametrize("option", ["--json", "--markdown", ""])
def test_command(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert main.run(["supported", *option.split()]) == 0
    out = capsys.readouterr().out
    assert "MixtralForCausalLM" in out and "llama3" in out
    if option == "--json":
        content = json.loads(out)
        assert {row["class"] for row in content["architectures"]} == set(ARCHITECTURES)


def test_update_touches_what_is_between_the_markers_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{supported.BEGIN}\nold\n{supported.END}\nbelow é\n", encoding="utf-8")
    for _ in range(2):
        assert main.run(["supported", "--update", str(page)]) == 0
        assert page.read_text("utf-8") == f"above\n{supported.markdown()}\nbelow é\n"
    for wrong in ("nothing", supported.BEGIN, f"{supported.END}{supported.BEGIN}", 2 * supported.markdown()):
        page.write_text(wrong)
        assert main.run(["supported", "--update", str(page)]) == 2
        assert page.read_text() == wrong
    assert "markers" in capsys.readouterr().err
