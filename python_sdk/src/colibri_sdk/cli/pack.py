# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk pack: from a checkpoint to an image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from colibri_sdk.cli import options, output
from colibri_sdk.cli.quality import error_rows, quality_rows

if TYPE_CHECKING:
    from colibri_sdk.convert import PackReport


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, path_type=Path))
@click.option("--output", "-o", "out", type=click.Path(dir_okay=False, path_type=Path), help="The image to write.")
@click.option(
    "--quant",
    metavar="PLAN",
    default="q8",
    show_default=True,
    help="Number formats of the weights: q8, q4, i8, f16, f32, a plan like q8,experts=q4 (roles: embedding, head, "
    "attention, router, shared, experts; layers.0-3.experts=q8 for some layers), keep (as stored), or auto, with "
    "--budget.",
)
@click.option("--budget", metavar="BYTES", help="With --quant auto: the largest image, e.g. 2500K (thousands) or 2Mi.")
@click.option(
    "--calibrate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A text, or .jsonl lines with prompt and answer, text, or ids: measures what packing costs the model.",
)
@click.option("--report", "show_errors", is_flag=True, help="Measure and show the error of every matrix.")
@click.option(
    "--kv",
    type=click.Choice(options.KV_FORMATS),
    help="Format of the KV cache. Default: f32 with --quant f32, else f16.",
)
@click.option("--context", type=click.IntRange(1), help="Largest number of positions. Default: the model's own.")
@click.option(
    "--router",
    type=click.Choice(["float", "integer", "hash"]),
    default="float",
    show_default=True,
    help="How experts are chosen; hash only for models trained so.",
)
@click.option(
    "--spare",
    metavar="N",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    help="Places for experts that are replaced in the field. One for each length of experts is enough, one by one.",
)
@click.option("--expert-map", metavar="FIRST:TOKENS", help="FIRST experts, and one more for every TOKENS of prompt.")
@output.json_option
def command(
    checkpoint: Path,
    out: Path | None,
    quant: str,
    budget: str | None,
    calibrate: Path | None,
    show_errors: bool,
    kv: str | None,
    context: int | None,
    router: str,
    spare: int,
    expert_map: str | None,
    as_json: bool,
) -> None:
    """Pack CHECKPOINT, a Hugging Face directory or a GGUF file, into an image (default: NAME-PLAN.colibri, here).

    With --calibrate the image gets a certificate in its card: perplexity, divergence from the model in float32, and the
    error of every matrix.
    """
    from colibri_sdk.convert import pack
    from colibri_sdk.convert.budget import parse_bytes
    from colibri_sdk.convert.packing import AUTO, KEEP
    from colibri_sdk.convert.quantisation import parse
    from colibri_sdk.targets import model_name

    kind = quant if quant in (AUTO, KEEP) else parse(quant).file_name
    target = out or Path(f"{model_name(checkpoint)}-{kind}.colibri")
    with output.Progress(f"packing {checkpoint.name}") as progress:
        report = pack(
            checkpoint,
            target,
            quant=quant,
            kv=kv,
            context=context,
            router=router,
            expert_map=expert_map,
            budget=None if budget is None else parse_bytes(budget),
            calibrate=calibrate,
            report=show_errors,
            spare=spare,
            progress=progress,
            log=output.note,
        )
    for note in report.notes:
        output.note(note)
    if as_json:
        output.emit_json(report)
        return
    _show(report, show_errors)


def _show(report: PackReport, show_errors: bool) -> None:
    from colibri_sdk.convert.origins import summary

    output.table(
        ["", ""],
        [
            ["image", report.image],
            ["size", output.size(report.image_bytes)],
            ["identity", report.image_id],
            ["architecture", report.architecture],
            ["weights", f"{report.plan}, KV cache {report.kv_format}"],
            *[["", line] for line in summary(report.origins)],
            ["parameters", f"{output.count(report.parameters)}, {output.count(report.active_parameters)} for a token"],
            ["context", f"{report.context} positions"],
            ["tokenizer", "yes" if report.has_tokenizer else "no: takes token ids only"],
            *quality_rows(report.quality or {}),
        ],
    )
    if show_errors:
        headers, rows, right = error_rows(report.errors)
        output.table(headers, rows, title="\nError of each matrix", right=right)
