# SPDX-License-Identifier: Apache-2.0
"""The engine as Python sees it: the same structs, every error as an exception, callbacks that may fail."""

from __future__ import annotations

import re
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cffi import FFI
from hypothesis import given
from hypothesis import strategies as st

from colibri_sdk.engine import Engine, Finish, Library, Token
from colibri_sdk.engine.header import header_path, read_header
from colibri_sdk.errors import BuildError, DeviceError, ImageError, InternalError, UsageError
from colibri_sdk.status import Status
from dwarf import Types, compiled_types

ENGINE = Path(__file__).resolve().parents[2] / "firmware" / "engine"
PROMPT = "set pump 3 to 40 percent"
ANSWER = '{"intent":"set","device":"pump","id":3,"value":40,"unit":"percent"}'

Packed = Callable[[str], Path]


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load()


@pytest.fixture(scope="module")
def engine(library: Library, hummingbird: Packed) -> Engine:
    return Engine(library, hummingbird("q8"))


# ------------------------------------------------------------------------------------------------------ declarations


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Types:
    constants = read_header(header_path().read_text()).constants
    mirrored = "".join(f"    MIRRORED_{name} = {name},\n" for name in constants)
    text = f'#include "colibri.h"\nenum mirrored {{\n{mirrored}}};\nenum mirrored used;\n'
    return compiled_types(tmp_path_factory.mktemp("api"), text, ENGINE)


def test_structs_are_those_of_the_compiler(compiled: Types, library: Library) -> None:
    structs = {name: struct for name, struct in compiled.structs.items() if name.startswith("colibri")}
    assert structs.keys() == set(re.findall(r"^struct (\w+) \{", header_path().read_text(), re.MULTILINE))
    for name, struct in structs.items():
        ctype = library.ffi.typeof(f"struct {name}")
        assert library.ffi.sizeof(ctype) == struct.size, name
        seen = [(field, info.offset, library.ffi.sizeof(info.type)) for field, info in ctype.fields]
        assert seen == [(member.name, member.offset, member.size) for member in struct.members], name


def test_constants_are_those_of_the_compiler(compiled: Types, library: Library) -> None:
    values = {name.removeprefix("MIRRORED_"): value for name, value in compiled.enums["mirrored"].items()}
    assert values == library.constants
    assert {"COLIBRI_SELFTEST_BYTES", "COLIBRI_ARENA_ALIGN", "COLIBRI_MAX_REGIONS"} <= values.keys()


def test_finish_reasons_are_those_of_the_compiler(compiled: Types) -> None:
    assert {f"COLIBRI_FINISH_{one.name}": one.value for one in Finish} == compiled.enums["colibri_finish"]


def test_every_public_function_is_declared_and_there(library: Library) -> None:
    declared = [name for name in dir(library.lib) if name.startswith("colibri_")]
    assert len(declared) >= 18 and all(getattr(library.lib, name) for name in declared)


def test_header_reader_takes_what_is_for_c_alone() -> None:
    text = """
#ifndef COLIBRI_H
#define COLIBRI_H
#define COLIBRI_SIZE 16u /* a comment */
#define COLIBRI_HEX 0x10 // and one more
#define COLIBRI_TEXT "no number"
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define COLIBRI_MUST_CHECK __attribute__((warn_unused_result))
#else
#define COLIBRI_MUST_CHECK
#endif
struct thing { int a[COLIBRI_SIZE]; }; /* COLIBRI_SIZE */
COLIBRI_MUST_CHECK int f(void);
#endif
"""
    header = read_header(text)
    assert header.constants == {"COLIBRI_SIZE": 16, "COLIBRI_HEX": 16}
    ffi = FFI()
    ffi.cdef(header.declarations)
    assert ffi.sizeof("struct thing") == 64 and "extern" not in header.declarations
    with pytest.raises(InternalError):
        read_header("#ifndef COLIBRI_H\n#define COLIBRI_A 1\n")


# ----------------------------------------------------------------------------------------------------------- library


def test_library_of_another_version_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    other.write_bytes(b"no ELF file")
    with pytest.raises(BuildError, match=r"libother\.so cannot be used as libcolibri"):
        Library(other)
    source = tmp_path / "old.c"
    source.write_text("int colibri_plan(void) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libold.so")], check=True, timeout=60)
    with pytest.raises(BuildError, match=r"libold\.so cannot be used as libcolibri.*colibri_\w+"):
        Library(tmp_path / "libold.so")


