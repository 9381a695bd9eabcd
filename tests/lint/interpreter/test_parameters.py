"""What parameters are: by annotation, by default, by what is done with them."""

import pytest


def test_annotations(check):
    check("""
    class Model(nn.Module):
        def forward(self, a: torch.Tensor, n: int, pair: tuple[torch.Tensor, int], many: list[torch.Tensor],
                    table: dict[str, torch.Tensor], text: "torch.Tensor", flag: bool = False):
            if n > 1 or flag or pair[1] > 2 or len(many) > 1: pass
            if a.sum(): pass  #! TPU205
            if pair[0].sum(): pass  #! TPU205
            if many[0].sum(): pass  #! TPU205
            if table["x"].sum(): pass  #! TPU205
            if text.sum(): pass  #! TPU205
            if a > n: pass  #! TPU205
    """)


def test_names_and_use(check):
    check("""
    class Model(nn.Module):
        def forward(self, hidden_states, attention_mask, subset_mask=None, num_frames=None, config=None, scale=1.0):
            if hidden_states.sum() > 0: pass  #! TPU205
            if subset_mask is not None:
                hidden_states = hidden_states[subset_mask]  #! TPU101
            if num_frames and num_frames > 2 and scale != 1.0 and config.depth > 2: pass
            return hidden_states
    """)


@pytest.mark.parametrize(
    "filling",
    [
        "if position is None: position = torch.arange(4)",
        "position = torch.arange(4) if position is None else position",
        "if position is None: position = x.new_zeros(4)",
    ],
)
def test_a_default_that_is_filled_with_a_tensor(check, filling):
    check(f"""
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, position=None):
            {filling}
            return x[: position.max() + 1]  #! TPU108
    """)


def test_labels_are_not_given(check):
    check("""
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, labels: torch.Tensor = None):
            if labels is not None:
                return x[labels != -100]
            return x
    """)


def test_arguments_tell_more_than_names(check):
    check("""
    def helper(thing, count):
        if thing.sum() > count: return 1  #! TPU205
        if count > 3: return 2
    class Model(nn.Module):
        def forward(self, x: torch.Tensor):
            helper(x, x.shape[0])
    """)


def test_everything_passed_on(check):
    check("""
    class Model(nn.Module):
        def forward(self, *args, **kwargs):
            return self.run(*args, **kwargs)

        def run(self, features, features_mask=None):
            if features_mask is not None:
                features = features[:, : features_mask.long().sum(1).max()]  #! TPU108
            return features
    """)


def test_aliases_of_annotations(check):
    check(
        """
    from names import OptTensor, Edges, Number
    Own = Optional[torch.Tensor]

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, batch: OptTensor, edges: Edges, own: Own, number: Number):
            if batch is None:
                batch = x.new_zeros(3)
            x = x + int(batch.max())  #! TPU204
            x = x + int(edges.max())  #! TPU204
            x = x + int(own.max())  #! TPU204
            return x + int(number)
    """,
        names="""
    from typing import Union
    class SparseTensor: pass
    OptTensor = Optional[torch.Tensor]
    Edges = Union[torch.Tensor, SparseTensor]
    Number = Union[torch.Tensor, float]
    """,
    )


def test_items_of_a_dict_of_tensors_that_also_has_sizes(check):
    check("""
    def grid(n: int, scale: float, rows):
        if rows.sum() > 2: pass  #! TPU205
        return torch.arange(n) * int(scale)

    def table(n, limit=4):
        if n > limit: pass  #! TPU205
        return torch.zeros(n)  #! TPU107

    class Model(nn.Module):
        def forward(self, batch: dict[str, torch.Tensor], x: torch.Tensor, n: torch.Tensor):
            grid(batch["size"][0], batch["scale"], batch["x"])
            table(n, batch["limit"])
            if batch["x"].sum() > 1: pass  #! TPU205
            return torch.zeros(batch["n"])  #! TPU107
    """)


def test_a_tensor_in_a_number_s_place_is_a_tensor(check):
    check("""
    def grid(n: int):
        return torch.zeros(n)  #! TPU107

    class Model(nn.Module):
        def forward(self, lengths: torch.Tensor):
            return grid(lengths.max())
    """)


def test_a_mask_whose_annotation_names_no_dtype(check):
    check("""
    def gather(x, mask):
        return x[mask]  #! TPU101

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, pad_mask: Optional[torch.Tensor] = None,
                    mask_ids: torch.Tensor = None, order_mask: torch.LongTensor = None):
            if pad_mask is not None:
                return x[~pad_mask]  #! TPU101
            return x[mask], x[mask_ids], x[order_mask], gather(x, mask)  #! TPU101
    """)


def test_lengths_of_sequences_by_name(check):
    check("""
    class Model(nn.Module):
        def forward(self, xs, hlens, ys_lens, window_len, sizes_lens=None):
            if sizes_lens and window_len > 3: pass
            parts = [xs[i, :l] for i, l in enumerate(ys_lens)]  #! TPU108
            return xs[:, : hlens.max()], parts  #! TPU108
    """)


def test_masks_by_name(check):
    """A comparison of what may be a number: code calls its answer a mask only if it has many."""
    check("""
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, order, step):
            edge_mask = order == step
            is_first = order == 0
            if is_first: x = x + 1
            return x[edge_mask]  #! TPU101
    """)
