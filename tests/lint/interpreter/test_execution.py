"""Statements: loops, branches, early returns, exceptions, assignments."""


def test_loops(check_forward):
    check_forward("""
        total = 0
        for part in x.split(2):
            total = total + part.sum()
        if total > 0: x = x + 1  #! TPU205
        count = 0
        while count < x.shape[0]:
            count += 1
        if count > 3: x = x + 1
        for i, row in enumerate(x):
            if i == 0: continue
            if row.sum() == 0: break  #! TPU205
    """)


def test_branches_join(check_forward):
    check_forward("""
        if self.flag:
            y = x.sum()
        else:
            y = ids.sum()
        if y > 0: x = x + 1  #! TPU205
        if self.flag:
            z = 3
        else:
            z = x.shape[0]
        if z > 0: x = x + 1
    """)


def test_nothing_behind_a_return(check_forward):
    check_forward("""
        if True:
            return x
        x = x[mask]
    """)


def test_with_try_and_match(check_forward):
    check_forward("""
        with torch.no_grad():
            n = ids.max().item()  #! TPU201
        try:
            y = x[mask]  #! TPU101
        except RuntimeError:
            y = x
        finally:
            z = ids.tolist()  #! TPU202
        match self.config.kind:
            case "a": x = x[ids == 1]  #! TPU101
            case _: pass
    """)


def test_containers(check_forward):
    check_forward("""
        parts, sizes = [], []
        for part in (x, ids):
            parts.append(part.sum())
            sizes.append(part.shape[0])
        if parts[0] > 0: x = x + 1  #! TPU205
        if sizes[0] > 0: x = x + 1
        table = {}
        table["a"] = x.mean()
        table["n"] = x.shape[0]
        if table["a"] > 0: x = x + 1  #! TPU205
        if table["n"] > 0: x = x + 1
        first, *rest = x.shape
        if first > 0 and rest[0] > 0: x = x + 1
    """)


def test_writes_through_masks(check_forward):
    check_forward("""
        x[mask] = 0.0
        x[ids > 1] = 2.0
        x[mask] *= 2.0  #! TPU113
    """)


def test_a_number_on_one_side_of_a_condition_on_a_tensor(check_forward):
    check_forward("""
        extra = 0
        if ids.max() > 3:  #! TPU205
            extra = ids.max() - 3
        x = x[: x.shape[0] - extra]  #! TPU108
        known = 0
        if self.flag:
            known = ids.max() - 3
        x = x[: x.shape[0] - known]
    """)


def test_an_object_that_is_its_own_iterator(check):
    check("""
    class Steps:
        def __init__(self, x): self.x = x
        def __iter__(self): return self
        def __next__(self): return self.x.sum()

    class Model(nn.Module):
        def forward(self, x: torch.Tensor):
            for step in Steps(x):
                if step > 1: break  #! TPU205
            return x
    """)


def test_tensors_of_the_host_that_are_written_from_the_device(check_forward):
    """The first write is an error of another family; once it is mended, the rest is what stops the trace."""
    check_forward("""
    seen = torch.zeros(4, dtype=torch.bool)
    kept = torch.zeros(4, dtype=torch.bool)
    seen[ids[0]] = True
    kept[0] = True
    return x[:, seen] + x[:, kept]  #! TPU101
    """)
