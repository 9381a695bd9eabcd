"""How many private names of torch, torchax, jax, transformers and diffusers the package uses, and where they stand.

    python benchmarks/private_names.py             # a table: uses and different names by library
    python benchmarks/private_names.py --files     # the files that use them, the most uses first
    python benchmarks/private_names.py --names     # every name, with the places where it is used

A private name is a module, an attribute or an argument of `getattr` and the like that begins with an underscore and
that a library defines; and the fields of jax's tracers, which have no underscore and are not documented. `tpuport/lint`
and `tpuport/server` are left out: they import none of these libraries. So are the names of operators
(`torch.ops.aten._softmax`), which torch keeps for the programs that were exported with them, what Python's standard
library documents (`sys._getframe`), and names in the files of checkpoints and configurations.

"gathered" are the uses in `tpuport/internals`, "by source" those in replacements of functions, which apply only where
the library has the source that they were written for.

The dictionaries of `nn.Module` are counted apart: subclasses everywhere rely on them.
"""

import argparse
import ast
import collections
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "tpuport"
# The modules where private names belong, and that say what each is for.
GATHERED = PACKAGE / "internals"
# Replacements of functions of libraries, which are used for the sources that they were written for.
PATCHES = (PACKAGE / "patches", PACKAGE / "attention" / "register" / "flex_attention.py")

_NAMES = {
    "torch": """
        _C _VF _acc _autograd _backend_fns _can_decompose _cdata _check_tensor_all_with _cuda_getDeviceCount
        _current_level _decomp _destroy _DisableTorchDispatch _dispatch_get_all_op_names
        _dispatch_has_kernel_for_dispatch_key _dispatch_tls_is_dispatch_key_excluded
        _dispatch_tls_set_dispatch_key_included _dynamo _ExcludeDispatchKeyGuard _extended_shape _flat_weights
        _flat_weights_names _FLEX_ATTENTION_DISABLE_COMPILE_DEBUG _functional_collectives _functorch _get_mod_type
        _global_forward_hooks _global_forward_pre_hooks _group_tensors_by_device_and_dtype _is_param
        _LARGE_SPARSE_BLOCK_SIZE _lazy_init _len_torch_function_stack _library _make_subclass _make_wrapper_subclass
        _mode_utils _ModificationType _nn _ops _overloadname _package_registry _parse_to _pop_mode _push_mode
        _python_dispatch _pytree _reduction _refs _reparametrize_module _return_types _sample_dirichlet _schema
        _standard_gamma _lu_with_info _torch_load_uninitialized _unravel_index _validate_args _validate_device _version
        """,
    "nn.Module": """
        _apply _buffers _forward_hooks _forward_pre_hooks _load_from_state_dict _modules _parameters
        """,
    "torchax": "_elem _env _get_op_or_decomp _should_use_torchax_tensor",
    "jax": "_src _trace",
    "transformers": """
        _active_collector _apply_gate _attn_implementation _attn_implementation_internal _calculate_bin_centers
        _can_compile_fullgraph
        _can_set_attn_implementation _can_set_attn_implementation_cached_value
        _can_set_experts_implementation_cached_value _detect_timestamp_from_logprob _ep_plan
        _expand_inputs_for_generation _experts_implementation_internal _fix_state_dict_keys_on_load _from_config
        _get_dtype_plan _get_logits_processor _global_mapping _is_hf_initialized _is_torch_compile
        _keep_in_fp32_modules _keys_to_ignore_on_load_missing _keys_to_ignore_on_load_unexpected _mixlog_eps
        _mixlog_eps_shift _mixlog_max_clamp_value _model_mapping _output_capturing_hooks_installed
        _prepare_4d_attention_mask_inverted _prepare_model_inputs _prepare_position_ids_for_generation _sample
        _supports_default_dynamic_cache _tp_plan _update_model_kwargs_for_generation _weight_conversions
        """,
    "diffusers": """
        _active_backend _attention_backend _AttentionBackendRegistry _backends _begin_index _constraints
        _diffusers_hook _get_freqs_cis _identifier_key _init_step_index _lora_loadable_modules
        _pack_history_states _progress_bar_config _step_index _supported_arg_names _threshold_sample
        """,
    "accelerate": "_hf_hook _old_forward",
}
_LIBRARIES = {name: library for library, names in _NAMES.items() for name in names.split()}
# Names that classes here have too: there, of their own `self`.
_SHARED = frozenset("_buffers _modules _ops _parameters _trace _destroy".split())
# Of jax's tracers and traces.
_TRACER_FIELDS = frozenset("constvar_to_val frame parent val".split())
# Also tpuport's own, or Python's, where they are not above.
_ATTRIBUTE_FUNCTIONS = frozenset("getattr setattr hasattr delattr attrgetter replaced_attribute".split())
_STANDARD = frozenset(
    """_asdict _current_frames _exit _fields _getframe _initializing _lru_cache_wrapper _make _member_map_
    _member_names_ _name_ _option_string_actions _replace _sort_order_ _value2member_map_ _value_""".split()
)


