# SPDX-License-Identifier: Apache-2.0
"""Reads config.json's keys with their types and limits checked, so that architecture files only name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri_sdk.convert.checks import is_usable
from colibri_sdk.errors import CheckpointError

# The image's fields are uint32; anything near that is a damaged file.
_LARGEST = 2**31 - 1


def _wrong(key: str, value: Any, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"config.json has {key} = {value!r}; {wanted} is expected", "Fetch config.json again.", where=key
    )


def positive_integer(
    config: Mapping[str, Any], key: str, default: int | None = None, *, largest: int = _LARGEST
) -> int:
    """config[key] as an integer from 1 to `largest`. null and a missing key give `default`, an error without one."""
    if config.get(key) is None and default is None:
        raise CheckpointError(f"config.json has no {key}", "Fetch config.json again.", where=key)
    return integer(config, key, default or 0, smallest=1, largest=largest)


def positive_number(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """config[key] as a finite number above 0. null and a missing key give `default`, an error without one."""
    value = config.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(f"config.json has no {key}", "Fetch config.json again.", where=key)
        return default
    if not is_usable(value):
        raise _wrong(key, value, "a positive number")
    return float(value)


def integer(
    config: Mapping[str, Any], key: str, default: int = 0, *, smallest: int = 0, largest: int = _LARGEST
) -> int:
    """config[key] as an integer from `smallest` to `largest`; null and a missing key give `default`."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise _wrong(key, value, f"an integer from {smallest} to {largest}")
    return value


def name_of(config: Mapping[str, Any], *names: str) -> str:
    """Which of several names of the same thing config.json uses, the first where it uses none.

    Raises CheckpointError where it uses two and they do not agree.
    """
    used = [name for name in names if config.get(name) is not None]
    for name in used[1:]:
        if config[name] != config[used[0]]:
            raise contradiction(
                f"config.json has {used[0]} = {config[used[0]]!r} and {name} = {config[name]!r}, which are the same",
                name,
            )
    return used[0] if used else names[0]


def contradiction(message: str, where: str) -> CheckpointError:
    """Numbers that are possible each by itself and not together."""
    return CheckpointError(message, "Fetch config.json again.", where=where)


def only(config: Mapping[str, Any], key: str, *allowed: Any) -> None:
    """Refuses every value of config[key] that is not in `allowed`; a missing key counts as the first of them."""
    value = config.get(key, allowed[0])
    if value not in allowed:
        names = " or ".join(repr(choice) for choice in allowed)
        raise CheckpointError(
            f"config.json has {key} = {value!r}, which is not supported",
            f"Supported: {names}.",
            where=key,
        )


def switch(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """config[key] as true or false; null and a missing key give `default`."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(key, value, "true or false")
    return value


def integers(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """config[key] as a list of integers; null and a missing key give an empty one."""
    value = config.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        raise _wrong(key, value, "a list of integers")
    return tuple(value)


def end_tokens(config: Mapping[str, Any], vocab: int, limit: int) -> tuple[int, ...]:
    """eos_token_id, an integer or a list, as ascending distinct ids below `vocab`, at most `limit`."""
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for one in ids:
        if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < vocab:
            raise _wrong("eos_token_id", value, f"ids below vocab_size = {vocab}")
    distinct = tuple(sorted(set(ids)))
    if len(distinct) > limit:
        raise _wrong("eos_token_id", value, f"at most {limit} ids")
    return distinct
