"""How much a reader has to hold in mind: figures of the package's source, to compare with other packages.

    python benchmarks/readability.py                    # tpuport, as a table
    python benchmarks/readability.py tpuport ../equinox/equinox
    python benchmarks/readability.py --by-folder        # a row for each folder of tpuport

Lines of code are those that are neither blank nor part of a docstring nor a comment alone. Branches are `if`, `for`,
`while`, `try` and `with` statements, `and`/`or` expressions, conditional expressions and comprehension loops, each
counted once. The call chain is the longest path through functions whose calls can be resolved without running the code:
by an imported or local name, by `self`, or by a method name that only one class of the package has. Functions that call
each other in a circle count once together.
"""

import argparse
import ast
import collections
import io
import statistics
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

EMPTY_NAMES = frozenset("one found place told made held kept given here said taken".split())

BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith)
BRANCHES += (ast.BoolOp, ast.IfExp, ast.comprehension)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Counts:
    """Sums over the modules of a package or a folder."""

    files: int = 0
    lines: int = 0
    code: int = 0
    comments: int = 0
    branches: int = 0
    conditional_expressions: int = 0
    empty_names: int = 0
    function_lines: list[int] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", type=Path, default=[Path(__file__).parents[1] / "tpuport"])
    parser.add_argument("--by-folder", action="store_true", help="a row for each folder of the first")
    arguments = parser.parse_args()
    for package in arguments.packages:
        if not package.is_dir():
            parser.error(f"{package} is not a directory")
    if arguments.by_folder:
        folders = folders_with_modules(arguments.packages[0])
        root = arguments.packages[0].parent
        rows = {str(folder.relative_to(root)): measures(sorted(folder.glob("*.py"))) for folder in folders}
        print(as_rows(rows))
    else:
        columns = {package.name: package_measures(package) for package in arguments.packages}
        print(as_columns(columns))


def folders_with_modules(package: Path) -> list[Path]:
    return sorted({module.parent for module in package.rglob("*.py")})


def package_measures(package: Path) -> dict[str, str]:
    """The rows of the table for a whole package."""
    modules = sorted(package.rglob("*.py"))
    graph = ModuleGraph(package, modules)
    return measures(modules) | {
        "longest static call chain": str(longest_chain(CallGraph(graph).calls)),
        "file basenames in more than one folder": str(repeated_basenames(modules)),
        "modules in import circles": str(sum(len(circle) for circle in circles(graph.imports))),
    }


def measures(modules: list[Path]) -> dict[str, str]:
    """The rows of the table that are sums over modules."""
    counts = Counts()
    for module in modules:
        count_module(module, counts)
    thousands = max(counts.code, 1) / 1000
    lengths = sorted(counts.function_lines) or [0]
    ninetieth = lengths[int(0.9 * (len(lengths) - 1))]
    return {
        "files": f"{counts.files:,}",
        "lines / lines of code": f"{counts.lines:,} / {counts.code:,}",
        "branches per 1,000 lines of code": f"{counts.branches / thousands:.0f}",
        "conditional expressions per 1,000": f"{counts.conditional_expressions / thousands:.0f}",
        "names that say nothing per 1,000": f"{counts.empty_names / thousands:.1f}",
        "comments per 100 lines of code": f"{counts.comments / thousands / 10:.1f}",
        "function lines, median / p90 / largest": f"{statistics.median(lengths):.0f} / {ninetieth} / {lengths[-1]}",
    }


def count_module(module: Path, counts: Counts) -> None:
    text = module.read_text(encoding="utf-8")
    tree = ast.parse(text)
    documented = docstring_lines(tree)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    counts.files += 1
    counts.comments += sum(token.type == tokenize.COMMENT for token in tokens)
    for number, line in enumerate(text.splitlines(), start=1):
        counts.lines += 1
        stripped = line.strip()
        is_code = stripped and not stripped.startswith("#") and number not in documented
        counts.code += bool(is_code)
    for node in ast.walk(tree):
        counts.branches += isinstance(node, BRANCHES)
        counts.conditional_expressions += isinstance(node, ast.IfExp)
        counts.empty_names += isinstance(node, ast.Name) and node.id in EMPTY_NAMES
        if isinstance(node, FUNCTIONS):
            counts.function_lines.append(node.end_lineno - node.lineno + 1)


