"""Tiny models of packages that this project does not use: code that nobody here has worked with.

None is a dependency. Install them apart, and let Python find them:

    pip install --target DIRECTORY --no-deps vit-pytorch x-transformers ...
    PYTHONPATH=DIRECTORY python -m benchmarks.agreement --library strangers

A name is "package.model"; models of a package that is missing are listed as not built.
"""

from typing import Any

from benchmarks import (
    stand_ins,
    tiny_strangers_eighth,
    tiny_strangers_eleventh,
    tiny_strangers_fifth,
    tiny_strangers_fourth,
    tiny_strangers_fresh,
    tiny_strangers_images,
    tiny_strangers_judged,
    tiny_strangers_later,
    tiny_strangers_mended,
    tiny_strangers_ninth,
    tiny_strangers_others,
    tiny_strangers_sequences,
    tiny_strangers_seventh,
    tiny_strangers_sixth,
    tiny_strangers_tenth,
    tiny_strangers_thirteenth,
    tiny_strangers_twelfth,
    tiny_strangers_vision,
)

MODELS = (
    tiny_strangers_vision.MODELS
    | tiny_strangers_images.MODELS
    | tiny_strangers_sequences.MODELS
    | tiny_strangers_others.MODELS
    | tiny_strangers_later.MODELS
    | tiny_strangers_mended.MODELS
    | tiny_strangers_judged.MODELS
    | tiny_strangers_fresh.MODELS
    | tiny_strangers_fourth.MODELS
    | tiny_strangers_fifth.MODELS
    | tiny_strangers_sixth.MODELS
    | tiny_strangers_seventh.MODELS
    | tiny_strangers_eighth.MODELS
    | tiny_strangers_ninth.MODELS
    | tiny_strangers_tenth.MODELS
    | tiny_strangers_eleventh.MODELS
    | tiny_strangers_twelfth.MODELS
    | tiny_strangers_thirteenth.MODELS
)

stand_ins.install()


def names() -> list[str]:
    """The names of the models, whether or not their packages are installed."""
    return list(MODELS)


def build(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """What is called, and the arguments of each call.

    Raises:
        ImportError: If the package, or one that it needs, is not installed.
    """
    model, inputs = MODELS[name]()
    calls = inputs if isinstance(inputs, list) else [inputs]
    return model, [dict(call) for call in calls]
