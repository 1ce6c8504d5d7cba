# SPDX-License-Identifier: Apache-2.0
"""What no published checkpoint asks for: hashed and mapped routers in odd numbers, caches in integers, contexts that
slide. Each is held against rules written a second time here, or against a run that needs none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import checkpoints
from colibri_sdk.convert import pack
from colibri_sdk.engine import Engine, Finish, Library
from colibri_sdk.engine.session import Route
from colibri_sdk.errors import ColibriError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.status import Status
from forge import Forge
from parity.reference_mixtral import Array, ReferenceMixtral

PARITY = Path(__file__).resolve().parents[1] / "parity"
MIXTRAL = PARITY / "variants" / "mixtral-top-3-of-5"
MANY = PARITY / "variants" / "mixtral-odd"
IDS = [int(one) for one in np.random.default_rng(8).integers(2, 45, 30)]

Tiny = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


def routes(engine: Engine) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(route.layer, route.position, route.experts) for route in engine.routing]


# ------------------------------------------------------------------------------------------------------- hashed routers


def murmur(id_: int, choice: int) -> int:
    """The finaliser of MurmurHash3 (Appleby, 2011) over the id, moved on by the golden ratio for each choice."""
    h = (id_ + choice * 0x9E3779B9) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = ((h ^ (h >> shift)) * factor) & 0xFFFFFFFF
    return h ^ (h >> 16)


def hashed(id_: int, layer: int, experts: int, in_use: int, top_k: int) -> list[int]:
    chosen: list[int] = []
    for choice in range(top_k):
        expert = ((murmur(id_, choice) % experts) ^ layer) % in_use
        chosen.append(next(one % in_use for one in range(expert, expert + in_use) if one % in_use not in chosen))
    return sorted(chosen)


@pytest.mark.parametrize(
    ("source", "experts", "top_k", "expert_map"),
    [(MIXTRAL, 5, 3, None), (MIXTRAL, 5, 3, "3:20"), (MANY, 17, 5, None), (MANY, 17, 5, "5:6")],
)
def test_hash_routing(
    library: Library, tmp_path: Path, source: Path, experts: int, top_k: int, expert_map: str | None
) -> None:
    """Numbers of experts that are no powers of two, so that the layer can lead beyond them, and some not in use."""
    pack(source, tmp_path / "m.colibri", quant="f32", router="hash", expert_map=expert_map)
    first, tokens = map(int, (expert_map or f"{experts}:1000").split(":"))
    in_use = min(experts, first + len(IDS) // tokens)
    for batch in (1, 7):
        engine = Engine(library, tmp_path / "m.colibri", batch=batch, trace_routing=True)
        engine.prefill(IDS)
        for route in engine.routing:
            assert list(route.experts) == hashed(IDS[route.position], route.layer, experts, in_use, top_k)
            assert route.weights == (float(np.float32(1) / np.float32(top_k)),) * top_k
    seen = {expert for route in engine.routing for expert in route.experts}
    assert seen == set(range(in_use))


# ------------------------------------------------------------------------------------------------- dynamic expert maps


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 of 5 experts are in use from the start, and one more for every 10 tokens of the prompt."""
    out = tmp_path_factory.mktemp("mapped") / "m.colibri"
    pack(MIXTRAL, out, quant="f32", expert_map="3:10")
    return out


def used(engine: Engine) -> set[int]:
    return {expert for route in engine.routing for expert in route.experts}


def whole(library: Library, image: Path, count: int) -> list[Route]:
    engine = Engine(library, image, trace_routing=True)
    engine.prefill(IDS[:count])
    return engine.routing


def test_the_map_follows_the_whole_prompt(library: Library, mapped: Path) -> None:
    for count, in_use in ((1, 3), (9, 3), (10, 4), (19, 4), (20, 5), (30, 5)):
        found = {expert for route in whole(library, mapped, count) for expert in route.experts}
        assert max(found) == in_use - 1


def test_a_prompt_in_parts_is_announced(library: Library, mapped: Path) -> None:
    """Without it the first part counts; with it all parts are routed as the whole is."""
    wanted = whole(library, mapped, 24)
    engine = Engine(library, mapped, trace_routing=True)
    engine.expect(24)
    for start in range(0, 24, 5):
        engine.prefill(IDS[start : min(start + 5, 24)])
    assert sorted(routes(engine)) == sorted((r.layer, r.position, r.experts) for r in wanted)

    engine.reset()
    engine.routing.clear()
    for start in range(0, 24, 5):
        engine.prefill(IDS[start : min(start + 5, 24)])
    assert used(engine) == {0, 1, 2}


