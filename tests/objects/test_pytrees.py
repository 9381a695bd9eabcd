"""Caches and outputs of transformers and diffusers through jax and back."""

import inspect
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from diffusers.models.controlnets.controlnet import ControlNetOutput
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import BaseOutput
from jax import tree_util
from transformers import cache_utils
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from tests.cache_names import CACHE
from tpuport import compat
from tpuport.libraries import cache_classes
from tpuport.objects import pytrees


@pytest.fixture(autouse=True)
def registered():
    """Other files of tests retract what they registered."""
    pytrees.register()


pytrees.register()

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip
LLAMA = transformers.LlamaConfig(**SIZES)
SLIDING = transformers.Gemma3TextConfig(
    **SIZES, sliding_window=4, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
)
LINEAR = transformers.Qwen3NextConfig(
    **SIZES, layer_types=["linear_attention", "full_attention", "linear_attention"]
)
CACHES = {
    "static": lambda: transformers.StaticCache(config=LLAMA, max_cache_len=12),
    "static sliding": lambda: transformers.StaticCache(config=SLIDING, max_cache_len=12),
    "static linear": lambda: transformers.StaticCache(config=LINEAR, max_cache_len=12),
    "dynamic": lambda: transformers.DynamicCache(config=LLAMA),
    "dynamic sliding": lambda: transformers.DynamicCache(config=SLIDING),
    "dynamic linear": lambda: transformers.DynamicCache(config=LINEAR),
    "dynamic without layers": transformers.DynamicCache,
    "fp8": lambda: transformers.QuantizedCache("fp8", LLAMA),
    "encoder and decoder": lambda: transformers.EncoderDecoderCache(
        transformers.StaticCache(config=LLAMA, max_cache_len=12), transformers.DynamicCache(config=LLAMA)
    ),
    "mtp": lambda: cache_utils.MtpCache(config=LLAMA),
    "dflash": lambda: cache_utils.DFlashCache(config=LLAMA),
}
# Need quanto and hqq to be made; Quantized stands for them.
NEEDING_OTHERS = {"QuantoQuantizedLayer", "HQQQuantizedLayer"}


def family(*bases):
    derived = {cls for base in bases for cls in base.__subclasses__()}
    return derived | family(*derived) if derived else derived


LAYERS = sorted(
    (
        cls
        for cls in {cache_utils.DummyLayer}
        | family(cache_utils.CacheLayerMixin, cache_utils.LinearAttentionCacheLayerMixin)
        if not inspect.isabstract(cls)
        and cls.__module__ == cache_utils.__name__
        and cls.__name__ not in NEEDING_OTHERS
    ),
    key=lambda cls: cls.__name__,
)


def make_layer(cls):
    possible = {"max_cache_len": 6, "sliding_window": 4, "number_of_states": 2}
    parameters = inspect.signature(cls.__init__).parameters
    return cls(**{name: value for name, value in possible.items() if name in parameters})


def fill(layer, length=3):
    """Give a layer keys, values and whatever states it keeps."""
    generator = torch.Generator().manual_seed(length)
    states = torch.randn(1, 2, length, 8, generator=generator)
    if hasattr(layer, "update") and not isinstance(layer, cache_utils.DummyLayer):
        layer.update(states, states + 1)
    if hasattr(layer, "update_indexer"):
        layer.update_indexer(states[:, 0])
    if isinstance(layer, cache_utils.LinearAttentionLayer):
        layer.update_conv_state(torch.randn(1, 16, 4, generator=generator))
        layer.update_recurrent_state(torch.randn(1, 2, 8, 8, generator=generator))
    return layer


def fill_cache(cache):
    for half in (
        (cache.self_attention_cache, cache.cross_attention_cache)
        if hasattr(cache, "is_updated")
        else (cache,)
    ):
        for layer in half.layers:
            fill(layer)
    if hasattr(cache, "is_updated"):
        cache.is_updated[1] = True
    return cache


