# SPDX-License-Identifier: Apache-2.0
"""The certificate of quality: its numbers against others, computed in another way, and the texts it is measured on."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoints
from colibri_sdk.cli.main import cli as colibri
from colibri_sdk.convert import calibration, pack
from colibri_sdk.convert.calibration import Passage
from colibri_sdk.convert.tensor_errors import TensorError
from colibri_sdk.engine import Engine, Library
from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.image.reader import ImageFile

PARITY = Path(__file__).resolve().parents[1] / "parity"
sys.path.insert(0, str(PARITY))
from reference_mixtral import ReferenceMixtral  # noqa: E402

TINY = PARITY / "mixtral"
EXAMPLES = Path(__file__).resolve().parents[2] / "models" / "hummingbird" / "eval.jsonl"


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load()


def sequences(seed: int, count: int, vocab: int = 256) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [[int(one) for one in random.integers(2, vocab, random.integers(2, 30))] for _ in range(count)]


def ids_file(path: Path, rows: list[list[int]]) -> Path:
    path.write_text("".join(json.dumps({"ids": row}) + "\n" for row in rows))
    return path


def probabilities(logits: Any) -> Any:
    e = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def all_logits(library: Library, image: Path, ids: list[int]) -> Any:
    """[len(ids)][vocab], every position's prefix computed anew, by prefill alone."""
    engine = Engine(library, image)
    rows = []
    for count in range(1, len(ids) + 1):
        engine.reset()
        rows.append(engine.prefill(ids[:count]))
    return np.stack(rows)


def test_perplexity_is_that_of_the_reference(library: Library, tmp_path: Path) -> None:
    """Against a forward pass in NumPy and float64 that knows neither packer nor engine."""
    rows = sequences(1, 12)
    report = pack(TINY, tmp_path / "m.colibri", quant="f32", calibrate=ids_file(tmp_path / "c.jsonl", rows))
    reference, losses = ReferenceMixtral(TINY), []
    for row in rows:
        p = probabilities(reference.logits(row))
        losses += [-np.log(p[at, row[at + 1]]) for at in range(len(row) - 1)]
    quality = report.quality
    assert quality is not None
    assert quality["text"]["tokens"] == len(losses) and quality["text"]["passages"] == len(rows)
    assert quality["perplexity_f32"] == pytest.approx(np.exp(np.mean(losses)), rel=2e-5)
    # The same weights: nothing is lost, to the last bit.
    assert quality["perplexity"] == quality["perplexity_f32"]
    assert quality["kl_mean"] == quality["kl_max"] == 0
    assert quality["top_agreement"] == quality["routing_agreement"] == 1