def test_the_map_stays_while_tokens_are_generated(library: Library, mapped: Path) -> None:
    engine = Engine(library, mapped, trace_routing=True)
    engine.generate(IDS[:12], max_tokens=40, ignore_eos=True)
    assert used(engine) == {0, 1, 2, 3}
    engine.routing.clear()
    engine.generate(IDS, max_tokens=4, ignore_eos=True)  # a new prompt, a new map
    assert used(engine) == {0, 1, 2, 3, 4}


# ------------------------------------------------------------------------------------------------------------- groups


def test_groups_may_be_worth_less_than_nothing(library: Library, tiny: Tiny, tmp_path: Path) -> None:
    """The same number taken from every correction changes no choice: neither of groups, nor of experts in them."""
    image, found = tiny("deepseek_v3", "f32"), []
    forge = Forge(image)
    for layer in forge.layers[1:]:
        entry = layer["router"]["correction"]
        start, count = int(entry["offset"]), int(entry["cols"])
        forge.contents(SectionKind.RESIDENT)[start : start + 4 * count].view("<f4")[:] -= np.float32(4)
    forge.seal()
    for path in (image, forge.write(tmp_path / "lower.colibri")):
        engine = Engine(library, path, trace_routing=True)
        engine.prefill(IDS)
        found.append(engine.routing)
    assert found[0] == found[1] and len(found[0]) == 2 * len(IDS)


# ------------------------------------------------------------------------------------------------- caches in integers


