"""What library functions return."""


def test_torch(check_forward):
    check_forward("""
        if torch.cat([x, x]).sum() > 0: x = x + 1  #! TPU205
        if torch.numel(x) > 1 or torch.finfo(x.dtype).max > 1 or torch.is_tensor(x): x = x + 1
        a, b = torch.broadcast_tensors(x, ids)
        if a.sum() > 0: x = x + 1  #! TPU205
        if F.softmax(x, -1).max() > 0.5: x = x + 1  #! TPU205
        if torch.linalg.norm(x) > 0: x = x + 1  #! TPU205
        if torch.Size([1, 2]) == x.shape: x = x + 1
        y = x[torch.isnan(x)]  #! TPU101
        y = x[torch.argsort(ids)]
        y = x[torch.logical_and(mask, ids > 0)]  #! TPU101
    """)


def test_what_torch_says_of_itself(check_forward):
    check_forward("""
        before = torch.are_deterministic_algorithms_enabled()
        if before and torch.is_anomaly_enabled(): x = x + 1
        if torch.get_deterministic_debug_mode() > 1 or torch.get_float32_matmul_precision() == "high": x = x + 1
        if torch.is_signed(x) or torch.is_conj(x): x = x + 1
        if torch.isnan(x).any(): x = x + 1  #! TPU205
        if torch.isclose(x, x + before).all(): x = x + 1  #! TPU205
    """)


def test_numbers_of_python(check_forward):
    check_forward("""
        n = math.ceil(x.shape[1] / 2)
        if n > 2 and math.sqrt(x.shape[0]) > 1: x = x[:, :n]
        m = math.sqrt(x.sum())  #! TPU204
    """)
