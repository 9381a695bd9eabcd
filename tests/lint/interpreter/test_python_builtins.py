"""Python's own functions, of tensors and of containers of them."""


def test_of_containers(check_forward):
    check_forward("""
        for size, part in zip((1, 2), (x, x)):
            if size > 1: x = x + 1
            if part.sum() > 0: x = x + 1  #! TPU205
        for index, part in enumerate([x]):
            if index > 0: x = x + 1
            if part.sum() > 0: x = x + 1  #! TPU205
        last, first = reversed([1, x])
        if first > 1: x = x + 1
        if last.sum() > 0: x = x + 1  #! TPU205
        if next(map(torch.relu, [x])).sum() > 0: x = x + 1  #! TPU205
    """)


def test_of_tensors_and_numbers(check_forward):
    check_forward("""
        if max(x.shape) > 1 and len(x) > 1 and isinstance(x, torch.Tensor): x = x + 1
        if abs(x).sum() > 0: x = x + 1  #! TPU205
        if torch.is_tensor(max([x])) and max([x]).sum() > 0: x = x + 1  #! TPU205
        if getattr(x, "ndim") > 1: x = x + 1
    """)


def test_lengths_of_argument_tuples(check):
    """`*caches` of a call with two arguments has two; of one that spreads an unknown iterable, any number."""
    check("""
    def only(*tensors):
        if len(tensors) == 1: return tensors[0].item()
        return tensors[0]
    def only_of_many(*tensors):
        if len(tensors) == 1: return tensors[0].item()  #! TPU201
        return tensors[0]
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, *others: torch.Tensor):
            return only(x, x) + only_of_many(*others)
    """)


def test_keys_by_which_builtins_compare(check_forward):
    check_forward("""
    parts = [x.sum(), x.mean()]
    best = max(parts, key=lambda part: part.item())  #! TPU201
    longest = sorted(parts, key=lambda part: part.shape[0])
    return min(best, longest[0], key=lambda part: part.item())
    """)


def test_tensors_that_are_compared_to_sort(check_forward):
    check_forward("""
    parts = [x.sum(), x.mean()]
    ordered = sorted(parts, key=lambda part: -part)  #! TPU212
    rows = [(part, index) for index, part in enumerate(parts)]
    best = max(rows, key=lambda row: row[0])  #! TPU212
    last = max(rows, key=lambda row: row[1])
    only = min([x.sum()], key=lambda part: part)
    rows.sort(key=lambda row: row[0], reverse=True)  #! TPU212
    rows.sort(key=lambda row: row[1])
    parts.sort()  #! TPU212
    sizes = list(x.shape)
    sizes.sort()
    return x.sort()
    """)


def test_bounds_of_slices_that_have_names(check_forward):
    check_forward("""
    n = mask.sum()
    rows, few = slice(0, n), slice(0, 3)
    parts = [slice(None), slice(1, n)]
    x = x[rows] + x[few] + x[tuple(parts)]  #! TPU108
    x[0, rows] = 1.0  #! TPU108
    """)


def test_columns_of_what_a_function_returns_for_each_row(check):
    """Each column is what the function returns at its place, not a mixture of all of them."""
    check("""
    def apply(function, *columns):
        return tuple(map(list, zip(*map(function, *columns))))

    class Model(nn.Module):
        def forward(self, x, boxes):
            masks, targets, counts = apply(self.single, x, boxes)
            if sum(counts) > 3: x = x * 2
            if sum(targets) > 3: x = x * 2  #! TPU205
            return x.flatten()[torch.cat(masks, 0)]  #! TPU101
        def single(self, x, box):
            mask = torch.zeros_like(x).to(torch.bool)
            mask[x.argmax()] = True
            return mask, x.sum(), x.shape[0]
    """)
