# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to an image as a user asks for it: plan or budget, routers, and the certificate of quality.

packer.py writes one image; here it is decided which, and what it is worth is measured with the engine on this machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri_sdk.convert import budget as budgets
from colibri_sdk.convert import calibration, quantisation, routing
from colibri_sdk.convert.card import encode_card
from colibri_sdk.convert.description import ModelDescription
from colibri_sdk.convert.packer import Options, PackReport, describe, keeping_plan, write_image
from colibri_sdk.convert.progress import Progress, Silent
from colibri_sdk.errors import UsageError

if TYPE_CHECKING:
    from colibri_sdk.convert.calibration import Passage
    from colibri_sdk.convert.measure import Comparison, Recording
    from colibri_sdk.engine import Library

Log = Callable[[str], None]

# The values of `quant` that ask for a plan within a budget, and for the checkpoint's own formats.
AUTO = "auto"
KEEP = "keep"

# What a budget is spent after: so many tokens of the text, evenly spread. The certificate is measured on all of it.
SENSITIVITY_TOKENS = 4096


def pack(
    source: Path,
    out: Path,
    *,
    quant: str = "q8",
    kv: str | None = None,
    context: int | None = None,
    router: str = "float",
    expert_map: str | None = None,
    budget: int | None = None,
    calibrate: Path | None = None,
    report: bool = False,
    spare: int = 1,
    progress: Progress | None = None,
    log: Log | None = None,
) -> PackReport:
    """Packs `source`, a checkpoint directory or a GGUF file, into the image `out`, which only a whole image replaces.

    `quant` is a plan (quantisation.py), or "keep": each matrix as nearly as it is stored, or "auto": the best one whose
    image has at most `budget` bytes, judged by the text in `calibrate`. `kv` is the format of the KV cache, f32, f16 or
    q8, by default f32 with a plan of f32 and f16 else; `context` the largest number of positions, by default what the
    model was made for; `router` float, integer or hash; `expert_map` FIRST:TOKENS. `report` measures the error of every
    matrix; `calibrate` that and, beside the model in float32, perplexity and divergence; both put it into the card.
    `spare` is the number of places for experts that are replaced in the field; as many as there are lengths of experts
    (one, unless layers have formats of their own) are enough to replace any number of them one after the other.
    `log` gets a line for each thing measured.

    The same checkpoint, text and options give the same bytes. Raises UsageError for a wrong option and CheckpointError
    naming what is wrong in the checkpoint.
    """
    auto = quant == AUTO
    if auto and (budget is None or calibrate is None):
        raise UsageError(
            "--quant auto needs --budget and --calibrate",
            "For example --budget 2500K --calibrate eval.jsonl: the image's bytes, and a text that it must do well.",
        )
    if budget is not None and not auto:
        raise UsageError(f"--budget is for --quant auto, not for {quant}", f"Use --quant {AUTO}, or leave it out.")
    options = Options(
        plan=keeping_plan(source, router) if quant == KEEP else quantisation.parse("f32" if auto else quant),
        kv=kv or ("f16" if auto else None),
        context=context,
        router=router,
        expert_map=None if expert_map is None else routing.ExpertMap.parse(expert_map),
        measure=report or calibrate is not None,
        spare=spare,
    )
    description = describe(source, options)
    notes = _notes(options)
    show = progress or Silent()
    if calibrate is None:
        done = write_image(source, out, options, show)
        return replace(done, notes=notes + _spare_notes(out))
    material = calibration.read(calibrate)
    with _bench(source, out, options, material, log or (lambda _: None)) as bench:
        options = bench.calibrated(description)
        if budget is None:
            done = bench.certified(out, options, show)
        else:
            done = _within_budget(bench, out, options, budget, description, show)
    return replace(done, notes=notes + _spare_notes(out))


def _notes(options: Options) -> tuple[str, ...]:
    if options.router != "hash":
        return ()
    return (
        "experts are chosen by hashing token ids: right only for a model that was trained so; "
        "a router that the checkpoint has is left out",
    )


def _spare_notes(image: Path) -> tuple[str, ...]:
    """Better said now than by a device in the field."""
    from colibri_sdk.image.reader import ImageFile

    with ImageFile(image) as file:
        lengths, spare = len(set(file.experts["bytes"].tolist())), file.spare_places[0]
    if not 0 < spare < lengths:
        return ()
    return (
        f"experts have {lengths} lengths, with {spare} spare place{'s' if spare > 1 else ''}: a short expert that is "
        f"replaced in the field can keep a longer one from being replaced; --spare {lengths} prevents that",
    )


# ----------------------------------------------------------------------------------------------------- measuring


