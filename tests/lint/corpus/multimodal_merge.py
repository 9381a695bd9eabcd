"""Image tokens spliced into a prompt, per sample, as the first open chat models did it."""
from abc import ABC, abstractmethod
from typing import List, Optional, Tuple, Union

import torch
import torch.nn as nn

IGNORE_INDEX = -100
IMAGE_TOKEN_INDEX = -200


def build_projector(config, **kwargs):
    kind = getattr(config, "mm_projector_type", "linear")
    if kind == "linear":
        return nn.Linear(config.mm_hidden, config.hidden)
    if kind.startswith("mlp"):
        depth = int(kind[3:4])
        modules = [nn.Linear(config.mm_hidden, config.hidden)]
        for _ in range(1, depth):
            modules += [nn.GELU(), nn.Linear(config.hidden, config.hidden)]
        return nn.Sequential(*modules)
    raise ValueError(f"Unknown projector type: {kind}")


class MetaModel:
    def __init__(self, config):
        super(MetaModel, self).__init__(config)
        self.vision_tower = nn.Conv2d(3, config.mm_hidden, 4, 4)
        self.mm_projector = build_projector(config)

    def get_vision_tower(self):
        vision_tower = getattr(self, "vision_tower", None)
        if type(vision_tower) is list:
            vision_tower = vision_tower[0]
        return vision_tower


class MetaForCausalLM(ABC):
    @abstractmethod
    def get_model(self):
        pass

    def encode_images(self, images):
        feats = self.get_model().get_vision_tower()(images).flatten(2).transpose(1, 2)
        return self.get_model().mm_projector(feats)

    def prepare_inputs(self, input_ids, attention_mask, images):
        if images is None or input_ids.shape[1] == 1:
            return self.get_model().embed_tokens(input_ids), attention_mask
        if type(images) is list or images.ndim == 5:
            concat_images = torch.cat([image for image in images], dim=0)
            image_features = self.encode_images(concat_images)
            split_sizes = [image.shape[0] for image in images]
            image_features = torch.split(image_features, split_sizes, dim=0)
            image_features = [x.flatten(0, 1) for x in image_features]
        else:
            image_features = self.encode_images(images)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
        else:
            attention_mask = attention_mask.bool()
        input_ids = [ids[mask] for ids, mask in zip(input_ids, attention_mask)]
        new_input_embeds = []
        cur_image_idx = 0
        for batch_idx, cur_input_ids in enumerate(input_ids):
            num_images = (cur_input_ids == IMAGE_TOKEN_INDEX).sum()
            if num_images == 0:
                cur_image_features = image_features[cur_image_idx]
                cur_input_embeds = self.get_model().embed_tokens(cur_input_ids)
                new_input_embeds.append(torch.cat([cur_input_embeds, cur_image_features[0:0]], dim=0))
                cur_image_idx += 1
                continue
            image_token_indices = [-1] + torch.where(cur_input_ids == IMAGE_TOKEN_INDEX)[0].tolist() + [cur_input_ids.shape[0]]
            cur_input_ids_noim = []
            for i in range(len(image_token_indices) - 1):
                cur_input_ids_noim.append(cur_input_ids[image_token_indices[i] + 1: image_token_indices[i + 1]])
            split_sizes = [x.shape[0] for x in cur_input_ids_noim]
            cur_embeds = self.get_model().embed_tokens(torch.cat(cur_input_ids_noim))
            no_im = torch.split(cur_embeds, split_sizes, dim=0)
            cur_new = []
            for i in range(num_images + 1):
                cur_new.append(no_im[i])
                if i < num_images:
                    cur_new.append(image_features[cur_image_idx])
                    cur_image_idx += 1
            new_input_embeds.append(torch.cat(cur_new))
        max_len = max(x.shape[0] for x in new_input_embeds)
        batch_size = len(new_input_embeds)
        padded = []
        mask = torch.zeros((batch_size, max_len), dtype=attention_mask.dtype, device=attention_mask.device)
        for i, cur in enumerate(new_input_embeds):
            cur_len = cur.shape[0]
            padded.append(torch.cat((cur, torch.zeros((max_len - cur_len, cur.shape[1]), dtype=cur.dtype, device=cur.device)), dim=0))
            if cur_len > 0:
                mask[i, :cur_len] = True
        return torch.stack(padded, dim=0), mask


class BaseLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layer = nn.TransformerEncoderLayer(config.hidden, 2, 16, batch_first=True)

    def forward(self, inputs_embeds, mask):
        return self.layer(inputs_embeds, src_key_padding_mask=~mask)


class ChatModel(MetaModel, BaseLM):
    pass


class ChatForCausalLM(nn.Module, MetaForCausalLM):
    def __init__(self, config):
        super().__init__()
        self.model, self.lm_head = ChatModel(config), nn.Linear(config.hidden, config.vocab)

    def get_model(self):
        return self.model

    def forward(self, input_ids: torch.LongTensor = None, attention_mask: Optional[torch.Tensor] = None,
                images: Optional[Union[torch.FloatTensor, List[torch.FloatTensor]]] = None, return_dict: Optional[bool] = None) -> Tuple:
        return_dict = return_dict if return_dict is not None else True
        embeds, mask = self.prepare_inputs(input_ids, attention_mask, images)
        logits = self.lm_head(self.model(embeds, mask)).float()
        return {"logits": logits} if return_dict else (logits,)


class Cfg:
    hidden, mm_hidden, vocab, mm_projector_type = 8, 6, 20, "mlp2x_gelu"


def tiny():
    ids = torch.tensor([[1, 5, IMAGE_TOKEN_INDEX, 7], [3, 4, 2, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    call = {"input_ids": ids, "attention_mask": mask}
    images = [torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8)]
    return ChatForCausalLM(Cfg()).eval(), [{**call, "images": images}, {**call, "images": torch.rand(2, 3, 8, 8), "return_dict": False}]
