"""Which classes are modules, and which of their methods are traced."""

import pytest

from tpuport.lint.findings import Severity


def test_forward_inherited_from_another_file(tree) -> None:
    tree.write(
        "base.py",
        """
        class Base(nn.Module):
            def forward(self, x: torch.Tensor):
                return self.mix(x)

            def mix(self, x):
                raise NotImplementedError
        """,
    )
    tree.write(
        "model.py",
        """
        from base import Base

        class Model(Base):
            def mix(self, x):
                return x.item()
        """,
    )
    assert tree.stops("model.py") == ["model.py Model.mix: x.item()"]
    assert tree.stops("base.py") == []


def test_each_class_is_entered_with_its_own_methods(tree) -> None:
    tree.write(
        "model.py",
        """
        class Block(nn.Module):
            def forward(self, x: torch.Tensor):
                return self.mix(x)

            def mix(self, x):
                return x.item()

        class Fancy(Block):
            def mix(self, x):
                return x * 2
        """,
    )
    assert tree.stops("model.py") == ["model.py Block.mix: x.item()"]


def test_super_goes_to_the_base_and_overridden_code_is_not_traced(tree) -> None:
    tree.write(
        "base.py",
        "class Base(nn.Module):\n    def forward(self, x: torch.Tensor):\n        return x.item()\n",
    )
    tree.write(
        "model.py",
        """
        import base

        class Silent(base.Base):
            def forward(self, x: torch.Tensor):
                return x

        class Loud(base.Base):
            def forward(self, x: torch.Tensor):
                return super().forward(x)
        """,
    )
    outcome = tree.analyse("model.py")
    assert tree.stops("model.py") == ["base.py Base.forward: x.item()"]
    assert outcome.findings[0].route == ("Loud.forward", "Base.forward")


@pytest.mark.parametrize("base", ["Missing", "missing.Missing", "Missing[int]"])
def test_a_class_with_an_unknown_base_and_a_forward_is_a_module(tree, base: str) -> None:
    code = f"""
        import missing
        from missing import Missing

        class Model({base}):
            def forward(self, x: torch.Tensor):
                return x.item()

        class Other({base}):
            def step(self, x: torch.Tensor):
                return x.item()
        """
    tree.write("model.py", code)
    assert tree.stops("model.py") == ["model.py Model.forward: x.item()"]


def test_plain_classes_autograd_functions_and_enumerations_are_no_modules(tree) -> None:
    tree.write(
        "model.py",
        """
        import enum

        class Plain:
            def forward(self, x: torch.Tensor):
                return x.item()

        class Exp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x: torch.Tensor):
                return x.item()

        class Kind(enum.Enum):
            def forward(self, x: torch.Tensor):
                return x.item()
        """,
    )
    assert tree.analyse("model.py").entry_points == 0


def test_classes_inside_functions_and_classes(tree) -> None:
    tree.write(
        "model.py",
        """
        def make(dim):
            class Inner(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.item()

            return Inner()

        class Outer:
            class Part(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.tolist()
        """,
    )
    assert tree.stops("model.py") == [
        "model.py make.Inner.forward: x.item()", "model.py Outer.Part.forward: x.tolist()",
    ]  # fmt: skip


def test_modules_in_branches(tree) -> None:
    tree.write(
        "model.py",
        """
        import sys

        try:
            from somewhere import Norm
        except ImportError:
            class Norm(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.item()

        if sys.platform == "linux":
            class Model(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.tolist()
        else:
            class Model(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.numpy()
        """,
    )
    assert tree.stops("model.py") == [
        "model.py Norm.forward: x.item()", "model.py Model.forward: x.tolist()", "model.py Model.forward: x.numpy()",
    ]  # fmt: skip


def test_of_two_functions_of_one_name_the_last_is_called(tree) -> None:
    tree.write(
        "model.py",
        """
        def helper(x):
            return x.item()

        def helper(x):
            return x.tolist()

        def cuda_helper(x):
            return x

        class Model(nn.Module):
            def forward(self, x: torch.Tensor):
                return helper(x), cuda_helper(x)

        def cuda_helper(x):
            torch.cuda.set_device(0)
            return x.cuda()
        """,
    )
    assert tree.stops("model.py") == ["model.py helper: x.tolist()"]


def test_untraced_code_under_the_name_of_traced_code_is_scanned_as_host_code(tree) -> None:
    tree.write(
        "model.py",
        """
        def helper(x):
            torch.cuda.set_device(0)

        def helper(x):
            return x

        class Model(nn.Module):
            def forward(self, x: torch.Tensor):
                return helper(x)
        """,
    )
    (finding,) = tree.analyse("model.py").findings
    assert (finding.rule, finding.line, finding.severity) == ("TPU303", 6, Severity.WARNING)