@dataclass
class _Bench:
    """A place to measure in: the float32 image of the checkpoint, its recording, and room for other images.

    The reference keeps the float router; only hashing has no other form to be compared with.
    """

    source: Path
    options: Options
    material: calibration.Material
    library: Library
    room: Path
    log: Log
    reference: Path
    passages: tuple[Passage, ...]
    recording: Recording

    def record(self, image: Path, name: str, *, kv: str = "image") -> Recording:
        from colibri_sdk.convert import measure

        return measure.record(self.library, image, self.passages, self.room / f"{name}.logits", kv=kv)

    def compared(self, image: Path, *, kv: str = "image") -> Comparison:
        """`image` beside the reference."""
        from colibri_sdk.convert import measure

        return measure.compare(self.recording, self.record(image, "other", kv=kv))

    def calibrated(self, description: ModelDescription) -> Options:
        """The options with the scales of integer routers, which follow from the distances seen."""
        from colibri_sdk.convert import measure

        if self.options.router != "integer":
            return self.options
        seen = measure.largest_distances(self.recording)
        scales = tuple(
            routing.integer_scale(seen[index]) if index in seen else None for index in range(len(description.layers))
        )
        return replace(self.options, scales=scales)

    def certified(
        self,
        out: Path,
        options: Options,
        progress: Progress,
        *,
        extra: Mapping[str, Any] | None = None,
        limit: int | None = None,
        hopeful: bool = True,
    ) -> PackReport:
        """Packs, measures, and writes what was measured into the image's card.

        What is above `limit` bytes is not written to `out`, and, while it is `hopeful` to look for something smaller,
        not measured either; the report has its size.
        """
        from colibri_sdk.image.reader import ImageFile
        from colibri_sdk.image.recard import replace_card

        packed = self.room / "packed.colibri"
        done = write_image(self.source, packed, replace(options, measure=True), progress)
        with ImageFile(packed) as image:
            card, slack = image.card, image.slack_bytes
        done = replace(done, image_bytes=done.image_bytes - slack)
        if hopeful and limit is not None and done.image_bytes > limit:
            return done
        self.log(f"measuring {options.plan.text} on {self.recording.logits.shape[0]} predictions")
        result = self.compared(packed)
        quality = _certificate(self.material, len(self.passages), result) | dict(extra or {})
        if options.router == "integer":
            quality["router"] = self._router_certificate(packed, options)
        card["quality"] |= quality
        size, identity = replace_card(packed, encode_card(card))
        if limit is None or size <= limit:
            packed.replace(out)
        sections = dict(done.sections) | {"card": len(encode_card(card))}
        return replace(done, image=out, image_bytes=size, image_id=identity, sections=sections, quality=card["quality"])

    def _router_certificate(self, packed: Path, options: Options) -> dict[str, Any]:
        """The integer routers beside float routers with the same weights: each on equal inputs, and in a whole run,
        where the smallest difference of a weight may tip a later choice."""
        from colibri_sdk.convert import measure, router_check

        twin = self.room / "twin.colibri"
        write_image(self.source, twin, replace(options, router="float", scales=(), measure=False), Silent())
        self.log("measuring the integer routers beside the float routers")
        alone = router_check.integer_agreement(self.library, twin, packed, self.passages, self.room)
        together = measure.compare(self.record(twin, "twin"), self.record(packed, "other"))
        return {
            "mode": "integer",
            "decisions": alone.decisions,
            "agreement": _digits(alone.share, 7),
            "weight_error_mean": _digits(alone.weight_mean),
            "weight_error_max": _digits(alone.weight_max),
            "agreement_of_run": _digits(together.routing_agreement, 7),
            "kl_mean": _digits(together.kl_mean),
            "scales": [None if one is None else [one.steps, one.shift] for one in options.scales],
        }


@contextmanager
def _bench(source: Path, out: Path, options: Options, material: calibration.Material, log: Log) -> Iterator[_Bench]:
    """Packs the reference and runs it. All of it lies beside `out`, where there is room for images."""
    from colibri_sdk.convert import measure
    from colibri_sdk.engine import Engine, Library
    from colibri_sdk.image.reader import ImageFile

    library = Library.load()
    if not out.parent.is_dir():
        raise UsageError(f"{out} cannot be written: {out.parent} is no directory", "Name another place with -o.")
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as directory:
        room = Path(directory)
        reference = room / "reference.colibri"
        base = Options(
            plan=quantisation.QUANTISATIONS["f32"],
            kv="f32",
            context=options.context,
            router="hash" if options.router == "hash" else "float",
            spare=0,
        )
        packed = write_image(source, reference, base, Silent())
        with ImageFile(reference) as image:
            card = image.card
        engine = Engine(library, reference)
        found = calibration.passages(material, engine, card, has_tokenizer=packed.has_tokenizer)
        log(f"measuring f32 on {sum(one.scored for one in found)} predictions in {len(found)} passages")
        recording = measure.record(library, reference, found, room / "reference.logits")
        yield _Bench(source, options, material, library, room, log, reference, found, recording)


