"""Models that fail for other reasons than their values: where the comment with the class's name stands.

x is float32[2, 4].
"""

import numpy as np
import torch
from torch import nn


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(4, 4)


class Operands(nn.Module):
    def forward(self, x):
        y = x * 2
        return y + y[:, :3]  # Operands


class OperandsOfViews(nn.Module):
    def forward(self, x):
        return x[:, :3] * x[:, :2]  # OperandsOfViews


class OperandsCalled(nn.Module):
    def forward(self, x):
        return x.exp() > torch.cat([x[:, 1:3].clone(), x[:, -1:]], dim=1)  # OperandsCalled


class OperandsInPlace(nn.Module):
    def forward(self, x):
        y = x.clone()
        y -= x[:, :3]  # OperandsInPlace
        return y


class Product(nn.Module):
    def forward(self, x):
        return x @ x[:, :3]  # Product


class Width(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(6, 4)

    def forward(self, x):
        return self.second(self.first(x))  # Width


class Labels(nn.Module):
    def forward(self, x):
        return torch.einsum("ab,bc->ac", x, x)  # Labels


class Channels(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(3, 8, 2)

    def forward(self, x):
        return self.convolution(x[None])  # Channels


class Expanded(nn.Module):
    def forward(self, x):
        return x[:, :3].expand(2, 4)  # Expanded


class Written(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[:, :3] = x  # Written
        return y


class Outside(nn.Module):
    def forward(self, x):
        return x[7]  # Outside


class Axis(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)  # Axis


class Ids(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 4)

    def forward(self, x):
        return self.table(x)  # Ids


class Drawn(nn.Module):
    def forward(self, x):
        return torch.multinomial(x, 5)  # Drawn


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(2, 8, 2)

    def forward(self, x):
        return self.convolution(x[None].bfloat16())  # Mixed


class Method(nn.Module):
    def forward(self, x):
        return x[0].frobnicate()  # Method


class MethodOfTensor(nn.Module):
    def forward(self, x):
        return (x + 1).frobnicate()  # MethodOfTensor


class Function(nn.Module):
    def forward(self, x):
        return torch.frobnicate(x)  # Function


class Library(nn.Module):
    def forward(self, x):
        return torch.ops.mylib.frobnicate(x)  # Library


class Arguments(Linear):
    def forward(self, x):
        return self.w(x, 3, 4)  # Arguments


class Keyword(Linear):
    def forward(self, x):
        return self.w(x, scale=3)  # Keyword


class Nothing(nn.Module):
    def forward(self, x):
        return x + None  # Nothing


class Raised(nn.Module):
    def forward(self, x):
        raise ValueError("a Tensor of another kind is wanted")  # Raised


class ViewListed(nn.Module):
    def forward(self, x):
        return x * x[:, 0].tolist()[0]  # ViewListed


class ViewArray(nn.Module):
    def forward(self, x):
        return x * float(x[0].numpy().sum())  # ViewArray


class ViewNumPy(nn.Module):
    def forward(self, x):
        return x * float(np.asarray(x[0]).sum())  # ViewNumPy


class ViewFormatted(nn.Module):
    def forward(self, x):
        self.title = f"{x[0, 0]:.2f}"  # ViewFormatted
        return x


class HostRead(nn.Module):
    def forward(self, x):
        counts = torch.zeros(8)
        counts[x[0].long()] += 1  # HostRead
        return counts


class HostRow(nn.Module):
    def forward(self, x):
        table = torch.zeros(8, 4)
        return table[x[0, 0].long()]  # HostRow


class HostWritten(nn.Module):
    def forward(self, x):
        table = torch.zeros(8, 4)
        table[x[0].long()] = 1  # HostWritten
        return table


class HostFilled(nn.Module):
    def forward(self, x):
        table = torch.zeros(8, 4)
        table[0] = x[0]  # HostFilled
        return table


class HostAdded(nn.Module):
    def forward(self, x):
        table = torch.zeros(2, 4)
        table += x  # HostAdded
        return table


class Gradient(Linear):
    def forward(self, x):
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            return torch.autograd.grad(self.w(x).sum(), x)[0]  # Gradient


class Backward(Linear):
    def forward(self, x):
        with torch.enable_grad():
            self.w(x.detach().requires_grad_(True)).sum().backward()  # Backward
        return x


class Mapped(Linear):
    def forward(self, x):
        return torch.func.vmap(self.w)(x)  # Mapped


class Eigenvalues(nn.Module):
    def forward(self, x):
        return torch.relu(torch.linalg.eigvals(x @ x.T).real)  # Eigenvalues
