# SPDX-License-Identifier: Apache-2.0
"""Field updates: one expert, or the whole model, replaced on a device that keeps what it has until the new is whole.

    messages    bodies of the requests 11 to 19
    calls       these requests as calls
    content     what is to lie in a target, and which parts of it are missing there
    expert      replaces one expert
    model       replaces the model: transfer, restart, checks, confirmation
    signer      signs what is sent, where the key is
    package     a file that carries one signed expert to the field

docs/field-update.md has the device's side and the order of steps.
"""
