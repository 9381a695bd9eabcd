"""Objects of the linted code that are no modules: what their methods leave in them, and their operators."""


def test_a_method_fills_a_list(check):
    check("""
class History:
    def __init__(self):
        self.items = []

    def push(self, x):
        self.items.append(x)

    def latest(self):
        return self.items[-1]

class Model(nn.Module):
    def forward(self, x):
        history = History()
        for _ in range(3):
            history.push(x)
        if history.latest().sum() > 0:  #! TPU205
            x = x + 1
        return x
""")


def test_a_method_sets_an_attribute_that_was_none(check):
    check("""
class Search:
    def __init__(self):
        self.best = None
        self.count = 0

    def update(self, x):
        self.count += 1
        if self.best is None or x.max() > self.best:  #! TPU205
            self.best = x.max()
        return self.count

class Model(nn.Module):
    def forward(self, x):
        search = Search()
        search.update(x)
        if search.update(x) > 1:
            x = x + 1
        return x
""")


def test_a_method_of_its_own_changes_the_object(check):
    check("""
class Solver:
    def __init__(self, y):
        self.y = y
        self.error = 0.0

    def advance(self):
        self.y = self.y / 2
        self.error = self.y.norm()

    def solve(self):
        while True:
            self.advance()
            if self.error < 0.1:  #! TPU205
                return self.y

class Model(nn.Module):
    def forward(self, x):
        return Solver(x).solve()
""")


def test_an_object_is_called(check):
    check("""
class Controller:
    def __init__(self):
        self.error = 1.0

    def __call__(self, error):
        self.error = error
        return self

class Model(nn.Module):
    def forward(self, x):
        control = Controller()
        control(x.norm())
        if control.error > 1:  #! TPU205
            x = x / 2
        return x
""")


def test_numbers_stay_numbers(check):
    check("""
class Counter:
    def __init__(self):
        self.count, self.shape = 0, None

    def see(self, x):
        self.count += x.shape[0]
        self.shape = x.shape

class Model(nn.Module):
    def forward(self, x):
        counter = Counter()
        counter.see(x)
        if counter.count > 2 and counter.shape[0] > 1:
            x = x + 1
        return x
""")


def test_another_object_in_its_place_forgets_the_first(check):
    check("""
class Box:
    def __init__(self, value):
        self.value = value

    def set(self, value):
        self.value = value

class Model(nn.Module):
    def forward(self, x):
        box = Box(1)
        box.set(x.sum())
        box = Box(1)
        if box.value > 0:
            x = x + 1
        return x
""")


def test_operators(check):
    check("""
class Quaternion:
    def __init__(self, q):
        self.q = q

    def __mul__(self, other):
        return Quaternion(self.q * other.q)

    def __rmatmul__(self, matrix):
        return matrix @ self.q

    def __neg__(self):
        if self.q.sum() == 0:  #! TPU205
            return self
        return Quaternion(-self.q)

    def __lt__(self, other):
        return self.q.norm() < other.q.norm()

    def __contains__(self, x):
        return bool((self.q == x).any())  #! TPU204

    def __len__(self):
        return int(self.q.max())  #! TPU204

    def __iadd__(self, other):
        self.q = self.q + other
        return self

class Model(nn.Module):
    def forward(self, x):
        a, b = Quaternion(x), Quaternion(x + 1)
        c = -(a * b)
        if c < a:  #! TPU205
            c = a
        if 1.0 in c or len(c) > 2:
            c = b
        c += x
        if (x @ c).sum() > 0 and c.q.max() > 0:  #! TPU205
            return c.q
        return x
""")


def test_objects_that_a_method_puts_into_a_list(check):
    """What is said of the list by its assignments alone does not tell what the objects hold."""
    check("""
class Track:
    def __init__(self, score, age):
        self.score, self.age = score, age

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tracks = []

    def forward(self, x):
        for part in [{"score": x.sum()}, {"score": x.mean()}]:
            self.tracks.append(Track(part["score"], len(self.tracks)))
        if self.tracks[0].score > 1: x = x * 2  #! TPU205
        if self.tracks[0].age > 1: x = x * 2
        return x, [track for track in self.tracks if track.score > 0]  #! TPU205
""")


def test_attributes_that_a_dict_of_the_object_holds(check):
    check("""
class Records:
    def __init__(self, **fields):
        self._fields = {}
        for name, value in fields.items():
            self.put(name, value)

    def put(self, name, value):
        self._fields[name] = value

    def __setattr__(self, name, value):
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self.put(name, value)

    def __getattr__(self, name):
        if name == "_fields" or name not in self._fields:
            raise AttributeError(name)
        return self._fields[name]

    def best(self):
        return self._fields["score"]

    def many(self):
        return self._fields["count"] > 3

class Model(nn.Module):
    def forward(self, x):
        records = Records(score=x.max(), count=x.shape[0])
        if records.count > 3 or records.many():
            x = x + 1
        if records.score > 0:  #! TPU205
            x = x + 1
        records = Records(score=0.5)
        if records.score > 0 or records.best() > 0:
            x = x + 1
        records.score = x.max()
        if records.best() > 0:  #! TPU205
            x = x + 1
        return x
""")


def test_a_method_under_another_name(check):
    check("""
class Chooser:
    def choose(self, scores, limit):
        if limit > 1:
            return scores[scores > limit]  #! TPU101
        return scores

    __call__ = choose

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.chooser = Chooser()

    def forward(self, x):
        return self.chooser(x, x.shape[0])
""")


def test_what_an_empty_attribute_is_annotated_as(check):
    check("""
from dataclasses import dataclass

@dataclass
class Track:
    number: int
    state: torch.Tensor

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tracks: dict[int, Track] = {}
        self.lost: list[Track] = []
        self.sizes: dict[str, int] = {}

    def forward(self, x):
        if self.tracks[0].number > 1 or self.sizes["x"] > 2:
            x = x + 1
        if self.tracks[0].state > 1:  #! TPU205
            x = x + 1
        return x, [track for track in self.lost if track.state > 2]  #! TPU205
""")


def test_methods_of_what_an_object_wraps(check):
    check("""
class Inner:
    def __init__(self):
        self.state = None

    def reset(self, x):
        self.state = x
        return x

    def step(self, x):
        return x, {"size": x.shape[0]}

class Wrapper:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self, x):
        y, info = self.inner.step(x)
        if y.shape[0] > 2:
            info["episode"] = {"best": y.max()}
        return y, info

class Model(nn.Module):
    def forward(self, x):
        inner = Wrapper(Inner())
        inner.reset(x)
        y, info = inner.step(x)
        if info["size"] > 1:
            x = x + 1
        if "episode" in info and info["episode"]["best"] > 1:  #! TPU205
            x = x + 1
        return x
""")