def _certificate(material: calibration.Material, count: int, result: Comparison) -> dict[str, Any]:
    return {
        "text": {"sha256": material.sha256, "passages": count, "tokens": result.tokens},
        "perplexity": _digits(result.perplexity),
        "perplexity_f32": _digits(result.reference_perplexity),
        "kl_mean": _digits(result.kl_mean),
        "kl_max": _digits(result.kl_max),
        "top_agreement": _digits(result.top_agreement),
        "routing_agreement": _digits(result.routing_agreement),
    }


def _digits(value: float, digits: int = 6) -> float:
    """Rounded, so that the last bits of a mathematical library do not change an image."""
    return float(f"{value:.{digits}g}")


# --------------------------------------------------------------------------------------------------------- budget


def _within_budget(
    bench: _Bench, out: Path, options: Options, budget: int, description: ModelDescription, progress: Progress
) -> PackReport:
    """The image of the best plan that fits `budget`. The card's length is known only when all is measured, so the
    plans are tried from the best that may fit downwards; nearly always the first one does."""
    parts = budgets.units(description)
    few = _sampled(bench)
    choices = [_choices(few, description, unit, parts) for unit in parts]
    points = budgets.front(choices)
    base = few.compared(bench.reference, kv=options.kv_format).kl_mean if options.kv_format != "f32" else 0.0
    rest = _other_bytes(bench, choices)
    smallest = 0
    for point in reversed(points):
        chosen_of = zip(parts, choices, point.choices, strict=True)
        encodings = {unit: offered[index].encoding for unit, offered, index in chosen_of}
        plan = budgets.plan_of(parts, encodings)
        spare = options.spare * budgets.place_bytes(description, plan)
        if point.bytes + rest + spare > budget and point is not points[0]:
            continue
        predicted = _digits(point.error + base)
        chosen = replace(options, plan=plan)
        done = bench.certified(
            out, chosen, progress, extra={"kl_predicted": predicted}, limit=budget, hopeful=point is not points[0]
        )
        if done.image_bytes <= budget:
            return done
        smallest = done.image_bytes
    raise UsageError(
        f"--budget {budget}: the smallest image of this model has {smallest} bytes",
        "Raise the budget, or lower --context, which the rotary tables grow with.",
    )


def _sampled(bench: _Bench) -> _Bench:
    """The same bench with a part of the passages."""
    passages = calibration.sample(bench.passages, SENSITIVITY_TOKENS)
    few = replace(bench, passages=passages)
    return replace(few, recording=few.record(bench.reference, "reference-sample"))


def _choices(
    bench: _Bench, description: ModelDescription, unit: budgets.Unit, parts: tuple[budgets.Unit, ...]
) -> list[budgets.Choice]:
    """Each format of a unit, with the divergence that the engine shows when only this unit is stored so."""
    choices = []
    for encoding in budgets.CANDIDATES:
        plan = budgets.plan_of(parts, {unit: encoding})
        error = 0.0
        if encoding.name != "f32":
            image = bench.room / "one.colibri"
            write_image(bench.source, image, replace(_float_options(bench), plan=plan), Silent())
            error = bench.compared(image).kl_mean
            bench.log(f"{plan.text}: divergence {error:.3g}")
        choices.append(budgets.Choice(encoding, budgets.unit_bytes(description, unit, encoding), error))
    return choices


def _float_options(bench: _Bench) -> Options:
    """Those of the reference."""
    mode = "hash" if bench.options.router == "hash" else "float"
    return Options(quantisation.QUANTISATIONS["f32"], "f32", bench.options.context, mode)


def _other_bytes(bench: _Bench, choices: list[list[budgets.Choice]]) -> int:
    """A lower bound of the bytes of an image beside its units: the reference's without these, and without its card."""
    from colibri_sdk.image.layout import PAGE, SectionKind, align_up
    from colibri_sdk.image.reader import ImageFile

    largest = sum(next(c.bytes for c in unit if c.encoding.name == "f32") for unit in choices)
    with ImageFile(bench.reference) as image:
        card = align_up(image.sections[SectionKind.CARD].bytes, PAGE) + image.slack_bytes
        return image.image_bytes - card - largest - PAGE