def on_device(tree):
    return jax.tree.map(lambda x: compat.to_jax(x) if isinstance(x, torch.Tensor) else x, tree)


ARRAYS = torch.Tensor | jax.Array | np.ndarray


def assert_same(a, b, path=""):
    """Same classes, attributes, items and their order, all the way down; arrays by value."""
    if isinstance(a, ARRAYS) or isinstance(b, ARRAYS):
        assert isinstance(a, ARRAYS), path
        assert isinstance(b, ARRAYS), path
        a, b = (compat.to_torch(x) if isinstance(x, jax.Array) else torch.as_tensor(x) for x in (a, b))
        assert a.shape == b.shape, path
        assert torch.equal(a.double(), b.double()), path
        return
    assert type(a) is type(b), path
    if isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}[{i}]")
    elif isinstance(a, dict):
        assert list(dict.keys(a)) == list(dict.keys(b)), path
        for key in dict.keys(a):
            assert_same(dict.__getitem__(a, key), dict.__getitem__(b, key), f"{path}[{key!r}]")
    elif isinstance(a, type) or hasattr(a, "to_dict") or not hasattr(a, "__dict__"):
        assert a == b, path
        return
    attributes, others = (getattr(x, "__dict__", {}) for x in (a, b))
    assert attributes.keys() == others.keys(), path
    for name, value in attributes.items():
        assert_same(value, others[name], f"{path}.{name}")


def round_trip(value):
    """Through jit, where every array in it is a tracer once."""
    return jax.jit(lambda x: x)(on_device(value))


@pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_layers_come_back_exactly(cls, filled):
    layer = make_layer(cls)
    if filled:
        fill(layer)
    before = dict(vars(layer))
    assert_same(round_trip(layer), layer)
    assert vars(layer) == before or filled  # tensors do not compare
    assert all(vars(layer)[name] is before[name] for name in before)


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_caches_come_back_exactly(name, filled):
    cache = CACHES[name]()
    if filled:
        fill_cache(cache)
    assert_same(round_trip(cache), cache)


@pytest.mark.parametrize("name", CACHES)
def test_equal_caches_share_one_compilation(name):
    traced = []
    jitted = jax.jit(lambda cache: traced.append(1) or cache)
    for _ in range(3):
        jitted(on_device(CACHES[name]()))
    assert len(traced) == 1
    # ... allocated and filled one after the other, and the output of a program is its next input.
    outputs = [jitted(on_device(fill_cache(CACHES[name]()))) for _ in range(2)]
    assert len(traced) <= 2
    compiled = len(traced)
    jitted(jitted(outputs[0]))
    assert len(traced) == compiled


def test_the_order_of_allocation_makes_no_difference():
    late, early = (transformers.StaticCache(config=LLAMA, max_cache_len=12) for _ in range(2))
    early.early_initialization(1, 2, 8, torch.float32, torch.device("cpu"))
    for layer in late.layers:
        layer.lazy_initialization(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8))
    assert jax.tree.structure(early) == jax.tree.structure(late)
    for layer in late.layers:
        layer.__dict__ = dict(reversed(vars(layer).items()))
    assert jax.tree.structure(early) == jax.tree.structure(late)
    shapes = jax.tree.map(lambda a, b: a.shape == b.shape, early, late)
    assert all(jax.tree.leaves(shapes))


def test_another_length_is_another_structure():
    short, long = (transformers.StaticCache(config=LLAMA, max_cache_len=n) for n in (4, 8))
    assert jax.tree.structure(short) != jax.tree.structure(long)
    # What counts in Python is part of the program: a window's position is one of these.
    layer = fill(cache_utils.StaticSlidingWindowLayer(6, 4))
    before = jax.tree.structure(layer)
    layer.cumulative_length_int += 1
    assert jax.tree.structure(layer) != before
    ones = [transformers.DynamicCache() for _ in range(3)]
    for cache, one in zip(ones, (1, True, 1.0), strict=True):
        cache.note = [one]
    assert len({jax.tree.structure(cache) for cache in ones}) == 3
    assert [type(round_trip(cache).note[0]) for cache in ones] == [int, bool, float]


