"""Zoo models in plain torch.nn: perceptron, convolutional, recurrent, recommender, graph and adversarial networks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.zoo import ZooModel, mean_square, register


def classification(classes: int, batch: int) -> tuple[Tensor, nn.CrossEntropyLoss]:
    return torch.randint(classes, (batch,)), nn.CrossEntropyLoss()


@register
def mlp(name: str) -> ZooModel:
    target, criterion = classification(10, 8)
    module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
    return ZooModel(name, module, (torch.randn(8, 32),), loss=lambda out: criterion(out, target))


class BasicBlock(nn.Module):
    """The residual block of He et al. 2015 (figure 5, left), with a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network: 7x7 stem, max pool, one stage of BasicBlocks per width, global average pool, classifier."""

    def __init__(self, widths: tuple[int, ...] = (8, 16), blocks: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        stages: list[nn.Module] = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stages.append(BasicBlock(inputs, width, 2 if stage and not block else 1))
                inputs = width
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


@register
def resnet(name: str) -> ZooModel:
    target, criterion = classification(10, 4)
    return ZooModel(name, ResNet(), (torch.randn(4, 3, 32, 32),), loss=lambda out: criterion(out, target))


class FrozenResNet(ResNet):
    """Fine-tuning: BatchNorm keeps to its running statistics, and leaves them alone, in training too."""

    def train(self, mode: bool = True) -> FrozenResNet:
        super().train(mode)
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.training = False
        return self


@register
def resnet_frozen(name: str) -> ZooModel:
    target, criterion = classification(10, 4)
    return ZooModel(name, FrozenResNet(), (torch.randn(4, 3, 32, 32),), loss=lambda out: criterion(out, target))


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Convolutions whose biases meet a BatchNorm: in training their true gradient is zero."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) of depth two: one up-step a transposed convolution, the other bilinear."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = double_conv(3, width), double_conv(width, 2 * width), double_conv(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.conv2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.conv1 = double_conv(3 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(x)
        coarse = self.down2(self.pool(fine))
        y = self.bottom(self.pool(coarse))
        y = self.conv2(torch.cat([coarse, self.up2(y)], dim=1))
        return self.head(self.conv1(torch.cat([fine, self.up1(y)], dim=1)))


@register
def unet(name: str) -> ZooModel:
    target = torch.randint(2, (2, 16, 16))
    return ZooModel(name, UNet(), (torch.randn(2, 3, 16, 16),), loss=lambda out: F.cross_entropy(out, target))


@register
def transformer_encoder(name: str) -> ZooModel:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for parameter in module.layers[1].parameters():
        nn.init.normal_(parameter, std=0.2)
    padding = torch.arange(8) >= torch.tensor([[8], [5]])
    return ZooModel(name, module, (torch.randn(2, 8, 32),), {"src_key_padding_mask": padding}, mean_square, random=True)


class Tagger(nn.Module):
    """Embedding, two-layer bidirectional LSTM, a score per token and one per final cell state.

    The cell goes through a Linear because its own type under bf16 autocast depends on the CPU: bf16 from oneDNN's LSTM, which is
    what Dynamo captures, f32 from PyTorch's, which is what eager_limits leaves eager with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 12)
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head, self.summary = nn.Linear(32, 5), nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        states, (_, cell) = self.lstm(self.embedding(tokens))
        return self.head(states), self.summary(cell)


@register
def lstm(name: str) -> ZooModel:
    return ZooModel(
        name,
        Tagger(),
        (torch.randint(50, (3, 4)),),
        loss=mean_square,
        dynamo={"allow_rnn": True},
        notes="Dynamo leaves RNN modules out of the graph unless torch._dynamo.config.allow_rnn is set.",
    )


