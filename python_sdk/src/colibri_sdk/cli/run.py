# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk run: one prompt, one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import UsageError

if TYPE_CHECKING:
    from colibri_sdk.answers import Answer
    from colibri_sdk.device import Token


@click.command()
@click.argument("arguments", metavar="[MODEL] PROMPT", nargs=-1, required=True)
@options.device_options
@options.store_options
@options.sampling_options
@click.option("--raw", is_flag=True, help="The prompt as it is, without the chat template.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the model ended its answer.")
@click.option("--verbose", "-v", is_flag=True, help="Show routing, and time per layer and expert.")
@output.json_option
def command(
    arguments: tuple[str, ...], raw: bool, ignore_eos: bool, verbose: bool, as_json: bool, **values: Any
) -> None:
    """Send one PROMPT and show the answer.

    With an image (MODEL, or --model) the board is emulated: --board, or else this machine itself. A checkpoint's
    directory is packed first. Without an image the device is a real one: --port, $COLIBRI_PORT, or the only port
    that matches a board.
    """
    from colibri_sdk.answers import ask

    sampling = options.take(options.SAMPLING_NAMES, values)
    store = options.take_store(values)
    if len(arguments) > 2:
        raise UsageError(
            "more than a MODEL and a PROMPT", 'Put the prompt in quotes: run hb.colibri "set pump 3 to 40".'
        )
    if len(arguments) == 2:
        if values["model"] is not None:
            raise UsageError("MODEL is given twice", "Leave --model out, or put the prompt in quotes.")
        values["model"] = Path(arguments[0])
    tokens: list[Token] = []

    def on_token(token: Token) -> None:
        tokens.append(token)
        if not as_json:
            output.piece(token.text)

    with options.open_model(store=store, **values) as target:
        answer = ask(
            target.device,
            arguments[-1],
            on_token=on_token,
            chat=not raw,
            ignore_eos=ignore_eos,
            trace_routing=verbose,
            **sampling,
        )
    if as_json:
        output.emit_json(answer.as_json())
        return
    click.echo()
    if verbose:
        show_routing(tokens)
        show_details(answer)


def show_routing(tokens: list[Token]) -> None:
    """For each token the experts that its layers chose, with their weights; the token's text as it was ready."""
    if not tokens or not tokens[0].routing:
        return
    rows = [
        [token.index, token.id, json.dumps(token.text, ensure_ascii=False)]
        + [" ".join(f"{expert}:{weight:.2f}" for expert, weight in layer) for layer in token.routing or []]
        for token in tokens
    ]
    headers = ["#", "id", "text", *(f"layer {index}" for index in range(len(tokens[0].routing)))]
    output.table(headers, rows, title="Routing: expert:weight", right="rr")


def show_details(answer: Answer) -> None:
    """Figures, time per layer, and for each expert how often it was chosen and how long it computed."""
    show_figures(answer)
    stats = answer.stats
    to_ms = 1000.0 / (stats.ticks_per_second or 1)
    rows = [
        [index, *(f"{ticks * to_ms:.2f}" for ticks in (layer.attention_ticks, layer.router_ticks, layer.expert_ticks))]
        for index, layer in enumerate(stats.layers)
    ]
    output.table(["layer", "attention ms", "router ms", "experts ms"], rows, title="Time per layer", right="rrrr")
    show_store(answer)
    show_experts(answer)
    experts = [[f"{expert.ticks * to_ms:.2f}" for expert in layer] for layer in stats.experts]
    show_grid("Time per expert, ms", experts)


def show_figures(answer: Answer) -> None:
    timings = answer.timings
    output.table(
        ["", ""],
        [
            ["finish", answer.result.finish_reason],
            ["kernels", answer.stats.kernels],
            ["tokens", f"{timings['prompt_tokens']} prompt, {timings['generated_tokens']} generated"],
            ["time to first token", both(timings, "time_to_first_token_s", "s")],
            ["speed", both(timings, "tokens_per_second", "tokens/s")],
            ["arena", f"{output.size(answer.stats.arena_bytes)}, peak {output.count(answer.stats.arena_peak_bytes)}"],
        ],
    )


def show_store(answer: Answer) -> None:
    """What reading experts cost, for each layer, where they are read when they are needed."""
    store = answer.store
    if store["mode"] != "block":
        return
    rows = [
        [
            index,
            *(layer["hits"], layer["misses"], output.count(layer["read_bytes"]), f"{layer['stall_ms']:.2f}"),
            *(layer["prefetched"], layer["prefetch_used"]),
        ]
        for index, layer in enumerate([*store["layers"], store])
    ]
    rows[-1][0] = "all"
    headers = ["layer", "hits", "misses", "bytes read", "stall ms", "prefetched", "used"]
    title = f"Expert store: {store['cache_slots']} slots per layer, {output.size(store['slot_bytes'])}"
    output.table(headers, rows, title=title, right="rrrrrrr")


def both(timings: dict[str, float], name: str, unit: str) -> str:
    """A figure by the device's clock and by the wall clock."""
    return (
        f"{timings['device_' + name]:.3g} {unit} by the device's clock, {timings['wall_' + name]:.3g} by the wall clock"
    )


def show_experts(answer: Answer) -> None:
    show_grid("Experts chosen (tokens), per layer", answer.experts)


def show_grid(title: str, grid: list[list[Any]]) -> None:
    """Layers down, experts across."""
    columns = max((len(row) for row in grid), default=0)
    rows = [[index, *row, *[""] * (columns - len(row))] for index, row in enumerate(grid)]
    output.table(["layer", *map(str, range(columns))], rows, title=title, right="r" * (columns + 1))
