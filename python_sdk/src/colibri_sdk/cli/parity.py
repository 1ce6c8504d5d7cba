# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk parity: the engine against a checkpoint's reference results."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.parity import TOLERANCE, Runner, compare, read_cases

if TYPE_CHECKING:
    from colibri_sdk.store import StoreChoice


@click.command()
@click.argument("directory", metavar="HF_DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--board", "-b", "board_name", help="Run it on an emulated board instead of this machine's library.")
@click.option("--kernels", help="Kernel set of this machine's library, e.g. scalar. Default: the best.")
@options.store_options
@output.json_option
def command(directory: Path, board_name: str | None, kernels: str | None, as_json: bool, **values: Any) -> int:
    """Pack HF_DIR as f32, run it, and compare with its reference.json.

    Exit code 1 when a logit or an expert's weight differs by more than 1e-3, a router choice differs or a greedy
    continuation differs.
    """
    from colibri_sdk.convert import pack

    cases = read_cases(directory)
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        image = Path(scratch) / "f32.colibri"
        with output.Progress("packing") as progress:
            pack(directory, image, quant="f32", kv="f32", progress=progress)
        with _runner(image, board_name, kernels, options.take_store(values)) as runner:
            result = compare(cases, runner)
    if as_json:
        output.emit_json({"board": board_name or "host", **dataclasses.asdict(result), "ok": result.ok})
    else:
        output.table(
            ["", ""],
            [
                ["cases", result.cases],
                ["largest difference of a logit", f"{result.max_abs_diff:.3g} (at most {TOLERANCE:g})"],
                ["largest difference of an expert's weight", f"{result.max_weight_diff:.3g} (at most {TOLERANCE:g})"],
                ["router decisions equal", f"{100 * result.router_agreement:.2f} %"],
                ["greedy continuations", "equal" if result.greedy_equal else "DIFFERENT"],
                ["verdict", "same" if result.ok else "NOT THE SAME"],
            ],
        )
    return 0 if result.ok else 1


@contextmanager
def _runner(image: Path, board_name: str | None, kernels: str | None, store: StoreChoice | None) -> Iterator[Runner]:
    from colibri_sdk import runners

    if board_name is None and store is None:
        yield runners.EngineRunner(runners.open_engine(image, kernels=kernels))
        return
    with options.open_target(board_name=board_name, model=image, store=store) as target:
        yield runners.DeviceRunner(target.device)
