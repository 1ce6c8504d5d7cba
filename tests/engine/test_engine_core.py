# SPDX-License-Identifier: Apache-2.0
"""The engine as a whole: memory, batches, cancelling, contexts, and the logits of an independent forward pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri_sdk.engine import Engine, Finish, Library
from colibri_sdk.errors import ColibriError, UsageError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.status import Status
from forge import Forge
from parity.reference_mixtral import ReferenceMixtral, Trace

Packed = Callable[[str], Path]
PROMPT = "if the level of tank 2 drops below 20 percent start pump 1"
QUANTS = ["q8", "q4", "f16", "f32"]


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


def status_of(error: pytest.ExceptionInfo[ColibriError]) -> int:
    return int(getattr(error.value, "status", 0))


# -------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("quant", QUANTS)
def test_plan_is_what_is_used(library: Library, hummingbird: Packed, quant: str) -> None:
    plan = library.plan(hummingbird(quant), context=200)
    assert sum(region.bytes for region in plan.regions) == plan.arena_bytes
    ends = [region.offset + region.bytes for region in plan.regions]
    assert [region.offset for region in plan.regions] == [0, *ends[:-1]]
    engine = Engine(library, hummingbird(quant), context=200)
    engine.generate(engine.prompt(PROMPT))
    stats = engine.stats()
    assert stats.arena_peak_bytes == stats.arena_bytes == plan.arena_bytes


def test_an_arena_one_byte_short_or_misaligned_is_refused(library: Library, hummingbird: Packed) -> None:
    exact = library.plan(hummingbird("q8")).arena_bytes
    with pytest.raises(ColibriError) as short:
        Engine(library, hummingbird("q8"), arena_bytes=exact - 1)
    assert status_of(short) == Status.E_ARENA_SIZE
    assert str(exact) in str(short.value) and str(exact - 1) in str(short.value)
    for offset in (1, 32, 63):
        with pytest.raises(ColibriError) as misaligned:
            Engine(library, hummingbird("q8"), arena_offset=offset)
        assert status_of(misaligned) == Status.E_ARENA_ALIGN
    assert Engine(library, hummingbird("q8"), arena_offset=64).arena.guard_intact()


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_nothing_is_written_behind_the_arena(library: Library, hummingbird: Packed, kv: str) -> None:
    """A long generation that fills the context to its last position."""
    engine = Engine(library, hummingbird("q8"), kv=kv, context=160, batch=7)
    result = engine.generate(
        engine.prompt(PROMPT), ignore_eos=True, temperature=1.2, top_p=0.95, seed=3, repetition_penalty=1.1
    )
    assert result.finish is Finish.CONTEXT
    assert result.prompt_tokens + result.generated_tokens == 161  # the last token needs no position
    assert engine.arena.guard_intact()


def test_every_region_counts(library: Library, hummingbird: Packed) -> None:
    """A larger context, batch or text costs exactly what the plan says, where the plan says it."""
    image = hummingbird("q8")
    small, large = library.plan(image, context=64), library.plan(image, context=128)
    by_name = {r.name: r.bytes for r in small.regions}
    grown = {r.name: r.bytes - by_name[r.name] for r in large.regions}
    assert grown["kv cache"] == 4 * 2 * 64 * 2 * 32 * 2  # layers, key and value, positions, kv heads, head_dim, f16
    assert library.plan(image, context=64, kv="f32").arena_bytes > small.arena_bytes
    assert library.plan(image, context=64, batch=64).arena_bytes > small.arena_bytes
    assert library.plan(image, context=64, max_text=65536).arena_bytes > small.arena_bytes


@pytest.mark.parametrize("option", [{"context": 513}, {"batch": 257}, {"max_text": 2**24 + 1}])
def test_options_beyond_their_limits(library: Library, hummingbird: Packed, option: dict[str, int]) -> None:
    name, value = next(iter(option.items()))
    with pytest.raises(ColibriError, match=str(value)) as refused:
        library.plan(hummingbird("q8"), **option)
    assert name in str(refused.value)


# ---------------------------------------------------------------------------------------------------------------- bits


@pytest.mark.parametrize("quant", QUANTS)
def test_batches_change_no_bit(library: Library, hummingbird: Packed, quant: str) -> None:
    hashes = set()
    for batch in (1, 2, 3, 5, 16, 256):
        engine = Engine(library, hummingbird(quant), batch=batch)
        hashes.add(engine.generate(engine.prompt(PROMPT), max_tokens=12).logits_sha256)
    assert len(hashes) == 1


@pytest.mark.parametrize("quant", QUANTS)
def test_kernels_change_no_bit(library: Library, hummingbird: Packed, tiny_mixtral: Packed, quant: str) -> None:
    for image, prompt in ((hummingbird(quant), [0, 2, 334, 442, 3]), (tiny_mixtral(quant), [7, 200, 31, 5])):
        hashes = set()
        for kernels in library.kernels():
            engine = Engine(library, image, kernels=kernels)
            assert engine.info.kernels == kernels
            hashes.add(engine.generate(prompt, max_tokens=24, ignore_eos=True).logits_sha256)
        assert len(hashes) == 1


def test_the_hash_is_that_of_the_logits(library: Library, hummingbird: Packed) -> None:
    import hashlib

    engine = Engine(library, hummingbird("q8"))
    rows: list[bytes] = []

    def keep(token: object) -> None:
        rows.append(token.logits.tobytes())  # type: ignore[attr-defined]

    result = engine.generate(engine.prompt(PROMPT), trace_logits=True, on_token=keep)
    assert hashlib.sha256(b"".join(rows)).hexdigest() == result.logits_sha256
    assert len(rows) == result.generated_tokens


def test_two_engines_side_by_side(library: Library, hummingbird: Packed) -> None:
    """Token by token in turn, they give what each gives alone."""
    first, second = Engine(library, hummingbird("q8")), Engine(library, hummingbird("q4"))
    prompts = [first.prompt("hello"), second.prompt(PROMPT)]
    alone = [engine.generate(p, max_tokens=8).token_ids for engine, p in zip((first, second), prompts, strict=True)]
    ids: list[list[int]] = [[], []]
    logits = []
    for engine, prompt in zip((first, second), prompts, strict=True):
        engine.reset()
        logits.append(engine.prefill(prompt))
    for _ in range(8):
        for i, engine in enumerate((first, second)):
            ids[i].append(int(np.argmax(logits[i])))
            logits[i] = engine.forward(ids[i][-1])
    assert [tuple(row[: len(a)]) for row, a in zip(ids, alone, strict=True)] == alone


# ----------------------------------------------------------------------------------------------------------- reference


@pytest.mark.parametrize("model", ["hummingbird", "mixtral"])
def test_logits_and_routing_of_an_independent_forward_pass(
    library: Library, hummingbird: Packed, tiny_mixtral: Packed, repo_root: Path, model: str
) -> None:
    """Every position of a pseudo-random prompt, not only those that the checkpoint's reference holds."""
    image, source = {
        "hummingbird": (hummingbird("f32"), repo_root / "models" / "hummingbird"),
        "mixtral": (tiny_mixtral("f32"), repo_root / "tests" / "parity" / "mixtral"),
    }[model]
    reference = ReferenceMixtral(source)
    engine = Engine(library, image, kv="f32", trace_routing=True)
    ids = np.random.default_rng(5).integers(4, engine.info.vocab, 40).tolist()
    trace = Trace()
    expected = reference.logits(ids, trace)
    got = np.array([engine.forward(one) for one in ids])
    assert np.abs(got - expected).max() < 1e-3
    for route in engine.routing:
        want = dict(
            zip(trace.experts[route.layer][route.position], trace.weights[route.layer][route.position], strict=True)
        )
        assert set(route.experts) == set(want)
        assert list(route.experts) == sorted(route.experts)
        assert np.allclose(route.weights, [want[e] for e in route.experts], atol=1e-4)


