# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk eval: how many answers are exactly right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.evaluate import Score, evaluate, read_examples

if TYPE_CHECKING:
    from colibri_sdk.store import StoreChoice


@click.command()
@click.argument("image", type=click.Path(exists=True, path_type=Path))
@click.argument("examples", metavar="FILE.jsonl", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--board", "-b", "board_name", help="Ask an emulated board instead of this machine's library.")
@click.option("--port", "-p", help="Ask the device on this port, which must hold IMAGE.")
@options.quant_option
@options.store_options
@click.option("--limit", type=options.COUNT, default=0, help="Only the first so many; 0: all.")
@click.option("--max-tokens", type=options.COUNT, default=0, help="Longest answer; 0: what fits.")
@click.option("--misses", is_flag=True, help="Show the wrong answers.")
@output.json_option
def command(
    image: Path,
    examples: Path,
    board_name: str | None,
    port: str | None,
    quant: str,
    limit: int,
    max_tokens: int,
    misses: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Ask the prompts of FILE.jsonl (fields prompt, answer) and count the answers that are right to the last character.

    IMAGE runs on this machine, unless --board (emulated) or --port (real) says otherwise. It may be a checkpoint's
    directory, which is packed first.
    """
    rows = read_examples(examples, limit)
    score = Score()
    with (
        _answering(image, board_name, port, quant, max_tokens, options.take_store(values)) as answer,
        output.Progress("asking", "prompts") as progress,
    ):
        for score in evaluate(rows, answer):
            progress.update(score.n, len(rows), f"{score.exact} exact")
    if as_json:
        output.emit_json(score.as_json())
        return
    if misses:
        for example, got in score.misses:
            click.echo(f"prompt {example.prompt}\n  want {example.answer}\n  got  {output.said(got)}")
    click.echo(f"{score.exact} of {score.n} exact: {100 * score.accuracy:.2f} %")


@contextmanager
def _answering(
    image: Path,
    board_name: str | None,
    port: str | None,
    quant: str,
    max_tokens: int,
    store: StoreChoice | None,
) -> Iterator[Callable[[str], str]]:
    """What answers one prompt: a device or this machine's engine."""
    from colibri_sdk import runners, targets

    packed = targets.image_for(image, quant=quant, log=output.note)
    if board_name is None and port is None and store is None:
        engine = runners.EngineRunner(runners.open_engine(packed))
        yield lambda prompt: engine.answer(prompt, max_tokens)
        return
    with options.open_model(port=port, board_name=board_name, model=None if port else packed, store=store) as target:
        if port:
            runners.require_image(target.device, packed)
        device = runners.DeviceRunner(target.device)
        yield lambda prompt: device.answer(prompt, max_tokens)
