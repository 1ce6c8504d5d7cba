# SPDX-License-Identifier: Apache-2.0
"""The device's runtime for one configuration, with or without a public key that it trusts (PUBLIC_KEY=FILE)."""

import monocypher_source
from SCons.Script import File
from sources import c_files, objects, use_sdk

TRUST = "firmware/runtime/trust.c"


def key_of(arguments):
    """The key that the command line names, or None."""
    path = arguments.get("PUBLIC_KEY")
    if not path:
        return None
    use_sdk()
    from pathlib import Path

    from SCons.Errors import UserError

    from colibri_sdk.errors import ColibriError
    from colibri_sdk.signing import PublicKey

    try:
        return PublicKey.load(Path(path))
    except ColibriError as error:
        raise UserError(str(error)) from error


def trust_object(env, target, key):
    """What depends on the key, the 32 bytes of its public half."""
    bytes_of_key = "{" + ",".join(f"{byte:#04x}" for byte in key) + "}"
    defines = [*env.get("CPPDEFINES", []), ("TRUST_PUBLIC_KEY", bytes_of_key)]
    return env.Object(target, File(f"#{TRUST}"), CPPDEFINES=defines)


def runtime_objects(env, out, build, keyed=None, key=None):
    """All of firmware/runtime, and Monocypher. What depends on the key lies below `keyed`, the rest below `build`."""
    made = objects(env, build, [path for path in c_files("firmware/runtime") if path != TRUST])
    if key is None:
        made += objects(env, build, [TRUST])
    else:
        made += trust_object(env, f"{keyed}/obj/{TRUST.removesuffix('.c')}.o", key.key)
    return made + monocypher_source.objects(env, out, build)
