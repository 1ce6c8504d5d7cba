# SPDX-License-Identifier: Apache-2.0
"""What a tokenizer.model may say, that everything else is refused by name, and that a checkpoint's is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protocol

from colibri_sdk.convert import pack
from colibri_sdk.convert.checkpoint import Checkpoint
from colibri_sdk.convert.sentencepiece_model import compile_model
from colibri_sdk.engine import Engine, Library, Token
from colibri_sdk.errors import CheckpointError
from tokenizer_sentencepiece import sentencepiece_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "tokenizer.model"
    sentencepiece_model(path, "bpe")
    return path.read_bytes()


def changed(trained: bytes, path: Path, change: Callable[[Any], Any]) -> Path:
    proto = protocol.ModelProto()
    proto.ParseFromString(trained)
    change(proto)
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("normalizer_spec.precompiled_charsmap has 4 bytes",
            lambda m: setattr(m.normalizer_spec, "precompiled_charsmap", b"abcd")),
        ("denormalizer_spec", lambda m: setattr(m.denormalizer_spec, "precompiled_charsmap", b"abcd")),
        ("normalizer_spec.escape", lambda m: setattr(m.normalizer_spec, "escape_whitespaces", False)),
        ("normalizer_spec.escape", lambda m: setattr(m.trainer_spec, "treat_whitespace_as_suffix", True)),
        ("trainer_spec.model_type", lambda m: setattr(m.trainer_spec, "model_type", m.trainer_spec.WORD)),
        ("trainer_spec.model_type", lambda m: setattr(m.trainer_spec, "model_type", m.trainer_spec.CHAR)),
        ("piece 6", lambda m: setattr(m.pieces[6], "piece", "<0x02>")),
        ("piece 5", lambda m: setattr(m.pieces[5], "piece", "<0xZZ>")),
        ("pieces has tokens for 255 bytes", lambda m: setattr(m.pieces[5], "type", 1)),
        ("pieces has no piece U+2581", lambda m: [setattr(p, "type", 3) for p in m.pieces if p.piece == "\u2581"]),
        ("pieces has no piece for 'a'", lambda m: [setattr(p, "piece", "Q") for p in m.pieces if p.piece == "a"]),
        ("pieces has no unknown piece", lambda m: setattr(m.pieces[0], "type", 3)),
        ("piece 300", lambda m: setattr(m.pieces[300], "score", float("nan"))),
        ("piece 300", lambda m: setattr(m.pieces[300], "type", 5)),
        ("piece 300", lambda m: setattr(m.pieces[300], "piece", "")),
        ("user-defined piece", lambda m: m.pieces[300].MergeFromString(b"\x0a\x03a Q\x18\x04")),
        ("user-defined piece", lambda m: (
            m.pieces[300].MergeFromString(b"\x0a\x04" + "\u2581Q".encode() + b"\x18\x04"),
            setattr(m.normalizer_spec, "remove_extra_whitespaces", True))),
    ],
)  # fmt: skip
def test_refused_by_name(trained: bytes, tmp_path: Path, named: str, change: Callable[[Any], Any]) -> None:
    with pytest.raises(CheckpointError) as refused:
        compile_model(changed(trained, tmp_path / "tokenizer.model", change), 4096)
    assert f"tokenizer.model: {named}" in str(refused.value)


@pytest.mark.parametrize("content", [b"\x0a\x0b", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x7f"])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.model"):
        compile_model(path, 4096)
    with pytest.raises(CheckpointError, match=r"missing\.model: cannot be read"):
        compile_model(tmp_path / "missing.model", 4096)


def test_more_pieces_than_embeddings(trained: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a token id below 100"):
        compile_model(changed(trained, tmp_path / "tokenizer.model", lambda m: None), 100)


def checkpoint(repo_root: Path, directory: Path, trained: bytes, settings: dict[str, Any]) -> Checkpoint:
    """A Mixtral without tokenizer.json."""
    source = repo_root / "tests" / "parity" / "mixtral"
    directory.mkdir()
    for name in ("config.json", "model.safetensors"):
        (directory / name).symlink_to(source / name)
    (directory / "tokenizer.model").write_bytes(trained)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return Checkpoint(directory)


def test_a_checkpoint_with_a_model_file(repo_root: Path, tmp_path: Path, trained: bytes) -> None:
    added = {"900": {"content": "<think>", "special": False}, "901": {"content": "<|im_end|>", "special": True}}
    settings = {"add_bos_token": False, "added_tokens_decoder": added}
    tokenizer = checkpoint(repo_root, tmp_path / "with", trained, settings).tokenizer(1000)
    assert tokenizer is not None
    assert (tokenizer.vocab, tokenizer.prefix, tokenizer.special["<|im_end|>"]) == (902, (), 901)
    plain = checkpoint(repo_root, tmp_path / "without", trained, {}).tokenizer(1000)
    assert plain is not None and plain.prefix == (1,) and set(plain.special) == {"<unk>", "<s>", "</s>"}


@pytest.mark.parametrize(
    ("named", "added"),
    [
        ("added_tokens_decoder", [1]),
        ("added_tokens_decoder", {"x": {}}),
        ("added token None", {"900": {}}),
        ("added token 'a'", {"900": {"content": "a"}}),
        ("added token 'zz'", {"7": {"content": "zz"}}),
        ("added token 'zz'", {"5000": {"content": "zz"}}),
        ("added token 'zz'.lstrip", {"900": {"content": "zz", "lstrip": 1}}),
        ("added token 'zz'.single_word", {"900": {"content": "zz", "single_word": True, "special": True}}),
    ],
)
def test_added_tokens_that_contradict(repo_root: Path, tmp_path: Path, trained: bytes, named: str, added: Any) -> None:
    model = checkpoint(repo_root, tmp_path / "m", trained, {"added_tokens_decoder": added})
    with pytest.raises(CheckpointError, match=named.replace("'", "['`]")):
        model.tokenizer(1000)


def test_an_image_with_a_sentencepiece_tokenizer(
    repo_root: Path, tmp_path: Path, trained: bytes, host_library: Path
) -> None:
    """The demo model with another tokenizer says nothing sensible, but it says it in whole texts: what is streamed is
    what the ids stand for, and both are what the sentencepiece library makes of them."""
    source = repo_root / "models" / "hummingbird"
    directory = tmp_path / "bird"
    directory.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (directory / name).symlink_to(source / name)
    (directory / "tokenizer.model").write_bytes(trained)
    pack(directory, tmp_path / "bird.colibri", quant="q8")
    engine = Engine(Library.load(), tmp_path / "bird.colibri")
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained)
    for text in ("set pump 12", " set  \u4e2d\u6587", "\U0001f601", "<s>"):
        ids = engine.tokenize(text)
        assert engine.detokenize(ids).decode() == text
        if "<" not in text:
            assert ids == processor.encode(text)
        assert engine.prompt(text) == [processor.bos_id(), *ids]
        shown: list[Token] = []
        answer = engine.generate(engine.prompt(text), max_tokens=24, ignore_eos=True, on_token=shown.append)
        assert len(answer.token_ids) == 24
        whole = engine.detokenize(answer.token_ids)
        assert b"".join(token.text for token in shown) == whole
        assert answer.text == whole.decode("utf-8", "replace")
        known = [token for token in answer.token_ids if 3 <= token < processor.vocab_size()]
        assert answer.text == processor.decode(known)
