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
    value = config.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(f"config.json has no {key}", "Fetch config.json again.", where=key)
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise _wrong(key, value, f"an integer from 1 to {largest}")
    return value


def integer(config: Mapping[str, Any], key: str, default: int, *, smallest: int = 0) -> int:
    """config[key] as an integer from `smallest`. null and a missing key give `default`."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= _LARGEST:
        raise _wrong(key, value, f"an integer from {smallest}")
    return value


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


def optional_integer(config: Mapping[str, Any], key: str, default: int = 0) -> int:
    """config[key] as an integer from 0 on; null and a missing key give `default`."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise _wrong(key, value, "an integer from 0 on")
    return value


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
