# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk profile: record which experts a model needs, and pin those that are worth it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import UsageError

if TYPE_CHECKING:
    from colibri_sdk.profiling.balance import Balance
    from colibri_sdk.profiling.pins import PinChoice
    from colibri_sdk.profiling.trace import RoutingTrace


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@options.prompts_option(required=True)
@options.quant_option
@click.option("--limit", type=click.IntRange(0), default=0, help="Only the first so many prompts; 0: all.")
@click.option("--max-tokens", type=options.COUNT, default=0, help="Longest answer; 0: what fits.")
@click.option(
    "--output",
    "-o",
    "output_",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The trace. Default: MODEL.trace.npz.",
)
@click.option("--pin", is_flag=True, help="Write pins into the image MODEL.")
@click.option("--pins", type=click.IntRange(0), help="Pin so many experts of each layer; default: as many as pay.")
@click.option(
    "--cache-slots", type=click.IntRange(1), help="... in a cache of so many per layer; default: half of the experts."
)
@output.json_option
def command(
    model: Path,
    prompts: Path,
    quant: str,
    limit: int,
    max_tokens: int,
    output_: Path | None,
    pin: bool,
    pins: int | None,
    cache_slots: int | None,
    as_json: bool,
) -> None:
    """Answer the prompts of a file on this machine, which routes as every board does, and record the experts chosen.

    The trace tells `colibri-sdk plan --profile` what any size of the expert cache would read. With --pin the experts
    that are needed most are also written into the image, which keeps them cached; it must then be an image, not a
    checkpoint.
    """
    from colibri_sdk import targets
    from colibri_sdk.engine import Library
    from colibri_sdk.profiling import trace as traces
    from colibri_sdk.profiling.balance import balance
    from colibri_sdk.profiling.prompts import read_prompts
    from colibri_sdk.profiling.record import record

    if not pin and (pins is not None or cache_slots is not None):
        raise UsageError("--pins and --cache-slots are about pins", "Add --pin to write them.")
    wanted = read_prompts(prompts, limit)
    image = targets.image_for(model, quant=quant, log=output.note)
    if pin and image != model:
        raise UsageError(
            f"{model} is a checkpoint; pins are written into an image",
            f"Pack it first: colibri-sdk pack {model} -o {targets.model_name(model)}.colibri",
        )
    to = output_ or Path(f"{targets.model_name(model).removesuffix('.colibri')}.trace.npz")
    if not to.parent.is_dir():  # recording may take long
        raise UsageError(f"{to.parent} is no directory", "Make it first, or name another file with -o.")
    library = Library.load()
    with output.Progress("recording", "prompts") as progress:
        trace = record(image, wanted, max_tokens=max_tokens, library=library, progress=progress.update)
    traces.save(trace, to)  # before the image changes: whatever fails then, the recording is there
    choice = None
    if pin:
        from colibri_sdk.profiling import pins as pinning

        slots = cache_slots or max(1, max(trace.experts) // 2)
        choice = pinning.choose(library, trace, slots, pins)
        trace = trace.also_for(pinning.write(image, choice.pins))
        if len(trace.image_ids) > 1:
            traces.save(trace, to)
    layers = {
        layer: balance(row[:experts].tolist())
        for layer, (row, experts) in enumerate(zip(trace.tokens(), trace.experts, strict=True))
        if experts
    }
    if as_json:
        output.emit_json(_as_json(trace, to, layers, choice))
    else:
        _show(trace, to, layers, choice, image)


def _as_json(
    trace: RoutingTrace, to: Path, layers: dict[int, Balance | None], choice: PinChoice | None
) -> dict[str, Any]:
    return {
        "trace": to,
        "image_id": trace.image_ids[-1],
        "model": trace.model,
        "prompts": trace.prompts,
        "prompt_tokens": int(trace.prompt_tokens.sum()),
        "answer_tokens": int(trace.answer_tokens.sum()),
        "steps": trace.steps,
        "layers": [{"layer": layer, "balance": figures} for layer, figures in layers.items()],
        "pins": choice,
    }


def _show(
    trace: RoutingTrace, to: Path, layers: dict[int, Balance | None], choice: PinChoice | None, image: Path
) -> None:
    prompts = f"{trace.prompts} prompt{'' if trace.prompts == 1 else 's'}"
    click.echo(f"{prompts}, {trace.prompt_tokens.sum()} + {trace.answer_tokens.sum()} tokens, {trace.steps} steps")
    rows = [
        [
            layer,
            trace.experts[layer],
            f"{100 * figures.utilisation:.0f} %",
            f"{figures.effective:.1f}",
            f"{figures.variation:.2f}",
            f"{figures.busiest} ({figures.busiest_share:.2f} x mean)",
        ]
        for layer, figures in layers.items()
        if figures is not None
    ]
    headers = ["layer", "experts", "used", "effective", "variation", "busiest"]
    output.table(headers, rows, title="Use of experts", right="rrrrr")
    if choice is not None:
        _show_pins(choice, image, trace.image_ids)
    click.echo(f"trace {to}")


def _show_pins(choice: PinChoice, image: Path, image_ids: tuple[str, ...]) -> None:
    if choice.rate_without is not None and choice.rate_with is not None:
        click.echo(
            f"with {choice.slots} slots per layer held-out prompts hit {100 * choice.rate_without:.2f} % "
            f"without pins, {100 * choice.rate_with:.2f} % with {choice.count} in each layer"
        )
    if choice.count == 0:
        click.echo(f"no pins: {image} pins nothing now")
    for layer, experts in choice.pins.items():
        click.echo(f"layer {layer} pins {' '.join(map(str, experts))}")
    if len(image_ids) == 1:
        click.echo(f"{image} has these pins already and stays as it is")
        return
    click.echo(f"{image} is image {image_ids[-1]} now and unsigned: boards that trust a key want it signed again")
