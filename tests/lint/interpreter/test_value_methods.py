"""Methods of tensors, lists, dicts and strings."""


def test_of_tensors(check_forward):
    check_forward("""
        values, indices = x.max(dim=-1)
        if values.sum() > 0: x = x + 1  #! TPU205
        y = x.topk(2).indices
        z = x[y]
        w = x[x.gt(0)]  #! TPU101
        v = x[mask.to(x.device)]  #! TPU101
        u = x[mask.long()]
        t = x[x.eq(1).logical_not()]  #! TPU101
        if x.stride(0) == 1 and x.is_contiguous() and x.element_size() > 1: x = x + 1
        s = x.sort(descending=True)[0].clamp(0)
        if s[0] > 0: x = x + 1  #! TPU205
    """)


def test_of_containers(check_forward):
    check_forward("""
        table = dict(a=x, n=2)
        if table.get("n") > 1 and "a" in table.keys(): x = x + 1
        if table.get("a").sum() > 0: x = x + 1  #! TPU205
        if table.pop("a").sum() > 0: x = x + 1  #! TPU205
        stack = [x]
        stack.extend([x, x])
        if stack.pop().sum() > 0: x = x + 1  #! TPU205
        words = "a,b".split(",")
        if words[0].startswith("a"): x = x + 1
        text = "{} {:d}".format(x.shape, x.ndim)
    """)