def test_divergence_is_that_of_the_definition(library: Library, tmp_path: Path) -> None:
    rows = sequences(2, 5)
    text = ids_file(tmp_path / "c.jsonl", rows)
    out = tmp_path / "m.colibri"
    quality = pack(TINY, out, quant="q4", calibrate=text).quality
    assert quality is not None
    pack(TINY, tmp_path / "f32.colibri", quant="f32")
    divergences, losses, same = [], [], 0
    for row in rows:
        p = probabilities(all_logits(library, tmp_path / "f32.colibri", row)[:-1])
        q = probabilities(all_logits(library, out, row)[:-1])
        divergences += [
            float(sum(a * np.log(a / b) for a, b in zip(x, y, strict=True))) for x, y in zip(p, q, strict=True)
        ]
        losses += [-np.log(q[at, row[at + 1]]) for at in range(len(row) - 1)]
        same += int((p.argmax(1) == q.argmax(1)).sum())
    assert quality["kl_mean"] == pytest.approx(np.mean(divergences), rel=1e-5)
    assert quality["kl_max"] == pytest.approx(max(divergences), rel=1e-5) and quality["kl_mean"] > 0
    assert quality["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert quality["top_agreement"] == pytest.approx(same / len(losses), rel=1e-5)


def test_routing_agreement_counts_sets_of_experts(library: Library, tmp_path: Path) -> None:
    rows = sequences(4, 6)
    out = tmp_path / "m.colibri"
    quality = pack(TINY, out, quant="router=q4,experts=q4", calibrate=ids_file(tmp_path / "c.jsonl", rows)).quality
    assert quality is not None
    pack(TINY, tmp_path / "f32.colibri", quant="f32")
    chosen = []
    for image in (tmp_path / "f32.colibri", out):
        engine = Engine(library, image, trace_routing=True)
        for row in rows:
            engine.reset()
            engine.prefill(row[:-1])
        chosen.append([(route.layer, route.position, set(route.experts)) for route in engine.routing])
    same = sum(a == b for a, b in zip(*chosen, strict=True))
    assert 0 < same < len(chosen[0])
    assert quality["routing_agreement"] == pytest.approx(same / len(chosen[0]), rel=1e-5)


def test_errors_are_those_of_the_weights(tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    source = checkpoints.write(tmp_path / "m", weights=weights)
    report = pack(source, tmp_path / "m.colibri", quant="q4,head=i8,attention=f16", report=True)
    errors = {error.name: error for error in report.errors}
    with ImageFile(tmp_path / "m.colibri") as image:
        summary = {line[0]: TensorError(*line) for line in image.card["quality"]["tensors"]}
        prefix = "model.layers.1"
        layer = image.layers[1]
        pairs = {
            "head": [(image.resident_tensor(image.model["head"]["weight"]), weights["lm_head.weight"])],
            "layers.1.attention.query": [
                (
                    image.resident_tensor(layer["attention"]["query"]["weight"]),
                    weights[f"{prefix}.self_attn.q_proj.weight"],
                )
            ],
            "layers.1.experts.2.down": [
                (image.expert_tensor(1, 2, "down"), weights[f"{prefix}.block_sparse_moe.experts.2.w2.weight"])
            ],
            "layers.1.experts.down": [
                (image.expert_tensor(1, e, "down"), weights[f"{prefix}.block_sparse_moe.experts.{e}.w2.weight"])
                for e in range(3)
            ],
        }
    for name, each in pairs.items():
        got, wanted = (np.concatenate([pair[side].ravel().astype(np.float64) for pair in each]) for side in (0, 1))
        rms = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
        for found in {error for table in (errors, summary) if (error := table.get(name))}:
            assert found.rms == pytest.approx(rms, rel=1e-3) and rms > 0
            assert found.largest == pytest.approx(np.abs(got - wanted).max() / np.abs(wanted).max(), rel=1e-3)
            assert found.weights == wanted.size
    assert "layers.1.experts.down" in summary and "layers.1.experts.2.down" in errors
    assert errors["head"].format == "i8" and errors["layers.1.attention.query"].format == "f16"
    assert errors["layers.0.router.gate"].rms == 0 and errors["layers.0.router.gate"].format == "f32"
    # Embedding, head, and in each of two layers four of attention, one router, three of each of three experts.
    assert len(errors) == 2 + 2 * (5 + 9) and len(summary) == 2 + 2 * (5 + 3)


def test_the_certificate_changes_nothing_but_the_card(tmp_path: Path) -> None:
    text = ids_file(tmp_path / "c.jsonl", sequences(5, 3))
    pack(TINY, tmp_path / "plain.colibri", quant="q8")
    report = pack(TINY, tmp_path / "sure.colibri", quant="q8", calibrate=text)
    again = pack(TINY, tmp_path / "again.colibri", quant="q8", calibrate=text)
    assert (tmp_path / "sure.colibri").read_bytes() == (tmp_path / "again.colibri").read_bytes()
    assert report.image_id == again.image_id and report.image_bytes == (tmp_path / "sure.colibri").stat().st_size
    with ImageFile(tmp_path / "plain.colibri") as plain, ImageFile(tmp_path / "sure.colibri") as sure:
        assert sure.image_id == report.image_id and all(check.ok for check in sure.verify())
        for kind in plain.sections:
            same = plain.section_bytes(kind) == sure.section_bytes(kind)
            assert same == (kind not in (SectionKind.CARD, SectionKind.UPDATES))  # which holds the identity
        assert sure.card["quality"] == report.quality and "quality" not in plain.card
        assert str(tmp_path) not in json.dumps(sure.card)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "again.colibri",
        "c.jsonl",
        "plain.colibri",
        "sure.colibri",
    ]


def test_a_failure_leaves_the_old_image(tmp_path: Path) -> None:
    out = tmp_path / "m.colibri"
    pack(TINY, out, quant="q8")
    before = out.read_bytes()
    with pytest.raises(UsageError, match="999 is no token id"):
        pack(TINY, out, quant="q4", calibrate=ids_file(tmp_path / "c.jsonl", [[1, 999]]))
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "m.colibri"]
    with pytest.raises(UsageError, match="nowhere is no directory"):
        pack(TINY, tmp_path / "nowhere" / "m.colibri", calibrate=ids_file(tmp_path / "c.jsonl", [[1, 2]]))