def docstring_lines(tree: ast.Module) -> set[int]:
    """Numbers of the lines that docstrings of the module, its classes and its functions take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def repeated_basenames(modules: list[Path]) -> int:
    """Basenames that occur in several folders, `__init__` apart."""
    occurrences = collections.Counter(module.stem for module in modules if module.stem != "__init__")
    return sum(count > 1 for count in occurrences.values())


class ModuleGraph:
    """The modules of a package by dotted name, with what each imports of the others."""

    def __init__(self, package: Path, modules: list[Path]) -> None:
        self.trees: dict[str, ast.Module] = {}
        for module in modules:
            parts = module.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            self.trees[name] = ast.parse(module.read_text(encoding="utf-8"))
        self.bindings = {name: self._bindings(tree) for name, tree in self.trees.items()}
        self.imports = {name: self._imported_modules(name) for name in self.trees}

    def _bindings(self, tree: ast.Module) -> dict[str, str]:
        """Dotted names that the import statements of a module bind, inside functions too."""
        bindings = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bindings[alias.asname or alias.name.partition(".")[0]] = alias.name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    bindings[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return bindings

    def _imported_modules(self, name: str) -> set[str]:
        imported = set()
        for dotted in self.bindings[name].values():
            owner = dotted if dotted in self.trees else dotted.rpartition(".")[0]
            if owner in self.trees and owner != name:
                imported.add(owner)
        return imported


class CallGraph:
    """Which functions of a package call which, as far as names tell."""

    def __init__(self, graph: ModuleGraph) -> None:
        self._graph = graph
        self._functions: set[str] = set()
        self._methods: dict[str, list[str]] = collections.defaultdict(list)
        self._bodies: list[tuple[str, str, str, ast.AST]] = []
        for module, tree in graph.trees.items():
            self._collect(module, module, "", tree)
        self.calls = {
            name: set(self._callees(module, owner, body)) for module, owner, name, body in self._bodies
        }

    def _collect(self, module: str, prefix: str, owner: str, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FUNCTIONS):
                name = f"{prefix}.{child.name}"
                self._functions.add(name)
                self._bodies.append((module, owner, name, child))
                if owner:
                    self._methods[child.name].append(name)
            elif isinstance(child, ast.ClassDef):
                qualified = f"{prefix}.{child.name}"
                self._collect(module, qualified, qualified, child)
            else:
                self._collect(module, prefix, owner, child)

    def _callees(self, module: str, owner: str, body: ast.AST) -> Iterator[str]:
        for node in ast.walk(body):
            if isinstance(node, ast.Call):
                name = self._resolved(module, owner, node.func)
                if name is not None:
                    yield name

    def _resolved(self, module: str, owner: str, called: ast.expr) -> str | None:
        """The qualified name of the function, or of the constructor, that an expression calls."""
        parts = []
        while isinstance(called, ast.Attribute):
            parts.append(called.attr)
            called = called.value
        only_method = self._only_method(parts[0]) if parts else None
        if not isinstance(called, ast.Name):
            return only_method
        if called.id in ("self", "cls") and owner:
            base = owner
        else:
            base = self._graph.bindings[module].get(called.id, f"{module}.{called.id}")
        dotted = self._followed(".".join([base, *reversed(parts)]))
        for candidate in (dotted, f"{dotted}.__init__"):
            if candidate in self._functions:
                return candidate
        return only_method

    def _only_method(self, name: str) -> str | None:
        """The method of this name, where only one class of the package has one."""
        methods = self._methods.get(name, ())
        return methods[0] if len(methods) == 1 else None

    def _followed(self, dotted: str) -> str:
        """A name that a package's `__init__` only passes on, as it is called where it is defined."""
        for _ in range(5):
            module, _, name = dotted.rpartition(".")
            passed_on = self._graph.bindings.get(module, {}).get(name)
            if passed_on is None:
                return dotted
            dotted = passed_on
        return dotted


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of two or more nodes that can all reach each other (Tarjan's strongly connected components)."""
    return [group for group in components(graph) if len(group) > 1]


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components, callees before callers (Tarjan, without recursion)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    waiting: set[str] = set()
    groups: list[list[str]] = []
    for root in graph:
        work = [] if root in order else [(root, iter(graph[root]))]
        if work:
            order[root] = low[root] = len(order)
            stack.append(root)
            waiting.add(root)
        while work:
            node, successors = work[-1]
            successor = next(successors, None)
            if successor is None:
                work.pop()
                if work:
                    caller = work[-1][0]
                    low[caller] = min(low[caller], low[node])
                if low[node] == order[node]:
                    first = stack.index(node)
                    groups.append(stack[first:])
                    waiting.difference_update(stack[first:])
                    del stack[first:]
            elif successor not in order:
                order[successor] = low[successor] = len(order)
                stack.append(successor)
                waiting.add(successor)
                work.append((successor, iter(graph.get(successor, ()))))
            elif successor in waiting:
                low[node] = min(low[node], order[successor])
    return groups


def longest_chain(graph: dict[str, set[str]]) -> int:
    """Functions on the longest path of calls; a circle of functions counts as one."""
    length: dict[str, int] = {}
    for group in components(graph):
        callees = {callee for node in group for callee in graph.get(node, ())} - set(group)
        longest = 1 + max((length[callee] for callee in callees), default=0)
        length.update(dict.fromkeys(group, longest))
    return max(length.values(), default=0)


def as_columns(columns: dict[str, dict[str, str]]) -> str:
    """A Markdown table with a package a column."""
    rows = next(iter(columns.values()))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {row} | " + " | ".join(column[row] for column in columns.values()) + " |" for row in rows]
    return "\n".join(lines)


def as_rows(columns: dict[str, dict[str, str]]) -> str:
    """A Markdown table with a folder a row."""
    heads = next(iter(columns.values()))
    lines = ["| folder | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    lines += [f"| {folder} | " + " | ".join(row.values()) + " |" for folder, row in columns.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
