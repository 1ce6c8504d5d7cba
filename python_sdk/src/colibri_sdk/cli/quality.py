# SPDX-License-Identifier: Apache-2.0
"""How an image's certificate of quality is shown, when it is packed and when it is inspected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from colibri_sdk.cli import output

if TYPE_CHECKING:
    from colibri_sdk.convert.tensor_errors import TensorError

Table = tuple[Sequence[str], list[list[object]], str]


def quality_rows(quality: Mapping[str, Any]) -> list[list[object]]:
    """What a text showed, beside the model in float32; nothing where none was given. Takes any card's word for it."""
    text = quality.get("text")
    if not isinstance(text, Mapping):
        return []
    rows: list[list[object]] = [
        ["measured on", f"{text.get('tokens', '?')} tokens, SHA-256 {str(text.get('sha256', '?'))[:16]}..."],
        ["perplexity", f"{quality.get('perplexity', '?')}; in float32 {quality.get('perplexity_f32', '?')}"],
        ["divergence", f"{quality.get('kl_mean', '?')} nats in the mean, {quality.get('kl_max', '?')} at most"],
        ["same likeliest token", _percent(quality.get("top_agreement"))],
        ["same experts", _percent(quality.get("routing_agreement"))],
    ]
    if "kl_predicted" in quality:
        rows.append(["divergence predicted", f"{quality['kl_predicted']} nats"])
    router = quality.get("router")
    if isinstance(router, Mapping):
        agreement = f"{_percent(router.get('agreement'))} of {router.get('decisions', '?')} decisions as in floats"
        weights = f"weights differ by {router.get('weight_error_max', '?')} at most"
        rows.append([f"{router.get('mode', '?')} router", f"{agreement}, {weights}"])
    return rows


def _percent(share: object) -> str:
    if not isinstance(share, int | float):
        return "?"
    # Nothing but all of it is called 100 %.
    return "100 %" if share == 1 else f"{min(100 * share, 99.99999):.7g} %"


def error_rows(errors: Iterable[TensorError]) -> Table:
    """The table of errors as it is measured."""
    return _table((one.name, one.format, one.weights, one.rms, one.largest) for one in errors)


def stored_error_rows(quality: Mapping[str, Any]) -> Table:
    """The same from a card; lines of another form are left out."""
    stored = quality.get("tensors")
    lines = stored if isinstance(stored, list) else []
    whole = (line for line in lines if isinstance(line, list) and len(line) == 5 and isinstance(line[2], int))
    return _table(map(tuple, whole))


def _table(lines: Iterable[tuple[Any, ...]]) -> Table:
    headers = ("matrix", "format", "weights", "relative RMS", "largest")
    rows: list[list[object]] = [
        [name, fmt, output.count(weights), rms, largest] for name, fmt, weights, rms, largest in lines
    ]
    return headers, rows, "llrrr"