def test_a_cache_changes_inside_a_program():
    cache = transformers.DynamicCache()
    states = jnp.ones((1, 2, 3, 8))

    @jax.jit
    def grow(cache):
        with compat.environment():
            wrapped = compat.as_torch(cache)
            wrapped.update(compat.wrap(states), compat.wrap(states), 0)
            return compat.as_jax(wrapped)

    once = grow(cache)
    twice = grow(once)
    assert [c.get_seq_length() for c in (cache, *compat.as_torch([once, twice]))] == [0, 3, 6]
    assert type(once.layers[0]) is cache_utils.DynamicLayer
    assert once.layers[0].is_initialized


def test_leaves_of_every_kind():
    cache = on_device(fill_cache(CACHES["static"]()))
    leaves, structure = jax.tree.flatten(cache)
    shapes = jax.eval_shape(lambda c: c, cache)
    assert {type(x) for x in jax.tree.leaves(shapes)} == {jax.ShapeDtypeStruct}
    wrapped = compat.as_torch(cache)
    assert all(compat.is_ported(x) for x in jax.tree.leaves(wrapped))
    placeholders = jax.tree.unflatten(structure, [object()] * len(leaves))
    for other in (shapes, wrapped, placeholders, jax.tree.map(lambda x: None, cache)):
        assert jax.tree.structure(other, is_leaf=lambda x: x is None) == structure
    assert_same(compat.as_jax(wrapped), cache)


def test_gradients_and_vmap_pass_through():
    cache = on_device(fill_cache(CACHES["dynamic"]()))
    gradient = jax.grad(lambda c: (c.layers[0].keys ** 2).sum())(cache)
    assert_same(gradient.layers[0].keys, 2 * cache.layers[0].keys)
    stacked = jax.tree.map(lambda x: jnp.stack([x, x + 1]), cache)
    axes = jax.tree.map(lambda x: 0, cache)
    sums = jax.vmap(lambda c: c.layers[0].keys.sum(), in_axes=(axes,))(stacked)
    assert sums.shape == (2,)


def test_quantized_states_mix_arrays_and_plain_values():
    """What the hqq backend keeps: a tensor, and a dictionary of tensors, numbers and a shape."""

    class Quantized(cache_utils.QuantizedLayer):
        def _quantize(self, tensor, axis):
            return tensor.to(torch.int8), {
                "nbits": self.nbits,
                "shape": tensor.shape,
                "scale": tensor[..., :1],
                "axis": axis,
            }

        def _dequantize(self, q_tensor):
            return q_tensor[0].float()

    layer = fill(Quantized())
    pytrees.register_used(layer)
    assert_same(round_trip(layer), layer)


OUTPUT = {"logits": jnp.arange(3.0), "hidden_states": (jnp.zeros(1), jnp.ones(2))}


def test_a_none_field_stays_none():
    output = CausalLMOutputWithPast(**OUTPUT, **{CACHE: on_device(CACHES["static"]())})
    again = round_trip(output)
    assert again.loss is None
    assert again.attentions is None
    assert list(again.keys()) == ["logits", CACHE, "hidden_states"]
    assert_same(again, output)
    assert_same(again.to_tuple(), output.to_tuple())
    assert again[0] is again.logits
    assert isinstance(again[CACHE], transformers.StaticCache)


def test_outputs_take_changes_before_and_after():
    output = CausalLMOutputWithPast(**OUTPUT)
    output["loss"] = jnp.ones(())
    output.logits = None  # the item stays, as transformers has it
    again = round_trip(output)
    assert_same(again, output)
    again.logits = jnp.zeros(1)
    assert again["logits"] is again.logits
    assert_same(round_trip(ModelOutput(b=jnp.ones(1), a=2)), ModelOutput(b=jnp.ones(1), a=2))


