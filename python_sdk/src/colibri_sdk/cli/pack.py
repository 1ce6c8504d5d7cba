# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk pack: from a checkpoint to an image."""

from __future__ import annotations

from pathlib import Path

import click

from colibri_sdk.cli import options, output


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--output", "-o", "out", type=click.Path(dir_okay=False, path_type=Path), help="The image to write.")
@options.quant_option
@click.option(
    "--kv", type=click.Choice(["f16", "f32"]), default="f16", show_default=True, help="Format of the KV cache."
)
@click.option("--context", type=click.IntRange(1), help="Largest number of positions. Default: the model's own.")
@output.json_option
def command(checkpoint: Path, out: Path | None, quant: str, kv: str, context: int | None, as_json: bool) -> None:
    """Pack the Hugging Face CHECKPOINT directory into an image (default: NAME-QUANT.colibri, here)."""
    from colibri_sdk.convert import pack

    target = out or Path(f"{checkpoint.resolve().name}-{quant}.colibri")
    with output.Progress(f"packing {checkpoint.name}") as progress:
        report = pack(checkpoint, target, quant=quant, kv=kv, context=context, progress=progress)
    if as_json:
        output.emit_json(report)
        return
    output.table(
        ["", ""],
        [
            ["image", report.image],
            ["size", output.size(report.image_bytes)],
            ["identity", report.image_id],
            ["architecture", report.architecture],
            ["weights", f"{report.quantisation}, KV cache {report.kv_format}"],
            ["parameters", f"{output.count(report.parameters)}, {output.count(report.active_parameters)} for a token"],
            ["context", f"{report.context} positions"],
            ["tokenizer", "yes" if report.has_tokenizer else "no: takes token ids only"],
        ],
    )
