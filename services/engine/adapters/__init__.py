"""LoRA adapters of an engine: which it knows under which names, and the requests that wait until theirs is loaded.

In reading order:

registry    the adapters by name and digest, and what peers are told of them
control     how they become known: at the start, from the watched folder (``folder``), by calls
queue       requests that wait for their adapter
modules     the option ``--lora-modules``
messages    messages ⇄ these types

A request has its adapter (``Generation``) from its Submit until the core holds nothing of it. From when the queue lets
it go on, the adapter stays loaded.
"""