def test_outputs_name_their_leaves():
    output = CausalLMOutputWithPast(**OUTPUT, **{CACHE: fill_cache(CACHES["static linear"]())})
    paths = [tree_util.keystr(path) for path, _ in tree_util.tree_leaves_with_path(output)]
    assert paths[0] == ".logits"
    assert f".{CACHE}.layers[1].keys" in paths
    assert f".{CACHE}.layers[0].conv_states[0]" in paths
    assert paths[-2:] == [".hidden_states[0]", ".hidden_states[1]"]
    with pytest.raises(TypeError, match=re.escape("output.hidden_states[1]")):
        jax.jit(lambda output: output)(CausalLMOutputWithPast(hidden_states=(jnp.ones(1), object())))
    one, other = (CausalLMOutputWithPast(**OUTPUT, loss=loss) for loss in (None, jnp.ones(())))
    with pytest.raises(ValueError, match="loss"):
        jax.jit(lambda x: x, in_shardings=(jax.tree.map(lambda x: None, one),))(other)


def test_outputs_of_diffusers():
    assert_same(
        round_trip(Transformer2DModelOutput(sample=jnp.ones(3))), Transformer2DModelOutput(sample=jnp.ones(3))
    )
    output = ControlNetOutput((jnp.ones(1), jnp.ones(2)), None)
    assert_same(round_trip(output), output)


def test_every_class_that_is_imported_is_registered():
    classes = family(ModelOutput, BaseOutput, cache_utils.Cache, cache_utils.CacheLayerMixin) | {
        cache_utils.DummyLayer
    }
    ours = [cls for cls in classes if cls.__module__.split(".")[0] in ("transformers", "diffusers")]
    assert len(ours) > 50
    assert all(map(tree_util.is_tree_node, ours))


def test_models_imported_later_are_registered():
    from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLSparseCacheLayer
    from transformers.models.reformer.modeling_reformer import ReformerDynamicCache, ReformerModelOutput
    from transformers.models.xlstm.modeling_xlstm import xLSTMCache, xLSTMConfig

    layer = fill(MiniMaxM3VLSparseCacheLayer())
    assert_same(round_trip(layer), layer)
    output = ReformerModelOutput(
        jnp.ones(1), past_buckets_states=ReformerDynamicCache([(jnp.ones(1), jnp.ones(2))])
    )
    assert_same(round_trip(output), output)
    cache = xLSTMCache(xLSTMConfig(num_hidden_layers=2, num_heads=2, hidden_size=16), 1, torch.float32, "cpu")
    again = round_trip(cache)
    assert again.config == cache.config
    assert_same(again.rnn_state, cache.rnn_state)


def test_classes_of_the_user_are_registered_when_first_met():
    @dataclass
    class MyOutput(ModelOutput):
        score: torch.Tensor | None = None
        hint: str | None = None

    class MyLayer(cache_utils.DynamicLayer):
        pass

    class MyCache(transformers.DynamicCache):
        def __init__(self):
            raise AssertionError("jax does not call this")

    cache = object.__new__(MyCache)
    cache.layers, cache.note = [MyLayer()], {"a": [1, 2]}
    output = MyOutput(score=jnp.ones(1), hint="x")
    output["cache"] = cache
    assert jax.tree.leaves(output) == [output]
    pytrees.register_used([{"deep": (output,)}])
    assert_same(round_trip(output), output)
    assert type(round_trip(output)["cache"].layers[0]) is MyLayer


def test_registrations_of_others_are_left_alone():
    class Theirs(transformers.DynamicCache):
        pass

    # Defined after register(), as in a script that enables tpuport first: no clash.
    jax.tree_util.register_pytree_node(Theirs, lambda c: ((), "theirs"), lambda aux, _: aux)
    pytrees.register_used(Theirs())
    pytrees.register()
    assert jax.tree.map(lambda x: x, Theirs()) == "theirs"


