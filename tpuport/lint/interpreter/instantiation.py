"""Objects that code makes by calling its classes."""

from tpuport.lint.abstract_values import (
    STATIC,
    UNKNOWN,
    Choice,
    Class,
    External,
    Function,
    Instance,
    Layer,
    Partial,
    Sequence,
    Value,
    options_of,
)
from tpuport.lint.interpreter.containers import entries_by_name
from tpuport.lint.interpreter.frame import ELEMENTS, Frame
from tpuport.lint.modules import ClassInfo, FunctionInfo
from tpuport.lint.passed_arguments import Arguments


def instantiate(frame: Frame, info: ClassInfo, arguments: Arguments) -> Value:
    """`Class(...)`."""
    classes = frame.interpreter.classes
    if classes.is_enumeration(info):
        return STATIC
    if classes.is_module(info):
        return Instance(info, _components(frame, info, arguments))
    if classes.is_named_tuple(info):
        return Instance(info, tuple(_field_values(frame, info, arguments).items()))
    is_dataclass = classes.method(info, "__init__") is None and classes.declared_fields(
        info
    )
    if is_dataclass or classes.is_output(info):
        fields = _known_fields(_field_values(frame, info, arguments))
        return _initialised(frame, Instance(info, fields))
    init = classes.constructor(info)
    if init is not None:
        return _constructed(frame, info, init, arguments)
    attributes: dict[str, Value] = {}
    if classes.is_list(info):
        elements = frame.element_of(arguments.first)
        items = arguments.first.items if arguments.positional else ()
        attributes[ELEMENTS] = Sequence("list", items, elements)
    elif classes.is_dict(info):
        attributes |= entries_by_name(arguments)
    return _object_with(info, attributes)


def _constructed(
    frame: Frame, info: ClassInfo, init: FunctionInfo, arguments: Arguments
) -> Value:
    """What `Class(...)` gives by its constructor; equal calls are interpreted once."""
    interpreter = frame.interpreter

    def build() -> Value:
        attributes: dict[str, Value] = {}
        interpreter.build(init, Instance(info), attributes, arguments, frame)
        return _object_with(info, attributes)

    positional, keywords, *openness = arguments
    key = (
        info, init, tuple(positional), tuple(keywords.items()), *openness,
        frame.emitting, interpreter.constructs,
    )  # fmt: skip
    # What a class inside a function means depends on the frame around it.
    return build() if init.closure else interpreter.remembered(key, build)


def _object_with(info: ClassInfo, attributes: dict[str, Value]) -> Instance:
    # Sorted, since objects with equal attributes are equal in whatever order they were
    # set.
    return Instance(info, _known_fields(dict(sorted(attributes.items()))))


def _components(
    frame: Frame, info: ClassInfo, arguments: Arguments
) -> tuple[tuple[str, Value], ...]:
    """What a module calls that its constructor got, by attribute: of
    `Residual(attention)`, `Stage(norm=nn.LayerNorm)`.

    By its declaration alone, a constructor does not tell what such an argument is.
    """
    classes = frame.interpreter.classes

    def is_component(value: Value) -> bool:
        match value:
            case Instance():
                return classes.is_module(value.info)
            case Sequence(kind="modules" | "sequential"):
                return True
            # `Mixture([Normal(), Normal()])`
            case Sequence(element=Instance() | Choice() as element):
                return all(map(is_component, options_of(element)))
            case External(name=name):
                return name.startswith("torch.nn.")
            case _:
                return isinstance(value, Class | Function | Layer | Partial)

    init = classes.constructor(info)
    if init is None or not any(
        map(is_component, (*arguments.positional, *arguments.keywords.values()))
    ):
        return ()
    key = (*arguments.positional, *arguments.keywords.items())
    known = vars(info).setdefault("components", {})
    if key not in known:
        # A module may create another of its class.
        known[key] = ()
        attributes: dict[str, Value] = {}
        frame.interpreter.build(init, Instance(info), attributes, arguments, frame)
        usual = classes.attributes(info)
        components = {
            name: value
            for name, value in attributes.items()
            if value != usual.get(name)
        }
        known[key] = tuple(
            (name, value)
            for name, value in sorted(components.items())
            if is_component(value)
        )
    return known[key]


def _field_values(
    frame: Frame, info: ClassInfo, arguments: Arguments
) -> dict[str, Value]:
    """Values of a dataclass's fields, in the order of the arguments."""
    names = frame.interpreter.classes.constructor_fields(info)
    return {
        **dict(zip(names, arguments.positional, strict=False)),
        **arguments.keywords,
    }


def _initialised(frame: Frame, instance: Instance) -> Value:
    """A dataclass's object after its `__post_init__`."""
    interpreter = frame.interpreter
    method = interpreter.classes.method(instance.info, "__post_init__")
    if method is None or interpreter.classes.is_output(instance.info):
        return instance
    interpreter.changed_receiver = None
    interpreter.call_function(frame, Function(method, instance), Arguments([], {}))
    return interpreter.changed_receiver or instance


def _known_fields(values: dict[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(
        (name, value) for name, value in values.items() if value is not UNKNOWN
    )
