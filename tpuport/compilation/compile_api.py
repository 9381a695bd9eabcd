"""`tpuport.compile`: a ported model, or a function that uses some, as one program."""

from collections.abc import Callable, Sequence

from tpuport.compilation.compiled_function import CompiledFunction


def compile(
    model_or_function: Callable,
    *,
    name: str | None = None,
    scan_layers: bool | None = None,
    traced: Sequence[str] = (),
    donate: str | Sequence[str] = (),
    check_indices: bool | None = None,
    static: str | Sequence[str] = (),
) -> CompiledFunction:
    """Compile a ported model, one of its methods, or a function that uses ported
    models.

    Weights of every module that the function reaches become arguments of the program,
    never constants in it: modules among its arguments, in its closure and globals, and
    those that other functions, containers and objects lead to. Tensors among the
    arguments (torch on the host, torchax, NumPy, jax) are traced, also in objects of
    your own classes. Python values are static, with one program each. What the function
    changes in its arguments is changed after the call; what it writes to in place is
    written to in its own memory. Caches of transformers are donated: go on with the
    cache in the output. Tensors in the result are torchax tensors on the device.

    A change of anything that the function reaches is seen by the next call: modules,
    their attributes, hooks, adapters and classes, configurations, variables of
    closures, globals. Tensors on the device are arguments of the program; anything else
    is part of its key, so that another value makes another program. What the function
    assigns to attributes, lists, dictionaries and variables is there after the call, as
    in torch.

    Args:
        model_or_function: an nn.Module on the device, a bound method, or a function.
        name: what logs call it.
        scan_layers: True stacks the weights of identical blocks of the models, in place
            (`layers.stack_layers`: other code cannot read them then, and
            `layers.unstack_layers` undoes it), and runs the blocks in one loop if they
            allow it: the same results from a program that is compiled sooner. None does
            so for models whose weights are stacked already.
        traced: names of numbers among the arguments and in their objects, such as
            "cache.pos" or "cache.layers.*.pos", that change from call to call. The
            function gets a tensor for each of them, and an object has that tensor
            afterwards.
        donate: names of arguments, and of what is in them ("past", "state.k"), whose
            memory results of the same shape and dtype may take over, as jax's
            `donate_argnames`. It is for code that returns a new cache and leaves the
            old one to the caller. A tensor that was donated raises whenever it is used.
            What the function changes in objects is donated by itself, if nothing else
            refers to it.
        check_indices: True lets the program find indices outside of their dimension,
            which are clamped or dropped otherwise, and integers beyond 2**31, which
            wrap around. The call then raises torch's error, or one that names the
            operator, with the line of the code. For debugging: each call waits for
            its result, and nothing is donated. None does so if the environment has
            TPUPORT_CHECK_INDICES=1.
        static: names of tensors among the arguments and in their objects whose values
            the code decides by, such as "image_grid_thw": they stay on the host, or are
            read from the device, and are a part of the program, so that each other
            value compiles one. Of a model of transformers or diffusers, integers and
            masks that are not tokens are found when its code asks for their values, and
            a warning names them.

    Raises:
        PortError: the argument cannot be called, or is compiled already; in a call, a
            name in `donate`, `static` or `traced` fits no tensor, or a tensor is used
            that was donated to an earlier call.
    """
    return CompiledFunction(
        model_or_function,
        name,
        scan_layers=scan_layers,
        traced=traced,
        donate=donate,
        check_indices=check_indices,
        static=static,
    )