def q8_rows(rows: Array) -> Array:
    """docs/image-format.md: blocks of 32, the scale the largest magnitude / 127, rounded half to even."""
    width = rows.shape[-1]
    padded = np.zeros((*rows.shape[:-1], -(-width // 32) * 32))
    padded[..., :width] = rows
    blocks = padded.reshape(*rows.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    return (np.rint(blocks / np.where(scale == 0, 1, scale)) * scale).reshape(padded.shape)[..., :width]


class CachedInIntegers(ReferenceMixtral):
    def cached(self, rows: Array) -> Array:
        return q8_rows(rows)


class CachedInHalves(ReferenceMixtral):
    def cached(self, rows: Array) -> Array:
        return rows.astype(np.float16).astype(rows.dtype)


@pytest.mark.parametrize(("kv", "reference"), [("q8", CachedInIntegers), ("f16", CachedInHalves)])
@pytest.mark.parametrize("head", [6, 16, 34, 70])
def test_a_cache_holds_what_an_independent_rounding_holds(
    library: Library, tmp_path: Path, head: int, kv: str, reference: type[ReferenceMixtral]
) -> None:
    """The same forward pass in float64 with keys and values rounded: what differs is float32 alone, far less than what
    the rounding does. Heads of a part of a block, of one and a bit, and of two and a bit."""
    settings = checkpoints.config(head_dim=head)
    source = checkpoints.write(tmp_path / "m", settings, checkpoints.tensors(settings, seed=4))
    pack(source, tmp_path / "m.colibri", quant="f32", kv="f32")
    exact, rounded = ReferenceMixtral(source).logits(IDS), reference(source).logits(IDS)
    for kernels in library.kernels():
        engine = Engine(library, tmp_path / "m.colibri", kv=kv, kernels=kernels)
        got = np.array([engine.forward(one) for one in IDS])
        assert np.abs(got - rounded).max() < 0.1 * np.median(np.abs(rounded - exact).max(-1))


def test_rounding_of_the_cache_is_half_a_step() -> None:
    """The bound that docs/image-format.md states, on the rule itself."""
    rows = np.random.default_rng(2).standard_normal((50, 70)) * np.geomspace(1e-3, 1e3, 50)[:, None]
    step = np.repeat([[np.abs(rows[i, b : b + 32]).max() / 127 for b in (0, 32, 64)] for i in range(50)], 32, axis=1)
    assert (np.abs(q8_rows(rows) - rows) <= step[:, :70] / 2 * (1 + 1e-12)).all()


ARCHITECTURES = sorted(path.parent.name for path in PARITY.glob("*/reference.json"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_a_cache_in_integers_costs(library: Library, tiny: Tiny, name: str) -> None:
    """Every kind of attention: the plan is smaller, the logits are near, and f16 is nearer than q8. The bounds are
    twice the largest that docs/image-format.md states."""
    image = tiny(name, "f32")
    ids = [int(one) for one in np.random.default_rng(1).integers(2, 256, 40)]
    logits, bytes_ = {}, {}
    for kv in ("f32", "f16", "q8"):
        engine = Engine(library, image, kv=kv)
        logits[kv] = np.array([engine.forward(one) for one in ids])
        bytes_[kv] = next(region.bytes for region in engine.plan.regions if region.name == "kv cache")
    spread = float(logits["f32"].std())
    error = {kv: np.abs(logits[kv] - logits["f32"]).max(-1) / spread for kv in ("f16", "q8")}
    assert bytes_["f16"] < bytes_["f32"] and bytes_["q8"] < bytes_["f32"]
    assert 0 < np.median(error["f16"]) < 0.004
    assert np.median(error["f16"]) < np.median(error["q8"]) < 0.1


# ------------------------------------------------------------------------------------------------------- sliding


def slid(engine: Engine, prompt: list[int], context: int, keep: int, count: int) -> Iterator[Array]:
    """The logits of `count` greedy tokens by the rule alone: each from a fresh prompt of what is remembered. A full
    context forgets the older half, rounded up, of what lies behind its first `keep` tokens."""
    history = list(prompt)
    for _ in range(count):
        engine.reset()
        logits = engine.prefill(history)
        yield logits
        if len(history) == context:
            del history[keep : keep + (context - keep + 1) // 2]
        history.append(int(np.argmax(logits)))


@pytest.mark.parametrize(
    ("context", "keep", "prompt"), [(20, 4, 6), (20, 0, 20), (9, 8, 3), (16, 3, 16), (2, 1, 1), (1, 0, 1)]
)
@pytest.mark.parametrize("source", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_sliding_equals_a_fresh_prompt(
    library: Library, tiny: Tiny, source: str, context: int, keep: int, prompt: int
) -> None:
    """To the bit, over several times the context; nothing is written behind the arena."""
    image, count = tiny(source, "q8"), min(60, 4 * context + 10)
    engine = Engine(library, image, context=context, batch=5)
    rows: list[Array] = []
    result = engine.generate(
        IDS[:prompt],
        max_tokens=count,
        ignore_eos=True,
        slide=True,
        slide_keep=keep,
        trace_logits=True,
        on_token=lambda token: rows.append(token.logits),  # type: ignore[func-returns-value, arg-type]
    )
    assert (result.finish, result.generated_tokens) == (Finish.LENGTH, count)
    assert engine.arena.guard_intact() and engine.position <= context
    plain = Engine(library, image, context=context, kernels="scalar")
    for index, wanted in enumerate(slid(plain, IDS[:prompt], context, keep, count)):
        assert np.array_equal(rows[index], wanted), index


def test_a_context_that_may_not_slide_ends(library: Library, tiny: Tiny) -> None:
    engine = Engine(library, tiny("mixtral", "q8"), context=20)
    result = engine.generate(IDS[:6], ignore_eos=True)
    assert (result.finish, result.generated_tokens) == (Finish.CONTEXT, 15)


@pytest.mark.parametrize("keep", [20, 21, 2**32 - 1])
def test_more_cannot_be_kept_than_there_is(library: Library, tiny: Tiny, keep: int) -> None:
    engine = Engine(library, tiny("mixtral", "q8"), context=20)
    with pytest.raises(ColibriError) as refused:
        engine.generate(IDS[:6], slide=True, slide_keep=keep)
    assert getattr(refused.value, "status", None) == Status.E_ARGUMENT


def test_cancelling_while_it_slides(library: Library, tiny: Tiny) -> None:
    """At each question of the engine: the answer is the beginning of the whole one, and the next run is untouched."""
    calls = {"left": -1, "seen": 0}

    def poll() -> bool:
        calls["seen"] += 1
        calls["left"] -= 1
        return calls["left"] == 0

    engine = Engine(library, tiny("mixtral", "q8"), context=12, poll=poll)

    def generate() -> tuple[int, ...]:
        return engine.generate(IDS[:4], max_tokens=20, ignore_eos=True, slide=True, slide_keep=2).token_ids

    complete = generate()
    for stop in range(1, calls["seen"], max(1, calls["seen"] // 80)):
        calls["left"] = stop
        cut = generate()
        assert cut == complete[: len(cut)] and len(cut) < len(complete)
        calls["left"] = -1
        assert generate() == complete