def test_library_may_be_named(host_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_LIBRARY", str(host_library))
    assert Library.load().path == host_library
    monkeypatch.setenv("COLIBRI_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(BuildError, match=r"none\.so"):
        Library.load()


def test_kernels_and_selftest(library: Library) -> None:
    names = library.kernels()
    assert names[0] == "scalar"
    for name in names:
        report = library.selftest(name)
        assert report.ok and report.kernels == name and report.failed == ""
        assert name == "scalar" or report.cases > 100
    assert library.selftest().ok
    with pytest.raises(DeviceError) as caught:
        library.selftest("abacus")
    assert caught.value.status == Status.E_KERNELS_UNKNOWN


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_crc_is_that_of_zlib(library: Library, first: bytes, second: bytes) -> None:
    assert library.crc32(second, library.crc32(first)) == zlib.crc32(first + second)


def test_every_status_has_a_sentence(library: Library) -> None:
    sentences = {library.status_text(status) for status in Status}
    assert len(sentences) == len(Status)
    assert library.status_text(-999) == "unknown status"


def test_plan_adds_up(library: Library, hummingbird: Packed) -> None:
    image = hummingbird("q8")
    plan = library.plan(image)
    end = 0
    for region in plan.regions:
        assert end <= region.offset < end + 64
        end = region.offset + region.bytes
    assert end <= plan.arena_bytes < end + 64
    assert plan.image_bytes == image.stat().st_size
    assert (plan.context, plan.kv_format) == (512, "f16")
    assert library.plan(image, context=100).arena_bytes < plan.arena_bytes < library.plan(image, kv="f32").arena_bytes


@pytest.mark.parametrize("option", [{"kv": "q4"}, {"context": -1}, {"batch": 2**32}, {"max_text": -5}])
def test_wrong_options_are_refused_before_the_call(
    library: Library, hummingbird: Packed, option: dict[str, object]
) -> None:
    with pytest.raises(UsageError):
        library.plan(hummingbird("q8"), **option)  # type: ignore[arg-type]


def test_context_beyond_the_models(library: Library, hummingbird: Packed) -> None:
    with pytest.raises(DeviceError) as caught:
        library.plan(hummingbird("q8"), context=513)
    assert (caught.value.status, caught.value.got, caught.value.wanted) == (Status.E_ARGUMENT, 513, 512)


@pytest.mark.parametrize("content", [b"", b"COLIBRI\x1a", bytes(5000), b"GGUF" * 2000])
def test_files_that_are_no_images(library: Library, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.colibri"
    path.write_bytes(content)
    for call in (library.validate, library.plan):
        with pytest.raises(ImageError, match=r"x\.colibri: ") as caught:
            call(path)
        assert caught.value.hint and caught.value.where == "header"


def test_file_that_is_not_there(library: Library, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.colibri cannot be read"):
        library.validate(tmp_path / "none.colibri")


# ------------------------------------------------------------------------------------------------------------ engine


def test_answer(engine: Engine) -> None:
    seen: list[Token] = []
    result = engine.generate(engine.prompt(PROMPT), on_token=seen.append, trace_logits=True)
    assert (result.text, result.finish) == (ANSWER, Finish.EOS)
    assert [token.id for token in seen] == list(result.token_ids)
    assert [token.index for token in seen] == list(range(result.generated_tokens))
    assert b"".join(token.text for token in seen).decode() == ANSWER
    assert seen[0].position == result.prompt_tokens
    for token in seen:
        assert token.logits is not None and int(token.logits.argmax()) == token.id
    assert engine.generate(engine.prompt(PROMPT)).logits_sha256 == result.logits_sha256


def test_text_goes_both_ways(engine: Engine) -> None:
    for text in ("", "set", "Grüße, 世界! \U0001f426\n\t", "<|user|>"):
        assert engine.detokenize(engine.tokenize(text)) == text.encode()
    assert engine.detokenize(engine.tokenize(b"\xff\x00\xc3")) == b"\xff\x00\xc3"
    assert engine.detokenize(engine.prompt(PROMPT)) == PROMPT.encode()
    assert engine.detokenize([]) == b""
    long = "a b" * 1000
    assert engine.detokenize(engine.tokenize(long)) == long.encode()


def test_text_beyond_the_limit(engine: Engine) -> None:
    with pytest.raises(DeviceError) as caught:
        engine.tokenize("x" * (engine.info.max_text_bytes + 1))
    assert caught.value.status == Status.E_TEXT_SIZE


@pytest.mark.parametrize("id_", [-1, 2**32])
def test_ids_that_are_no_uint32(engine: Engine, id_: int) -> None:
    for call in (lambda: engine.prefill([id_]), lambda: engine.forward(id_), lambda: engine.generate([id_])):
        with pytest.raises(UsageError, match="is no token id"):
            call()


def test_ids_beyond_the_vocabulary(engine: Engine) -> None:
    engine.reset()
    with pytest.raises(DeviceError) as caught:
        engine.forward(1024)
    assert caught.value.status == Status.E_TOKEN_RANGE


def test_too_many_stops(engine: Engine) -> None:
    with pytest.raises(UsageError, match="At most 4"):
        engine.generate([0], stop=["a"] * 5)


def test_exception_in_the_token_callback_comes_out(engine: Engine) -> None:
    calls = 0

    def on_token(_token: Token) -> bool:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError("from the callback")

    with pytest.raises(ZeroDivisionError, match="from the callback"):
        engine.generate(engine.prompt(PROMPT), on_token=on_token)
    assert calls == 1
    assert engine.generate(engine.prompt(PROMPT)).text == ANSWER  # usable afterwards


def test_exception_in_the_poll_hook_comes_out(library: Library, hummingbird: Packed) -> None:
    fail = False

    def poll() -> bool:
        if fail:
            raise KeyboardInterrupt
        return False

    engine = Engine(library, hummingbird("q8"), poll=poll)
    ids = engine.prompt(PROMPT)
    fail = True
    for call in (lambda: engine.prefill(ids), lambda: engine.forward(ids[0]), lambda: engine.generate(ids)):
        engine.reset()
        with pytest.raises(KeyboardInterrupt):
            call()
    fail = False
    assert engine.generate(ids).text == ANSWER


def test_poll_that_says_stop(library: Library, hummingbird: Packed) -> None:
    stop = False
    engine = Engine(library, hummingbird("q8"), poll=lambda: stop)
    ids = engine.prompt(PROMPT)
    stop = True
    with pytest.raises(DeviceError) as caught:
        engine.prefill(ids)
    assert caught.value.status == Status.E_CANCELLED


def test_logits_are_the_callers_to_keep(engine: Engine) -> None:
    engine.reset()
    first = engine.prefill([0, 2, 334])
    before = first.copy()
    engine.forward(442)
    assert np.array_equal(first, before)


def test_arena_knobs(library: Library, hummingbird: Packed) -> None:
    image = hummingbird("q8")
    size = library.plan(image).arena_bytes
    for option, status in (
        ({"arena_bytes": size - 1}, Status.E_ARENA_SIZE),
        ({"arena_offset": 1}, Status.E_ARENA_ALIGN),
    ):
        with pytest.raises(DeviceError) as caught:
            Engine(library, image, **option)  # type: ignore[arg-type]
        assert caught.value.status == status and "colibri" in caught.value.message and caught.value.hint
    moved = Engine(library, image, arena_bytes=size, arena_offset=64)
    assert moved.generate(moved.prompt(PROMPT)).text == ANSWER
    assert moved.arena.guard_intact()


def test_info_and_stats(library: Library, hummingbird: Packed) -> None:
    engine = Engine(library, hummingbird("q4"), kernels="scalar", trace_routing=True)
    info = engine.info
    assert (info.model, info.architecture, info.quantisation) == ("hummingbird", "MixtralForCausalLM", "q4")
    assert (info.vocab, info.hidden, info.layers, info.max_experts, info.max_top_k) == (1024, 128, 4, 8, 2)
    assert (info.kernels, info.context, info.kv_format) == ("scalar", 512, "f16")
    engine.prefill([0, 2, 334])
    stats = engine.stats()
    assert stats.tokens == 3 and stats.arena_bytes == stats.arena_peak_bytes == engine.plan.arena_bytes
    assert stats.expert_tokens.shape == (4, 8) and (stats.expert_tokens.sum(axis=1) == 6).all()
    counted = np.zeros((4, 8), int)
    for route in engine.routing:
        counted[route.layer, list(route.experts)] += 1
    assert np.array_equal(counted, stats.expert_tokens)
    assert stats.head_ticks > 0 and stats.ticks_per_second == 1_000_000_000
    engine.clear_stats()
    assert engine.stats().tokens == 0


def test_model_without_tokenizer_takes_ids_only(library: Library, tiny_mixtral: Packed) -> None:
    engine = Engine(library, tiny_mixtral("q8"))
    for call in (engine.tokenize, engine.prompt):
        with pytest.raises((DeviceError, ImageError)) as caught:
            call("text")
        assert caught.value.status < 0
    assert engine.generate([5, 6, 7], max_tokens=4, ignore_eos=True).generated_tokens == 4
