class Registry(dict):
    """Maps names to builders."""

    def register(self, name):
        def wrap(fn):
            self[name] = fn
            return fn

        return wrap


BACKBONES = Registry()
HEADS = Registry()


def build(cfg, registry):
    args = dict(cfg)
    kind = args.pop("type")
    return registry[kind](**args)