# ---------------------------------------------------------------------------------------------------- cancel and limits


def test_cancel_at_any_moment(library: Library, hummingbird: Packed) -> None:
    """The n-th question of the engine is answered with "stop", for many n; afterwards all is as before."""
    calls = {"left": -1, "seen": 0}

    def poll() -> bool:
        calls["seen"] += 1
        calls["left"] -= 1
        return calls["left"] == 0

    engine = Engine(library, hummingbird("q8"), poll=poll)
    prompt = engine.prompt(PROMPT)
    calls["seen"] = 0
    whole = engine.generate(prompt)
    total = calls["seen"]
    assert total > 500
    for n in [*range(1, 40), *range(40, total, total // 60)]:
        calls["left"] = n
        cut = engine.generate(prompt)
        assert cut.finish is Finish.CANCELLED
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    calls["left"] = -1
    again = engine.generate(prompt)
    assert (again.token_ids, again.logits_sha256) == (whole.token_ids, whole.logits_sha256)


def test_cancel_from_the_token_callback(library: Library, hummingbird: Packed) -> None:
    engine = Engine(library, hummingbird("q8"))
    result = engine.generate(engine.prompt(PROMPT), on_token=lambda token: token.index < 4)
    assert (result.finish, result.generated_tokens) == (Finish.CANCELLED, 5)


def test_positions(library: Library, hummingbird: Packed) -> None:
    engine = Engine(library, hummingbird("q8"), context=20)
    engine.prefill(list(range(4, 24)))
    assert engine.position == 20
    with pytest.raises(ColibriError) as full:
        engine.forward(5)
    assert status_of(full) == Status.E_CONTEXT_FULL
    with pytest.raises(ColibriError) as unknown:
        engine.reset()
        engine.forward(1024)
    assert status_of(unknown) == Status.E_TOKEN_RANGE or isinstance(unknown.value, UsageError)
    assert engine.position == 0
    with pytest.raises(ColibriError) as empty:
        engine.generate([])
    assert status_of(empty) == Status.E_NO_PROMPT


def test_a_prompt_that_fills_the_context_still_gives_one_token(library: Library, hummingbird: Packed) -> None:
    engine = Engine(library, hummingbird("q8"), context=12)
    result = engine.generate([4] * 12, ignore_eos=True)
    assert (result.finish, result.generated_tokens) == (Finish.CONTEXT, 1)


def test_keeping_the_context_equals_one_prompt(library: Library, hummingbird: Packed) -> None:
    engine = Engine(library, hummingbird("q8"))
    prompt = engine.prompt(PROMPT)
    whole = engine.generate(prompt)
    engine.reset()
    engine.prefill(prompt[:5])
    assert engine.generate(prompt[5:], keep_context=True).logits_sha256 == whole.logits_sha256
    engine.reset()
    engine.prefill(prompt)
    assert engine.generate([], keep_context=True).logits_sha256 == whole.logits_sha256


def test_stop_strings(library: Library, hummingbird: Packed) -> None:
    engine = Engine(library, hummingbird("q8"))
    prompt = engine.prompt("set pump 3 to 40 percent")
    whole = engine.generate(prompt).text
    result = engine.generate(prompt, stop=['"id":3', "never"])
    assert result.finish is Finish.STOP
    assert result.text == whole[: whole.index('"id":3')]


def test_numbers_that_leave_the_range_are_an_error(library: Library, tiny_mixtral: Packed, tmp_path: Path) -> None:
    """Finite but absurd weights: the image is valid, the computation is not, and it says so."""
    forge = Forge(tiny_mixtral("f32"))
    forge.contents(SectionKind.RESIDENT).view("<f4")[:] *= np.float32(1e30)
    forge.seal()
    engine = Engine(library, forge.write(tmp_path / "absurd.colibri"))
    with pytest.raises(ColibriError) as error:
        engine.generate([3, 4, 5], max_tokens=4)
    assert status_of(error) == Status.E_NUMERIC


def test_statistics(library: Library, hummingbird: Packed) -> None:
    engine = Engine(library, hummingbird("q8"), trace_routing=True)
    result = engine.generate(engine.prompt(PROMPT))
    stats = engine.stats()
    positions = result.prompt_tokens + result.generated_tokens - 1
    assert stats.tokens == positions
    assert stats.expert_tokens.sum(axis=1).tolist() == [2 * positions] * 4
    counted = np.zeros_like(stats.expert_tokens)
    for route in engine.routing:
        counted[route.layer, list(route.experts)] += 1
    assert (counted == stats.expert_tokens).all()
    engine.clear_stats()
    assert engine.stats().tokens == 0 and not engine.stats().expert_tokens.any()