def test_retract_and_register_again():
    hooked = vars(cache_utils.Cache)["__init_subclass__"]
    pytrees.retract()
    assert "__init_subclass__" not in vars(cache_utils.Cache)
    between = type("Between", (transformers.DynamicCache,), {"__module__": "transformers.models.none"})
    assert not tree_util.is_tree_node(between)
    layers = cache_utils.STATIC_LAYER_TYPE_MAPPING
    for _ in range(2):
        pytrees.register()
    assert vars(cache_utils.Cache)["__init_subclass__"] is not hooked
    assert tree_util.is_tree_node(between)
    after = type(
        "After",
        (cache_utils.StaticLayer,),
        {"__module__": "transformers.models.none", "_layer_type": "after"},
    )
    assert tree_util.is_tree_node(after)
    assert layers.pop("after") is after  # what the library does for a new class still happens


LATER = """
import sys
from tpuport.libraries import cache_classes
from tpuport.objects import pytrees
pytrees.register()
assert "transformers" not in sys.modules and "diffusers" not in sys.modules
import jax
from transformers.cache_utils import DynamicCache, StaticCache
from transformers.modeling_outputs import BaseModelOutput
from diffusers.models.modeling_outputs import Transformer2DModelOutput
for cls in (DynamicCache, StaticCache, BaseModelOutput, Transformer2DModelOutput):
    assert jax.tree_util.is_tree_node(cls), cls
"""
BEFORE = """
import jax
from transformers import StaticCache
jax.tree_util.register_pytree_node(StaticCache, lambda c: ((), "theirs"), lambda aux, _: aux)
from tpuport.libraries import cache_classes
from tpuport.objects import pytrees
pytrees.register()
assert jax.tree.map(lambda x: x, object.__new__(StaticCache)) == "theirs"
"""


@pytest.mark.parametrize(
    "script",
    [
        # `test_models_imported_later_are_registered`
        pytest.param(LATER, id="imported later", marks=pytest.mark.slow),
        # `test_registrations_of_others_are_left_alone`
        pytest.param(BEFORE, id="registered before", marks=pytest.mark.slow),
    ],
)
def test_in_a_process_of_its_own(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


# Classes called caches that hold no arrays of one model call, or that cross it as objects, which their models change.
NO_VALUES = {
    "ParakeetRNNTDecoderCache": "a model's own call fills it",
    "ParakeetTDTDecoderCache": "the same",
    "PagedAttentionCache": "the block pool of transformers' continuous batching server",
    "AssistantVocabTranslatorCache": "translation tables of token ids, kept on the class",
    "OmDetTurboLRUCache": "a dictionary with a bound",
    "Sam2VideoInferenceCache": "a part of a session, which calls fill in place",
    "Sam3TrackerVideoInferenceCache": "the same",
    "Sam3VideoInferenceCache": "the same",
    "EdgeTamVideoInferenceCache": "the same",
}


def test_every_cache_class_in_transformers_is_known():
    root = Path(transformers.__file__).parent
    definition = re.compile(
        r"^class (\w+(?:Cache|CacheLayer|KVSharingDict))(?:\(([\w., \[\]]*)\))?:", re.MULTILINE
    )
    known = {name for names in cache_classes.REGISTERED.values() for name in names}
    derived = re.compile("|".join([*known, "Layer$"]))
    sources = [root / "cache_utils.py", *root.glob("generation/**/*.py"), *root.glob("models/*/*.py")]
    unknown = {
        (path.name, name)
        for path in sources
        if not path.name.startswith("modular_")
        for name, bases in definition.findall(path.read_text())
        if name not in known | NO_VALUES.keys() and not derived.search(bases or "")
    }
    assert not unknown
