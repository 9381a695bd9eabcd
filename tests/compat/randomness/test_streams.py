"""Keys from torch's generators, and streams of keys in programs and loops."""

import jax
import jax.numpy as jnp
import pytest
import torch

from tpuport import PortError, compat
from tpuport.compat import randomness

NO_KEYS = randomness.ProgramKeys((), ())


def words(key: jax.Array) -> list[int]:
    return jax.random.key_data(key).tolist()


def test_a_draw_moves_the_generator_on() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (words(randomness.next_key(generator)) for _ in range(2))
    assert first != second
    assert words(randomness.next_key(generator.manual_seed(0))) == first
    torch.manual_seed(0)
    assert words(randomness.next_key()) == first
    assert words(randomness.next_key(torch.default_generator)) == second


def test_a_program_asks_for_keys_and_draws_what_eager_code_would() -> None:
    generator = torch.Generator()

    def draw(keys: randomness.ProgramKeys) -> list[jax.Array]:
        with randomness.program_stream(keys, has_all_keys=bool(keys.sources)):
            return [jax.random.key_data(randomness.next_key(source)) for source in (None, generator, None)]

    with pytest.raises(randomness.MoreKeysNeeded) as needed:
        jax.jit(draw)(NO_KEYS)
    draws = needed.value.draws
    assert [count for _, count in draws] == [2, 1]
    torch.manual_seed(1)
    generator.manual_seed(2)
    in_program = [array.tolist() for array in jax.jit(draw)(randomness.take_keys(draws))]
    torch.manual_seed(1)
    generator.manual_seed(2)
    assert in_program == [words(randomness.next_key(source)) for source in (None, generator, None)]
    assert not randomness.is_traced()


def test_iterations_of_a_loop_draw_their_own() -> None:
    def draw(keys: randomness.ProgramKeys) -> jax.Array:
        def body(index: jax.Array, numbers: jax.Array) -> jax.Array:
            with randomness.iteration(index):
                pair = jnp.stack([jax.random.uniform(randomness.next_key()) for _ in range(2)])
            return numbers.at[index].set(pair)

        with randomness.program_stream(keys, has_all_keys=bool(keys.sources)):
            return jax.lax.fori_loop(0, 5, body, jnp.zeros((5, 2)))

    with pytest.raises(randomness.MoreKeysNeeded) as needed:
        jax.jit(draw)(NO_KEYS)
    assert needed.value.draws == ((None, 1),)
    numbers = jax.jit(draw)(randomness.take_keys(needed.value.draws))
    assert len(set(numbers.flatten().tolist())) == 10


def test_generators_get_their_states_back() -> None:
    draws = ((None, 3),)
    before = torch.get_rng_state()
    with randomness.restored(draws):
        randomness.example_keys(draws)
    assert torch.equal(torch.get_rng_state(), before)
    with randomness.restored(draws, only_after=randomness.MoreKeysNeeded):
        randomness.take_keys(draws)
    assert not torch.equal(torch.get_rng_state(), before)


def test_torchax_asks_for_keys_here() -> None:
    env = compat.environment()
    env.manual_seed(torch.tensor(3))
    first = words(env.get_and_rotate_prng_key())
    torch.manual_seed(3)
    assert words(env.get_and_rotate_prng_key()) == first
    with pytest.raises(PortError, match="a program of your own"):
        jax.eval_shape(lambda: jax.random.key_data(env.get_and_rotate_prng_key()))