class DLRM(nn.Module):
    """Deep learning recommendation model (Naumov et al. 2019): dense MLP, EmbeddingBags, pairwise dots, top MLP."""

    def __init__(self, tables: int = 3, rows: int = 40, dim: int = 8) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, dim), nn.ReLU())
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="mean" if table == 1 else "sum") for table in range(tables))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 16), nn.ReLU(), nn.Linear(16, 1))
        rows_, columns = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("lower", rows_ * (tables + 1) + columns, persistent=False)

    def forward(self, dense: Tensor, indices: list[Tensor], offsets: list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        sparse = [bag(index, offset) for bag, index, offset in zip(self.bags, indices, offsets, strict=True)]
        features = torch.stack([x, *sparse], dim=1)
        dots = torch.bmm(features, features.transpose(1, 2)).flatten(1)[:, self.lower]
        return self.top(torch.cat([x, dots], dim=1)).squeeze(1)


@register
def dlrm(name: str) -> ZooModel:
    indices = [torch.randint(40, (9,)) for _ in range(3)]
    offsets = [torch.tensor([0, 3, 4, 4]), torch.tensor([0, 1, 2, 8]), torch.tensor([0, 0, 5, 9])]  # some bags are empty
    click = torch.tensor([0.0, 1.0, 1.0, 0.0])

    def loss(out: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out, click.to(out.dtype))

    return ZooModel(name, DLRM(), (torch.randn(4, 4), indices, offsets), loss=loss)


class GraphNet(nn.Module):
    """A mean-aggregating layer (index_add_) and an attention layer (softmax over edges by scatter_reduce and scatter_add)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.own, self.neighbour = nn.Linear(6, width), nn.Linear(6, width, bias=False)
        self.value, self.score = nn.Linear(width, width), nn.Linear(2 * width, 1)
        self.head = nn.Linear(width, 4)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, sink = edges
        count = nodes.shape[0]
        total = torch.zeros_like(nodes).index_add_(0, sink, nodes[source])
        degree = torch.zeros(count, dtype=nodes.dtype).index_add(0, sink, torch.ones(sink.shape, dtype=nodes.dtype))
        x = torch.relu(self.own(nodes) + self.neighbour(total / degree.clamp(min=1).unsqueeze(1)))
        value = self.value(x)
        score = F.leaky_relu(self.score(torch.cat([x[source], x[sink]], dim=1)).squeeze(1), 0.2)
        top = torch.full((count,), -1e9, dtype=score.dtype).scatter_reduce(0, sink, score.detach(), "amax")
        weight = torch.exp(score - top[sink])
        norm = torch.zeros(count, dtype=weight.dtype).scatter_add(0, sink, weight)
        weight = weight / norm[sink]
        message = weight.unsqueeze(1).to(value.dtype) * value[source]
        x = x + torch.zeros_like(value).index_add_(0, sink, message)
        return self.head(x)


@register
def graph_network(name: str) -> ZooModel:
    edges = torch.randint(10, (2, 30))
    edges[1] = edges[1] % 8  # nodes 8 and 9 have no incoming edge
    return ZooModel(name, GraphNet(), (torch.randn(10, 6), edges), loss=mean_square)


def dcgan_pair(width: int = 8, noise: int = 12) -> tuple[nn.Sequential, nn.Sequential]:
    """Generator (batch, noise, 1, 1) -> (batch, 3, 16, 16) and discriminator back to (batch, 1) (Radford et al. 2015)."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(noise, 2 * width, 4, 1, 0, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(True),
        nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(2 * width, 1, 4, 1, 0, bias=False),
        nn.Flatten(),
    )
    return generator, discriminator


@register
def dcgan_generator(name: str) -> ZooModel:
    return ZooModel(name, dcgan_pair()[0], (torch.randn(4, 12, 1, 1),), loss=mean_square)


@register
def dcgan_discriminator(name: str) -> ZooModel:
    real = torch.tensor([[1.0], [0.0], [1.0], [1.0]])

    def loss(out: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out, real.to(out.dtype))

    return ZooModel(name, dcgan_pair()[1], (torch.randn(4, 3, 16, 16),), loss=loss)
