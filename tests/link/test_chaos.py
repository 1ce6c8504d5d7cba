# SPDX-License-Identifier: Apache-2.0
"""Device and a host board with a bad cable in between, in real time: what comes through equals the undamaged run."""

from __future__ import annotations

import socket

import pytest

from colibri_sdk.device import Device
from link.chaos import ChaosCable
from link.host_process import Start, board_line
from link.virtual import Damage

BAD = Damage(flip=2e-4, drop=2e-4, double=2e-4, insert=2e-4)


def talk(device: Device) -> list[object]:
    answers: list[object] = []
    for prompt in ("hello", "world " * 100, "set pump 3 to 40 percent"):
        generation = device.generate(prompt, max_tokens=25, ignore_eos=True, trace_routing=True)
        tokens = [(token.id, token.text, token.position, token.routing) for token in generation]
        result = generation.result
        answers.append((tokens, result.text, result.token_ids, result.prompt_ids, result.logits_sha256))
    generation = device.generate("logits", max_tokens=8, trace_logits=True)
    answers.append([token.logits.tobytes() for token in generation if token.logits is not None])
    answers.append(device.logits(list(range(30)), last=4).logits.tobytes())
    answers.append(device.tokenize("x" * 1500))
    return answers


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_cable(run_host: Start, seed: int) -> None:
    with Device.open(board_line(run_host)) as device:
        clean = talk(device)
    near, far = socket.socketpair()
    cable = ChaosCable(far, board_line(run_host), seed=seed, damage=BAD)
    try:
        with Device.open(near, timeout=30.0) as device:
            assert talk(device) == clean
        assert cable.hurt > 5
    finally:
        cable.close()