# ------------------------------------------------------------------------------------------------------------ texts


@pytest.fixture(scope="module")
def engine(library: Library, hummingbird: Any) -> Engine:
    return Engine(library, hummingbird("q8"))


@pytest.fixture(scope="module")
def card(hummingbird: Any) -> dict[str, Any]:
    with ImageFile(hummingbird("q8")) as image:
        return image.card


def test_answers_are_measured_and_prompts_are_not(engine: Engine, card: dict[str, Any], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in EXAMPLES.read_text().splitlines()[:5]]
    file = tmp_path / "c.jsonl"
    file.write_text("".join(json.dumps(row) + "\n\n" for row in rows) + json.dumps({"prompt": rows[0]["prompt"]}))
    found = calibration.passages(calibration.read(file), engine, card, has_tokenizer=True)
    assert len(found) == 6 and found[5] == Passage(tuple(engine.prompt(rows[0]["prompt"])), 1)
    for row, passage in zip(rows, found, strict=False):
        assert list(passage.ids[: passage.first]) == engine.prompt(row["prompt"])
        assert list(passage.ids[passage.first :]) == [*engine.tokenize(row["answer"]), 1]


@settings(max_examples=30, deadline=None)
@given(text=st.text(alphabet="ab é\U0001f600\n.,", min_size=1, max_size=3000))
def test_plain_text_is_cut_into_passages_that_join_to_it(
    engine: Engine, card: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.mktemp("text") / "t.txt"
    file.write_text(text, newline="")
    try:
        found = calibration.passages(calibration.read(file), engine, card, has_tokenizer=True)
    except UsageError as error:
        assert not text.strip() or "no token" in str(error)
        return
    assert all(one.ids[0] == 0 and one.first == 1 and len(one.ids) <= 512 for one in found)
    joined = b"".join(engine.detokenize(one.ids[1:]) for one in found)
    assert joined == text.encode()


def test_long_lines_are_cut_between_characters(engine: Engine, card: dict[str, Any], tmp_path: Path) -> None:
    text = "é\U0001f600a" * 5000
    (tmp_path / "t.txt").write_text(text)
    found = calibration.passages(calibration.read(tmp_path / "t.txt"), engine, card, has_tokenizer=True)
    assert b"".join(engine.detokenize(one.ids[1:]) for one in found) == text.encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no text"),
        (b"\n \n", "no text"),
        (b"{", "line 1: not JSON"),
        (b"[1]", "line 1: no JSON object"),
        (b'{"ids": [1, -1]}', "line 1: ids are to be numbers"),
        (b'{"ids": [1, true]}', "line 1: ids are to be numbers"),
        (b'{"ids": [1.5]}', "line 1: ids are to be numbers"),
        (b'{"text": "a"}\n{"answer": "b"}', "line 2: neither text, prompt nor ids"),
        (b'{"prompt": 3}', "line 1: neither"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b'{"text": "\xff"}', "not UTF-8: byte 10"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "c.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        calibration.read(tmp_path / "c.jsonl")


def test_texts_for_models_without_a_tokenizer_are_refused(tmp_path: Path, host_library: Path) -> None:
    (tmp_path / "t.txt").write_text("hello")
    with pytest.raises(UsageError, match="the model has no tokenizer"):
        pack(TINY, tmp_path / "m.colibri", calibrate=tmp_path / "t.txt")
    with pytest.raises(UsageError, match="holds no token to predict"):
        pack(TINY, tmp_path / "m.colibri", calibrate=ids_file(tmp_path / "c.jsonl", [[5], []]))


@given(st.lists(st.integers(2, 300), min_size=1, max_size=60), st.integers(1, 5000))
def test_samples_are_spread_evenly_and_never_empty(lengths: list[int], tokens: int) -> None:
    passages = tuple(Passage(tuple([index] * length), 1) for index, length in enumerate(lengths))
    found = calibration.sample(passages, tokens)
    assert found and found[0] is passages[0]
    steps = {b.ids[0] - a.ids[0] for a, b in itertools.pairwise(found)}
    assert len(steps) <= 1
    if sum(lengths) <= tokens:
        assert found == passages


# --------------------------------------------------------------------------------------------------------- commands


def test_pack_reports_and_inspect_shows_it(tmp_path: Path, host_library: Path) -> None:
    text = ids_file(tmp_path / "c.jsonl", sequences(6, 3))
    out = tmp_path / "m.colibri"
    run = CliRunner()
    packed = run.invoke(
        colibri, ["pack", str(TINY), "-o", str(out), "--quant", "q8,experts=q4", "--calibrate", str(text), "--report"]
    )
    assert packed.exit_code == 0, packed.output
    shown = run.invoke(colibri, ["inspect", str(out), "--report"])
    assert shown.exit_code == 0, shown.output
    with ImageFile(out) as image:
        quality = image.card["quality"]
    for output in (packed.output, shown.output):
        assert "q8,experts=q4" in output and f"{quality['perplexity']}; in float32" in output
        assert f"{quality['kl_mean']} nats" in output and "layers.1.attention.query" in output
    assert "layers.1.experts.3.down" in packed.output
    for name, fmt, _, rms, _ in quality["tensors"]:
        line = next(line for line in shown.output.splitlines() if line.split()[:1] == [name])
        assert line.split()[1] == fmt and str(rms) in line.split()
    as_json = run.invoke(colibri, ["inspect", str(out), "--json"])
    assert json.loads(as_json.stdout)["card"]["quality"] == quality


@pytest.mark.parametrize(
    "quality",
    [{}, {"text": 3}, {"text": {}}, {"text": {"sha256": 5}, "router": {"agreement": "x"}, "tensors": [[1], 2]}],
)
def test_any_card_is_shown(quality: dict[str, Any]) -> None:
    """A card is text that anyone may write."""
    from colibri_sdk.cli.quality import quality_rows, stored_error_rows

    assert all(isinstance(row[0], str) for row in quality_rows(quality))
    assert stored_error_rows(quality)[1] == []


def test_nearly_all_is_not_shown_as_all() -> None:
    from colibri_sdk.cli.quality import quality_rows

    rows = dict(quality_rows({"text": {}, "top_agreement": 1 - 1e-12, "routing_agreement": 1.0}))
    assert rows["same likeliest token"] == "99.99999 %" and rows["same experts"] == "100 %"


# --------------------------------------------------------------------------------------------------------- KV cache


def test_the_cache_format_is_what_was_asked_for_from_pack_to_inspect(library: Library, tmp_path: Path) -> None:
    """Each format costs memory and error in this order; the error of q8 is small, and not nothing."""
    ids = sequences(9, 1, 1024)[0] * 2
    bytes_of, errors = {}, {}
    expected: Any = None
    for kv in ("f32", "f16", "q8"):
        out = tmp_path / f"{kv}.colibri"
        pack(EXAMPLES.parent, out, quant="f32", kv=kv)
        plan = library.plan(out)
        engine = Engine(library, out)
        assert plan.kv_format == engine.info.kv_format == kv
        bytes_of[kv] = next(region.bytes for region in plan.regions if region.name == "kv cache")
        logits = engine.prefill(ids)
        expected = logits if expected is None else expected
        errors[kv] = float(np.abs(logits - expected).max() / np.abs(expected).max())
        shown = CliRunner().invoke(colibri, ["inspect", str(out)])
        assert f"KV cache {kv}" in shown.output
    assert bytes_of["f32"] > bytes_of["f16"] > bytes_of["q8"]
    assert 0 == errors["f32"] < errors["f16"] < errors["q8"] < 0.2
    planned = CliRunner().invoke(colibri, ["plan", str(tmp_path / "f32.colibri"), "--kv", "q8", "--json"])
    assert json.loads(planned.stdout)["kv_format"] == "q8"
