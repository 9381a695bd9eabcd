"""A ported model is not pickled: the error says how to save it."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import tpuport
from tpuport import PortError


@pytest.mark.parametrize("save", [pickle.dumps, lambda model: torch.save(model, io.BytesIO())])
def test_a_ported_model_is_refused(save: Any) -> None:
    reference = nn.Sequential(nn.Linear(2, 3)).eval()
    model = tpuport.port(copy.deepcopy(reference))
    for ported in (model, copy.deepcopy(model), nn.Sequential(model)):
        with pytest.raises(PortError, match=r"cannot be pickled(.|\n)*to_cpu\(model\) first"):
            save(ported)
    x = torch.ones(1, 2)
    torch.testing.assert_close(copy.deepcopy(model)(x).cpu(), reference(x))


def test_what_the_error_advises_works() -> None:
    reference = nn.Sequential(nn.Linear(2, 3)).eval()
    model = tpuport.port(copy.deepcopy(reference))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file), reference.state_dict())
    loaded = pickle.loads(pickle.dumps(tpuport.to_cpu(model)))
    assert vars(loaded).keys() == vars(reference).keys()
    torch.testing.assert_close(loaded.state_dict(), reference.state_dict())
