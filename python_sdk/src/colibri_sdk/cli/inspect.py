# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk inspect: what an image holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import output
from colibri_sdk.cli.quality import quality_rows, stored_error_rows
from colibri_sdk.errors import EXIT_IMAGE

if TYPE_CHECKING:
    from colibri_sdk.image.reader import Check, ImageFile, Section


@click.command()
@click.argument("path", metavar="IMAGE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--verify", is_flag=True, help="Recompute every checksum, and let the engine check the rest.")
@click.option("--report", "show_errors", is_flag=True, help="Also the error of every matrix, where it was measured.")
@click.option("--card", "card_only", is_flag=True, help="The model card alone, as JSON.")
@output.json_option
def command(path: Path, verify: bool, show_errors: bool, card_only: bool, as_json: bool) -> int:
    """Show an IMAGE's header, sections, sizes, checksums and model card. Exit code 7 when --verify finds damage."""
    from colibri_sdk.image.reader import ImageFile

    with ImageFile(path) as image:
        if card_only:
            output.emit_json(image.card)
            return 0
        checks = list(image.verify()) if verify else []
        damaged = [check for check in checks if not check.ok]
        if verify and not damaged:
            from colibri_sdk.engine import Library

            # Checksums say that the bytes are those that were packed; whether they make sense is the engine's to say.
            Library.load().validate(path)
        if as_json:
            output.emit_json(_as_json(image, checks if verify else None))
        else:
            _show(image)
            if show_errors:
                _show_errors(image)
            _show_checks(checks)
    return EXIT_IMAGE if damaged else 0


def _as_json(image: ImageFile, checks: list[Check] | None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "path": image.path,
        "image_id": image.image_id,
        "image_bytes": image.image_bytes,
        "model": image.model_name,
        "architecture": image.architecture,
        "quantisation": image.quantisation,
        "format_version": int(image.header["format_version"]),
        "numeric_version": int(image.header["numeric_version"]),
        "sections": [
            {"name": section.name, "offset": section.offset, "bytes": section.bytes, "crc32": f"{section.crc32:08x}"}
            for section in image.sections.values()
        ],
        "experts": len(image.experts),
        "spare_places": image.spare_places[0],
        "place_bytes": image.spare_places[1],
        "pins": [{"layer": layer, "experts": experts} for layer, experts in image.pins.items()],
        "updates": {"sequence": image.updates_sequence, "experts": [_update(one) for one in image.updates]},
        "signature": _signature(image),
        "card": image.card,
    }
    if checks is not None:
        answer["verified"] = all(check.ok for check in checks)
        answer["checks"] = [
            {"name": check.name, "stored": check.stored, "computed": check.computed, "ok": check.ok} for check in checks
        ]
    return answer


def _update(entry: Any) -> dict[str, Any]:
    return {
        **{name: int(entry[name]) for name in ("layer", "expert", "generation", "counter")},
        "crc32": f"{int(entry['crc32']):08x}",
        "digest": bytes(entry["digest"]).hex(),
        "board": bytes(entry["board"]).decode("utf-8", "replace"),
        "key_id": bytes(entry["key_id"]).hex(),
    }


def _signature(image: ImageFile) -> dict[str, Any]:
    found = image.signature
    return {
        "signed": found.signed,
        "algorithm": found.algorithm.name.lower(),
        "key_id": found.key_id.hex() if found.signed else "",
        "counter": found.counter,
        "board": found.board,
    }


def _show(image: ImageFile) -> None:
    card = image.card
    shape = _part(card, "shape")
    output.table(
        ["", ""],
        [
            ["model", f"{image.model_name}, {image.architecture}"],
            ["identity", image.image_id],
            ["size", output.size(image.image_bytes)],
            ["weights", f"{card.get('plan') or image.quantisation}, KV cache {card.get('kv_format', '?')}"],
            ["routers", card.get("router", "float") if len(image.experts) else "none"],
            ["parameters", _parameters(card)],
            ["context", f"{int(image.model['context_max'])} positions"],
            ["vocabulary", f"{int(image.model['vocab'])} tokens"],
            ["layers", f"{len(image.layers)} of width {int(image.model['hidden'])}"],
            ["experts", _experts(image, shape)],
            *_field_rows(image),
            ["signature", _signed_by(image)],
            ["format", f"{int(image.header['format_version'])}, numeric {int(image.header['numeric_version'])}"],
            ["packed by", card.get("packer", "?")],
            ["licence", card.get("licence") or "not stated"],
            *quality_rows(_part(card, "quality")),
        ],
    )
    rows = [
        [section.name, output.count(section.offset), output.count(section.bytes), _crc(section)]
        for section in image.sections.values()
    ]
    output.table(["section", "offset", "bytes", "CRC-32"], rows, title="\nSections", right="lrrl")


def _show_errors(image: ImageFile) -> None:
    headers, rows, right = stored_error_rows(_part(image.card, "quality"))
    if rows:
        output.table(headers, rows, title="\nError of each matrix", right=right)
    else:
        click.echo("\nno errors were measured; pack with --report")


def _part(card: dict[str, Any], name: str) -> dict[str, Any]:
    """An object in a card, which says what whoever made the image wants; empty where there is none."""
    found = card.get(name)
    return found if isinstance(found, dict) else {}


def _parameters(card: dict[str, Any]) -> str:
    total, active = card.get("parameters"), card.get("active_parameters")
    if not isinstance(total, int) or not isinstance(active, int):
        return "?"
    return f"{output.count(total)}, {output.count(active)} for a token"


def _experts(image: ImageFile, shape: dict[str, Any]) -> str:
    if not len(image.experts):
        return "none: every token takes every weight"
    return f"{_each(shape.get('experts'))} per layer, {_each(shape.get('top_k'))} chosen"


def _field_rows(image: ImageFile) -> list[list[Any]]:
    """What can be replaced in the field, and was."""
    if not len(image.experts):
        return []
    count, size = image.spare_places
    replaced = [f"{one['layer']}/{one['expert']} (generation {one['generation']})" for one in image.updates]
    pins = [f"layer {layer}: {', '.join(map(str, experts))}" for layer, experts in image.pins.items()]
    return [
        ["spare places", f"{count} of {output.size(size)}" if count else "none"],
        ["replaced", "; ".join(replaced) or "none"],
        ["pinned", "; ".join(pins) or "none"],
    ]


def _signed_by(image: ImageFile) -> str:
    found = image.signature
    if not found.signed:
        return "none"
    board = f"board {found.board}" if found.board else "any board"
    return f"key {found.key_id.hex()}, counter {found.counter}, {board}"


def _crc(section: Section) -> str:
    own = {"experts": "of each expert", "updates": "of each copy", "signature": "its own"}
    return own.get(section.name, f"{section.crc32:08x}")


def _each(values: Any) -> str:
    """One number when all layers have the same, otherwise all of them."""
    numbers = [str(value) for value in values] if isinstance(values, list) and values else ["?"]
    return numbers[0] if len(set(numbers)) == 1 else "/".join(numbers)


def _show_checks(checks: list[Check]) -> None:
    for check in checks:
        if not check.ok:
            click.echo(f"DAMAGED  {check.name}: stored {check.stored}, computed {check.computed}")
    if checks:
        good = sum(check.ok for check in checks)
        accepted = "; the engine accepts the image" if good == len(checks) else ""
        click.echo(f"\n{good} of {len(checks)} checksums are right{accepted}")