class Use(NamedTuple):
    """A place where a private name stands."""

    library: str
    name: str
    file: Path
    line: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="the files that use them")
    parser.add_argument("--names", action="store_true", help="every name and its places")
    arguments = parser.parse_args()
    uses, unknown = collect()
    print(as_table(uses))
    if arguments.files:
        print(as_files(uses))
    if arguments.names:
        print(as_names(uses))
    for use in unknown:
        print(f"{use.file.relative_to(PACKAGE)}:{use.line}: {use.name} is in no library's list")


def collect() -> tuple[list[Use], list[Use]]:
    """All uses; and private attributes that neither tpuport nor any list above has."""
    trees = {
        file: ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(PACKAGE.rglob("*.py"))
        if {"lint", "server"}.isdisjoint(file.relative_to(PACKAGE).parts)
    }
    own = {name for tree in trees.values() for name in _defined_names(tree)}
    uses, unknown = [], []
    for file, tree in trees.items():
        for node in ast.walk(tree):
            for name, on_self, is_sure in _private_names(node):
                library = _library_of(name, on_self, node)
                if library:
                    uses.append(Use(library, name, file, node.lineno))
                elif is_sure and name not in own | _STANDARD | _TRACER_FIELDS | set(_LIBRARIES):
                    unknown.append(Use("", name, file, node.lineno))
    return uses, unknown


def _library_of(name: str, on_self: bool, node: ast.AST) -> str | None:
    if name in _SHARED and on_self:
        return None
    if name == "_ops":
        receiver = getattr(node, "value", None)
        return "torch" if isinstance(receiver, ast.Name) and receiver.id == "torch" else "torchax"
    if name in _TRACER_FIELDS:
        return "jax"
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax"):
        return "jax"
    return _LIBRARIES.get(name)


def _private_names(node: ast.AST) -> Iterator[tuple[str, bool, bool]]:
    """Names in a node of the syntax tree, whether each is an attribute of `self`, and whether it is one for certain."""
    if isinstance(node, ast.Attribute) and _is_private(node.attr):
        receiver = ast.unparse(node.value)
        if not receiver.split(".")[-1].endswith("aten") and not receiver.startswith("super("):
            yield node.attr, receiver in ("self", "cls"), True
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value in _LIBRARIES:
            yield node.value, False, False
    elif isinstance(node, ast.ImportFrom):
        private = [part for part in (node.module or "").split(".") if _is_private(part)]
        private += [alias.name for alias in node.names if _is_private(alias.name)]
        if not (node.module or "").startswith("tpuport"):
            # An import of something from a private module is a use of its first private part.
            yield from ((name, False, True) for name in private[:1])
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
        field = node.args[1]
        if isinstance(field, ast.Constant) and field.value in _TRACER_FIELDS:
            yield field.value, False, True


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined_names(tree: ast.Module) -> Iterator[str]:
    """What the module defines itself, attributes of its objects included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        # Of `__slots__`, and of attributes that are set by name.
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def as_table(uses: list[Use]) -> str:
    """Uses and different names by library: in all, and in the modules where they belong."""
    lines = [
        f"{'library':<14}{'uses':>7}{'names':>7}{'files':>7}{'gathered':>10}{'by source':>11}{'elsewhere':>11}"
    ]
    for library in (*_NAMES, None):
        of_library = [use for use in uses if library in (use.library, None)]
        gathered = sum(GATHERED in use.file.parents for use in of_library)
        by_source = sum(not {use.file, *use.file.parents}.isdisjoint(PATCHES) for use in of_library)
        elsewhere = len(of_library) - gathered - by_source
        names, files = ({use[index] for use in of_library} for index in (1, 2))
        lines.append(
            f"{library or 'all':<14}{len(of_library):>7}{len(names):>7}{len(files):>7}{gathered:>10}"
            f"{by_source:>11}{elsewhere:>11}"
        )
    return "\n".join(lines)


def as_files(uses: list[Use]) -> str:
    """The files that use private names, the most uses first."""
    counts = collections.Counter((use.file, use.library) for use in uses)
    return "\n".join(
        f"{count:>4}  {library:<14}{file.relative_to(PACKAGE)}"
        for (file, library), count in counts.most_common()
    )


def as_names(uses: list[Use]) -> str:
    """Every name with its places."""
    places = collections.defaultdict(list)
    for use in uses:
        places[use.library, use.name].append(f"{use.file.relative_to(PACKAGE)}:{use.line}")
    return "\n".join(
        f"{library:<14}{name}: {', '.join(places[library, name])}" for library, name in sorted(places)
    )


if __name__ == "__main__":
    main()
